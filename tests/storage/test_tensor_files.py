"""The files of a checkpoint in memory: what safetensors reads, and nothing that the run still writes to."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import safetensors.torch
import torch

from graphtrain.storage.encoding import Tensors
from graphtrain.storage.state_files import split, state_digest
from graphtrain.storage.tensor_files import StagingBuffers, checksums, stage

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
    named["transposed"] = torch.arange(6.0).reshape(2, 3).T
    named["expanded"] = torch.ones(1, dtype=torch.int16).expand(3)
    named["empty"] = torch.empty(0, 3)
    named["one number"] = torch.tensor(2.5)
    named["größe"] = torch.ones(1)
    return Tensors("odd", named)


def test_the_library_reads_what_was_laid_out() -> None:
    tensors = every_type()
    image = stage([tensors], StagingBuffers())
    loaded = safetensors.torch.load(bytes(image["odd.safetensors"]))
    assert loaded.keys() == tensors.named.keys()
    for name, tensor in tensors.named.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape), name
        assert bytes_of(loaded[name]) == bytes_of(tensor), name


def test_the_checksum_without_a_copy_is_that_of_the_file() -> None:
    image = stage([every_type()], StagingBuffers())
    assert checksums([every_type()]) == {name: hashlib.sha256(data).hexdigest() for name, data in image.items()}


def test_an_image_is_a_copy_and_its_memory_is_used_again() -> None:
    memory, weight = StagingBuffers(), torch.zeros(1000)
    first = stage([Tensors("model", {"weight": weight})], memory)["model.safetensors"]
    before = bytes(first)
    weight.fill_(1)
    assert bytes(first) == before, "what the run does later is not in it"
    again = stage([Tensors("model", {"weight": weight})], memory)["model.safetensors"]
    assert first.obj is not None and again.obj is not None
    assert first.obj.ctypes.data == again.obj.ctypes.data, "no further memory"
    assert bytes(first) == bytes(again) != before


def test_memory_that_no_file_needs_any_more_is_let_go_of() -> None:
    memory = StagingBuffers()
    stage([Tensors("slots", {"batch": torch.zeros(1000)})], memory)
    stage([Tensors("model", {"weight": torch.zeros(10)})], memory)
    assert list(memory._blocks) == ["model"]


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
    assert state_digest({**BASE, "progress": {"step": {"steps": 2}}}) != state_digest(BASE)
    swapped = {"model": BASE["resources"]["other"], "other": BASE["resources"]["model"]}
    assert state_digest({**BASE, "resources": swapped}) != state_digest(BASE)


def test_another_section_gives_the_digest_of_the_tree_that_has_it() -> None:
    progress = {"step": {"steps": 3, "mean": torch.ones(1)}}
    assert split(BASE).with_section("progress", progress).digest() == state_digest({**BASE, "progress": progress})
