"""Promise 11: an attribute of a user's node that changes and is not progress is named, and the resume not exact."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer, fit, node
from graphtrain.resume import restore


class Box:
    def __init__(self) -> None:
        self.count = 0


class Shrinks:
    """Shrinks the weights by a factor that depends on what it keeps; each kind below keeps it elsewhere."""

    def shrink(self, model: torch.nn.Module, factor: float) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 - 1 / (10 + factor))


@node
class CountsInANumber(Shrinks):
    def __init__(self) -> None:
        self._count = 0

    def __call__(self, model: Any) -> None:
        self._count += 1
        self.shrink(model, self._count)


@node
class OfAPackage(CountsInANumber):
    __module__ = "numpy"


@node
class CountsInAnObject(Shrinks):
    def setup(self, model: Any) -> None:
        self._count = Box()

    def __call__(self, model: Any) -> None:
        self._count.count += 1
        self.shrink(model, self._count.count)


@node
class CountsInATensor(Shrinks):
    def setup(self, model: Any) -> None:
        self._count = torch.zeros(())

    def __call__(self, model: Any) -> None:
        self._count += 1
        self.shrink(model, float(self._count))


@node
class Draws(Shrinks):
    def setup(self, model: Any) -> None:
        self._count = random.Random(3)

    def __call__(self, model: Any) -> None:
        self.shrink(model, self._count.random())


@node
class CountsInAClosure(Shrinks):
    def setup(self, model: Any) -> None:
        calls = [0]
        self._count = lambda: calls.append(0) or len(calls)

    def __call__(self, model: Any) -> None:
        self.shrink(model, self._count())


@node
class CountsInAnIterator(Shrinks):
    def setup(self, model: Any) -> None:
        self._count = itertools.count(1)

    def __call__(self, model: Any) -> None:
        self.shrink(model, next(self._count))


@node
class CountsInASlot(Shrinks):
    __slots__ = ("_count",)

    def setup(self, model: Any) -> None:
        self._count = 0

    def __call__(self, model: Any) -> None:
        self._count += 1
        self.shrink(model, self._count)


@node
class CountsInAParameter(Shrinks):
    factor: float = 0.0

    def __call__(self, model: Any) -> None:
        self.factor += 1
        self.shrink(model, self.factor)


@node
class DrawsByAMethod(Shrinks):
    def setup(self, model: Any) -> None:
        self._count = random.Random(3).random

    def __call__(self, model: Any) -> None:
        self.shrink(model, self._count())


@node
class RemembersTheWeights(Shrinks):
    """Its `setup` makes something else after a resume, of the weights of then."""

    def setup(self, model: Any) -> None:
        self._count = [parameter.detach().clone() for parameter in model.parameters()]

    def __call__(self, model: Any) -> None:
        self.shrink(model, float(self._count[0].abs().sum()))


@node
class CountsInABody(Shrinks):
    """Starts again at each visit, by a method that `setup` calls."""

    def setup(self, model: Any) -> None:
        self.start()

    def start(self) -> None:
        self._count = 0

    def __call__(self, model: Any) -> None:
        self._count += 1
        self.shrink(model, self._count)


@node
class CountsInAVisit(Shrinks):
    """Starts again at each visit."""

    def setup(self, model: Any) -> None:
        self._count = 0

    def __call__(self, model: Any) -> None:
        self._count += 1
        self.shrink(model, self._count)


@node
class OnlyReads(Shrinks):
    """What it keeps is of the model, or stays as it was set up."""

    def setup(self, model: Any) -> None:
        self._weights, self._factors = list(model.parameters()), [2.0, 3.0]

    def __call__(self, model: Any) -> None:
        self.shrink(model, self._factors[0] + 0 * len(self._weights))


@node
class CollectsInABody:
    """Its `setup` runs at each visit of the body, so the list does not outlive the visit."""

    def setup(self) -> None:
        self._seen: list[int] = []

    def __call__(self) -> None:
        self._seen.append(len(self._seen))


def cut(graph: Graph, run_dir: Path, *cuts: str | int) -> tuple[str, str]:
    """Whether a run that is cut and resumed ends as the whole one does, and what the last resume says.

    Arguments:
        cuts: where; an amount, or how many visits of the node `own` in the validation come before. Default: 6 batches.
    """
    digests, lines = [], list[str]()
    for folder, until in (("whole", None), *[("cut", at) for at in cuts or ("6 batches",)], ("cut", None)):
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        trainer = Trainer(
            graph, run_dir=run_dir / folder, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            train_data=[torch.ones(4, 2)] * 4, val_data=[torch.ones(4, 2)] * 3, display=None, notify=lines.append,
            training_step=lambda model, batch: model(batch).mean(), validation_step=lambda model, batch: 1.0,
        )  # fmt: skip
        if isinstance(until, int):
            for _ in range(until):
                while trainer.advance() != "validate/own":
                    pass
            trainer.advance()
            trainer.save()
        else:
            trainer.run(until=until)
        digests.append([parameter.tolist() for parameter in model.parameters()])
    *_, resumed = [line for line in lines if line.startswith("resumed")]
    return "same" if digests[0] == digests[-1] else "differs", resumed


@pytest.mark.parametrize(
    "kind",
    [
        CountsInANumber, CountsInAnObject, CountsInATensor, CountsInAClosure, CountsInAnIterator, CountsInASlot,
        CountsInAParameter, Draws, DrawsByAMethod, OfAPackage, RemembersTheWeights,
    ],
)  # fmt: skip
def test_an_attribute_that_changes_is_named(kind: Any, tmp_path: Path) -> None:
    result, resumed = cut(fit(epochs=2).insert("own", kind, after="step"), tmp_path)
    assert result == "differs"
    name = "factor" if kind is CountsInAParameter else "_count"
    assert f"not exact: `own` has changed its `{name}`, which is not saved: make it progress" in resumed


def in_a_body(kind: Any) -> Graph:
    return fit(epochs=2).set("validate", graph=Graph.load("evaluate").insert("own", kind, after="eval_batch"))


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        (CountsInAVisit, 2),
        (CountsInAVisit, 5),
        (CountsInABody, 2),
        (CountsInANumber, 4),
        (CountsInANumber, "6 batches"),
    ],
)
def test_an_attribute_in_a_body_is_named(kind: Any, at: str | int, tmp_path: Path) -> None:
    result, resumed = cut(in_a_body(kind), tmp_path, at)
    assert result == "differs"
    assert resumed.endswith("not exact: `validate/own` has changed its `_count`, which is not saved: make it progress")


def test_a_resume_that_was_not_exact_is_named_by_the_next(tmp_path: Path) -> None:
    result, resumed = cut(in_a_body(CountsInAVisit), tmp_path, 2, "6 batches")
    assert result == "differs"
    assert resumed.endswith("unchanged: exact; but the resume from 000001-step-4 was not")


@pytest.mark.parametrize(
    "graph",
    [
        fit(epochs=2).insert("own", OnlyReads, after="step"),
        in_a_body(CollectsInABody),
        in_a_body(CountsInABody),
        in_a_body(OnlyReads),
    ],
    ids=["the weights", "a list that setup makes in a body", "a number that a method makes", "the weights, in a body"],
)
def test_what_does_not_change_is_exact(graph: Graph, tmp_path: Path) -> None:
    result, resumed = cut(graph, tmp_path)
    assert result == "same" and resumed.endswith("exact") and "not exact" not in resumed


def test_without_the_comparison_it_would_be_called_exact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(restore, "changed_attributes", lambda *arguments: iter(()))
    _, resumed = cut(fit(epochs=2).insert("own", CountsInANumber, after="step"), tmp_path)
    assert "not exact" not in resumed
