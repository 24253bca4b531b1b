"""Random generators."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy
import torch

from tests.rows import perceptron, row, rows, seeded, squared

Draw = Callable[[Any], float]


class Slot:
    """A generator in a slot."""

    __slots__ = ("__generator",)

    def __init__(self, generator: Any) -> None:
        self.__generator = generator

    def draw(self, draw: Draw) -> float:
        return draw(self.__generator)


def at_five_depths(make: Callable[[int], Any], draw: Draw) -> dict[str, Any]:
    """As an attribute, in a dictionary in a list, in a slot, in a closure of a closure, in a partial."""

    class Holder:
        def __init__(self) -> None:
            self.generator = make(1)
            self.nested = [{"a": (make(2),)}]
            self.slot = Slot(make(3))

    def outer() -> Callable[[], float]:
        generator = make(4)

        def middle() -> Callable[[], float]:
            return lambda: draw(generator)

        return middle()

    holder, closure, partial = Holder(), outer(), functools.partial(draw, make(5))

    def step(model: Any, batch: Any) -> torch.Tensor:
        noise = [draw(holder.generator), draw(holder.nested[0]["a"][0]), holder.slot.draw(draw), closure(), partial()]
        scales = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
        return squared(model, batch) * (1 + (torch.tensor(noise) * scales).sum())

    return seeded(perceptron, training_step=step)


@row(needs="random")
def three_global_generators() -> dict[str, Any]:
    def step(model: Any, batch: Any) -> torch.Tensor:
        return squared(model, batch) * (random.random() + numpy.random.randn() ** 2 + float(torch.rand(())))

    return seeded(perceptron, training_step=step)


@row(stateless="a `SystemRandom` has none")
def system_random_is_no_state() -> dict[str, Any]:
    source = random.SystemRandom()

    def step(model: Any, batch: Any) -> torch.Tensor:
        return squared(model, batch) * (1 if source.random() < 2 else 0)

    return seeded(perceptron, training_step=step)


rows(
    generators_of_torch=lambda: at_five_depths(
        lambda seed: torch.Generator().manual_seed(seed), lambda generator: float(torch.rand((), generator=generator))
    ),
    generators_of_numpy=lambda: at_five_depths(numpy.random.default_rng, lambda generator: float(generator.normal())),
    generators_of_python=lambda: at_five_depths(random.Random, lambda generator: generator.gauss(0, 1)),
)
