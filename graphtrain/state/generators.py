"""One interface over random generators of any type: Python's, NumPy's two, torch's.

Each has `get_state` (plain data that a checkpoint can hold), `set_state`, `seed`, and `draw`, which gives a number that
another generator may be seeded from.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Mapping
from typing import Any, Protocol, final

import numpy
import torch


class AnyGenerator(Protocol):
    """What the classes here have in common."""

    def get_state(self) -> Any: ...
    def set_state(self, state: Any) -> None: ...
    def seed(self, seed: int) -> None: ...
    def draw(self) -> int: ...


@final
class PythonRandom:
    """A `random.Random`, or the module `random` for the global one."""

    def __init__(self, source: Any = random) -> None:
        self._source = source

    def get_state(self) -> Any:
        return self._source.getstate()

    def set_state(self, state: Any) -> None:
        self._source.setstate(state)

    def seed(self, seed: int) -> None:
        self._source.seed(seed)

    def draw(self) -> int:
        return int(self._source.getrandbits(62))


@final
class TorchGenerator:
    """A `torch.Generator`, on the processor or on a device."""

    def __init__(self, source: torch.Generator) -> None:
        self._source = source

    def get_state(self) -> Any:
        return self._source.get_state()

    def set_state(self, state: Any) -> None:
        self._source.set_state(state)

    def seed(self, seed: int) -> None:
        self._source.manual_seed(seed)

    def draw(self) -> int:
        return int(torch.randint(2**62, (), generator=self._source, device=self._source.device))


@final
class NumpyGenerator:
    """A `numpy.random.Generator` over any bit generator."""

    def __init__(self, source: numpy.random.Generator) -> None:
        self._source = source

    def get_state(self) -> Any:
        return self._source.bit_generator.state

    def set_state(self, state: Any) -> None:
        self._source.bit_generator.state = state

    def seed(self, seed: int) -> None:
        bits: Any = self._source.bit_generator
        bits.state = type(bits)(seed).state

    def draw(self) -> int:
        return int(self._source.integers(2**62))


@final
class NumpyLegacy:
    """A `numpy.random.RandomState`. It takes a seed modulo 2**32."""

    def __init__(self, source: numpy.random.RandomState) -> None:
        self._source = source

    def get_state(self) -> Any:
        return self._source.get_state(legacy=False)

    def set_state(self, state: Any) -> None:
        self._source.set_state(state)

    def seed(self, seed: int) -> None:
        self._source.seed(seed % 2**32)

    def draw(self) -> int:
        return int(self._source.randint(2**62, dtype=numpy.int64))


# struct { uint32_t key[624]; int pos; }, at the address that NumPy documents for use from C.
_TWISTER_BYTES = 624 * 4 + 4


@final
class NumpyGlobal:
    """NumPy's global generator. Reading a state that has not changed, and putting it back, is cheap.

    `get_state` and `set_state` of NumPy copy number by number, in 24 us each. Here the 2500 bytes of the generator are
    looked at in place (0.5 us), and put back in place (2 us) where they are what was read last.
    """

    _bytes: bytes
    _state: Any = None  # that the bytes are of; None if nothing is known

    def get_state(self) -> Any:
        address = _twister_address()
        if address is None:
            return numpy.random.get_state(legacy=False)
        data = ctypes.string_at(address, _TWISTER_BYTES)
        # The second half of a pair of normal numbers waits outside the bytes; taking it changes none of them.
        if self._state is None or self._state["has_gauss"] or data != self._bytes:
            self._bytes, self._state = data, numpy.random.get_state(legacy=False)
        return self._state

    def set_state(self, state: Any) -> None:
        address = _twister_address()
        if address is None or state is not self._state or state["has_gauss"]:
            numpy.random.set_state(state)
            self._state = None  # the new one may differ from it in its half pair alone
        else:
            numpy.random.seed(0)  # drops half a pair that was drawn meanwhile
            ctypes.memmove(address, self._bytes, _TWISTER_BYTES)

    def seed(self, seed: int) -> None:
        numpy.random.seed(seed % 2**32)

    def draw(self) -> int:
        return int(numpy.random.randint(2**62, dtype=numpy.int64))


def _twister_address() -> int | None:
    """Where the numbers of the global generator are; None if somebody has put one of another type in its place."""
    bits: Any = numpy.random.get_bit_generator()  # type: ignore[attr-defined]  # public, and not in NumPy's stubs
    return int(bits.ctypes.state_address) if type(bits) is numpy.random.MT19937 else None


HOST: Mapping[str, AnyGenerator] = {
    "python": PythonRandom(),
    "numpy": NumpyGlobal(),
    "torch": TorchGenerator(torch.default_generator),
}
"""The global generators of the processor."""


def generator_of(value: Any) -> AnyGenerator | None:
    """A value as a generator; None if it is none, or one without a state, as `random.SystemRandom`.

    >>> generator = generator_of(numpy.random.default_rng(3)); state = generator.get_state(); first = generator.draw()
    >>> generator.set_state(state); generator.draw() == first
    True
    """
    match value:
        case torch.Generator():
            return TorchGenerator(value)
        case numpy.random.Generator():
            return NumpyGenerator(value)
        case numpy.random.RandomState():
            return NumpyLegacy(value)
        case random.Random() if not isinstance(value, random.SystemRandom):
            return PythonRandom(value)
    return None


def same_state(state: Any, other: Any) -> bool:
    """True if two states of one generator are equal.

    >>> same_state({"key": numpy.ones(2), "at": 1}, {"key": numpy.ones(2), "at": 1})
    True
    """
    if state is other:
        return True
    if isinstance(state, torch.Tensor):
        return torch.equal(state, other)
    if isinstance(state, numpy.ndarray):
        return numpy.array_equal(state, other)
    if isinstance(state, dict):
        return state.keys() == other.keys() and all(same_state(part, other[name]) for name, part in state.items())
    return bool(state == other)
