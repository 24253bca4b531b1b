"""What a run of `fit` must do, in plain loops and fractions, and what one does, seen from outside (promises 3 and 7).

`expected` shares nothing with graphtrain; `observed` sees only what the functions of a user and the public interface of
a trainer show. Both answer the same list of events:

    ("batch", 3)       the third batch of its epoch went through `training_step`
    ("step", 12.0)     the optimizer stepped; the gradient it used, times the window, was 12
    ("discard", 5.0)   gradients were cleared that no step had used
    ("val", 2)         the second batch of the validation data went through `validation_step`
    ("validated",)     a validation ended            ("saved",)         a checkpoint was asked for
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from graphtrain import DataError, Graph, Trainer

Event = tuple[Any, ...]

# A run of these settings takes some hundred transitions; one that takes this many will never end.
_MOST_TRANSITIONS = 5_000


@dataclass(frozen=True)
class Setting:
    """A run of `fit`.

    Arguments:
        lengths: how many batches each epoch gives, in turn; after the last, the first again.
        claim: what `len()` adds to the truth; None for data without a `len()`.
        window: what happens to a short last window: "step", "scaled", "carry" or "drop".
    """

    lengths: tuple[int, ...] = (7,)
    claim: int | None = 0
    accumulate: int = 1
    window: str = "step"
    validate: tuple[str, ...] = ("1 epochs",)
    checkpoint: tuple[str, ...] = ("1 epochs",)
    after: tuple[str, ...] = ("2 epochs",)
    limit: int | None = None
    val_length: int = 3
    val_claim: int | None = 0
    val_limit: int | None = None


def samples_in(number: int) -> int:
    """How many samples the batch of that number holds, in every epoch."""
    return 1 + number % 3


def amounts(texts: tuple[str, ...]) -> list[tuple[Fraction, str]]:
    """``("0.25 epochs",)`` as numbers and units."""
    return [(Fraction(text.split()[0]), text.split()[1]) for text in texts if text != "never"]


def expected(setting: Setting) -> list[Event]:
    """Every event of the run, in order."""
    events: list[Event] = []
    clock = dict.fromkeys(("epochs", "batches", "epoch_batches", "samples", "steps"), Fraction(0))
    fired = {"validate": dict(clock), "checkpoint": dict(clock)}
    window: list[int] = []
    endless = 10**9 if setting.limit is None else setting.limit

    def ending() -> bool:
        return any(clock[unit] >= amount for amount, unit in amounts(setting.after))

    for epoch in itertools.count():
        given = setting.lengths[epoch % len(setting.lengths)]
        length = min(given, endless)
        claimed = 0 if setting.claim is None else min(max(given + setting.claim, 0), endless)
        # An end that nobody could foresee is one more moment, without a batch.
        unforeseen = length == 0 or (claimed > length and given < endless)
        clock["epoch_batches"] = Fraction(0)
        for one in fired.values():
            one["epoch_batches"] = Fraction(0)
        for number in [*range(1, length + 1), *([None] if unforeseen else [])]:
            last = number is None or (number == length and not unforeseen)
            if number is not None:
                events.append(("batch", number))
                window.append(number)
                clock["batches"] += 1
                clock["epoch_batches"] += 1
                clock["samples"] += samples_in(number)
                part = Fraction(min(number, claimed - 1), claimed) if claimed else Fraction(0)
            clock["epochs"] = Fraction(epoch + (length > 0)) if last else epoch + part
            cut = ending() or (last and setting.window != "carry") or length == 0
            if window and (len(window) == setting.accumulate or (cut and setting.window != "drop")):
                share = setting.accumulate / len(window) if setting.window == "scaled" else 1
                events.append(("step", round(sum(window) * share, 6)))
                clock["steps"] += 1
                window = []
            elif window and cut:
                events.append(("discard", float(sum(window))))
                window = []
            for name, every in (("validate", setting.validate), ("checkpoint", setting.checkpoint)):
                if any(math.floor(clock[u] / a) > math.floor(fired[name][u] / a) for a, u in amounts(every)):
                    events += validation(setting) if name == "validate" else [("saved",)]
                    fired[name] = dict(clock)
            if (ending() or length == 0) and not window:
                return events
    raise AssertionError


def validation(setting: Setting) -> list[Event]:
    """The events of one validation."""
    seen = setting.val_length if setting.val_limit is None else min(setting.val_length, setting.val_limit)
    return [*(("val", number) for number in range(1, seen + 1)), ("validated",)]


class Batches:
    """Data without a `len()`: batch `k` of an epoch holds the number `k`, for as many samples as it has."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths
        self.epochs_opened = 0

    def length(self) -> int:
        return self.lengths[self.epochs_opened % len(self.lengths)]

    def __iter__(self) -> Iterator[torch.Tensor]:
        length = self.length()
        self.epochs_opened += 1
        return (batch(number) for number in range(1, length + 1))


