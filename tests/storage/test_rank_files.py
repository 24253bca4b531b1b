"""Files of several ranks, written here one after the other: each byte once, and every rank reads its own state."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from typing import Any

import msgpack
import pytest
import torch

from graphtrain.errors import CheckpointError
from graphtrain.storage import rank_files
from graphtrain.storage.checkpoint import read_checkpoint, write_checkpoint, write_folder
from graphtrain.storage.manifest import Manifest, read_manifest
from graphtrain.storage.rank_files import EarlierFiles, Slim, manifest_of, write_file, write_files
from graphtrain.storage.regular import checksum_of
from graphtrain.storage.sharing import MustBeEqual, Sharing
from graphtrain.storage.state_files import StagedState
from graphtrain.storage.tensor_files import StagingBuffers
from tests.storage.facts import FACTS

State = dict[str, dict[str, Any]]


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


def save(
    path: Path, count: int = 3, slim: Slim | None = None, state: Callable[[int], State] = state_of, **facts: Any
) -> Manifest:
    """Write a checkpoint as so many ranks do; the facts of each have its number."""
    states = [StagedState(state(rank), {}, StagingBuffers()) for rank in range(count)]
    summaries = [state.summary for state in states]
    sharing = Sharing.of(states[0], summaries)

    def write(folder: Path) -> Manifest:
        reports = [
            {"files": write_files(folder, rank, each, sharing, slim), "own": {"unknown": [f"of {rank}"]}}
            for rank, each in enumerate(states)
        ]
        return manifest_of(Manifest(**{**FACTS, **facts}), states[0], sharing, summaries, reports, slim)

    return write_folder(path, write, Event())


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def in_order(state: State) -> State:
    """As it is read: names in their order."""
    return {section: dict(sorted(names.items())) for section, names in state.items()}


def test_what_is_in_which_file(tmp_path: Path) -> None:
    """What is the same is written by rank 0."""
    folder = tmp_path / "000001-step-1"
    manifest = save(folder)
    assert manifest.tensors == {
        "model": {"weight": "model.safetensors", "bias": "model.safetensors"},
        "rank": {"w": "rank.safetensors"},
        "slots": {"loss": "slots.safetensors"},
    }
    own = [f"rank.{rank:05d}.{suffix}" for rank in range(3) for suffix in ("safetensors", "msgpack")]
    shared = ["progress.msgpack", *{name for file in manifest.tensors.values() for name in file.values()}]
    written = {path.name for path in folder.iterdir()} - {"manifest.msgpack"}
    assert written == set(manifest.files) == {*own, *shared}
    names = {
        name: {section: [*parts] for section, parts in msgpack.unpackb((folder / name).read_bytes()).items()}
        for name in ("progress.msgpack", "rank.00001.msgpack")
    }
    assert names == {
        "progress.msgpack": {
            "resources": ["model"], "gradients": ["model"], "progress": ["step"], "reachable": [], "slots": ["loss"],
        },
        "rank.00001.msgpack": {
            "resources": ["rank", "task"], "progress": ["next"], "reachable": ["task"], "slots": ["batch"],
        },
    }  # fmt: skip
    assert manifest.ranks == 3 and manifest.own_drift
    assert manifest.own == [{"unknown": [f"of {rank}"]} for rank in range(3)]
    assert manifest.digest == hashlib.sha256(" ".join(manifest.digests).encode()).hexdigest()
    assert len(set(manifest.digests)) == 3
    for name, (size, checksum) in manifest.files.items():
        data = (folder / name).read_bytes()
        assert (size, checksum) == (len(data), checksum_of([data]))


@pytest.mark.parametrize("slim", [None, Slim({"model": ["bias", "mean"], "rank": ["w"]})], ids=["whole", "slim"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_rank_reads_its_own_state(count: int, slim: Slim | None, tmp_path: Path) -> None:
    path = tmp_path / "000001-step-1"
    manifest = save(path, count, slim)
    for rank in range(count):
        read = read_checkpoint(path, rank=rank)
        assert same(read.sections, in_order(state_of(rank))), rank
        in_place = read_checkpoint(path, rank=rank, copied=["model"]).sections
        assert same(in_place, read.sections), rank
        addresses = [state["resources"]["model"]["weight"].data_ptr() % 64 for state in (read.sections, in_place)]
        assert addresses[0] == 0 != addresses[1], "the header of its file comes before it"
        assert read.rank == rank and read.others == {} and read.ranks == count
        assert read.digest == manifest.digests[rank]
        assert read.manifest.unknown == [f"of {rank}"]
    assert same(read_checkpoint(path, rank=count, world_size=count).sections, in_order(state_of(0)))
    assert any(name.startswith("model.frozen.") for name in manifest.files) is (slim is not None)


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
    assert read.rank == first and same(read.sections, in_order(state_of(first)))
    assert list(read.others) == others
    for other in others:
        sections = OF_RANKS if other != first else read.sections
        expected = {name: names for name, names in in_order(state_of(other)).items() if name in sections}
        assert same(read.others[other], expected), other


def test_a_tensor_that_a_file_lacks_and_a_file_that_is_not_listed_are_named(tmp_path: Path) -> None:
    path = tmp_path / "000001-step-1"
    manifest = save(path)
    places = {**manifest.tensors, "model": {"weight": "slots.safetensors"}}
    with pytest.raises(CheckpointError) as refused:
        rank_files.read_state(path, Manifest(**{**vars(manifest), "tensors": places}), [0])
    assert str(refused.value) == f"{path}: `slots.safetensors` has no tensor `weight` of `model`"
    for missing in ("progress.msgpack", "model.safetensors"):
        files = {name: entry for name, entry in manifest.files.items() if name != missing}
        with pytest.raises(CheckpointError) as refused:
            rank_files.read_state(path, Manifest(**{**vars(manifest), "files": files}), [0])
        assert str(refused.value) == f"{path}: the manifest lists no file `{missing}`"


# ---- what has to be equal

EQUAL = MustBeEqual(
    tensors={"model": None, "slots": ["batch/1"]},
    parts={"resources": ["rank", "task"], "reachable": ["task"]},
    own_fields={"next": ["position"]},
)


# ---- files that stay the same


def slim_state(value: float) -> State:
    return {"resources": {"model": {"frozen": torch.ones(9), "trained": torch.full((2,), value)}}}


def write_slim(folder: Path, number: int, value: float, previous: str) -> Path:
    path = folder / f"00000{number}-step-{number}"
    state = StagedState(slim_state(value), {}, StagingBuffers())
    write_checkpoint(path, state, Manifest(**FACTS), Slim({"model": ["frozen"]}, previous))
    return path


def test_a_file_that_stays_the_same_is_stored_once(tmp_path: Path) -> None:
    """Unless the earlier one is damaged, gone, or cannot be linked; everything else is written."""

    def links(path: Path) -> dict[str, int]:
        return {file.name: file.stat().st_nlink for file in path.iterdir() if file.suffix == ".safetensors"}

    first = write_slim(tmp_path, 1, 1.0, "")
    assert links(first) == {"model.safetensors": 1, "model.frozen.safetensors": 1}
    assert read_manifest(first).tensors == {"model": {"frozen": "model.frozen.safetensors"}}
    second = write_slim(tmp_path, 2, 2.0, first.name)
    assert links(second) == {"model.safetensors": 1, "model.frozen.safetensors": 2}
    assert (second / "progress.msgpack").stat().st_nlink == 1
    assert (
        read_manifest(second).files["model.frozen.safetensors"]
        == read_manifest(first).files["model.frozen.safetensors"]
    )
    data = bytearray((second / "model.frozen.safetensors").read_bytes())
    (second / "model.frozen.safetensors").unlink()
    (second / "model.frozen.safetensors").write_bytes(data[:-1] + b"\x07")
    third = write_slim(tmp_path, 3, 2.0, second.name)
    assert links(third) == {"model.safetensors": 2, "model.frozen.safetensors": 1}
    fourth = write_slim(tmp_path, 4, 2.0, "000009-step-9")
    assert set(links(fourth).values()) == {1}
    for path, value in ((first, 1.0), (second, 2.0), (third, 2.0), (fourth, 2.0)):
        if path != second:
            assert same(read_checkpoint(path).sections["resources"], slim_state(value)["resources"])


def test_where_links_are_refused_it_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write_slim(tmp_path, 1, 1.0, "")

    def refused(*words: Any, **options: Any) -> None:
        raise OSError(1, "Operation not permitted")

    pieces = [(first / "model.safetensors").read_bytes()]
    earlier = EarlierFiles(first)
    assert earlier.link(tmp_path / "model.safetensors", pieces) == read_manifest(first).files["model.safetensors"]
    assert earlier.link(tmp_path / "other.safetensors", pieces) is None, "the earlier one has no file of this name"
    monkeypatch.setattr(os, "link", refused)
    assert earlier.link(tmp_path / "again" / "model.safetensors", pieces) is None
    second = write_slim(tmp_path, 2, 1.0, first.name)
    assert {file.stat().st_nlink for file in second.iterdir()} == {1}


def test_a_file_is_written_in_pieces_and_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor).st_size))
    pieces = [bytes(range(256)) * 5000, b"", memoryview(b"end")]
    size, checksum = write_file(tmp_path / "file", pieces)
    data = (tmp_path / "file").read_bytes()
    assert data == b"".join(pieces) and (size, checksum) == (len(data), checksum_of([data]))
    assert flushed == [len(data)]
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "file", pieces)
