"""Compares two states of a run bit by bit, with a line for each difference."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy
import torch

from graphtrain.plain import is_scalar
from graphtrain.printable import one_line
from graphtrain.state.weights import dtype_and_shape, local_part
from graphtrain.storage.encoding import Encoded, SavedTensor

# Compared in this order, so that the first difference is the likely cause, such as a lost counter.
_SECTIONS = ("progress", "random", "reachable", "slots", "modules", "resources", "optimizers", "gradients", "metrics")


@dataclass(frozen=True)
class StateDifference:
    """A field or tensor that differs."""

    path: str  # "gradients/model/0.weight"
    how: str  # "0.5 -> 0.25"

    def __str__(self) -> str:
        return f"{self.path}: {self.how}"


def first_lines(differences: Sequence[StateDifference], most: int = 8) -> Iterator[str]:
    """A line for each of the first differences, and one with the number of the rest."""
    yield from (f"  {one_line(str(difference))}" for difference in differences[:most])
    if (more := len(differences) - most) > 0:
        yield f"  ... and {more} more"


def compare(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> list[StateDifference]:
    """How two trees of state differ: every tensor is compared by its bytes, every number by its bits.

    >>> run = {"progress": {"step": {"steps": 3}}, "gradients": {"model": {"weight": torch.zeros(2)}}}
    >>> replay = {"progress": {"step": {"steps": 3}}, "gradients": {"model": {"weight": torch.tensor([0.0, -0.5])}}}
    >>> compare(run, run)
    []
    >>> print(compare(run, replay)[0])
    gradients/model/weight: 1 of 2 elements, by at most 0.5, first at [1]: 0.0 -> -0.5
    """
    sections = [*_SECTIONS, *(name for name in expected if name not in _SECTIONS)]
    before, now = ({name: tree[name] for name in sections if name in tree} for tree in (expected, actual))
    return [*_walk("", before, now)]


def _walk(path: str, expected: Any, actual: Any) -> Iterator[StateDifference]:
    prefix, how = f"{path}/" if path else "", ""
    match expected, actual:
        case Mapping(), Mapping():
            for key in dict.fromkeys([*expected, *actual]):
                if key in expected and key in actual:
                    yield from _walk(f"{prefix}{key}", expected[key], actual[key])
                else:
                    yield StateDifference(f"{prefix}{key}", "is new" if key in actual else "is missing")
        case Encoded(), Encoded():
            yield from _walk(path, expected.data, actual.data)
        case SavedTensor(), SavedTensor():
            yield from _walk(path, expected.tensor, actual.tensor)
        case (torch.Tensor(), torch.Tensor()) | (numpy.ndarray(), numpy.ndarray()):
            how = _of_tensors(expected, actual)
        case (list() | tuple() | deque(), list() | tuple() | deque()) if _are_alike(expected, actual):
            pairs = [*zip(expected, actual, strict=True)]
            if not all(map(is_scalar, (*expected, *actual))):
                for index, pair in enumerate(pairs):
                    yield from _walk(f"{prefix}{index}", *pair)
            elif differing := [index for index, pair in enumerate(pairs) if not is_same(*pair)]:
                first = differing[0]
                how = f"{_share(len(differing), len(pairs))}, first at [{first}]: {_change(*pairs[first])}"
        case _ if not is_same(expected, actual):
            how = _change(expected, actual)
    if how:
        yield StateDifference(path, how)


def _are_alike(expected: Sequence[Any], actual: Sequence[Any]) -> bool:
    bounds = (getattr(sequence, "maxlen", None) for sequence in (expected, actual))
    return type(expected) is type(actual) and len(expected) == len(actual) and len({*bounds}) == 1


def _of_tensors(expected: Any, actual: Any) -> str:
    """How two tensors or arrays differ; of sharded tensors, the parts on this rank. Empty if they are equal."""
    if type(expected).__name__ == type(actual).__name__ == "DTensor":
        return _of_tensors(local_part(expected), local_part(actual))
    before, now = _layout(expected), _layout(actual)
    if before != now:
        return f"{before} -> {now}"
    if isinstance(expected, numpy.ndarray):
        return "" if expected.tobytes() == actual.tobytes() else "different bytes"
    pieces = zip(_pieces(expected), _pieces(actual), strict=True)
    return next(filter(None, (_of_values(*pair, tuple(expected.shape)) for pair in pieces)), "")


def _of_values(expected: torch.Tensor, actual: torch.Tensor, shape: tuple[int, ...]) -> str:
    if expected.shape != actual.shape:
        return f"{len(expected)} -> {len(actual)} elements"
    mask = (_bits(expected) != _bits(actual)).any(1)
    if not mask.any():
        return ""
    first = int(mask.nonzero()[0])
    index = list(map(int, numpy.unravel_index(first, shape))) if shape and expected.numel() == prod(shape) else []
    largest = ""
    if expected.dtype is not torch.bool:
        wide = torch.complex128 if expected.is_complex() else torch.float64
        largest = f", by at most {float((expected[mask].to(wide) - actual[mask].to(wide)).abs().max()):.3g}"
    values = _change(expected[first].item(), actual[first].item())
    return f"{_share(int(mask.sum()), expected.numel())}{largest}, first at {index}: {values}"


def _share(differing: int, whole: int) -> str:
    return f"{differing} of {whole} element{'' if whole == 1 else 's'}"


def _layout(tensor: Any) -> str:
    if isinstance(tensor, numpy.ndarray):
        return f"{tensor.dtype} {tensor.shape}"
    layout = "" if tensor.layout is torch.strided else f" {str(tensor.layout).removeprefix('torch.')}"
    if not layout and not tensor.is_contiguous() and torch.ops.aten.is_non_overlapping_and_dense(tensor):
        layout = f" strides {tuple(tensor.stride())}"  # another memory format, such as channels last
    return f"{dtype_and_shape(tensor)} on {tensor.device}{layout}"


def _pieces(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The values of a tensor, and the indices of a sparse one, in host memory and of one dimension."""
    pieces = [tensor._indices(), tensor._values()] if tensor.layout is torch.sparse_coo else [tensor]
    return [piece.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1) for piece in pieces]


def _bits(flat: torch.Tensor) -> torch.Tensor:
    """The bytes of each element: a tensor of shape (elements, bytes)."""
    return flat.view(torch.uint8).reshape(flat.numel(), flat.element_size())


def is_same(before: Any, now: Any) -> bool:
    """True if two values have the same bits: -0.0 is not 0.0, and a NaN is itself."""
    if type(before) is not type(now):
        return False
    if isinstance(before, list | tuple | deque) and not _are_alike(before, now):
        return False
    if isinstance(before, float):
        return struct.pack("<d", before) == struct.pack("<d", now)
    if isinstance(before, complex):
        return is_same(before.real, now.real) and is_same(before.imag, now.imag)
    if isinstance(before, numpy.generic):
        return bool(before.tobytes() == now.tobytes())
    return bool(before == now)


def _change(before: Any, now: Any) -> str:
    return " -> ".join(
        f"a tensor, {_layout(value)}" if isinstance(value, torch.Tensor) else one_line(repr(value), 60)
        for value in (before, now)
    )
