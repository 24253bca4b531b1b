"""State in functions, classes and objects."""

from __future__ import annotations

import collections
import dataclasses
import enum
import random
from typing import Any, ClassVar

import numpy
import torch

from graphtrain import Graph, Trainer
from tests.rows import batches, perceptron, row, rows, seeded, squared

STEPS = 0


@row()
def counter_in_a_closure() -> dict[str, Any]:
    steps = 0

    def step(model: Any, batch: Any) -> torch.Tensor:
        nonlocal steps
        steps += 1
        return squared(model, batch) / steps

    return seeded(perceptron, training_step=step)


@row()
def global_counter() -> dict[str, Any]:
    def step(model: Any, batch: Any) -> torch.Tensor:
        global STEPS
        STEPS += 1
        return squared(model, batch) / STEPS

    return seeded(perceptron, training_step=step)


class Registry:
    """State in the class itself."""

    count = 0
    losses: ClassVar[dict[str, float]] = {}

    @classmethod
    def step(cls, model: Any, batch: Any) -> torch.Tensor:
        cls.count += 1
        cls.losses["last"] = cls.count / 2
        return squared(model, batch) / cls.losses["last"]


class OnlyOne(type):
    """A metaclass that keeps the only object of each class."""

    made: ClassVar[dict[type, Any]] = {}

    def __call__(cls, *arguments: Any) -> Any:
        return cls.made.setdefault(cls, super().__call__(*arguments))


class Tracker(metaclass=OnlyOne):
    def __init__(self) -> None:
        self.steps = 0


@row()
def only_object_of_a_class() -> dict[str, Any]:
    def step(model: Any, batch: Any) -> torch.Tensor:
        tracker = Tracker()
        tracker.steps += 1
        return squared(model, batch) / tracker.steps

    return seeded(perceptron, training_step=step)


class Phase(enum.Enum):
    WARM = "warm"
    COLD = "cold"


@dataclasses.dataclass
class Config:
    phase: Phase = Phase.WARM
    scale: float = 1.0
    seen: set[int] = dataclasses.field(default_factory=set)
    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


class Task:
    """A training step as a method of an object, as people write it."""

    def __init__(self) -> None:
        self.config = Config()
        self.generator = numpy.random.default_rng(3)
        self.shuffler = random.Random(4)
        self.torch_generator = torch.Generator().manual_seed(5)
        self.window: collections.deque[torch.Tensor] = collections.deque(maxlen=2)
        self.nested = {"a": [1, {"b": (1, 2)}]}

    def go(self, model: Any, batch: Any, step: int) -> torch.Tensor:
        config = self.config
        if step > 2:
            config.phase = Phase.COLD
        config.scale *= 0.99
        config.seen.add(step)
        config.counts["steps"] += 1
        self.window.append(batch.mean(0))
        self.nested["a"][1]["b"] = (step, step + 1)
        noise = float(self.generator.normal()) + self.shuffler.random()
        noise += float(torch.rand((), generator=self.torch_generator))
        inputs = batch + sum(self.window) + noise * config.scale
        return squared(model, inputs) * (2 if config.phase is Phase.COLD else 1) / sum(self.nested["a"][1]["b"])


@row()
def shared_list_in_two_places() -> dict[str, Any]:
    class Pair:
        def __init__(self) -> None:
            self.left: list[float] = [1.0]
            self.right = self.left

        def go(self, model: Any, batch: Any) -> torch.Tensor:
            if len(self.left) == 3:
                self.left = self.right = [2.0]
            self.left.append(1.0)
            return squared(model, batch) * len(self.right)

    return seeded(perceptron, training_step=Pair().go)


@row()
def list_that_holds_itself() -> dict[str, Any]:
    ring: list[Any] = [0]

    def step(model: Any, batch: Any) -> torch.Tensor:
        new: list[Any] = [ring[0] + 1]
        new += [new, new]
        ring[:] = [new[0], new]
        assert ring[1][1] is ring[1]
        return squared(model, batch) / ring[0]

    return seeded(perceptron, training_step=step)


