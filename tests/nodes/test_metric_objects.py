"""Metric objects, such as those of torchmetrics: updated, computed, recorded, reset, saved, and joined over ranks."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer, UsageError
from tests.ranks.fake_ranks import run_ranks

pytest.importorskip("torchmetrics")

from torchmetrics import MeanMetric, MeanSquaredError, MetricCollection, PearsonCorrCoef
from torchmetrics.classification import (
    BinaryF1Score,
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


OBJECTS: dict[str, tuple[Callable[[], Any], Callable[[torch.Tensor, torch.Tensor], dict[str, Any]]]] = {
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
    "accuracy": (lambda: MulticlassAccuracy(CLASSES), classes),
    "f1": (lambda: MulticlassF1Score(CLASSES), classes),
    "auroc of bins": (lambda: MulticlassAUROC(CLASSES, thresholds=5), classes),
    "correlation of a confusion matrix": (lambda: MulticlassMatthewsCorrCoef(CLASSES), classes),
    "mse": (MeanSquaredError, numbers),
    "perplexity": (Perplexity, lambda logits, target: {"preds": logits[:, None], "target": target[:, None]}),
    "collection": (lambda: MetricCollection([MulticlassPrecision(CLASSES), MulticlassAUROC(CLASSES)]), classes),
    "wrapper": (lambda: ClasswiseWrapper(MulticlassAccuracy(CLASSES, average=None)), classes),
    "sum of two": (lambda: MulticlassAccuracy(CLASSES) + MulticlassF1Score(CLASSES), classes),
    "retrieval": (
        RetrievalMAP,
        lambda logits, target: {"preds": logits[:, 0], "target": target > 0, "indexes": target},
    ),
}
ALL = pytest.mark.parametrize("name", OBJECTS)


def batches(number: int = 5) -> list[Batch]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(number * 6, 4, generator=generator)
    targets = torch.randint(CLASSES, (number * 6,), generator=generator)
    return list(zip(inputs.split(6), targets.split(6), strict=True))


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, CLASSES), torch.nn.Dropout(0.1))
    return model, torch.optim.SGD(model.parameters(), lr=0.5)


def step_returning(returned: Callable[..., dict[str, Any]], model: Any, batch: Batch) -> dict[str, Any]:
    logits = model(batch[0])
    return {"loss": torch.nn.functional.cross_entropy(logits, batch[1]), **returned(logits, batch[1])}


FIT = Graph.load("fit").set("finish", after="2 epochs").set("log", every="2 steps").set("checkpoint", every="never")


def make(
    objects: Mapping[str, Any],
    step: Any,
    graph: Graph = FIT,
    run_dir: Path | None = None,
    lines: list[str] | None = None,
    data: Any = None,
) -> Trainer:
    model, optimizer = parts()
    return Trainer(
        graph,
        run_dir=run_dir,
        seed=0,
        display=None,
        notify=lines.append if lines is not None else lambda line: None,
        model=model,
        optimizer=optimizer,
        train_data=batches(),
        val_data=batches() if data is None else data,
        training_step=step,
        metric_objects=objects,
    )


def three(name: str) -> dict[str, Any]:
    """One of every place: of a validation, of epochs, and of rows of the log."""
    new = OBJECTS[name][0]
    return {"val/it": new(), "epoch/it": new(), "it": new()}


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
    (model, optimizer), rows, step = parts(), [], 0
    of_log, of_epoch, of_validation = new(), new(), new()
    torch.manual_seed(0)
    for _ in range(2):
        for inputs, target in batches():
            logits = model(inputs)
            torch.nn.functional.cross_entropy(logits, target).backward()
            for each in (of_log, of_epoch):
                each.update(**returned(logits.detach(), target))
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 2 == 0:
                rows.append(flat("it", of_log.compute()))
                of_log.reset()
        rows.append(flat("epoch/it", of_epoch.compute()))
        of_epoch.reset()
        model.eval()
        for inputs, target in batches():
            with torch.no_grad():
                of_validation.update(**returned(model(inputs), target))
        model.train()
        rows.append(flat("val/it", of_validation.compute()))
        of_validation.reset()
    return rows


def recorded(trainer: Trainer) -> list[dict[str, float]]:
    """The values of objects in the rows, without those of means."""
    objects = ("it", "epoch/it", "val/it")
    rows = [
        {name: value for name, value in row.items() if f"{name}/".startswith(tuple(f"{each}/" for each in objects))}
        for row in trainer.metrics
    ]
    return [row for row in rows if row]


@functools.cache
def whole(name: str) -> Trainer:
    trainer = make(three(name), functools.partial(step_returning, OBJECTS[name][1]))
    trainer.run()
    return trainer


@pytest.mark.first(6)
@ALL
def test_it_has_the_values_of_a_loop_by_hand(name: str) -> None:
    assert recorded(whole(name)) == by_hand(name)
    assert all("loss" in row or "epoch/loss" in row or "val/loss" in row for row in whole(name).metrics)
    assert not any("preds" in metric or "target" in metric for row in whole(name).metrics for metric in row)


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize(("name", "batch"), [(name, 1 + number % 4) for number, name in enumerate(OBJECTS)])
def test_it_is_exact_through_a_cut_in_a_validation(name: str, batch: int, tmp_path: Path) -> None:
    step = functools.partial(step_returning, OBJECTS[name][1])
    first, lines = make(three(name), step, run_dir=tmp_path), list[str]()
    while first.position != "validate/eval_batch" or first.progress["validate/next_batch"]["batches"] != batch:
        first.advance()
    first.advance()
    first.save()
    second = make(three(name), step, run_dir=tmp_path, lines=lines)
    second.run()
    assert any(line.endswith("exact") for line in lines), lines
    assert second.metrics == whole(name).metrics
    assert second.digest() == whole(name).digest()


def evaluated(name: str, number: int) -> dict[str, float]:
    objects = {"val/it": OBJECTS[name][0]()}
    step = functools.partial(step_returning, OBJECTS[name][1])
    trainer = make(objects, step, Graph.load("evaluate"), data=batches(number))
    trainer.run()
    return dict(trainer.metrics[-1])


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
        objects = {"it": MeanMetric(), "epoch/it": MeanMetric()}
        trainer = make(
            objects, lambda model, batch: {"loss": model(batch[0]).sum(), "value": batch[0][:, 0]},
            FIT.set("log", every="never").set("finish", after="4 batches"),
        )  # fmt: skip
        trainer.run()
        return objects["it"].update_count, [row["epoch/it"] for row in trainer.metrics if "epoch/it" in row]

    first, second = run_ranks(2, run)
    assert first == second and first[0] == 2


# ---- what is returned


def test_of_two_nodes_that_train_each_updates_its_own() -> None:
    graph = FIT.insert("other", "train_batch", after="train_batch", writes={"loss": "other_loss"})
    objects = {"it": MeanMetric(), "other/it": MeanMetric(), "epoch/other/it": MeanMetric()}
    trainer = make(objects, lambda model, batch: {"loss": model(batch[0]).sum(), "value": batch[0]}, graph)
    trainer.run()
    seen = [{*row} & {*objects} for row in trainer.metrics if "it" in row or "epoch/loss" in row]
    assert {frozenset(names) for names in seen} == {frozenset({"it", "other/it"}), frozenset({"epoch/other/it"})}


@pytest.mark.parametrize("monitor", ["val/it/low", "epoch/it/low", "it/low"])
def test_a_node_may_wait_for_one(monitor: str) -> None:
    graph = FIT.set("checkpoint", best=monitor, best_mode="max").set("log", every="9 steps")
    trainer = make(three("own"), functools.partial(step_returning, OBJECTS["own"][1]), graph)
    trainer.run()
    assert any(monitor in row for row in trainer.metrics)


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
        make(objects, functools.partial(step_returning, classes))


@pytest.mark.parametrize(
    ("objects", "returned", "message"),
    [
        ({"val/it": MulticlassConfusionMatrix(CLASSES)}, classes, r"`val/it` computed a tensor of shape \(3, 3\)"),
        ({"val/": MulticlassAccuracy(CLASSES)}, classes, r"`val/` computed .*take a name that ends in no slash"),
        ({"val/loss": MulticlassAccuracy(CLASSES)}, classes, r"`val/loss` is given by two: a mean of the batches, and"),
        (
            {"val/it": MulticlassAccuracy(CLASSES), "val/": MetricCollection({"it": MulticlassAccuracy(CLASSES)})},
            classes,
            r"`val/it` is given by two: the metric object `val/it`, and the metric object `val/`",
        ),
        (
            {"val/it": MulticlassAccuracy(CLASSES)},
            lambda logits, target: {"logits": logits.mean()},
            r"updated with `preds`, `target`, which `training_step` did not return; it returned `loss`, `logits`.*"
            r'return what `update` takes by name, as in \{"loss": loss, "preds": ..., "target": ...\}',
        ),
    ],
    ids=["matrix", "prefix", "mean", "twice", "not returned"],
)
def test_a_value_or_a_name_that_no_row_can_have_is_an_error(objects: Any, returned: Any, message: str) -> None:
    trainer = make(copy.deepcopy(objects), functools.partial(step_returning, returned), Graph.load("evaluate"))
    with pytest.raises(UsageError, match=f"(?s){message}"):
        trainer.run()


def test_one_that_nothing_updates_is_reported() -> None:
    lines: list[str] = []
    objects = {"vall/it": BinaryF1Score(), "val/it": BinaryF1Score(), "test/it": BinaryF1Score()}
    make(objects, functools.partial(step_returning, classes), lines=lines)
    expected = "nothing updates the metric objects `vall/it`: names begin with `epoch/`, `val/`, or have no slash"
    assert expected in lines


def test_one_that_is_not_of_torchmetrics_is_an_error_among_several_ranks() -> None:
    def run(ranks: Any) -> None:
        step = functools.partial(step_returning, OBJECTS["own"][1])
        make({"val/it": Quantiles()}, step, Graph.load("evaluate")).run()

    with pytest.raises(UsageError, match=r"`val/it`, a Quantiles, has seen(?s:.)*subclass of torchmetrics.Metric"):
        run_ranks(2, run)
