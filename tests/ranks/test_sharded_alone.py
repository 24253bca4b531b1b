"""Sharded models in this process, whose group is its own; and the parts of one rank of four, which talks to nobody."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial
from torch.testing._internal.distributed.fake_pg import FakeStore

from graphtrain import PlannedRun
from graphtrain.command.weights import export_weights
from graphtrain.errors import CheckpointError, UsageError
from graphtrain.ranks import sharded as ranks_sharded
from graphtrain.ranks.sharded import (
    divided_dimension,
    is_sharded,
    local_of,
    mesh_of_group,
    mesh_shape,
    refuse_meshes,
    whole_norms,
    whole_of_part,
)
from graphtrain.storage.manifest import read_manifest
from graphtrain.storage.rank_files import read_state
from graphtrain.storage.resharded import pieces_of, read_resharded
from tests.ranks import sharded, sharded_files
from tests.ranks.test_sharded import ALONE, validated
from tests.ranks.test_sharded_files import shorten


@pytest.fixture(autouse=True)
def no_group_afterwards() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_it_trains_as_by_hand() -> None:
    ((graph, hand, apart),) = sharded.both([ALONE])
    assert graph == hand, apart
    mesh = PlannedRun(sharded.FIT, "cpu").mesh
    assert (mesh.shape, mesh.mesh_dim_names) == ((1,), ("shards",))


def test_a_cut_leads_to_the_same_bits(tmp_path: Path) -> None:
    assert not sharded.cut_everywhere(ALONE, tmp_path, range(7, 8), validated)


def test_its_weights_are_exported_and_read_again(tmp_path: Path) -> None:
    trained = sharded_files.finished(ALONE, tmp_path / "run")
    one = tmp_path / "one.safetensors"
    export_weights(tmp_path / "run", one, None, print)
    loaded = safetensors.torch.load_file(one)
    for name, values in trained.items():
        assert loaded[name].tolist() == values, name
    newest = max((tmp_path / "run" / "checkpoints").glob("*-step-*"))
    for case, path in itertools.product((ALONE, replace(ALONE, shards=False)), (newest, one)):
        got = sharded_files.warm_started(case, path)
        assert {name: got[name] for name in trained} == trained, (case.shards, path)


def test_any_number_of_ranks_reads_its_parts_of_what_one_has_saved(tmp_path: Path) -> None:
    sharded_files.stopped(ALONE, tmp_path, 1)
    path = max((tmp_path / "checkpoints").glob("*-step-*"))
    manifest = read_manifest(path)
    saved = list(pieces_of(read_state(path, manifest, [0])[0]))
    for count in (2, 3):
        states = [read_resharded(path, manifest, [0], rank, count, ())[0] for rank in range(count)]
        for pieces in zip(saved, *map(pieces_of, states), strict=True):
            assert torch.equal(torch.cat([piece.values for piece in pieces[1:]]), pieces[0].values)
    with pytest.raises(CheckpointError, match=r"over a mesh of \(1,\), and those of now over one of \(1, 1\)"):
        read_resharded(path, manifest, [0], 0, 1, (1, 1))
    (file,) = path.glob("rank.*.sharded.safetensors")
    for damage, message in ((shorten, "is damaged"), (Path.unlink, "cannot be read")):
        damage(file)
        with pytest.raises(CheckpointError, match=message):
            read_resharded(path, manifest, [0], 0, 2, ())


# ---- a rank of four, in two replicas of two shards


@pytest.fixture
def mesh() -> Any:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    return mesh_of_group("cpu", (2, 2))


def of_rank_1(whole: torch.Tensor, dimension: int | None, mesh: Any) -> Any:
    like = DTensor.from_local(torch.empty(0), mesh, run_check=False)
    parts = (*whole.chunk(2, dimension or 0), whole.narrow(dimension or 0, 0, 0))
    values = parts[1] if dimension is not None else whole
    return whole_of_part(values, like, whole.shape, whole.stride(), dimension)


def test_a_part_knows_its_place_in_the_whole(mesh: Any) -> None:
    whole = torch.randn(5, 3).double()
    tensor = of_rank_1(whole, 0, mesh)
    assert is_sharded(tensor) and not is_sharded(whole)
    assert (tensor.shape, tensor.stride(), tensor.dtype) == (whole.shape, whole.stride(), whole.dtype)
    assert torch.equal(local_of(tensor), whole[3:])
    assert (mesh_shape(tensor), divided_dimension(tensor)) == ((2, 2), 0)
    local_of(tensor).zero_()
    assert not tensor.to_local().any(), "it shares the memory of the part"
    refuse_meshes("model.weight", tensor, 4)
    with pytest.raises(UsageError, match=r"`model\.weight` is sharded over the ranks \[0, 1, 2, 3\] of 8"):
        refuse_meshes("model.weight", tensor, 8)
    partial = DTensor.from_local(torch.ones(2), mesh, [Partial(), Partial()], run_check=False)
    with pytest.raises(UsageError, match=r"it is divided among ranks as .+; only Shard along one dimension is known"):
        refuse_meshes("model.weight", partial, 4)


@pytest.mark.parametrize("order", [1.0, 2.0, math.inf])
def test_the_norm_of_a_whole_is_that_of_the_norms_of_its_parts(
    order: float, mesh: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wholes = [torch.randn(5, 3), torch.randn(1, 2), torch.randn(4), torch.randn(2, 6)]
    divided = [0, 0, None, 1]

    def all_gather(gathered: list[torch.Tensor], passed: torch.Tensor, group: Any) -> None:
        assert group is mesh.get_group("shards")
        firsts = [
            whole.chunk(2, number)[0] for whole, number in zip(wholes, divided, strict=True) if number is not None
        ]
        gathered[0].copy_(torch.stack([torch.linalg.vector_norm(first, order) for first in firsts]))
        gathered[1].copy_(passed)

    monkeypatch.setattr(ranks_sharded.dist, "all_gather", all_gather)
    tensors = [of_rank_1(whole, number, mesh) for whole, number in zip(wholes, divided, strict=True)]
    expected = torch.stack([torch.linalg.vector_norm(whole, order) for whole in wholes])
    for plain in (tensors[2], wholes[2]):
        assert torch.allclose(whole_norms([*tensors[:2], plain, tensors[3]], order), expected)
