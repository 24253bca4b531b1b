"""Random generators of Python, NumPy and torch behind one interface; and the global ones."""

from __future__ import annotations

import ctypes
import itertools
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, final

import numpy
import torch

from graphtrain.storage.strides import DEVICES

# struct { uint32_t key[624]; int pos; }, at the address that NumPy documents for use from C.
_TWISTER_BYTES = 625 * 4


class AnyGenerator(NamedTuple):
    """The interface of a random generator of any type.

    Attributes:
        get_state: returns its state, as plain data that a checkpoint can hold.
        set_state: restores a state that `get_state` returned.
        seed: seeds it with an integer.
    """

    get_state: Callable[[], Any]
    set_state: Callable[[Any], object]
    seed: Callable[[int], object]


def generator_of(value: Any) -> AnyGenerator:
    """The interface of a random generator; a TypeError for one without a state, such as `random.SystemRandom`.

    >>> numbers = numpy.random.default_rng(3); generator = generator_of(numbers); state = generator.get_state()
    >>> first = numbers.random(); generator.set_state(state); numbers.random() == first
    True
    """
    match value:
        case torch.Generator():
            return AnyGenerator(value.get_state, value.set_state, value.manual_seed)
        case numpy.random.Generator():
            return generator_of(value.bit_generator)
        case numpy.random.BitGenerator():
            bits: Any = value
            return AnyGenerator(
                lambda: bits.state,
                lambda state: setattr(bits, "state", state),
                lambda seed: setattr(bits, "state", type(bits)(seed).state),
            )
        case numpy.random.RandomState():
            return AnyGenerator(
                lambda: value.get_state(legacy=False), value.set_state, lambda seed: value.seed(seed % 2**32)
            )
        case random.Random():
            return AnyGenerator(value.getstate, value.setstate, value.seed)
    raise TypeError(f"a {type(value).__name__} is no random generator")


@final
class NumpyGlobal:
    """NumPy's global generator. Reading an unchanged state takes 1 us and restoring it 2 us; NumPy takes 25 us.

    Its memory is compared with that of the state read last, and copied back. That does not cover the cached second
    number of a pair of normal numbers: with one, NumPy's own functions are called.
    """

    _bytes, _state = b"", dict[str, Any]()

    def get_state(self) -> Any:
        address = _twister_address()
        data = ctypes.string_at(address, _TWISTER_BYTES) if address is not None else b""
        if not data or data != self._bytes or self._state["has_gauss"]:
            self._bytes, self._state = data, numpy.random.get_state(legacy=False)
        parts = self._state["state"]
        return {**self._state, "state": {**parts, "key": parts["key"].copy()}}  # as any other returns a new one

    def set_state(self, state: Any) -> None:
        address, parts = _twister_address(), state["state"]
        is_last = self._bytes and self._bytes == parts["key"].tobytes() + parts["pos"].to_bytes(4, sys.byteorder)
        if address is not None and is_last and not state["has_gauss"]:
            numpy.random.seed(0)  # drops half a pair that was drawn since
            ctypes.memmove(address, self._bytes, _TWISTER_BYTES)
        else:
            numpy.random.set_state(state)
            self._bytes = b""  # it may differ from the state read last only in its half pair


def _twister_address() -> int | None:
    """The address of the numbers of the global generator; None if it was replaced by one of another type."""
    bits: Any = numpy.random.get_bit_generator()  # type: ignore[attr-defined]  # public, and not in NumPy's stubs
    return int(bits.ctypes.state_address) if type(bits) is numpy.random.MT19937 else None


_NUMPY = NumpyGlobal()
HOST: Mapping[str, AnyGenerator] = {
    "python": generator_of(random._inst),
    "numpy": generator_of(numpy.random.mtrand._rand)._replace(get_state=_NUMPY.get_state, set_state=_NUMPY.set_state),
    "torch": generator_of(torch.default_generator),
}
"""The global generators of the CPU."""


