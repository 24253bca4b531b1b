"""The random number generators of Python, NumPy, torch's CPU and every device in use."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping
from typing import Any

import numpy
import torch

from graphtrain.state.generators import HOST, AnyGenerator, any_generator
from graphtrain.storage.strides import DEVICES


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy, and torch on every device. NumPy takes the seed modulo 2**32.

    >>> seed_everything(3); first = torch.rand(1); seed_everything(3); bool(first == torch.rand(1))
    True
    """
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_given() -> int | None:
    """The seed of torch; None if it was not seeded, so that the seed is from the operating system."""
    seed = torch.initial_seed()
    return None if seed == _AT_IMPORT["torch"] and seed >= 2**32 else seed % 2**63


def seed_the_rest(seed: int) -> None:
    """Seed those generators of Python, NumPy and torch that were not seeded or used since graphtrain was imported."""
    if seed_given() is None:
        torch.manual_seed(seed)
    beginning = _beginning()
    for name in ("python", "numpy"):
        if beginning[name] == _AT_IMPORT[name]:
            HOST[name].seed(seed)


def _beginning() -> dict[str, Any]:
    """Values that show whether a generator was seeded: for torch its seed, which the others do not expose."""
    state = numpy.random.get_state(legacy=False)["state"]
    return {
        "python": random.getstate(),
        "numpy": {**state, "key": bytes(state.get("key", b""))},
        "torch": torch.initial_seed(),
    }


_AT_IMPORT = _beginning()


def _of_devices() -> dict[str, list[AnyGenerator]]:
    """The global generators of the devices in use, by the type of device."""
    generators = {}
    for name in DEVICES:
        module: Any = getattr(torch, name)
        if name != "mps":
            if module.is_initialized():
                generators[name] = [*map(any_generator, module.default_generators)]
        elif torch.backends.mps.is_available() and module.current_allocated_memory() > 0:
            state, seed = (module.get_rng_state, module.set_rng_state), module.manual_seed
            generators[name] = [AnyGenerator(*state, seed, lambda: int(torch.randint(2**62, (), device="mps")))]
    return generators


def capture_random() -> dict[str, Any]:
    """The state of every generator, as plain data and tensors."""
    return {
        "python": random.getstate(),
        "numpy": numpy.random.get_state(),
        "torch": torch.get_rng_state(),
        **{name: [generator.get_state() for generator in each] for name, each in _of_devices().items()},
    }


def restore_random(captured: dict[str, Any]) -> None:
    """Restore every generator; the states of devices that are not in use now are left out."""
    for name, generator in HOST.items():
        generator.set_state(captured[name])
    for name, generators in _of_devices().items():
        for generator, state in zip(generators, captured.get(name, ()), strict=False):
            generator.set_state(state)


def fitted_random(captured: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """What was captured, with as many devices of each type as are in use now; and what that changes, in words.

    A run may be resumed on the CPU, on another device, or where there are more of them. Generators of further devices
    stay as they are. Nothing is changed, and the words are empty, if there are as many.

    >>> fitted_random(capture_random())[1]
    ''
    """
    fitted, words = {name: state for name, state in captured.items() if name not in DEVICES}, []
    devices = _of_devices()
    for name in DEVICES:
        saved, here = captured.get(name, []), [generator.get_state() for generator in devices.get(name, ())]
        if here:
            fitted[name] = [*saved[: len(here)], *here[len(saved) :]]
        if len(saved) != len(here):
            words.append(f"random numbers of {len(here)} {name.upper()} devices instead of {len(saved)}")
    return fitted, ", ".join(words)


def seed_all(seed: int, generators: Iterable[AnyGenerator] = ()) -> None:
    """Seed the global generators of the processor, and others. `torch.manual_seed` costs 130 us, this 6 us."""
    for generator in itertools.chain(HOST.values(), generators):
        generator.seed(seed)


def global_generators() -> list[AnyGenerator]:
    """The global generators of the processor, and of the devices in use."""
    return [*HOST.values(), *itertools.chain.from_iterable(_of_devices().values())]


class RandomAside:
    """A context whose draws leave no trace: generators are restored after it. It is reusable.

    Arguments:
        generators: Default: the global ones of the processor (14 us a time, most of it Python's; without devices, so
            nothing synchronises). `global_generators()` includes those of devices.

    >>> seed_all(0); expected = torch.rand(1); seed_all(0)
    >>> with RandomAside():
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
