"""Files of weights, read part by part."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from graphtrain.errors import CheckpointError
from graphtrain.storage.pieces import Piece, Sharding
from graphtrain.storage.weight_files import open_weights
from graphtrain.storage.whole import weights_in_place

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


def test_parts_of_tensors_in_several_files_are_refused(tmp_path: Path) -> None:
    for number, part in enumerate(WEIGHTS["w"].split(3)):
        safetensors.torch.save_file({"w": part.clone()}, tmp_path / f"shard-{number}.safetensors")
    with pytest.raises(ValueError, match="`w` is in another file too"):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.safetensors", b"torn", "cannot be read as safetensors: x.safetensors"),
        ("x.safetensors.index.json", b"{}", "has no `weight_map`"),
        ("x.safetensors.index.json", b'{"weight_map": {"w": "../w.safetensors"}}', "has no `weight_map`"),
        ("other", b"", "has no file .safetensors"),
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


def test_pieces_of_ranks_are_one_tensor(tmp_path: Path) -> None:
    def pieces(name: str) -> list[object]:
        held = Sharding(tuple(WEIGHTS[name].shape), WEIGHTS[name].stride(), (0,), (4,))
        boxes = [held.box(rank) for rank in range(4)]
        return [Piece(WEIGHTS[name][tuple(slice(*ends) for ends in box)].clone(), held) for box in boxes]

    tensors = {name: pieces(name) for name in ("w", "half", "none")} | {"s": [WEIGHTS["s"]] * 4}
    of_ranks = [{name: parts[rank] for name, parts in tensors.items()} for rank in range(4)]
    for wrong, message in (
        ({"w": WEIGHTS["w"]}, "another tensor than on rank 0"),
        (of_ranks[1], r"shape \(2, 4\), where"),
    ):
        with pytest.raises(CheckpointError, match=f"`w` on rank 2: a piece of {message}"):
            weights_in_place(tmp_path, [*of_ranks[:2], wrong, of_ranks[3]])
    stored = weights_in_place(tmp_path, of_ranks)
    assert all(torch.equal(stored[name].read(), expected) for name, expected in WEIGHTS.items())
    assert [box for box, _ in stored["w"].parts] == [((0, 2), (0, 4)), ((2, 4), (0, 4)), ((4, 5), (0, 4))]
    assert torch.equal(stored["w"].read(((1, 3), (2, 4))), WEIGHTS["w"][1:3, 2:4])


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
