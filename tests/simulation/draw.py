"""What one life is, drawn from a seed: a procedure, what it trains, and everything that happens to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from graphtrain import Graph, Loader, Trainer, node, progress
from graphtrain.kind import DECLARED
from graphtrain.state.random import seed_everything
from tests.resume.full_run import KINDS, Augmented, Network, losses_of

AMOUNTS = ("1 batches", "3 batches", "1 steps", "2 steps", "1 epochs", "5 samples")
VALIDATIONS = ("2 batches", "1 steps", "3 steps", "1 epochs", "2 epochs", "never")
ENDS = ("4 steps", "9 batches", "2 epochs", "3 epochs", ["3 epochs", "7 steps"])
OVERLAYS = ("carry", "drop", "early_stop", "ema", "gradient_norm", "sanity", "save_first", "swa", "check_finite")
TOGETHER = ({"carry", "drop"},)  # those that are refused together
DATA = ("Loader", "DataLoader", "own generator", "lazy sampler", "list", "unsized", "shuffle buffer", "with state")
WITH_WORKERS = ("Loader", "DataLoader")  # of the first their number may change
PLAINEST: dict[str, Any] = {"workers": (0,), "data": "list", "optimizer": "SGD", "scheduler": "none"}
MOST_EVENTS = 5


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


OWN_KIND = DECLARED["jitter"]
EDITS: dict[str, Callable[[Graph, random.Random], Graph]] = {
    "accumulate": lambda graph, choose: graph.set("accumulate", every=choose.randint(1, 4)),
    "clip": lambda graph, choose: graph.set("clip", max_norm=choose.choice([0.1, 1.0])),
    "validate": lambda graph, choose: graph.set("validate", every=choose.choice(VALIDATIONS)),
    "limit": lambda graph, choose: graph.set("validate/next_batch", limit=choose.randint(1, 3)),
    "log": lambda graph, choose: graph.set("log", every=choose.choice(AMOUNTS)),
    "checkpoint": lambda graph, choose: graph.set("checkpoint", every=choose.choice(AMOUNTS)),
    "minutes": lambda graph, choose: graph.set("checkpoint", every=["2 epochs", "10 minutes"]),
    "keep": lambda graph, choose: graph.set("checkpoint", keep=choose.randint(1, 3)),
    "finish": lambda graph, choose: graph.set("finish", after=choose.choice(ENDS)),
    "batches": lambda graph, choose: graph.set("next_batch", limit=choose.randint(2, 9)),
    "jitter": lambda graph, choose: graph.insert("jitter", Jitter, after="zero_grad"),
    "pause": lambda graph, choose: graph.insert("pause", "choice", after="step"),
    "two logs": lambda graph, choose: (
        graph.insert("log_often", "log", every="1 batches")
        .guard("log_often_due", "log_often.due")
        .connect("decide", "log_often", when="log_often_due")
        .connect("log_often", "decide")
    ),
}
# What a person changes in the middle of a run.
REWIRINGS: dict[str, Callable[[Graph, random.Random], Graph]] = {
    name: EDITS[name] for name in ("accumulate", "clip", "log", "checkpoint", "jitter", "pause")
}


@dataclass(frozen=True)
class Event:
    """What happens to one process of the run.

    Attributes:
        what: "stop" (a signal at a step), "cut" (so many transitions, then a save), "kill" (at a step), "kill in a
            save" (at a call of the disk), "power" (the same, and what was not flushed is lost), "fail" (that call
            fails), "full" (it and all writes after it fail), "raise" (the step function raises), "clock" (the clock
            jumps ahead), "back" (it jumps back).
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
        return cls(what, choose.randint(1, last), choose.randrange(1000))


OF_THE_DISK = ("kill in a save", "power", "fail", "full")
EVENTS = ("stop", "cut", "kill", "raise", "clock", "back", *OF_THE_DISK)


