"""A checkpoint in memory is read as one on the disk is, and nothing of it is hashed twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain.storage.checkpoint import read_checkpoint, write_checkpoint
from graphtrain.storage.held import HeldCheckpoint
from graphtrain.storage.state_files import StagedState, state_digest
from graphtrain.storage.tensor_files import Layout, StagingBuffers
from tests.storage.facts import FACTS


def sections() -> dict[str, dict[str, Any]]:
    return {"resources": {"model": {"w": torch.arange(4.0), "b": torch.ones(2, 2)}}, "slots": {"n": torch.zeros(3)}}


@pytest.fixture
def held() -> HeldCheckpoint:
    return HeldCheckpoint(StagedState(sections(), {}, StagingBuffers()), FACTS, rows=2)


def test_it_is_what_the_disk_would_hold(held: HeldCheckpoint, tmp_path: Path) -> None:
    path = tmp_path / "000001-step-1"
    in_memory = held.read(path)
    written = write_checkpoint(path, held.state, held.facts)
    on_disk = read_checkpoint(path)
    assert {**on_disk.manifest, **in_memory.manifest} == on_disk.manifest
    assert state_digest(in_memory.sections) == state_digest(on_disk.sections) == written["digest"]
    assert replace(held, path=path, manifest=written).read(Path("another")).path == path


@pytest.mark.parametrize("is_written", [False, True])
def test_the_state_is_compared_with_it_and_not_hashed(
    is_written: bool, held: HeldCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "000001-step-1"
    if is_written:
        held = replace(held, path=path, manifest=write_checkpoint(path, held.state, held.facts))
    checkpoint = held.read(tmp_path / "memory")
    monkeypatch.setattr(Layout, "checksum", lambda layout: pytest.fail("it is hashed"))
    assert state_digest(sections(), checkpoint.checksum_of) == checkpoint.manifest["digest"]


def test_another_state_is_another(held: HeldCheckpoint) -> None:
    checkpoint = held.read(Path("memory"))
    for changed in (torch.arange(1.0, 5.0), torch.arange(5.0)):
        state = sections()
        state["resources"]["model"]["w"] = changed
        assert state_digest(state, checkpoint.checksum_of) != checkpoint.manifest["digest"]
