"""Files of weights, read part by part; some are written and read by `torch.distributed.checkpoint` too."""

from __future__ import annotations

import errno
import io
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

from graphtrain.errors import CheckpointError
from graphtrain.ranks.distributed_writer import write_distributed
from graphtrain.storage.distributed_files import _part, _sizes
from graphtrain.storage.pickled import PickledObject
from graphtrain.storage.pieces import Piece, Sharding
from graphtrain.storage.weight_files import open_weights
from graphtrain.storage.whole import weights_in_place
from tests.storage.test_pickled import Harmful

WEIGHTS = {"w": torch.randn(5, 4), "half": torch.randn(3).bfloat16(), "none": torch.empty(0, 3), "s": torch.tensor(2.0)}


def test_whole_tensors_are_read_by_boxes(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": WEIGHTS["w"]}, tmp_path / "a-1.safetensors")
    safetensors.torch.save_file({"half": WEIGHTS["half"], "s": WEIGHTS["s"]}, tmp_path / "a-2.safetensors")
    index = tmp_path / "a.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "a-1.safetensors", "half": "a-2.safetensors"}}))
    for path in (index, tmp_path):
        stored = open_weights(path)
        assert stored.keys() == {"w", "half", "s"}
        assert torch.equal(stored["w"].read(((1, 3), (2, 4))), WEIGHTS["w"][1:3, 2:4])
        assert torch.equal(stored["half"].read(), WEIGHTS["half"])
        assert stored["w"].like().shape == (5, 4)


def test_parts_of_several_files_are_one_tensor(tmp_path: Path) -> None:
    for number, (start, end) in enumerate([(0, 3), (3, 5)]):
        offsets = {"DCP_SHARDING_INFO": json.dumps({"w": {"saved_offsets": [start, 0]}})}
        part = {"w": WEIGHTS["w"][start:end].clone()}
        safetensors.torch.save_file(part, tmp_path / f"shard-{number}.safetensors", offsets)
    stored = open_weights(tmp_path)["w"]
    assert stored.shape == (5, 4)
    assert torch.equal(stored.read(((2, 4), (1, 2))), WEIGHTS["w"][2:4, 1:2])
    (tmp_path / "shard-0.safetensors").unlink()
    with pytest.raises(ValueError, match="8 of 20 elements are there"):
        open_weights(tmp_path)["w"].read()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.safetensors", b"torn", "cannot be read as safetensors: x.safetensors"),
        ("x.safetensors.index.json", b"{}", "has no `weight_map`"),
        ("x.safetensors.index.json", b'{"weight_map": {"w": "../w.safetensors"}}', "has no `weight_map`"),
        (".metadata", b"torn", "is not a checkpoint of torch.distributed.checkpoint that can be read"),
        (".metadata", pickle.dumps({"state_dict_metadata": {}}), "something else than its Metadata"),
        ("other", b"", "has neither `.metadata` nor a file .safetensors"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        open_weights(tmp_path / name if name.startswith("x") else tmp_path)


PARTS = (torch.zeros(3, 4), (5, 4), (4, 1), (0,), (2,), True)


@pytest.mark.parametrize(
    ("position", "part"), [(0, None), (1, (5,)), (2, (4, -1)), (3, (0, None)), (3, (2,)), (4, (0,)), (5, 1)]
)
def test_what_is_no_piece_of_a_tensor_is_refused(position: int, part: Any) -> None:
    assert Piece.of(PARTS, ("", "")).requires_grad
    with pytest.raises(ValueError, match="a piece of a tensor that none can be of"):
        Piece.of((*PARTS[:position], part, *PARTS[position + 1 :]), ("", ""))


def test_pieces_that_make_no_tensor_are_named(tmp_path: Path) -> None:
    pieces = [Piece.of((torch.zeros(rows, 4), *PARTS[1:]), ("", "")) for rows in (3, 2)]
    assert weights_in_place(tmp_path, [{"w": piece} for piece in pieces])["w"].shape == (5, 4)
    otherwise = replace(pieces[1], sharding=replace(pieces[1].sharding, stride=(1, 5)))
    for other in (None, torch.zeros(2, 4), otherwise, pieces[0]):
        with pytest.raises(CheckpointError, match="`w` on rank 1: a piece of "):
            weights_in_place(tmp_path, [{"w": pieces[0]}, {"w": other}])


def test_a_part_is_an_archive_within_a_file(tmp_path: Path) -> None:
    torch.save(WEIGHTS["w"][2:4].clone(), buffer := io.BytesIO())
    before, archive, path = b"x" * 5000, buffer.getvalue(), tmp_path / "parts"
    path.write_bytes(before + archive + before)
    part = _part(path, len(before), len(before + archive), ((2, 4), (0, 4)), torch.float32)
    assert torch.equal(part.view(torch.float32)[..., 0], WEIGHTS["w"][2:4])


# ---- with torch.distributed.checkpoint


def by_dcp(folder: Path, names: list[str]) -> dict[str, torch.Tensor]:
    tensors = {name: torch.zeros_like(WEIGHTS[name]) for name in names}
    dcp.load(tensors, checkpoint_id=folder, no_dist=True)
    return tensors


@pytest.mark.filterwarnings("ignore::UserWarning:torch.distributed.checkpoint")
def test_pieces_are_written_as_dcp_reads_them(tmp_path: Path) -> None:
    def pieces(name: str) -> list[object]:
        held = Sharding(tuple(WEIGHTS[name].shape), WEIGHTS[name].stride(), (0,), (4,))
        boxes = [held.box(rank) for rank in range(4)]
        return [Piece(WEIGHTS[name][tuple(slice(*ends) for ends in box)].clone(), held) for box in boxes]

    tensors = {name: pieces(name) for name in ("w", "half", "none")} | {"s": [WEIGHTS["s"]] * 4}
    of_ranks = [{name: parts[rank] for name, parts in tensors.items()} for rank in range(4)]
    parts = weights_in_place(tmp_path, of_ranks)
    for wrong, message in (
        ({"w": WEIGHTS["w"]}, "another tensor than on rank 0"),
        (of_ranks[1], r"shape \(2, 4\), where"),
    ):
        with pytest.raises(CheckpointError, match=f"`w` on rank 2: a piece of {message}"):
            weights_in_place(tmp_path, [*of_ranks[:2], wrong, of_ranks[3]])
    write_distributed(tmp_path / "dcp", {name: (each.dtype, each.shape, each.parts) for name, each in parts.items()})
    stored, loaded = open_weights(tmp_path / "dcp"), by_dcp(tmp_path / "dcp", [*WEIGHTS])
    for name, expected in WEIGHTS.items():
        assert torch.equal(loaded[name], expected)
        assert torch.equal(stored[name].read(), expected)
    assert [box for box, _ in stored["w"].parts] == [((0, 2), (0, 4)), ((2, 4), (0, 4)), ((4, 5), (0, 4))]
    assert torch.equal(stored["w"].read(((1, 3), (2, 4))), WEIGHTS["w"][1:3, 2:4])


def test_nothing_is_left_of_what_the_disk_refuses(tmp_path: Path) -> None:
    folder = tmp_path / "outer" / "dcp"

    def full() -> torch.Tensor:
        raise OSError(errno.ENOSPC, "No space left on device")

    def gone() -> torch.Tensor:
        shutil.rmtree(folder)
        return full()

    for read in (full, gone):
        with pytest.raises(OSError, match="No space left on device"):
            write_distributed(folder, {"w": (torch.float32, (2,), [(((0, 2),), read)])})
        assert not any(folder.parent.iterdir())
    with pytest.raises(FileExistsError):
        write_distributed(folder.parent, {})


@pytest.mark.filterwarnings("ignore::UserWarning:torch.distributed.checkpoint")
def test_what_dcp_has_written_is_read(tmp_path: Path) -> None:
    convolution = torch.nn.Conv2d(3, 2, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    saved = {
        **WEIGHTS,
        "transposed": WEIGHTS["w"].t(),
        "small": WEIGHTS["w"][1:3, 1:3],
        "c": convolution.weight.detach(),
    }
    dcp.save({"model": saved, "step": 3, "optimizer": {"lr": 0.1}}, checkpoint_id=tmp_path, no_dist=True)
    stored = open_weights(tmp_path)
    assert stored.keys() == {f"model.{name}" for name in saved}
    for name, expected in saved.items():
        assert torch.equal(stored[f"model.{name}"].read(), expected), name

    def shortened(path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-200])

    def altered(path: Path) -> None:
        path.write_bytes(path.read_bytes().replace(b"data.pkl", b"data.bin"))

    def harmful(path: Path) -> None:
        path.write_bytes(pickle.dumps(Harmful(tmp_path / "made")))

    damages: list[tuple[str, Callable[[Path], None], str]] = [
        ("__0_0.distcp", shortened, "__0_0.distcp is damaged, or not what torch.save writes"),
        ("__0_0.distcp", altered, "__0_0.distcp is damaged, or not what torch.save writes"),
        ("__0_0.distcp", Path.unlink, "__0_0.distcp"),
        (".metadata", shortened, "is not a checkpoint of torch.distributed.checkpoint that can be read"),
        (".metadata", harmful, "something else than its Metadata"),
    ]
    for name, damage, message in damages:
        content = (tmp_path / name).read_bytes()
        damage(tmp_path / name)
        with pytest.raises((ValueError, OSError), match=message):
            for tensor in open_weights(tmp_path).values():
                tensor.read()
        (tmp_path / name).write_bytes(content)
    assert not (tmp_path / "made").exists()


def test_a_part_is_read_as_torch_writes_it_and_not_otherwise(tmp_path: Path) -> None:
    whole, path = torch.arange(6.0).view(2, 3), tmp_path / "part"
    torch.save(whole, path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}

    def read(end: str, content: bytes | None, rows: int = 2) -> torch.Tensor:
        with zipfile.ZipFile(path, "w") as archive:
            for name, former in entries.items():
                kind = zipfile.ZIP_DEFLATED if name.endswith(end) and content is None else zipfile.ZIP_STORED
                archive.writestr(name, content if name.endswith(end) and content is not None else former, kind)
        return _part(path, 0, path.stat().st_size, ((0, rows), (0, 3)), torch.float32)

    assert torch.equal(read("byteorder", b"little").clone().view(torch.float32).squeeze(-1), whole)
    for end, content, rows, message in (
        ("byteorder", b"big", 2, "numbers of another byte order"),
        ("data.pkl", None, 2, "a description that is too large, or compressed"),
        ("byteorder", None, 2, "a description that is too large, or compressed"),
        ("data/0", None, 2, "a tensor of another shape or kind than the metadata says"),
        ("byteorder", b"little", 3, "a tensor of another shape or kind than the metadata says"),
    ):
        with pytest.raises(ValueError, match=message):
            read(end, content, rows)
    for name, number in (("torch Size", -1), ("torch Size", True), ("torch Other", 1)):
        with pytest.raises(ValueError, match="sizes that are not whole numbers"):
            _sizes(PickledObject(name, ((2, number),)))


@pytest.mark.parametrize(
    ("place", "value"),
    [(0, [1.0]), (1, [-4]), (1, [4.0]), (2, [1, 1]), (3, [1]), (3, [0, 0]), (4, [0]), (4, [True]), (5, 1)],
)
def test_what_is_no_piece_is_refused(place: int, value: object) -> None:
    parts = [torch.ones(2), [4], [1], [0], [2], False]
    assert Piece.of(parts, ("model", "w")).sharding == Sharding((4,), (1,), (0,), (2,))
    parts[place] = value
    with pytest.raises(ValueError, match="a piece of a tensor that none can be of"):
        Piece.of(parts, ("model", "w"))