@dataclass(frozen=True)
class Life:
    """Everything that a life depends on: printed, it can be lived again.

    Attributes:
        edits: names in `EDITS`, each with the seed of its numbers.
        overlays: names of shipped overlays.
        data: a kind of `KINDS`.
        workers: of its loader, in one process after the other.
        rewirings: steps after which the graph is changed, each with a name in `REWIRINGS` and a seed.
        pauses: batches after which a process stops, and continues: it has ended its workers, and opens its data again.
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

    @classmethod
    def drawn(cls, seed: int) -> Life:
        """The life of a seed."""
        choose = random.Random(seed)
        data = choose.choice(DATA)
        # An epoch that is cut short is refused for data that keeps its own position.
        edits = sorted(EDITS.keys() - ({"batches"} if data == "with state" else ()))
        names = choose.sample(edits, choose.randint(0, 7))
        overlays = tuple(choose.sample(OVERLAYS, choose.choice([0, 0, 1, 1, 2])))
        if any(pair <= {*overlays} for pair in TOGETHER):
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
            choose.choice(sorted(OPTIMIZERS)),
            choose.choice(sorted(SCHEDULERS)),
            tuple(
                (step, choose.choice(sorted(REWIRINGS)), choose.randrange(1000))
                for step in sorted(choose.sample(range(1, 5), changes))
            ),
            tuple(Event.drawn(choose) for _ in range(choose.randint(1, MOST_EVENTS))),
            tuple(sorted(choose.sample(range(1, 14), choose.choice([0, 1, 2])))),
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
        return graph.overlay(*self.overlays) if self.overlays else graph

    def rewired(self, graph: Graph, number: int) -> Graph:
        """The graph after a rewiring, which is left as it is where the change is there already."""
        _, name, seed = self.rewirings[number]
        return graph if name in graph.nodes and name in ("jitter", "pause") else (
            REWIRINGS[name](graph, random.Random(seed))
        )  # fmt: skip

    def trainer(self, graph: Graph, number: int, step: Callable[..., Any] = losses_of, **options: Any) -> Trainer:
        """A trainer as one process makes it.

        Arguments:
            number: of the process.
            step: what is called for the loss of a batch.
        """
        torch.set_num_threads(1)
        seed_everything(7)
        model = Network()
        temperature = nn.Parameter(torch.tensor(1.5))
        body = [parameter for name, parameter in model.named_parameters() if not name.startswith("head")]
        groups = [{"params": body}, {"params": [*model.head.parameters(), temperature], "weight_decay": 0.0}]
        optimizer = OPTIMIZERS[self.optimizer](groups)
        scheduler = SCHEDULERS[self.scheduler](optimizer)
        data = Augmented()
        return Trainer(
            graph,
            seed=11,
            device="cpu",
            display=None,
            notify=lambda line: None,
            not_state=["training_step<step>"],  # what the simulation counts
            model=model,
            optimizer=optimizer,
            train_data=KINDS[self.data](data, self.workers[number % len(self.workers)]),
            val_data=Loader(data, 5),
            training_step=lambda model, batch: step(model, batch, temperature),
            **{"scheduler": scheduler} if scheduler is not None else {},
            **options,
        )


def every_part() -> Iterator[Life]:
    """Lives in which nothing happens, and which together have everything that lives are drawn from."""
    edits = sorted(EDITS.keys() - {"batches"})
    optimizers, schedulers = sorted(OPTIMIZERS), sorted(SCHEDULERS)
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
        )


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.01),
    "Adam with amsgrad": lambda groups: torch.optim.Adam(groups, lr=0.01, amsgrad=True),
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.01),
    "SGD with momentum": lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9, nesterov=True),
    "RMSprop": lambda groups: torch.optim.RMSprop(groups, lr=0.001, momentum=0.5, centered=True),
}
SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "none": lambda optimizer: None,
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9),
    "warm-up": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2),
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        ],
        [2],
    ),
    "lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
}
