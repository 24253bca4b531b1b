"""Files of weights by others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from graphtrain.storage.weight_files import open_weights

WEIGHTS = {"w": torch.randn(5, 4), "half": torch.randn(3).bfloat16(), "none": torch.empty(0, 3), "s": torch.tensor(2.0)}


def test_whole_tensors_are_read_from_several_files(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": WEIGHTS["w"]}, tmp_path / "a-1.safetensors")
    safetensors.torch.save_file({"half": WEIGHTS["half"], "s": WEIGHTS["s"]}, tmp_path / "a-2.safetensors")
    index = tmp_path / "a.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "a-1.safetensors", "half": "a-2.safetensors"}}))
    for path in (index, tmp_path):
        stored = open_weights(path)
        assert stored.keys() == {"w", "half", "s"}
        assert torch.equal(stored["w"].read(), WEIGHTS["w"])
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
