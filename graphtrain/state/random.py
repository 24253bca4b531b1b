"""The global random generators: of Python, NumPy, torch's CPU and every device in use."""

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
    seed_all(seed)
    torch.manual_seed(seed)


def seed_all(seed: int, generators: Iterable[AnyGenerator] = ()) -> None:
    """Seed the global generators of the processor, and others. `torch.manual_seed` costs 130 us, this 6 us."""
    for generator in itertools.chain(HOST.values(), generators):
        generator.seed(seed)


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


def _of_devices() -> dict[str, AnyGenerator]:
    """The global generators of the devices in use, by name: ``cuda:0``."""
    generators: dict[str, AnyGenerator] = {}
    for device in DEVICES:
        module: Any = getattr(torch, device)
        if device == "mps":
            if torch.backends.mps.is_available() and module.current_allocated_memory() > 0:
                state, seed = (module.get_rng_state, module.set_rng_state), module.manual_seed
                generators["mps:0"] = AnyGenerator(*state, seed, lambda: int(torch.randint(2**62, (), device="mps")))
        elif module.is_initialized():
            generators |= {f"{device}:{n}": any_generator(each) for n, each in enumerate(module.default_generators)}
    return generators


def named_generators() -> dict[str, AnyGenerator]:
    """The global generators of the processor, and of the devices in use."""
    return {**HOST, **_of_devices()}


def global_generators() -> list[AnyGenerator]:
    """The same without names."""
    return [*named_generators().values()]


def capture_random() -> dict[str, Any]:
    """The state of every global generator, as plain data and tensors."""
    return {name: generator.get_state() for name, generator in named_generators().items()}


def restore_random(captured: Mapping[str, Any]) -> None:
    """Restore every global generator; the states of devices that are not in use now are left out."""
    for name, generator in named_generators().items():
        if name in captured:
            generator.set_state(captured[name])


def fitted_random(captured: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """What was captured, for the devices in use now; and what that changes, in words.

    A run may be resumed on the CPU, on another device, or where there are more of them. Generators of further devices
    stay as they are. Nothing is changed, and the words are empty, if there are as many.

    >>> fitted_random(capture_random())[1]
    ''
    """
    present = {name: generator.get_state() for name, generator in _of_devices().items()}
    saved = {name: state for name, state in captured.items() if name.partition(":")[0] in DEVICES}
    others = {name: state for name, state in captured.items() if name not in saved}
    words = []
    for device in DEVICES:
        now, before = (sum(name.startswith(device) for name in names) for names in (present, saved))
        if now != before:
            words.append(f"random numbers of {now} {device.upper()} devices instead of {before}")
    return {**others, **{name: saved.get(name, state) for name, state in present.items()}}, ", ".join(words)


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