class ClaimedBatches(Batches):
    """The same, with a `len()` that may be wrong."""

    claim = 0

    def __len__(self) -> int:
        return max(self.length() + self.claim, 0)


def batch(number: int) -> torch.Tensor:
    """A batch whose gradient is its number."""
    return torch.full((samples_in(number),), float(number), dtype=torch.float64)


def data(lengths: tuple[int, ...], claim: int | None) -> Any:
    """A list where the length is constant and true, an iterable else."""
    if claim is None:
        return Batches(*lengths)
    if claim == 0 and len(lengths) == 1:
        return [batch(number) for number in range(1, lengths[0] + 1)]
    made = ClaimedBatches(*lengths)
    made.claim = claim
    return made


class Weight(torch.nn.Module):
    """A model of one number; the loss of a batch is that number times the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return self.weight * batch.mean()


class Witness(torch.optim.SGD):
    """SGD that writes down which gradient it stepped with, and which was thrown away."""

    def __init__(self, model: Weight, events: list[Event], window: int) -> None:
        super().__init__(model.parameters(), lr=0.01)
        self._model, self._events, self._window = model, events, window
        self._used = True

    def _gradient(self) -> float:
        gradient = self._model.weight.grad
        assert gradient is not None
        return round(float(gradient) * self._window, 6)

    def step(self, closure: Any = None) -> Any:
        self._events.append(("step", self._gradient()))
        self._used = True
        return super().step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        if not self._used:
            self._events.append(("discard", self._gradient()))
        self._used = True
        super().zero_grad(set_to_none)

    def accumulated(self) -> None:
        self._used = False


def graph_of(setting: Setting) -> Graph:
    """The graph that a user would make for this setting."""
    graph = (
        Graph.load("fit")
        .set("accumulate", every=setting.accumulate)
        .set("validate", every=list(setting.validate))
        .set("checkpoint", every=list(setting.checkpoint))
        .set("finish", after=list(setting.after))
    )
    if setting.limit is not None:
        graph = graph.set("next_batch", limit=setting.limit)
    if setting.val_limit is not None:
        graph = graph.set("validate/next_batch", limit=setting.val_limit)
    if setting.window == "carry":
        graph = graph.guard("window_cut", "finish.due")
    if setting.window == "scaled":
        graph = graph.overlay("scaled")
    if setting.window == "drop":
        graph = (
            graph.guard("accumulation_reached", "accumulate.count >= accumulate.every")
            .guard("window_dropped", "accumulate.count > 0 and window_cut")
            .insert("discard")
            .connect("accumulate", "discard", when="window_dropped", before="decide")
            .connect("discard", "decide")
        )
    return graph


def trainer_of(setting: Setting, events: list[Event], **more: Any) -> Trainer:
    """A trainer of this setting whose functions and optimizer write down what happens."""
    model = Weight()
    optimizer = Witness(model, events, setting.accumulate)

    def training_step(model: Weight, batch: torch.Tensor) -> torch.Tensor:
        events.append(("batch", int(batch[0])))
        optimizer.accumulated()
        return model.loss(batch)

    def validation_step(model: Weight, batch: torch.Tensor) -> torch.Tensor:
        events.append(("val", int(batch[0])))
        return model.loss(batch)

    arguments = {
        "graph": graph_of(setting),
        "model": model,
        "optimizer": optimizer,
        "train_data": data(setting.lengths, setting.claim),
        "val_data": data((setting.val_length,), setting.val_claim),
        "training_step": training_step,
        "validation_step": validation_step,
        "device": "cpu",
        "notify": lambda line: None,
        **more,
    }
    return Trainer(**arguments)


def observed(setting: Setting) -> list[Event]:
    """Every event of the run, in order, as it happens."""
    events: list[Event] = []
    trainer = trainer_of(setting, events)
    counted = {"validate": "validated", "checkpoint": "saved"}
    runs, transitions = dict.fromkeys(counted, 0), itertools.count(1)

    def look(transition: Any) -> None:
        assert next(transitions) <= _MOST_TRANSITIONS, f"the run does not end: {setting}"
        for node, word in counted.items():
            if (now := trainer.read(f"{node}.runs")) > runs[node]:
                runs[node] = now
                events.append((word,))

    try:
        trainer.run(trace=look)
    except DataError:  # to come to the end without a batch is an error
        assert not events and trainer.read("next_batch.empty")
    return events
