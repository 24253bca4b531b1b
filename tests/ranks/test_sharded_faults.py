"""A piece of a sharded model that is damaged or missing, and a rank whose disk is full: named on all ranks."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from graphtrain.errors import CheckpointError
from graphtrain.ranks import current_ranks
from graphtrain.storage import rank_files
from tests.ranks import sharded
from tests.ranks.processes import run_processes
from tests.ranks.sharded import Case

CASE = Case(every=2)
PIECES = "rank.00001.safetensors"  # of rank 1


def full_disk(folder: Path) -> tuple[str, bool]:
    """What a save raises while rank 1 has no room; and whether the run then ends as one that was never saved."""
    expected = sharded.trainer_of(CASE)
    expected.run()
    trainer, write_file, message = sharded.trainer_of(CASE, run_dir=folder), rank_files.write_file, ""
    trainer.advance(10)

    def refuse(path: Path, pieces: Any) -> Any:
        if path.name == PIECES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_file(path, pieces)

    rank_files.write_file = refuse
    try:
        trainer.save()
    except CheckpointError as error:
        message = str(error)
    rank_files.write_file = write_file
    assert not [*(folder / "checkpoints").iterdir()]
    again = sharded.trainer_of(CASE, run_dir=folder)
    again.advance(10)
    again.save()
    again.run()
    return message, sharded.digest(sharded.state_of(again)) == sharded.digest(sharded.state_of(expected))


def saved(folder: Path) -> None:
    trainer = sharded.trainer_of(CASE, run_dir=folder)
    trainer.advance(12)
    trainer.save()


def refused(checkpoint: Path) -> str:
    """What a resume from this checkpoint raises."""
    try:
        sharded.trainer_of(CASE).advance(0, resume=checkpoint)
    except CheckpointError as error:
        return str(error)
    return f"nothing on rank {current_ranks().rank}"


@pytest.mark.full
def test_a_rank_whose_disk_is_full_is_named(tmp_path: Path) -> None:
    for message, ends_alike in run_processes(2, full_disk, tmp_path):
        assert "rank 1 cannot write its part of the checkpoint" in message, message
        assert os.strerror(errno.ENOSPC) in message
        assert ends_alike


@pytest.mark.full
def test_a_piece_that_is_damaged_or_missing_is_named(tmp_path: Path) -> None:
    run_processes(2, saved, tmp_path)
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    file = checkpoint / PIECES
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    for ranks in (2, 1, 3):
        for message in run_processes(ranks, refused, checkpoint):
            assert f"{PIECES} does not match its checksum" in message, (ranks, message)
    file.unlink()
    for ranks in (2, 1):
        for message in run_processes(ranks, refused, checkpoint):
            assert f"{PIECES} cannot be read ({os.strerror(errno.ENOENT)})" in message, (ranks, message)