def same_state(state: Any, other: Any) -> bool:
    """True if two states of one generator are equal.

    >>> same_state({"key": numpy.ones(2), "at": 1}, {"key": numpy.ones(2), "at": 1})
    True
    """
    if isinstance(state, dict):
        return state is other or all(same_state(part, other[name]) for name, part in state.items())
    is_same = state is other or state == other
    return bool(is_same if isinstance(is_same, bool) else is_same.all())


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy, and torch on every device. NumPy takes the seed modulo 2**32.

    >>> seed_everything(3); first = torch.rand(1); seed_everything(3); bool(first == torch.rand(1))
    True
    """
    seed_all(seed)
    torch.manual_seed(seed)


def seed_all(seed: int, generators: Iterable[AnyGenerator] = ()) -> None:
    """Seed the global generators of the CPU, and others. `torch.manual_seed` alone costs 130 us, this 6 us."""
    for generator in itertools.chain(HOST.values(), generators):
        generator.seed(seed)


_AT_IMPORT = {"torch": torch.initial_seed(), **{name: HOST[name].get_state() for name in ("python", "numpy")}}


def torch_seed() -> int | None:
    """The seed of torch's default generator; None if nobody has set one, so that it came from the operating system."""
    seed = torch.initial_seed()
    return None if seed == _AT_IMPORT["torch"] and seed >= 2**32 else seed % 2**63


def seed_the_rest(seed: int) -> None:
    """Seed those generators of Python, NumPy and torch that were not seeded or used since graphtrain was imported."""
    if torch_seed() is None:
        torch.manual_seed(seed)
    for name in ("python", "numpy"):
        if same_state(HOST[name].get_state(), _AT_IMPORT[name]):
            HOST[name].seed(seed)


def named_generators() -> dict[str, AnyGenerator]:
    """The global generators of the CPU, and of the devices in use, by name: ``"cuda:0"``."""
    generators = {**HOST}
    for device in DEVICES:
        module: Any = getattr(torch, device)
        if device == "mps":
            if torch.backends.mps.is_available() and module.current_allocated_memory() > 0:
                generators["mps:0"] = AnyGenerator(module.get_rng_state, module.set_rng_state, module.manual_seed)
        elif module.is_initialized():
            generators |= {f"{device}:{n}": generator_of(each) for n, each in enumerate(module.default_generators)}
    return generators


def capture_random() -> dict[str, Any]:
    """The state of every global generator by name, as plain data and tensors."""
    return {name: generator.get_state() for name, generator in named_generators().items()}


def restore_random(captured: Mapping[str, Any]) -> None:
    """Restore every global generator; states of devices that are not in use now are ignored."""
    for name, generator in named_generators().items():
        if name in captured:
            generator.set_state(captured[name])


def fitted_random(captured: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """A captured state for the devices in use now, and how their number differs, in words, or empty.

    A run may be resumed on the CPU, on another type of device, or on more devices, whose generators stay as they are.

    >>> fitted_random(capture_random())[1]
    ''
    """
    fitted = {name: captured.get(name, state) for name, state in capture_random().items()}
    counts = {
        device: [sum(name.startswith(device) for name in each) for each in (fitted, captured)] for device in DEVICES
    }
    differing = [(*count, device.upper()) for device, count in counts.items() if count[0] != count[1]]
    words = [f"random numbers of {now} {device} devices instead of {before}" for now, before, device in differing]
    return fitted, ", ".join(words)


class PreservedRandom:
    """A reusable context that restores random generators at its end, whatever was drawn within it.

    Arguments:
        generators: Default: the global ones of the CPU (14 us each time). `named_generators` has those of devices.

    >>> seed_all(0); expected = torch.rand(1); seed_all(0)
    >>> with PreservedRandom():
    ...     _ = torch.rand(3)
    >>> bool(torch.rand(1) == expected)
    True
    """

    def __init__(self, generators: Iterable[AnyGenerator] = HOST.values()) -> None:
        self._generators = list(generators)

    def __enter__(self) -> None:
        self._states = [generator.get_state() for generator in self._generators]

    def __exit__(self, *_: object) -> None:
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)
