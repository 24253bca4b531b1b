"""One interface over random generators of any type: Python's, NumPy's two, torch's.

Each has `get_state` (plain data that a checkpoint can hold), `set_state`, `seed`, and `draw`, which returns a number to
seed another generator from.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy
import torch

from graphtrain.errors import CheckpointError
from graphtrain.state.kinds import CONSTANTS, at, replaced

_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")

# The key of a generator's kind in a saved `state_dict`, next to "state".
_KIND = "graphtrain.generator"
# The most frequent types in a `state_dict`.
_NO_GENERATORS = CONSTANTS | {torch.Tensor, torch.nn.Parameter}


@dataclass(frozen=True)
class AnyGenerator:
    """The interface of a generator of any type; `draw` returns numbers below 2**62."""

    get_state: Callable[[], Any]
    set_state: Callable[[Any], object]
    seed: Callable[[int], object]
    draw: Callable[[], int]


def _of_python(source: Any) -> AnyGenerator:
    """Of a `random.Random`, or the module `random` for the global one."""
    return AnyGenerator(source.getstate, source.setstate, source.seed, lambda: int(source.getrandbits(62)))


def _of_torch(source: torch.Generator) -> AnyGenerator:
    """Of a generator on the processor or on a device."""

    def draw() -> int:
        return int(torch.randint(2**62, (), generator=source, device=source.device))

    return AnyGenerator(source.get_state, source.set_state, source.manual_seed, draw)


def _of_numpy(source: numpy.random.Generator) -> AnyGenerator:
    """Of a generator over any bit generator."""
    bits = _of_bits(source.bit_generator)
    return AnyGenerator(bits.get_state, bits.set_state, bits.seed, lambda: int(source.integers(2**62)))


def _of_bits(bits: Any) -> AnyGenerator:
    """Of a bit generator. Its state lacks the number of children of its seed, from which `spawn` makes others."""

    def get_state() -> Any:
        children = _children_of(bits)
        return {**bits.state, "children": children} if children else bits.state

    def set_state(state: Any) -> None:
        _expect_position(state)
        children = int(state.get("children", 0))
        bits.state = {name: part for name, part in state.items() if name != "children"}
        if children != _children_of(bits):
            seeds = _of_seeds(bits.seed_seq)
            seeds.set_state({**seeds.get_state(), "n_children_spawned": children})

    def seed(seed: int) -> None:
        bits.state = type(bits)(seed).state

    return AnyGenerator(get_state, set_state, seed, lambda: int(bits.random_raw()) % 2**62)


def _children_of(bits: Any) -> int:
    return int(getattr(bits.seed_seq, "n_children_spawned", 0))


def _of_seeds(source: Any) -> AnyGenerator:
    """Of a `SeedSequence`: it draws nothing, but counts its children."""

    def get_state() -> Any:
        names = ("entropy", "spawn_key", "pool_size", "n_children_spawned")
        return {name: getattr(source, name) for name in names}

    def take_over(seeds: Any) -> None:
        source.__setstate__(seeds.__reduce__()[2])

    return AnyGenerator(
        get_state,
        lambda state: take_over(numpy.random.SeedSequence(**state)),
        lambda seed: take_over(numpy.random.SeedSequence(seed)),
        lambda: int(source.generate_state(1, numpy.uint64)[0]) % 2**62,
    )


def _of_numpy_legacy(source: numpy.random.RandomState) -> AnyGenerator:
    """Of a `RandomState`, which takes a seed modulo 2**32."""

    def set_state(state: Any) -> None:
        _expect_position(state)
        source.set_state(state)

    return AnyGenerator(
        lambda: source.get_state(legacy=False),
        set_state,
        lambda seed: source.seed(seed % 2**32),
        lambda: int(source.randint(2**62, dtype=numpy.int64)),
    )


def _expect_position(state: Any) -> None:
    """Raise a ValueError for a state with a position beyond its end: NumPy would read past its memory."""
    inner = {} if isinstance(state, tuple | list) else state["state"]
    twister = state[2] if isinstance(state, tuple | list) else inner.get("pos", 0)
    if not 0 <= twister <= _TWISTER_NUMBERS:
        raise ValueError(f"the state of a generator is at its number {twister}, of {_TWISTER_NUMBERS}")
    if inner and not 0 <= state.get("buffer_pos", 0) <= _PHILOX_NUMBERS:
        raise ValueError(f"the state of a generator is at its number {state['buffer_pos']}, of {_PHILOX_NUMBERS}")


# struct { uint32_t key[624]; int pos; }, at the address that NumPy documents for use from C.
_TWISTER_NUMBERS = 624
_TWISTER_BYTES = _TWISTER_NUMBERS * 4 + 4
_PHILOX_NUMBERS = 4


@final
class NumpyGlobal:
    """NumPy's global generator. Reading and restoring an unchanged state is cheap.

    `get_state` and `set_state` of NumPy copy number by number, in 24 us each. Here the 2500 bytes of the generator are
    compared in place (0.5 us), and restored in place (2 us) if they equal those read last.
    """

    _bytes: bytes
    _state: Any = None  # the state of these bytes; None if unknown

    def get_state(self) -> Any:
        address = _twister_address()
        if address is None:
            return numpy.random.get_state(legacy=False)
        data = ctypes.string_at(address, _TWISTER_BYTES)
        # The second of a pair of normal numbers is kept outside the bytes; taking it changes none of them.
        if self._state is None or self._state["has_gauss"] or data != self._bytes:
            self._bytes, self._state = data, numpy.random.get_state(legacy=False)
        return self._state

    def set_state(self, state: Any) -> None:
        address = _twister_address()
        if address is None or state is not self._state or state["has_gauss"]:
            _expect_position(state)
            numpy.random.set_state(state)
            self._state = None  # the new one may differ from it only in its half pair
        else:
            numpy.random.seed(0)  # drops half a pair that was drawn since
            ctypes.memmove(address, self._bytes, _TWISTER_BYTES)


def _twister_address() -> int | None:
    """The address of the numbers of the global generator; None if it was replaced by one of another type."""
    bits: Any = numpy.random.get_bit_generator()  # type: ignore[attr-defined]  # public, and not in NumPy's stubs
    return int(bits.ctypes.state_address) if type(bits) is numpy.random.MT19937 else None


_numpy_global = NumpyGlobal()
HOST: Mapping[str, AnyGenerator] = {
    "python": _of_python(random),
    "numpy": AnyGenerator(
        _numpy_global.get_state,
        _numpy_global.set_state,
        lambda seed: numpy.random.seed(seed % 2**32),
        lambda: int(numpy.random.randint(2**62, dtype=numpy.int64)),
    ),
    "torch": _of_torch(torch.default_generator),
}
"""The global generators of the processor."""


def generator_of(value: Any) -> AnyGenerator | None:
    """A value as a generator; None if it is not one, or one without a state, such as `random.SystemRandom`.

    >>> generator = generator_of(numpy.random.default_rng(3)); state = generator.get_state(); first = generator.draw()
    >>> generator.set_state(state); generator.draw() == first
    True
    """
    match value:
        case torch.Generator():
            return _of_torch(value)
        case numpy.random.Generator():
            return _of_numpy(value)
        case numpy.random.BitGenerator():
            return _of_bits(value)
        case numpy.random.SeedSequence():
            return _of_seeds(value)
        case numpy.random.RandomState():
            return _of_numpy_legacy(value)
        case random.Random() if not isinstance(value, random.SystemRandom):
            return _of_python(value)
    return None


def any_generator(value: Any) -> AnyGenerator:
    """As `generator_of`, for a value that is known to be a generator."""
    generator = generator_of(value)
    assert generator is not None, "its category is that of generators"
    return generator


def kind_of_generator(value: Any) -> str | None:
    """The name by which another process can make such a generator; None if it cannot, as on a device.

    >>> kind_of_generator(numpy.random.default_rng(3)), kind_of_generator(random.SystemRandom())
    ('PCG64', None)
    """
    match value:
        case torch.Generator() if value.device.type == "cpu":
            return "torch"
        case numpy.random.RandomState():
            return "numpy.RandomState"
        case numpy.random.SeedSequence():
            return "numpy.SeedSequence"
        case numpy.random.Generator() if type(value.bit_generator).__name__ in _BIT_GENERATORS:
            return type(value.bit_generator).__name__
        case _ if type(value) is random.Random:
            return "python"
    return None


def new_generator(kind: str) -> Any:
    """A generator of a kind, whose state will be set immediately.

    Raises:
        CheckpointError: there is no such kind.
    """
    if kind in _BIT_GENERATORS:
        return numpy.random.Generator(getattr(numpy.random, kind)())
    if not isinstance(kind, str) or kind not in _NEW:
        raise CheckpointError(f"a generator of the kind {str(kind)[:100]} cannot be made")
    return _NEW[kind]()


_NEW: Mapping[str, Callable[[], Any]] = {
    "python": random.Random,
    "torch": torch.Generator,
    "numpy.RandomState": numpy.random.RandomState,
    "numpy.SeedSequence": lambda: numpy.random.SeedSequence(0),
}


def without_generators(state: Any) -> Any:
    """A `state_dict` in which every generator is described as plain data; the same object if it holds none.

    >>> described = without_generators({"steps": 3, "generator": random.Random(4)})
    >>> described["generator"]["graphtrain.generator"]
    'python'
    >>> generator = random.Random(5)
    >>> with_generators(described, lambda: {"generator": generator})["generator"] is generator
    True
    >>> generator.random() == random.Random(4).random()
    True
    """

    def describe(value: Any, keys: tuple[Any, ...]) -> Any:
        kind = kind_of_generator(value)
        return value if kind is None else {_KIND: kind, "state": any_generator(value).get_state()}

    return replaced(state, describe, kept=_NO_GENERATORS)


def with_generators(state: Any, state_now: Callable[[], Any]) -> Any:
    """A `state_dict` that `without_generators` gave, with generators again.

    Arguments:
        state_now: returns the present `state_dict` of the object. Generators in it, which others may hold too, get
            their saved states; elsewhere new ones are made.

    Raises:
        CheckpointError: a generator of such a kind cannot be made.
    """
    held: list[Any] = []

    def rebuild(value: Any, keys: tuple[Any, ...]) -> Any:
        if type(value) is not dict or value.keys() != {_KIND, "state"}:
            return value
        if not held:
            held.append(state_now())
        generator = at(held[0], keys)
        if kind_of_generator(generator) != value[_KIND]:
            generator = new_generator(value[_KIND])
        any_generator(generator).set_state(value["state"])
        return generator

    return replaced(state, rebuild, kept=_NO_GENERATORS)


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
