"""Promise 17: the parts of sharded tensors, without processes: their places, their norms, and who reads them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial
from torch.testing._internal.distributed.fake_pg import FakeStore

from graphtrain import CheckpointError, UsageError
from graphtrain.ranks import sharded
from graphtrain.storage.encoding import UnsaveableError
from graphtrain.storage.pieces import Piece, PieceFiles, file_of_pieces
from graphtrain.storage.state_files import split


@pytest.fixture(autouse=True)
def no_group_afterwards() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize(("rows", "ranks", "dimension"), [(33, 2, 0), (33, 4, 0), (2, 4, 0), (0, 3, 0), (7, 3, 1)])
def test_the_parts_of_ranks_are_the_chunks_of_torch(rows: int, ranks: int, dimension: int) -> None:
    whole = torch.arange(float(rows * 5)).view(rows, 5) if not dimension else torch.arange(rows * 5.0).view(5, rows)
    held = Piece(tuple(whole.shape), dimension, ranks)
    parts = [held.part(whole, rank) for rank in range(ranks)]
    empty = whole.narrow(dimension, 0, 0)
    for part, chunk in itertools.zip_longest(parts, torch.chunk(whole, ranks, dimension), fillvalue=empty):
        assert torch.equal(part, chunk)


@pytest.mark.parametrize("dimension", [0, 1, None])
@pytest.mark.parametrize("saved", [1, 2, 4])
def test_any_number_of_ranks_reads_its_parts_of_what_others_have_saved(
    saved: int, dimension: int | None, tmp_path: Path
) -> None:
    whole, files = torch.randn(7, 5), PieceFiles(tmp_path)
    piece = Piece((7, 5), dimension, saved, like=whole.new_empty(0), name="model/weight")
    for rank in range(saved):
        tensors = {"model/weight": piece.part(whole, rank).contiguous()}
        safetensors.torch.save_file(tensors, tmp_path / file_of_pieces(rank))
    assert torch.equal(files.part(piece), whole)
    for count in (1, 2, 3, 4, 9):
        held = Piece((7, 5), dimension, count)
        for rank in range(count):
            assert torch.equal(files.part(piece, rank, count), held.part(whole, rank))
    (tmp_path / file_of_pieces(0)).unlink()
    with pytest.raises(CheckpointError, match="the parts of `model/weight` cannot be read"):
        PieceFiles(tmp_path).part(piece)


# ---- a rank of two, which talks to nobody


@pytest.fixture
def mesh() -> Any:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    return sharded.mesh_of_group("cpu", 2)


def of_rank_1(whole: torch.Tensor, dimension: int | None, mesh: Any) -> Any:
    like = DTensor.from_local(torch.empty(0), mesh, run_check=False)
    parts = (*whole.chunk(2, dimension or 0), whole.narrow(dimension or 0, 0, 0))
    values = parts[1] if dimension is not None else whole
    return sharded.whole_of_part(values, like, whole.shape, dimension)


def test_a_part_knows_its_place_in_the_whole(mesh: Any) -> None:
    whole = torch.randn(5, 3).double()
    tensor = of_rank_1(whole, 0, mesh)
    assert sharded.is_sharded(tensor) and not sharded.is_sharded(whole)
    assert (tensor.shape, tensor.stride(), tensor.dtype) == (whole.shape, whole.stride(), whole.dtype)
    assert torch.equal(sharded.local_of(tensor), whole[3:])
    assert sharded.divided_dimension(tensor) == 0
    sharded.local_of(tensor).zero_()
    assert not tensor.to_local().any(), "it shares the memory of the part"
    sharded.refuse_meshes("model.weight", tensor, 2)
    with pytest.raises(UsageError, match=r"`model\.weight`: it is sharded over the ranks \[0, 1\] of 8"):
        sharded.refuse_meshes("model.weight", tensor, 8)
    partial = DTensor.from_local(torch.ones(2), mesh, [Partial()], run_check=False)
    with pytest.raises(UsageError, match="only Shard along one dimension is supported"):
        sharded.refuse_meshes("model.weight", partial, 2)


def test_what_no_file_of_pieces_can_hold_is_named(mesh: Any) -> None:
    for values, what in ((torch.zeros(4, 3).cdouble(), "of torch.complex128"), (torch.zeros(4, 5).t(), "with gaps")):
        with pytest.raises(UnsaveableError, match=rf"model\['weight'\] cannot be saved: it is sharded .*{what}"):
            split({"resources": {"model": {"weight": of_rank_1(values, 1, mesh)}}})


@pytest.mark.parametrize("order", [1.0, 2.0, math.inf])
def test_the_norm_of_a_whole_is_that_of_its_parts(order: float, mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wholes = [torch.randn(5, 3), torch.randn(1, 2), torch.randn(4), torch.randn(2, 6)]
    divided = [0, 0, None, 1]

    def all_gather(gathered: list[torch.Tensor], passed: torch.Tensor, group: Any) -> None:
        assert group is mesh.get_group()
        firsts = [each.chunk(2, number)[0] for each, number in zip(wholes, divided, strict=True) if number is not None]
        gathered[0].copy_(torch.stack([torch.linalg.vector_norm(first, order) for first in firsts]))
        gathered[1].copy_(passed)

    monkeypatch.setattr(sharded.dist, "all_gather", all_gather)
    tensors = [of_rank_1(whole, number, mesh) for whole, number in zip(wholes, divided, strict=True)]
    expected = torch.stack([torch.linalg.vector_norm(whole, order) for whole in wholes])
    for plain in (tensors[2], wholes[2]):
        assert torch.allclose(sharded.whole_norms([*tensors[:2], plain, tensors[3]], order), expected)