@row("is a new method")
def method_that_is_exchanged() -> dict[str, Any]:
    class Switch:
        def __init__(self) -> None:
            self.current = self.first

        def first(self, loss: torch.Tensor) -> torch.Tensor:
            return loss

        def second(self, loss: torch.Tensor) -> torch.Tensor:
            return loss * 2

        def go(self, model: Any, batch: Any, step: int) -> torch.Tensor:
            if step == 4:
                self.current = self.second
            return self.current(squared(model, batch))

    return seeded(perceptron, training_step=Switch().go)


@row()
def object_with_a_state_dict() -> dict[str, Any]:
    class Meter:
        def __init__(self) -> None:
            self.mean = 0.0
            self.hidden = 1

        def state_dict(self) -> dict[str, Any]:
            return {"mean": self.mean}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.mean = state["mean"]

    meter = Meter()

    def step(model: Any, batch: Any) -> torch.Tensor:
        loss = squared(model, batch)
        meter.mean = 0.9 * meter.mean + 0.1 * loss.item()
        meter.hidden += 1
        return loss / (1 + meter.mean) / meter.hidden

    return seeded(perceptron, training_step=step)


@row(needs=("state_dicts", "reachable"))
def state_dict_that_grows() -> dict[str, Any]:
    class Growing:
        def __init__(self) -> None:
            self.values: dict[str, float] = {}

        def state_dict(self) -> dict[str, Any]:
            return dict(self.values)

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.values.clear()
            self.values.update(state)

    growing = Growing()

    def step(model: Any, batch: Any) -> torch.Tensor:
        growing.values[f"v{len(growing.values)}"] = 1.0
        return squared(model, batch) / len(growing.values)

    return seeded(perceptron, training_step=step)


@row()
def replay_buffer() -> dict[str, Any]:
    buffer: list[tuple[torch.Tensor, int]] = []

    def step(model: Any, batch: Any) -> torch.Tensor:
        buffer.append((batch.clone(), len(buffer)))
        old, _ = buffer[random.randrange(len(buffer))]
        return squared(model, batch) + squared(model, old)

    return seeded(perceptron, training_step=step)


@row("not exact")
def cycle() -> dict[str, Any]:
    import itertools

    factors = itertools.cycle([1.0, 0.5, 2.0])
    return seeded(perceptron, training_step=lambda model, batch: squared(model, batch) * next(factors))


@row("not exact")
def submodule_exchanged_in_mid_run() -> dict[str, Any]:
    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        if step == 2:
            model[1] = torch.nn.Tanh()
        return squared(model, batch)

    return seeded(perceptron, training_step=step)


@row("not exact")
def random_setup() -> dict[str, Any]:
    noise = torch.tensor([random.SystemRandom().random() for _ in range(3)])
    made = torch.from_numpy(noise.numpy().copy())
    scale = float(made.sum())

    def step(model: Any, batch: Any) -> torch.Tensor:
        return squared(model, batch) * scale

    return seeded(perceptron, training_step=step)


def further_trainer(model: torch.nn.Module) -> Trainer:
    """A training that a step function runs: it pulls a model towards zero."""
    return Trainer(
        Graph.load("fit").set("checkpoint", every="never").set("finish", after="100 epochs").set("log", every="never"),
        seed=0,
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.005),
        train_data=batches(5),
        training_step=lambda model, batch: (model(batch) + 1).square().mean(),
    )


@row(needs="optimizer")
def two_trainers_over_one_model() -> dict[str, Any]:
    """The second is made within the step, and gone after it."""

    def step(model: Any, batch: Any) -> torch.Tensor:
        with torch.enable_grad():
            further_trainer(model).advance(20)
        model.zero_grad(set_to_none=True)
        return squared(model, batch)

    return seeded(perceptron, training_step=step)


@row("training_step<further> cannot be saved: it is a graphtrain.trainer.trainer.Trainer that may have changed")
def trainer_that_is_kept_over_one_model() -> dict[str, Any]:
    resources = seeded(perceptron)
    further = further_trainer(resources["model"])

    def step(model: Any, batch: Any) -> torch.Tensor:
        further.advance(13)
        model.zero_grad(set_to_none=True)
        return squared(model, batch)

    return resources | {"training_step": step}


rows(
    class_attributes=lambda: seeded(perceptron, training_step=Registry.step),
    task_object=lambda: seeded(perceptron, training_step=Task().go),
)
