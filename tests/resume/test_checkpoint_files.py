"""Promises 12 and 17: the files of a checkpoint of one or several ranks hold each byte once, and are written whole."""

from __future__ import annotations

import hashlib
import io
import os
import struct
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file

from graphtrain import CheckpointError
from graphtrain.storage import rank_files, tensor_files
from graphtrain.storage.checkpoint import new_folder, read_checkpoint, write_manifest
from graphtrain.storage.encoding import Tensors, UnsaveableError
from graphtrain.storage.files import checksum_of, replace_file, write_pieces
from graphtrain.storage.manifest import Manifest
from graphtrain.storage.rank_files import common_names, manifest_of, write_file, write_files
from graphtrain.storage.state_files import StagedState, local_of, state_digest
from graphtrain.storage.tensor_files import read_tensors, stage
from tests.world import assert_same

FACTS: dict[str, Any] = {
    "graph": "{}", "graph_hash": "", "position": "step", "ended": False, "step": 1, "metrics_bytes": 0, "metrics": {},
}  # fmt: skip
State = dict[str, dict[str, Any]]

# ---- several ranks


def state_of(rank: int) -> State:
    """Weights that all ranks share, buffers of each; and a resource whose name is that of the files of ranks."""
    return {
        "resources": {
            "model": {"bias": torch.zeros(3), "weight": torch.arange(4.0), "mean": torch.full((2,), float(rank))},
            "rank": {"w": torch.ones(5), "n": rank},
            "task": {"seen": rank, "name": "t"},
        },
        "gradients": {"model": {"weight": torch.full((4,), rank + 1.0)}},
        "progress": {"step": {"steps": 3}, "next": {"position": rank}},
        "reachable": {"task": {"set": {"x": rank}}},
        "slots": {"loss": torch.ones(()), "batch": (rank, torch.full((1,), float(rank)))},
    }


def save(path: Path, count: int = 3) -> Manifest:
    """Write a checkpoint as so many ranks do; the facts of each have its number."""
    states = [StagedState(state_of(rank), {}, {}) for rank in range(count)]
    common = common_names([state.digests for state in states])

    with new_folder(path, Event()) as folder:
        reports = [
            {
                "files": write_files(folder, rank, each, common),
                "digest": each.digest({}),
                "rank_facts": {"unknown": [f"of {rank}"]},
            }
            for rank, each in enumerate(states)
        ]
        manifest = manifest_of(Manifest(**FACTS), states[0], common, reports)
        write_manifest(folder, manifest)
    return manifest


def test_what_is_in_which_file(tmp_path: Path) -> None:
    """What is the same is written by rank 0."""
    folder = tmp_path / "000001-step-1"
    manifest = save(folder)
    own = [*(f"rank.{rank:05d}.safetensors" for rank in range(3)), "rank.00001.msgpack", "rank.00002.msgpack"]
    shared = ["state.msgpack", "model.safetensors", "rank.safetensors", "slots.safetensors"]
    written = {path.name for path in folder.iterdir()} - {"manifest.msgpack"}
    assert written == set(manifest.files) == {*own, *shared}
    assert {*load_file(folder / "model.safetensors")} == {"bias", "weight"}
    assert {*load_file(folder / "rank.00001.safetensors")} == {"model/mean", "gradients/model/weight", "slots/batch/1"}
    assert manifest.ranks == 3 and manifest.differing == "`model.mean` and what has changed since `setup`"
    assert manifest.rank_facts == [{"unknown": [f"of {rank}"]} for rank in range(3)]
    assert manifest.digest == hashlib.sha256(" ".join(manifest.digests).encode()).hexdigest()
    assert len(set(manifest.digests)) == 3
    for name, (size, checksum) in manifest.files.items():
        data = (folder / name).read_bytes()
        assert (size, checksum) == (len(data), checksum_of([data]))


@pytest.mark.parametrize("count", [2, 3])
def test_every_rank_reads_its_own_state(count: int, tmp_path: Path) -> None:
    path = tmp_path / "000001-step-1"
    manifest = save(path, count)
    for rank in range(count):
        read = read_checkpoint(path, rank=rank)
        assert_same(read.sections, state_of(rank))
        assert read.rank == rank and read.rank_states == {} and read.manifest.ranks == count
        assert read.digest == manifest.digests[rank]
        assert read.manifest.unknown == [f"of {rank}"]
    assert_same(read_checkpoint(path, rank=count, world_size=count).sections, state_of(0))


OF_RANKS = ("metrics", "progress", "slots")


