"""Two captured states compared bit by bit, and what differs in words."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

# What comes first is named first: a field that was lost, then what follows from it.
_SECTIONS = ("progress", "random", "slots", "modules", "resources", "optimizers", "gradients", "metrics")
_MOST_CHARACTERS = 60


@dataclass(frozen=True)
class Difference:
    """One field that is not the same.

    Attributes:
        path: ``"gradients/model/0.weight"``.
        how: what differs, in words.
    """

    path: str
    how: str

    def __str__(self) -> str:
        return f"{self.path}: {self.how}"


@dataclass
class Comparison:
    """What was compared, and what of it differs.

    Attributes:
        tensors: tensors and arrays compared.
        size: their bytes.
        fields: everything else that was compared.
    """

    differences: list[Difference] = field(default_factory=list)
    tensors: int = 0
    size: int = 0
    fields: int = 0

    def in_section(self, section: str) -> list[Difference]:
        """The differences in one section of the state."""
        return [one for one in self.differences if one.path.startswith(f"{section}/")]


def compare(expected: Mapping[str, Any], found: Mapping[str, Any]) -> Comparison:
    """Compare two trees of state: every tensor by its bytes, every number by its bits.

    >>> one = {"progress": {"step": {"steps": 3}}, "gradients": {"model": {"weight": torch.zeros(2)}}}
    >>> other = {"progress": {"step": {"steps": 3}}, "gradients": {"model": {"weight": torch.tensor([0.0, -0.5])}}}
    >>> compare(one, one).differences
    []
    >>> print(compare(one, other).differences[0])
    gradients/model/weight: 1 of 2 elements, by at most 0.5, first at [1]: 0.0 -> -0.5
    """
    comparison = Comparison()
    sections = [*_SECTIONS, *(name for name in expected if name not in _SECTIONS)]
    before, now = ({name: tree[name] for name in sections if name in tree} for tree in (expected, found))
    for path, how in _walk("", before, now, comparison):
        comparison.differences.append(Difference(path, how))
    return comparison


def _walk(path: str, expected: Any, found: Any, comparison: Comparison) -> Iterator[tuple[str, str]]:
    match expected, found:
        case torch.Tensor(), torch.Tensor():
            comparison.tensors += 1
            comparison.size += _bytes_of(expected)
            how = _of_tensors(expected, found)
        case numpy.ndarray(), numpy.ndarray():
            comparison.tensors += 1
            comparison.size += expected.nbytes
            how = _of_arrays(expected, found)
        case Mapping(), Mapping():
            yield from _of_mappings(path, expected, found, comparison)
            return
        case (list() | tuple() | deque(), list() | tuple() | deque()) if type(expected) is type(found):
            if not (_is_plain(expected) and _is_plain(found)) and len(expected) == len(found):
                for index, (one, other) in enumerate(zip(expected, found, strict=True)):
                    yield from _walk(_inside(path, index), one, other, comparison)
                return
            comparison.fields += 1
            how = _of_sequences(expected, found)
        case _:
            comparison.fields += 1
            how = "" if _same(expected, found) else _turned(expected, found)
    if how:
        yield path, how


def _inside(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)


def _of_mappings(
    path: str, expected: Mapping[Any, Any], found: Mapping[Any, Any], comparison: Comparison
) -> Iterator[tuple[str, str]]:
    for key in dict.fromkeys([*expected, *found]):
        inner = _inside(path, key)
        if key not in found:
            yield inner, "is missing now"
        elif key not in expected:
            yield inner, "was not there"
        else:
            yield from _walk(inner, expected[key], found[key], comparison)


def _of_sequences(expected: Sequence[Any], found: Sequence[Any]) -> str:
    if len(expected) != len(found):
        return f"length {len(expected)} -> {len(found)}"
    if getattr(expected, "maxlen", None) != getattr(found, "maxlen", None):
        return "another greatest length"
    differing = [index for index, one in enumerate(expected) if not _same(one, found[index])]
    if not differing:
        return ""
    first = differing[0]
    return f"{_share(len(differing), len(expected))}, first at [{first}]: {_turned(expected[first], found[first])}"


def _of_arrays(expected: Any, found: Any) -> str:
    if (expected.dtype, expected.shape) != (found.dtype, found.shape):
        return f"{expected.dtype} {expected.shape} -> {found.dtype} {found.shape}"
    if expected.tobytes() == found.tobytes():
        return ""
    try:
        return _of_tensors(torch.from_numpy(expected.copy()), torch.from_numpy(found.copy()))
    except TypeError:  # a type that torch does not have
        return "other bytes"


def _of_tensors(expected: torch.Tensor, found: torch.Tensor) -> str:
    before, now = _form(expected), _form(found)
    if before != now:
        return f"{before} -> {now}"
    if expected.layout is torch.sparse_coo:
        return _of_tensors(expected._indices(), found._indices()) or _of_tensors(expected._values(), found._values())
    if _dense_strides(expected) != _dense_strides(found):
        return f"strides {tuple(expected.stride())} -> {tuple(found.stride())}"
    before_host, now_host = _host(expected), _host(found)
    mask = (_bits(before_host) != _bits(now_host)).any(1)
    if not mask.any():
        return ""
    first = int(mask.nonzero()[0])
    index = [int(one) for one in numpy.unravel_index(first, tuple(expected.shape))] if expected.ndim else []
    values = _turned(before_host[first].item(), now_host[first].item())
    return (
        f"{_share(int(mask.sum()), expected.numel())}{_largest(before_host[mask], now_host[mask])}, "
        f"first at {index}: {values}"
    )


def _largest(expected: torch.Tensor, found: torch.Tensor) -> str:
    if expected.dtype is torch.bool:
        return ""
    wide = torch.complex128 if expected.is_complex() else torch.float64
    largest = float((expected.to(wide) - found.to(wide)).abs().max())
    return f", by at most {largest:.3g}"


def _share(differing: int, whole: int) -> str:
    return f"{differing} of {whole} element{'' if whole == 1 else 's'}"


def _form(tensor: torch.Tensor) -> str:
    plain = tensor.layout is torch.strided
    layout = "" if plain else f" {str(tensor.layout).removeprefix('torch.')}"
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)} on {tensor.device}{layout}"


def _dense_strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The strides of a tensor whose elements lie together in another order, such as channels last; else None."""
    if tensor.is_contiguous() or not torch.ops.aten.is_non_overlapping_and_dense(tensor):
        return None
    return tuple(tensor.stride())


def _host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)


def _bits(flat: torch.Tensor) -> torch.Tensor:
    """The bytes of each element, a row each."""
    if not flat.numel():
        return torch.empty(0, 1, dtype=torch.uint8)
    return flat.view(torch.uint8).reshape(flat.numel(), -1)


def _bytes_of(tensor: torch.Tensor) -> int:
    if tensor.layout is torch.sparse_coo:
        return _bytes_of(tensor._indices()) + _bytes_of(tensor._values())
    return tensor.numel() * tensor.element_size()


def _is_plain(values: Sequence[Any]) -> bool:
    return all(one is None or isinstance(one, bool | int | float | str | bytes) for one in values)


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("<d", one) == struct.pack("<d", other)
    if isinstance(one, complex):
        return _same(one.real, other.real) and _same(one.imag, other.imag)
    if isinstance(one, numpy.generic):
        return bool(one.tobytes() == other.tobytes())
    return bool(one == other)


def _turned(before: Any, now: Any) -> str:
    return f"{_shown(before)} -> {_shown(now)}"


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor, {_form(value)}"
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."
