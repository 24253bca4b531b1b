"""A training whose files tests look at and damage, and a comparison to the last bit."""

from __future__ import annotations

import collections
import hashlib
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack
import numpy
import torch

from graphtrain import Trainer
from tests.world import World, cross_entropy, small_fit, small_model, world

MANIFEST, PROGRESS, WEIGHTS = "manifest.msgpack", "state.msgpack", "model.safetensors"


def saving(values: Mapping[int, float] | None = None, *, epochs: int = 3, **checkpoint: Any) -> World:
    """Two batches an epoch, each with a validation that records `val/error`, and a checkpoint at its end.

    Arguments:
        values: epoch -> the error in it. Default: the number of the epoch.
        checkpoint: settings of the node.
    """
    graph = small_fit(epochs=epochs, accumulate=1, validate_every="1 epochs", save_every="1 epochs")

    def validation_step(model: Any, batch: Any, epoch: int) -> dict[str, float]:
        return {"error": float(epoch) if values is None else values[int(epoch)]}

    def edit(given: Any) -> Any:
        return given.set("checkpoint", **{"keep": 99, **checkpoint})

    generator = torch.Generator().manual_seed(3)
    batches = [(torch.randn(4, 6, generator=generator), torch.tensor([0, 1, 2, 0])) for _ in range(2)]
    return world(
        graph, edit=edit, model=small_model, scheduler="none", training_step=cross_entropy,
        data=lambda: {"train_data": batches, "validation_step": validation_step, "val_data": batches[:1]},
    )  # fmt: skip


def run_of(run_dir: Path, it: World | None = None, **options: Any) -> Trainer:
    """A run that has ended."""
    trainer = (it or saving()).trainer(run_dir, **options)
    trainer.run()
    return trainer


def checkpoints(run_dir: Path) -> list[Path]:
    return sorted(path for path in (run_dir / "checkpoints").iterdir() if not path.name.startswith("."))


def steps(run_dir: Path) -> list[int]:
    """At which steps the checkpoints are that there are."""
    return [int(path.name.rpartition("-")[2]) for path in checkpoints(run_dir)]


# ---- damage


def flip(file: Path) -> None:
    """Change one bit in the middle."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def forge(path: Path, **changes: Any) -> None:
    """Write another manifest, with the right checksum; a function is given what there was."""
    table = msgpack.unpackb(msgpack.unpackb((path / MANIFEST).read_bytes())["manifest"])
    for name, value in changes.items():
        table[name] = value(table.get(name)) if callable(value) else value
    body = msgpack.packb(table)
    outer = {"sha256": hashlib.sha256(body).hexdigest(), "manifest": body}
    (path / MANIFEST).write_bytes(msgpack.packb(outer))


# ---- comparison


def bits(tensor: torch.Tensor) -> bytes:
    fresh = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().reshape(-1))
    return fresh.view(torch.uint8).numpy().tobytes()


def same(one: Any, other: Any) -> bool:
    """Equal to the last bit, the payload of a NaN and the order of a dict included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        if one.layout is torch.sparse_coo:
            parts = ((one._indices(), other._indices()), (one._values(), other._values()))
            return one.shape == other.shape and all(same(first, second) for first, second in parts)
        facts = [(tensor.dtype, tensor.shape, tensor.requires_grad) for tensor in (one, other)]
        return facts[0] == facts[1] and (not one.numel() or bits(one) == bits(other))
    if isinstance(one, numpy.ndarray | numpy.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        if getattr(one, "default_factory", None) is not getattr(other, "default_factory", None):
            return False
        return len(one) == len(other) and all(
            same(pair, its) for pair, its in zip(one.items(), other.items(), strict=True)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, collections.deque):
        return one.maxlen == other.maxlen and same(list(one), list(other))
    if isinstance(one, set | frozenset):
        return len(one) == len(other) and all(any(same(a, b) for b in other) for a in one)
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, complex):
        return same((one.real, one.imag), (other.real, other.imag))
    return bool(one == other)


def float_of(pattern: int) -> float:
    """Any of the 2**64 floats, each NaN among them."""
    value: float = struct.unpack("<d", pattern.to_bytes(8, "little"))[0]
    return value