@pytest.mark.parametrize(
    ("rank", "world_size", "first", "others"),
    [
        (0, None, 0, []), (2, 3, 2, []), (3, 3, 0, []), (0, 2, 0, [0, 1, 2]), (0, 4, 0, [0, 1, 2]), (1, 2, 0, [0, 1]),
        (2, 4, 0, [0, 2]), (3, 4, 0, [0, 2]),
    ],
)  # fmt: skip
def test_another_number_of_ranks_reads_what_it_needs(
    rank: int, world_size: int | None, first: int, others: list[int], tmp_path: Path
) -> None:
    """Rank 0 gets all that is summed; any other what rank 0 has, and what the rank of its number has."""
    save(tmp_path / "000001-step-1")
    read = read_checkpoint(tmp_path / "000001-step-1", rank=rank, world_size=world_size)
    assert read.rank == first
    assert_same(read.sections, state_of(first))
    assert list(read.rank_states) == others
    for other in others:
        sections = OF_RANKS if other != first else read.sections
        expected = {name: names for name, names in state_of(other).items() if name in sections}
        assert_same(read.rank_states[other], expected)


def test_a_tensor_that_a_file_lacks_and_a_file_that_is_not_listed_are_named(tmp_path: Path) -> None:
    path = tmp_path / "000001-step-1"
    manifest = save(path)
    for missing, message in (
        ("state.msgpack", "state.msgpack is damaged: KeyError: "),
        ("model.safetensors", "state.msgpack is damaged: ValueError: not a valid encoding: KeyError: "),
    ):
        files = {name: entry for name, entry in manifest.files.items() if name != missing}
        with pytest.raises(CheckpointError) as refused:
            rank_files.read_state(path, Manifest(**{**vars(manifest), "files": files}), [0])
        assert str(refused.value).startswith(f"{path}: {message}")


def test_a_file_is_written_in_pieces_and_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor).st_size))
    pieces = [bytes(range(256)) * 5000, b"", memoryview(b"end")]
    write_file(tmp_path / "file", pieces)
    data = (tmp_path / "file").read_bytes()
    assert data == b"".join(pieces)
    assert flushed == [len(data)]
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "file", pieces)


# ---- files of tensors

TYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.complex64,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def every_type() -> Tensors:
    """Odd sizes, so that nothing is aligned by chance."""
    random = torch.randint(0, 256, (3 * 8,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    named = {
        str(dtype): (random % 2).view(torch.bool)[:3]
        if dtype is torch.bool
        else random[: 3 * dtype.itemsize].view(dtype)
        for dtype in TYPES
    }
    # Neighbours of one type, one of them a single number.
    named |= {f"{name} again": tensor[1:].clone() for name, tensor in [*named.items()]}
    named |= {
        f"{name} alone": tensor[2].clone() for name, tensor in [*named.items()] if tensor.ndim and len(tensor) > 2
    }
    named["transposed"] = torch.arange(6.0).reshape(2, 3).T
    named["expanded"] = torch.ones(1, dtype=torch.int16).expand(3)
    named["empty"] = torch.empty(0, 3)
    named["one number"] = torch.tensor(2.5)
    named["größe"] = torch.ones(1)
    return Tensors("odd", named)


def check(loaded: Mapping[str, torch.Tensor], tensors: Tensors) -> None:
    assert loaded.keys() == tensors.named.keys()
    for name, tensor in tensors.named.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape), name
        assert bytes_of(loaded[name]) == bytes_of(tensor), name


def test_an_image_is_a_copy_and_its_memory_is_used_again() -> None:
    memory, weight = {}, torch.zeros(1000)
    first = stage([Tensors("model", {"weight": weight})], memory)["model"]
    before = bytes(first)
    weight.fill_(1)
    assert bytes(first) == before, "what the run does later is not in it"
    again = stage([Tensors("model", {"weight": weight})], memory)["model"]
    assert first.obj is not None and again.obj is not None
    assert first.obj.ctypes.data == again.obj.ctypes.data, "no further memory"
    assert bytes(first) == bytes(again) != before


BASE: dict[str, dict[str, Any]] = {
    "resources": {"model": {"a": torch.zeros(2), "b": torch.ones(2)}, "other": {"a": torch.zeros(2)}},
    "progress": {"step": {"steps": 1}},
}


@pytest.mark.parametrize(
    "model",
    [
        {"a": torch.ones(2), "b": torch.ones(2)},
        {"a": torch.zeros(2).neg(), "b": torch.ones(2)},
        {"a": torch.zeros(2, dtype=torch.int32), "b": torch.ones(2)},
        {"a": torch.zeros(1, 2), "b": torch.ones(2)},
        {"c": torch.zeros(2), "b": torch.ones(2)},
        {"a": torch.zeros(2)},
        {"b": torch.zeros(2), "a": torch.ones(2)},
    ],
    ids=["value", "sign of zero", "type", "shape", "name", "fewer", "swapped"],
)
def test_a_digest_sees_every_difference(model: dict[str, torch.Tensor]) -> None:
    changed = {**BASE, "resources": {**BASE["resources"], "model": model}}
    assert state_digest(changed) != state_digest(BASE)


def test_a_digest_sees_what_is_no_tensor_and_whose_a_tensor_is() -> None:
    progress = {"step": {"steps": 3, "mean": torch.ones(1)}}
    swapped = {"model": BASE["resources"]["other"], "other": BASE["resources"]["model"]}
    digests = [state_digest({**BASE, **other}) for other in ({}, {"progress": progress}, {"resources": swapped})]
    assert len({*digests}) == 3


def test_what_is_local_is_saved_and_is_not_in_the_digest(tmp_path: Path) -> None:
    tensor, other = torch.ones(2), torch.zeros(2)
    fired = {"steps": 1, "seconds": 2.0}
    progress = {"observer": {"seen": [torch.ones(1), other]}, "source": {"fired": fired, "time": 3}}
    rest: State = {"metrics": {"loss": {"sum": other}}, "slots": {"pool": [other, tensor]}}
    sections: State = {**BASE, **rest, "progress": progress}
    essential: State = {**sections, "progress": {"source": {"fired": {"steps": 1}}}, "metrics": {}}
    staged = StagedState(essential, local_of(sections, essential), {})
    assert staged.digest({}) == state_digest(essential) != state_digest(sections)
    path = tmp_path / "000001-step-1"
    with new_folder(path, Event()) as folder:
        files = write_files(folder, 0, staged)
        manifest = manifest_of(Manifest(**FACTS), staged, None, [{"files": files, "digest": staged.digest(files)}])
        write_manifest(folder, manifest)
    assert manifest.digest == staged.digest({}) and "local.safetensors" in manifest.files
    assert_same(read_checkpoint(path).sections, sections)


def test_what_was_laid_out_is_read_by_the_library_and_into_memory_of_its_own(tmp_path: Path) -> None:
    tensors = every_type()
    tensors.named |= {f"small/{number}": torch.full((number % 5,), number) for number in range(50)}
    tensors.named["large"] = torch.randn(3, 100_000)
    data = bytes(stage([tensors], {})["odd"])
    (tmp_path / "file").write_bytes(data)
    loaded, in_place = read_tensors(tmp_path / "file"), read_tensors(tmp_path / "file", in_place=True)
    for each in (safetensors.torch.load(data), loaded, in_place):
        check(each, tensors)
    digests = {state_digest({"resources": {"odd": named}}) for named in (loaded, in_place)}
    assert len(digests) == 1, "none is a part of another"
    for name, tensor in tensors.named.items():
        assert loaded[name].untyped_storage().nbytes() == tensor.nbytes, "nothing of its neighbours is held with it"
        assert loaded[name].data_ptr() % 64 == 0, "as the tensors that are made in a run; sums depend on it"
        in_place[name].fill_(0)
    assert (tmp_path / "file").read_bytes() == data


def test_a_header_may_have_as_many_bytes_as_a_reader_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = Tensors("model", {"weight": torch.zeros(3), "bias": torch.zeros(1)})
    size = len(stage([tensors], {})["model"]) - 4 * 4 - 8  # without its length and the values
    for most, fits in ((size, True), (size - 1, False)):
        monkeypatch.setattr(tensor_files, "_MOST_BYTES_OF_A_HEADER", most)
        with nullcontext() if fits else pytest.raises(UnsaveableError, match="more tensors than a file can hold"):
            stage([tensors], {})


@pytest.mark.parametrize("data", [b"", b"1234567", struct.pack("<Q", 1 << 63), struct.pack("<Q", 2) + b"[]"])
def test_a_file_without_a_header_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(ValueError, match="is not a tensor file"):
        read_tensors(tmp_path / "file")


# ---- writing


@pytest.mark.parametrize("flush", [False, True])
def test_a_file_is_replaced_as_a_whole(flush: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And through no link."""
    path, flushed = tmp_path / "file", []

    def fsync(descriptor: int) -> None:
        assert path.read_bytes() != b"new", "before it has its name"
        flushed.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    (tmp_path / "other").write_bytes(b"other")
    path.symlink_to("other")
    replace_file(path, b"new", flush=flush)
    assert path.read_bytes() == b"new" and not path.is_symlink() and (tmp_path / "other").read_bytes() == b"other"
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "other"]
    assert flushed == ([3] if flush else [])


def test_a_file_that_cannot_be_replaced_stays_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file" / "inside").mkdir(parents=True)
    with pytest.raises(OSError):
        replace_file(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "none" / "file", b"new")


def test_what_is_large_is_written_in_as_many_calls_as_the_system_wants() -> None:
    """It takes no more than 2 GB at a time, and says nothing of the rest."""
    taken: list[bytes] = []

    class Slow(io.FileIO):
        def write(self, data: Any) -> int:
            taken.append(bytes(data[:7]))
            return len(taken[-1])

    data = bytes(range(100))
    with Slow(os.devnull, "w") as file:
        write_pieces(file, [data, b"", memoryview(data)])
    assert b"".join(taken) == data + data
