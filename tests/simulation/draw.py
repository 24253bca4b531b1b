"""What one life is, drawn from a seed: a procedure, what it trains, and what happens to it (promises 10-14)."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from graphtrain import Graph, Loader, node, progress
from tests import world as parts
from tests.world import World, world

AMOUNTS = ("1 batches", "3 batches", "1 steps", "2 steps", "1 epochs", "5 samples")
VALIDATIONS = ("2 batches", "1 steps", "3 steps", "1 epochs", "2 epochs", "never")
ENDS = ("4 steps", "9 batches", "2 epochs", "3 epochs", ["3 epochs", "7 steps"])
OVERLAYS = (
    "carry", "drop", "scaled", "early_stop", "ema", "gradient_norm", "sanity", "save_first", "swa", "check_finite",
    "plateau", "token_windows",
)  # fmt: skip
APART = ({"carry", "drop"}, {"scaled", "token_windows"}, {"drop", "token_windows"})  # those that are refused together
MOST_EVENTS = 5


# ---- what is trained, beyond `tests.world`


@node(name="jitter")
class Jitter:
    """Disturb the weights with random numbers, less from visit to visit."""

    scale: float = 0.01

    visits: int = progress(0)
    sum_of_noise: float = progress(0.0)

    def __call__(self, model: Any) -> None:
        self.visits += 1
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn_like(parameter) * self.scale / self.visits
                self.sum_of_noise += float(noise.sum())
                parameter.add_(noise)


@node(name="memory")
class Memory:
    """Remember batches in a list and a dict, and pull the weights towards what is remembered."""

    seen: list[float] = progress([])
    times: dict[str, int] = progress({})

    def __call__(self, model: Any, batch: Any) -> None:
        self.seen = [*self.seen[-3:], float(batch[0].mean())]
        sign = "up" if self.seen[-1] > 0 else "down"
        self.times = {**self.times, sign: self.times.get(sign, 0) + 1}
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.0 - 0.01 * sum(self.seen) / self.times[sign])


class Remembering(parts.WithTemperature):
    """A step function with state of its own, that nothing declares: a list, an array of weights and a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.mean, self.generator = torch.zeros(3), random.Random(2)

    def __call__(self, model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        result = super().__call__(model, batch)
        if model.training:
            self.losses.append(float(result["loss"].detach()))
            self.mean += batch[0].mean() * self.generator.random()
            result["loss"] = result["loss"] * (1 + 0.1 * sum(self.losses[-2:]) + self.mean.sum() ** 2)
        return result


class Counting(parts.Augmented):
    """Data whose loading leaves traces: a sample is another one each time that it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = torch.zeros(parts.SAMPLES)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.read[index] += 1
        inputs, target = super().__getitem__(index)
        return inputs + 0.1 * self.read[index], target


DATA: dict[str, Callable[[Any, int], Any]] = {
    **parts.DATA,
    "counting": lambda data, workers: Loader(Counting(), parts.BATCH_SIZE, shuffle=True),
}
if importlib.util.find_spec("torchdata") is None:
    del DATA["StatefulDataLoader"]
STEPS: dict[str, Callable[[], Any]] = {"plain": parts.WithTemperature, "remembering": Remembering}
WITH_WORKERS = ("Loader", "DataLoader", "StatefulDataLoader")  # of the first their number may change
PLAINEST: dict[str, Any] = {
    "workers": (0,), "data": "list", "optimizer": "SGD", "scheduler": "none", "step": "plain", "is_set_up_anew": False,
}  # fmt: skip

# ---- what it is trained by

EDITS: dict[str, Callable[[Graph, random.Random], Graph]] = {
    "accumulate": lambda graph, choose: graph.set("accumulate", every=choose.randint(1, 4)),
    "clip": lambda graph, choose: graph.set("clip", max_norm=choose.choice([0.1, 1.0])),
    "validate": lambda graph, choose: graph.set("validate", every=choose.choice(VALIDATIONS)),
    "limit": lambda graph, choose: graph.set("validate/next_batch", limit=choose.randint(1, 3)),
    "log": lambda graph, choose: graph.set("log", every=choose.choice(AMOUNTS)),
    "checkpoint": lambda graph, choose: graph.set("checkpoint", every=choose.choice(AMOUNTS)),
    "minutes": lambda graph, choose: graph.set("checkpoint", every=["2 epochs", "10 minutes"]),
    "keep": lambda graph, choose: graph.set("checkpoint", keep=choose.randint(1, 3)),
    "best": lambda graph, choose: graph.set("checkpoint", best="val/loss", keep_best=choose.randint(1, 2)),
    "finish": lambda graph, choose: graph.set("finish", after=choose.choice(ENDS)),
    "batches": lambda graph, choose: graph.set("next_batch", limit=choose.randint(2, 9)),
    "jitter": lambda graph, choose: graph.insert("jitter", Jitter, after="zero_grad"),
    "memory": lambda graph, choose: graph.insert("memory", Memory, after="accumulate"),
    "pause": lambda graph, choose: graph.insert("pause", "choice", after="step"),
    "two logs": lambda graph, choose: (
        graph.insert("log_often", "log", every="1 batches")
        .guard("log_often_due", "log_often.due")
        .connect("decide", "log_often", when="log_often_due")
        .connect("log_often", "decide")
    ),
}
INSERTED = ("jitter", "pause")
# What a person changes in the middle of a run.
REWIRINGS = {name: EDITS[name] for name in ("accumulate", "clip", "log", "checkpoint", *INSERTED)}


@dataclass(frozen=True)
class Event:
    """What happens to one process of the run.

    Attributes:
        what: "stop" (a signal at a step), "cut" (so many transitions, then a save), "kill" (at a step), "kill in a
            save" (at a call of the disk), "power" (the same, and what was not flushed is lost), "fail" (that call
            fails), "full" (it and all writes after it fail), "raise" (the step function raises), "clock" (the clock
            jumps ahead), "back" (it jumps back), "fork" (a new run begins from the newest checkpoint, and is cut),
            "copy" (the same in a copy of the run directory).
        at: the number of the step, of the transition or of the call.
        seed: of what is drawn while it happens.
    """

    what: str
    at: int
    seed: int = 0

    @classmethod
    def drawn(cls, choose: random.Random) -> Event:
        """Any event, at a time at which a run often still is; a checkpoint takes some 60 calls of the disk."""
        what = choose.choice(EVENTS)
        last = choose.choice([60, 200, 600]) if what in OF_THE_DISK else 40
        event = cls(what, choose.randint(1, last), choose.randrange(1000))
        if what == "back" and event.seed % 2:  # which finds less
            return cls("power", 8 * event.at, event.seed)
        return replace(event, at=event.at + 60) if what == "power" and event.seed % 2 else event


OF_THE_DISK = ("kill in a save", "power", "fail", "full")
EVENTS = ("stop", "cut", "kill", "raise", "clock", "back", "fork", "copy", *OF_THE_DISK)


@dataclass(frozen=True)
class Life:
    """Everything that a life depends on: printed, it can be lived again.

    Attributes:
        edits: names in `EDITS`, each with the seed of its numbers.
        overlays: names of shipped overlays.
        data: a name in `DATA`.
        workers: of its loader, in one process after the other.
        rewirings: steps after which the graph is changed, each with a name in `REWIRINGS` and a seed.
        pauses: batches after which a process stops, and continues: it has ended its workers, and opens its data again.
        step: a name in `STEPS`.
        is_set_up_anew: True if every second process has another learning rate in its `setup`, and keeps that of before.
    """

    edits: tuple[tuple[str, int], ...]
    overlays: tuple[str, ...]
    data: str
    workers: tuple[int, ...]
    optimizer: str
    scheduler: str
    rewirings: tuple[tuple[int, str, int], ...]
    events: tuple[Event, ...]
    pauses: tuple[int, ...] = ()
    step: str = "plain"
    is_set_up_anew: bool = False

    @classmethod
    def drawn(cls, seed: int) -> Life:
        """The life of a seed."""
        choose = random.Random(seed)
        data = choose.choice(sorted(DATA))
        # An epoch that is cut short is refused for data that keeps its own position.
        edits = sorted(EDITS.keys() - ({"batches"} if data == "with state" else ()))
        names = choose.sample(edits, choose.randint(0, 7))
        overlays = tuple(choose.sample(OVERLAYS, choose.choice([0, 0, 1, 1, 2])))
        if any(pair <= {*overlays} for pair in APART):
            overlays = overlays[:1]
        changes = choose.choice([0, 0, 0, 1, 2])
        workers: tuple[int, ...] = (0,)
        if data in WITH_WORKERS and choose.random() < 0.3:
            workers = (choose.randint(1, 2),) if data != "Loader" else tuple(choose.sample(range(3), 2))
        life = cls(
            tuple((name, choose.randrange(1000)) for name in names),
            overlays,
            data,
            workers,
            choose.choice(sorted(parts.OPTIMIZERS)),
            choose.choice(sorted(parts.SCHEDULERS)),
            tuple(
                (step, choose.choice(sorted(REWIRINGS)), choose.randrange(1000))
                for step in sorted(choose.sample(range(1, 5), changes))
            ),
            tuple(Event.drawn(choose) for _ in range(choose.randint(1, MOST_EVENTS))),
            tuple(sorted(choose.sample(range(1, 10), choose.choice([0, 1, 2])))),
            choose.choice(sorted(STEPS)),
            choose.random() < 0.2,
        )
        # To end workers in mid-epoch matters to those of a `DataLoader` alone, of which one in eight lives has one.
        return replace(life, workers=(1,)) if data == "DataLoader" and choose.random() < 0.5 else life

    def smaller(self) -> Iterator[Life]:
        """Lives in which one thing less happens, or something plainer is trained."""
        for name in ("events", "pauses", "rewirings", "overlays", "edits"):
            parts = getattr(self, name)
            for number in range(len(parts)):
                yield replace(self, **{name: (*parts[:number], *parts[number + 1 :])})
        for name, plainest in PLAINEST.items():
            if getattr(self, name) != plainest:
                yield replace(self, **{name: plainest})
        for number, event in enumerate(self.events):
            for at in sorted({1, event.at // 2, event.at - 1}):
                if 0 < at < event.at:
                    earlier = replace(event, at=at)
                    yield replace(self, events=(*self.events[:number], earlier, *self.events[number + 1 :]))

    def graph(self) -> Graph:
        """The procedure that it begins with."""
        graph = Graph.load("fit").set("finish", after="2 epochs").set("checkpoint", every="3 batches", keep=2)
        graph = graph.set("log", every="1 steps").set("clip", max_norm=1.0)
        for name, seed in self.edits:
            graph = EDITS[name](graph, random.Random(seed))
        graph = graph.overlay(*self.overlays) if self.overlays else graph
        if "token_windows" in self.overlays:  # which `training_step` does not count
            for path in ("train_batch", "validate/eval_batch", *(["sanity/eval_batch"] * ("sanity" in self.overlays))):
                graph = graph.set(path, per="samples")
        return graph

    def rewired(self, graph: Graph, number: int) -> Graph:
        """The graph after a rewiring, which is left as it is where the change is there already."""
        _, name, seed = self.rewirings[number]
        return graph if name in graph.nodes and name in INSERTED else REWIRINGS[name](graph, random.Random(seed))

    def world(self, graph: Graph, number: int, *, is_resumed: bool) -> World:
        """What the process of this number trains."""

        def optimizer(groups: Any) -> torch.optim.Optimizer:
            made = parts.OPTIMIZERS[self.optimizer](groups)
            if self.is_set_up_anew and is_resumed and number % 2:
                for group in made.param_groups:
                    group["lr"] *= 3
            return made

        workers = self.workers[number % len(self.workers)]
        return world(
            graph,
            optimizer=optimizer,
            scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau if "plateau" in self.overlays else self.scheduler,
            data=lambda: DATA[self.data](parts.Augmented(), workers),
            training_step=STEPS[self.step](),
        )


def every_part() -> Iterator[Life]:
    """Lives in which nothing happens, and which together have everything that lives are drawn from."""
    edits = sorted(EDITS.keys() - {"batches"})
    optimizers, schedulers = sorted(parts.OPTIMIZERS), sorted(parts.SCHEDULERS)
    for number, data in enumerate(DATA):
        yield Life(
            tuple((name, 0) for name in edits[number % 2 :: 2]),
            OVERLAYS[number :: len(DATA)],
            data,
            (0,),
            optimizers[number % len(optimizers)],
            schedulers[number % len(schedulers)],
            (),
            (),
            (),
            sorted(STEPS)[number % len(STEPS)],
        )
