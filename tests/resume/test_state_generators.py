"""Promise 10: random generators of every library are saved and restored."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from graphtrain.state.generators import NumpyGlobal, generator_of, same_state, seed_all
from graphtrain.storage.encoding import Tensors, pack, unpack

GENERATORS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.Generator().manual_seed(1),
    "PCG64": lambda: numpy.random.default_rng(1),
    "Philox": lambda: numpy.random.Generator(numpy.random.Philox(1)),
    "MT19937": lambda: numpy.random.Generator(numpy.random.MT19937(1)),
    "numpy.RandomState": lambda: numpy.random.RandomState(1),
    "python": lambda: random.Random(1),
}


def number(generator: Any) -> float:
    """A number from a generator of any of these types; NumPy's and Python's keep half of a pair of normal numbers."""
    if isinstance(generator, torch.Generator):
        return float(torch.randn((), generator=generator))
    return float(generator.gauss(0, 1) if isinstance(generator, random.Random) else generator.normal())


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_goes_on_from_what_was_saved_of_it(name: str) -> None:
    source = GENERATORS[name]()
    generator: Any = generator_of(source)
    number(source)
    tensors = Tensors("generators")
    packed = pack(generator.get_state(), "generators", tensors)
    following = [number(source) for _ in range(5)]
    generator.set_state(unpack(packed, tensors.named))
    assert [number(source) for _ in range(5)] == following
    generator.seed(2**62 + 1)
    seeded = [number(source) for _ in range(2)]
    generator.seed(2**62 + 1)
    assert [number(source) for _ in range(2)] == seeded != following[:2]
    assert not same_state(generator.get_state(), generator_of(GENERATORS[name]()).get_state())


def test_half_a_pair_of_normal_numbers_is_neither_lost_nor_taken_over() -> None:
    generator = NumpyGlobal()
    seed_all(1)
    assert generator.get_state() is not generator.get_state()  # or two of them would be one object in a digest
    numpy.random.randn()
    with_half = generator.get_state()
    half = numpy.random.randn()
    without = generator.get_state()
    following = numpy.random.randn()
    generator.set_state(with_half)
    assert numpy.random.randn() == half
    generator.set_state(without)
    again = generator.get_state()
    assert numpy.random.randn() == following  # leaves a half behind ...
    generator.set_state(again)
    assert numpy.random.randn() == following  # ... which is not taken for one of before
    generator.set_state(without)
    generator.get_state()
    generator.set_state(with_half)  # the same bytes as the state read last
    assert generator.get_state()["has_gauss"] == 1
