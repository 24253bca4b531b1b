"""The files of a checkpoint in memory: what safetensors reads, and nothing that the run still writes to."""

from __future__ import annotations

import struct
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from graphtrain.storage import tensor_files
from graphtrain.storage.encoding import Tensors, UnsaveableError
from graphtrain.storage.state_files import StagedState, split, state_digest
from graphtrain.storage.tensor_files import (
    Layout,
    StagingBuffers,
    read_tensors,
    stage,
)

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


def test_the_library_reads_what_was_laid_out() -> None:
    tensors = every_type()
    image = stage([tensors], StagingBuffers())
    loaded = safetensors.torch.load(bytes(image["odd"]))
    assert loaded.keys() == tensors.named.keys()
    for name, tensor in tensors.named.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape), name
        assert bytes_of(loaded[name]) == bytes_of(tensor), name


def test_an_image_is_a_copy_and_its_memory_is_used_again() -> None:
    memory, weight = StagingBuffers(), torch.zeros(1000)
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
    assert state_digest({**BASE, "progress": {"step": {"steps": 2}}}) != state_digest(BASE)
    swapped = {"model": BASE["resources"]["other"], "other": BASE["resources"]["model"]}
    assert state_digest({**BASE, "resources": swapped}) != state_digest(BASE)


def test_another_section_gives_the_digest_of_the_tree_that_has_it() -> None:
    progress = {"step": {"steps": 3, "mean": torch.ones(1)}}
    assert split(BASE).with_sections({"progress": progress}).digest == state_digest({**BASE, "progress": progress})


def test_a_digest_of_a_part_of_a_section_counts_what_other_sections_refer_to_anew() -> None:
    tensor, other = torch.ones(2), torch.zeros(2)
    progress = {"observer": {"seen": [torch.ones(1), other]}, "source": {"rest": [tensor, other]}}
    sections = {**BASE, "progress": progress, "slots": {"batch": tensor, "pool": [other, tensor]}}
    essential = {"progress": {"source": progress["source"]}}
    staged = StagedState(sections, essential, StagingBuffers())
    assert staged.summary.digest == state_digest({**sections, **essential})


def test_what_was_laid_out_is_read_into_memory_of_its_own(tmp_path: Path) -> None:
    tensors = every_type()
    tensors.named |= {f"small/{number}": torch.full((number % 5,), number) for number in range(50)}
    tensors.named["large"] = torch.randn(3, 100_000)
    (tmp_path / "file").write_bytes(stage([tensors], StagingBuffers())["odd"])
    loaded = read_tensors(tmp_path / "file")
    assert loaded.keys() == tensors.named.keys()
    for name, tensor in tensors.named.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape), name
        assert bytes_of(loaded[name]) == bytes_of(tensor), name
        assert loaded[name].untyped_storage().nbytes() == tensor.nbytes, "nothing of its neighbours is held with it"
        assert loaded[name].data_ptr() % 64 == 0, "as the tensors that are made in a run; sums depend on it"


def test_what_is_read_in_place_is_the_same_and_its_file_stays_as_it_is(tmp_path: Path) -> None:
    tensors = every_type()
    data = bytes(stage([tensors], StagingBuffers())["odd"])
    (tmp_path / "file").write_bytes(data)
    loaded = read_tensors(tmp_path / "file", in_place=True)
    sections = [{"resources": {"odd": named}} for named in (loaded, read_tensors(tmp_path / "file"))]
    assert state_digest(sections[0]) == state_digest(sections[1]), "none is a part of another"
    for name, tensor in tensors.named.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape), name
        assert bytes_of(loaded[name]) == bytes_of(tensor), name
        loaded[name].fill_(0)
    (tmp_path / "file").replace(tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere").read_bytes() == data


def test_a_header_may_have_as_many_bytes_as_a_reader_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = Tensors("model", {"weight": torch.zeros(3), "bias": torch.zeros(1)})
    size = len(Layout.of(tensors).header) - 8  # without its length
    for most, fits in ((size, True), (size - 1, False)):
        monkeypatch.setattr(tensor_files, "_MOST_BYTES_OF_A_HEADER", most)
        with nullcontext() if fits else pytest.raises(UnsaveableError, match="more tensors than one file can hold"):
            Layout.of(tensors)


@pytest.mark.parametrize("data", [b"", b"1234567", struct.pack("<Q", 1 << 63), struct.pack("<Q", 2) + b"[]"])
def test_a_file_without_a_header_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(ValueError, match="is not a tensor file"):
        read_tensors(tmp_path / "file")
