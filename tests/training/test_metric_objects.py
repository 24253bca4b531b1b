"""Promise 20: metric objects, such as those of torchmetrics: recorded, reset, saved, and joined over ranks."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, UsageError
from tests.fake_ranks import run_ranks
from tests.world import World, assert_exact, run_through, seed_generators, small_fit, world

pytest.importorskip("torchmetrics")

from torchmetrics import MeanMetric, MetricCollection, PearsonCorrCoef
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
    MulticlassMatthewsCorrCoef,
    MulticlassPrecision,
    MulticlassRecall,
)
from torchmetrics.retrieval import RetrievalMAP
from torchmetrics.text import Perplexity
from torchmetrics.wrappers import ClasswiseWrapper

CLASSES = 3
Batch = tuple[torch.Tensor, torch.Tensor]


class Quantiles:
    """An own class: no tensor, no library; what it has seen is a plain list."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def update(self, value: torch.Tensor, scale: float = 2.0) -> None:
        self.seen += [scale * each for each in value.tolist()]

    def compute(self) -> dict[str, float]:
        ordered = sorted(self.seen)
        return {"low": ordered[len(ordered) // 4], "high": ordered[3 * len(ordered) // 4]}

    def reset(self) -> None:
        self.seen = []


def classes(logits: torch.Tensor, target: torch.Tensor) -> dict[str, Any]:
    return {"preds": logits, "target": target}


def numbers(logits: torch.Tensor, target: torch.Tensor) -> dict[str, Any]:
    return {"preds": logits[:, 0], "target": target.float()}


OBJECTS: dict[str, tuple[Callable[[], Any], Callable[..., dict[str, Any]]]] = {
    "auroc": (lambda: MulticlassAUROC(CLASSES), classes),
    "groups": (
        lambda: MetricCollection(
            {"a": MulticlassPrecision(CLASSES), "b": MulticlassRecall(CLASSES), "c": MulticlassF1Score(CLASSES)}
        ),
        classes,
    ),
    "own": (Quantiles, lambda logits, target: {"value": logits[:, 0]}),
    "pearson": (PearsonCorrCoef, numbers),
    "mean": (MeanMetric, lambda logits, target: {"value": logits[:, 0], "weight": target + 1}),
    "a value of each class": (lambda: MulticlassRecall(CLASSES, average=None), classes),
    "correlation of a confusion matrix": (lambda: MulticlassMatthewsCorrCoef(CLASSES), classes),
    "perplexity": (Perplexity, lambda logits, target: {"preds": logits[:, None], "target": target[:, None]}),
    "wrapper": (lambda: ClasswiseWrapper(MulticlassAccuracy(CLASSES, average=None)), classes),
    "retrieval": (
        RetrievalMAP,
        lambda logits, target: {"preds": logits[:, 0], "target": target > 0, "indexes": target},
    ),
}


def batches(number: int = 5) -> list[Batch]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(number * 6, 4, generator=generator)
    targets = torch.randint(CLASSES, (number * 6,), generator=generator)
    return list(zip(inputs.split(6), targets.split(6), strict=True))


def step_returning(returned: Callable[..., dict[str, Any]], model: Any, batch: Batch) -> dict[str, Any]:
    logits = model(batch[0])
    return {"loss": torch.nn.functional.cross_entropy(logits, batch[1]), **returned(logits, batch[1])}


FIT = small_fit(accumulate=1, clip=None, log_every="2 steps", validate_every="1 epochs")


def of_values(model: Any, batch: Batch) -> dict[str, Any]:
    return {"loss": model(batch[0]).sum(), "value": batch[0][:, 0]}


def measured(objects: Mapping[str, Any], step: Any, graph: Graph = FIT, number: int = 5) -> World:
    it = world(
        graph,
        model=lambda: torch.nn.Sequential(torch.nn.Linear(4, CLASSES), torch.nn.Dropout(0.1)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        scheduler="none",
        data=batches,
        training_step=step,
    )
    return it.but(val_data=batches(number), metric_objects=lambda made: copy.deepcopy(objects))


def of_three(name: str) -> World:
    """One of every place: of a validation, of epochs, and of rows of the log."""
    new, returned = OBJECTS[name]
    objects = {"val/it": new(), "epoch/it": new(), "it": new()}
    return measured(objects, functools.partial(step_returning, returned))


def flat(name: str, value: Any) -> dict[str, float]:
    """What a row has of a value that was computed by hand."""
    if isinstance(value, Mapping):
        return {f"{name}/{key}": float(each) for key, each in value.items()}
    if isinstance(value, torch.Tensor) and value.ndim:
        return {f"{name}/{number}": float(each) for number, each in enumerate(value)}
    return {name: float(value)}


def by_hand(name: str) -> list[dict[str, float]]:
    """The same training as a loop, with the values of one epoch after the other: log, epoch, validation."""
    new, returned = OBJECTS[name]
    resources, rows = of_three(name).resources(), list[dict[str, float]]()
    model, optimizer = resources["model"], resources["optimizer"]
    objects = {"it": new(), "epoch/it": new(), "val/it": new()}

    def record(name: str) -> None:
        rows.append(flat(name, objects[name].compute()))
        objects[name].reset()

    seed_generators(11)
    for number, (inputs, target) in enumerate(batches() * 2, 1):
        logits = model(inputs)
        torch.nn.functional.cross_entropy(logits, target).backward()
        for each in ("it", "epoch/it"):
            objects[each].update(**returned(logits.detach(), target))
        optimizer.step()
        optimizer.zero_grad()
        if number % 2 == 0:
            record("it")
        if number % 5 == 0:
            record("epoch/it")
            model.eval()
            for inputs, target in batches():
                with torch.no_grad():
                    objects["val/it"].update(**returned(model(inputs), target))
            model.train()
            record("val/it")
    return rows


@pytest.mark.first(6)
@pytest.mark.parametrize("name", OBJECTS)
def test_it_has_the_values_of_a_loop_by_hand(name: str) -> None:
    rows = run_through(of_three(name), None).trainer.metrics
    of_means = ("loss", "lr", "step", "epoch", "epoch/loss", "val/loss")
    assert [{key: row[key] for key in row if key not in of_means} for row in rows] == by_hand(name)
    assert all("loss" in row or "epoch/loss" in row or "val/loss" in row for row in rows)


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("name", OBJECTS)
def test_it_is_exact_through_cuts_in_validations(name: str, tmp_path: Path) -> None:
    visited = run_through(of_three(name), None, trace=True).visited
    cuts = [number for number, node in enumerate(visited, 1) if node == "validate/eval_batch"]
    assert_exact(of_three(name), tmp_path, at=cuts[1::4])


def evaluated(name: str, number: int) -> dict[str, float]:
    new, returned = OBJECTS[name]
    step = functools.partial(step_returning, returned)
    return run_through(measured({"val/it": new()}, step, Graph.load("evaluate"), number), None).trainer.metrics[-1]


# With 1 batch, one of the ranks has none.
@pytest.mark.second(20)
@pytest.mark.first(4)
@pytest.mark.parametrize("number", [1, 5])
@pytest.mark.parametrize("name", [name for name in OBJECTS if name != "own"])
def test_ranks_record_what_one_process_does(name: str, number: int) -> None:
    alone = evaluated(name, number)
    for of_rank in run_ranks(2, lambda ranks: evaluated(name, number)):
        assert of_rank == pytest.approx(alone, rel=1e-5, abs=1e-6)


def test_what_several_ranks_have_seen_is_joined_without_effect_on_what_each_has() -> None:
    def run(ranks: Any) -> tuple[int, list[float]]:
        graph = FIT.set("log", every="never").set("finish", after="4 batches")
        it = measured({"it": MeanMetric(), "epoch/it": MeanMetric()}, of_values, graph)
        trainer = run_through(it, None).trainer
        rows = [row["epoch/it"] for row in trainer.metrics if "epoch/it" in row]
        return trainer.resources["metric_objects"]["it"].update_count, rows

    first, second = run_ranks(2, run)
    assert first == second and first[0] == 2


# ---- what is returned


def test_of_two_nodes_that_train_each_updates_its_own() -> None:
    graph = FIT.insert("other", "train_batch", after="train_batch", writes={"loss": "other_loss"})
    objects = {"it": MeanMetric(), "other/it": MeanMetric(), "epoch/other/it": MeanMetric()}
    rows = run_through(measured(objects, of_values, graph), None).trainer.metrics
    seen = {frozenset({*row} & {*objects}) for row in rows if "it" in row or "epoch/loss" in row}
    assert seen == {frozenset({"it", "other/it"}), frozenset({"epoch/other/it"})}


@pytest.mark.parametrize("monitor", ["val/it/low", "epoch/it/low", "it/low"])
def test_a_node_may_wait_for_one(monitor: str) -> None:
    graph = FIT.set("checkpoint", best=monitor, best_mode="max").set("log", every="9 steps")
    rows = run_through(of_three("own").but(graph), None).trainer.metrics
    assert any(monitor in row for row in rows)


# ---- bad input


class Half:
    def update(self) -> None: ...

    def reset(self) -> None: ...


SAME = MeanMetric()


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ({"val/it": Half()}, r"`metric_objects` has `val/it`, a Half.*torchmetrics has them"),
        ({"val/it": MeanMetric}, r"`metric_objects` has `val/it`.*pass an object"),
        ([MeanMetric()], r"`metric_objects` must be a mapping of names; got a list of 1.*give each object a name"),
        ({1: MeanMetric()}, r"must be a mapping of names; got a dict"),
        ({"val/a": SAME, "b": SAME}, r"`val/a` and `b` are one metric object.*make two"),
    ],
)
def test_what_is_no_metric_object_is_refused_before_the_run(objects: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){message}"):
        measured(objects, functools.partial(step_returning, classes)).trainer()


@pytest.mark.parametrize(
    ("objects", "returned", "message"),
    [
        ({"val/it": MulticlassConfusionMatrix(CLASSES)}, classes, r"`val/it` computed a tensor of shape \(3, 3\)"),
        ({"val/": MulticlassAccuracy(CLASSES)}, classes, r"`val/` computed .*use a name that does not end in a slash"),
        (
            {"val/loss": MulticlassAccuracy(CLASSES)},
            classes,
            r"two metrics are called `val/loss`",
        ),
        (
            {"val/it": MulticlassAccuracy(CLASSES), "val/": MetricCollection({"it": MulticlassAccuracy(CLASSES)})},
            classes,
            r"two metrics are called `val/it`: one is from the metric object `val/`",
        ),
        (
            {"val/it": MulticlassAccuracy(CLASSES)},
            lambda logits, target: {"logits": logits.mean()},
            r"updated with `preds`, `target`; `training_step` returned `loss`, `logits`",
        ),
    ],
)
def test_a_value_or_a_name_that_no_row_can_have_is_an_error(objects: Any, returned: Any, message: str) -> None:
    it = measured(objects, functools.partial(step_returning, returned), Graph.load("evaluate"))
    with pytest.raises(UsageError, match=f"(?s){message}"):
        it.trainer().run()


def test_one_that_is_not_of_torchmetrics_is_an_error_among_several_ranks() -> None:
    def run(ranks: Any) -> None:
        step = functools.partial(step_returning, OBJECTS["own"][1])
        measured({"val/it": Quantiles()}, step, Graph.load("evaluate")).trainer().run()

    with pytest.raises(UsageError, match=r"`val/it`, a Quantiles, has seen(?s:.)*subclass of torchmetrics.Metric"):
        run_ranks(2, run)
