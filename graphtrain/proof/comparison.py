"""Two captured states compared bit by bit, and a sentence for each difference."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy
import torch

from graphtrain.plain import is_scalar
from graphtrain.printable import one_line, shorten
from graphtrain.state.weights import dtype_and_shape
from graphtrain.storage.encoding import Encoded, SavedTensor
from graphtrain.storage.run_directory import METRICS_FILE

# In this order the first difference is the likely cause, such as a lost counter, and the rest follows from it.
_SECTIONS = (
    *("progress", "random", "reachable", "slots"),
    *("modules", "resources", "optimizers", "gradients", "metrics"),
)


@dataclass(frozen=True)
class StateDifference:
    """A field or tensor that differs."""

    path: str  # "gradients/model/0.weight"
    how: str  # "0.5 -> 0.25"

    def __str__(self) -> str:
        return f"{self.path}: {self.how}"


def first_lines(differences: Sequence[StateDifference], most: int = 8) -> Iterator[str]:
    """Lines about the first differences, and the number of others.

    The row of metrics that differs is always among them: it shows when two runs began to differ.
    """
    shown = [*differences[:most], *(row for row in differences[most:] if row.path.startswith(METRICS_FILE))]
    yield from (f"  {one_line(str(difference))}" for difference in shown)
    if (more := len(differences) - len(shown)) > 0:
        yield f"  ... and {more} more"


@dataclass
class StateComparison:
    """The result of a comparison.

    Attributes:
        tensors: tensors and arrays compared.
        size: their bytes.
    """

    differences: list[StateDifference] = field(default_factory=list)
    tensors: int = 0
    size: int = 0

    def check(self, *digests: str) -> None:
        """Add a difference if two digests differ otherwise: they cover the order in mappings, and what is shared."""
        if not self.differences and digests[0] != digests[1]:
            self.differences.append(StateDifference("digest", " -> ".join(digest[:16] for digest in digests)))


def compare(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> StateComparison:
    """Compare two trees of state: every tensor by its bytes, every number by its bits.

    >>> run = {"progress": {"step": {"steps": 3}}, "gradients": {"model": {"weight": torch.zeros(2)}}}
    >>> replay = {"progress": {"step": {"steps": 3}}, "gradients": {"model": {"weight": torch.tensor([0.0, -0.5])}}}
    >>> compare(run, run).differences
    []
    >>> print(compare(run, replay).differences[0])
    gradients/model/weight: 1 of 2 elements, by at most 0.5, first at [1]: 0.0 -> -0.5
    """
    comparison = StateComparison()
    sections = [*_SECTIONS, *(name for name in expected if name not in _SECTIONS)]
    before, now = ({name: tree[name] for name in sections if name in tree} for tree in (expected, actual))
    _walk("", before, now, comparison)
    return comparison


def _walk(path: str, expected: Any, actual: Any, comparison: StateComparison) -> None:
    prefix = f"{path}/" if path else ""
    match expected, actual:
        case Mapping(), Mapping():
            for key in dict.fromkeys([*expected, *actual]):
                if key in expected and key in actual:
                    _walk(f"{prefix}{key}", expected[key], actual[key], comparison)
                else:
                    how = "was not there" if key in actual else "is missing now"
                    comparison.differences.append(StateDifference(f"{prefix}{key}", how))
            return
        case Encoded(), Encoded():
            _walk(path, expected.data, actual.data, comparison)
            return
        case SavedTensor(), SavedTensor():
            _walk(path, expected.tensor, actual.tensor, comparison)
            return
        case (torch.Tensor(), torch.Tensor()) | (numpy.ndarray(), numpy.ndarray()):
            comparison.tensors += 1
            comparison.size += sum(int(piece.nbytes) for piece in _pieces(expected))
            how = _of_tensors(expected, actual)
        case (list() | tuple() | deque(), list() | tuple() | deque()) if _are_alike(expected, actual):
            if not all(map(is_scalar, (*expected, *actual))):
                for index, pair in enumerate(zip(expected, actual, strict=True)):
                    _walk(f"{prefix}{index}", *pair, comparison)
                return
            differing = [index for index, pair in enumerate(zip(expected, actual, strict=True)) if not is_same(*pair)]
            how = ""
            if differing:
                at = differing[0]
                how = f"{_share(len(differing), len(expected))}, first at [{at}]: {_change(expected[at], actual[at])}"
        case _:
            how = "" if is_same(expected, actual) else _change(expected, actual)
    if how:
        comparison.differences.append(StateDifference(path, how))


def _are_alike(expected: Sequence[Any], actual: Sequence[Any]) -> bool:
    bounds = (getattr(sequence, "maxlen", None) for sequence in (expected, actual))
    return type(expected) is type(actual) and len(expected) == len(actual) and len({*bounds}) == 1


def _of_tensors(expected: Any, actual: Any) -> str:
    """How two tensors differ, or two arrays; of sharded tensors, the parts of this rank."""
    if type(expected).__name__ == type(actual).__name__ == "DTensor":
        from graphtrain.ranks.sharded import local_of  # which few runs need

        return _of_tensors(local_of(expected), local_of(actual))
    before, now = _form(expected), _form(actual)
    if before != now:
        return f"{before} -> {now}"
    if isinstance(expected, numpy.ndarray):
        return "" if expected.tobytes() == actual.tobytes() else "different bytes"
    pieces = zip(map(_host, _pieces(expected)), map(_host, _pieces(actual)), strict=True)
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


def _form(tensor: Any) -> str:
    if isinstance(tensor, numpy.ndarray):
        return f"{tensor.dtype} {tensor.shape}"
    layout = "" if tensor.layout is torch.strided else f" {str(tensor.layout).removeprefix('torch.')}"
    if not layout and not tensor.is_contiguous() and torch.ops.aten.is_non_overlapping_and_dense(tensor):
        layout = f" strides {tuple(tensor.stride())}"  # its elements lie in another order, such as channels last
    return f"{dtype_and_shape(tensor)} on {tensor.device}{layout}"


def _pieces(tensor: Any) -> list[Any]:
    is_sparse = isinstance(tensor, torch.Tensor) and tensor.layout is torch.sparse_coo
    return [tensor._indices(), tensor._values()] if is_sparse else [tensor]


def _host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)


def _bits(flat: torch.Tensor) -> torch.Tensor:
    """The bytes of each element, a row each."""
    if not flat.numel():
        return torch.empty(0, 1, dtype=torch.uint8)
    return flat.view(torch.uint8).reshape(flat.numel(), -1)


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
        f"a tensor, {_form(value)}" if isinstance(value, torch.Tensor) else shorten(repr(value))
        for value in (before, now)
    )
