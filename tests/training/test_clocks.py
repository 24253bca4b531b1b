"""Promise 3: in graphs inside graphs, rows, status, `until` and step functions go by the clock of the one that trains.

Each graph around it is a column.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Edge, Graph, Node, Outcome, Run, Trainer, fit, node, progress
from tests.training.tiny import batches, manifest_of, tiny
from tests.world import World, assert_exact

FOLDS, EPOCHS = 2, 2
STEPS = 2 * EPOCHS  # of a fold: three batches in windows of two

K_FOLD = """
format = 1
name   = "k_fold"
start  = "next_fold"

[nodes]
next_fold = {}
train     = { graph = "fit" }
report    = {}
decide    = { use = "choice" }

[guards]
done = "next_fold.fold >= next_fold.folds"

[edges]
next_fold = ["train"]
train     = ["report"]
report    = ["decide"]
decide    = ["end if done", "next_fold"]

[clock]
fold    = "next_fold.fold"
reports = "report.reports"
seconds = "next_fold.seconds"
"""


@node(writes=("train_data", "val_data"))
class NextFold:
    """Divide the data."""

    folds: int = FOLDS

    fold: int = progress(0)
    seconds: float = progress(0.0, in_digest=False)

    def __call__(self, data: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        self.fold += 1
        self.seconds += 0.25
        return [batch for number, batch in enumerate(data, 1) if number != self.fold], [data[self.fold - 1]]


@node
class Report:
    """Record a row outside of the training."""

    reports: int = progress(0)

    def setup(self, recorder: Any) -> None:
        self._recorder = recorder

    def __call__(self) -> None:
        self.reports += 1
        self._recorder.row({"report/number": self.reports})


def k_fold(**checkpoint: Any) -> Graph:
    body = fit(epochs=EPOCHS, accumulate=2, log_every="1 steps").set("checkpoint", **(checkpoint or {"every": "never"}))
    graph = Graph.loads(K_FOLD).replace("next_fold", NextFold).replace("report", Report)
    return graph.set("train", graph=body)


def folds(graph: Graph | None = None, run_dir: Path | None = None, **more: Any) -> Trainer:
    return tiny(graph or k_fold(), run_dir, **{"data": four(), "train_data": None, **more})


def four() -> list[torch.Tensor]:
    return batches(5)[1:]


def test_rows_have_the_clock_of_the_graph_that_trains_and_a_column_for_each_around() -> None:
    seen: list[tuple[Any, ...]] = []

    def training_step(model: nn.Module, batch: Any, step: int, epoch: int) -> Any:
        seen.append((step, epoch))
        return model(batch).square().mean()

    trainer = folds(training_step=training_step)
    trainer.run()
    expected: list[tuple[str, tuple[Any, ...]]] = []
    for fold in range(1, FOLDS + 1):
        for epoch in range(EPOCHS):
            first, last = 2 * epoch + 1, 2 * epoch + 2
            expected.append(("loss", (fold, fold - 1, first, (3 * epoch + 2) / 3)))
            expected += [(name, (fold, fold - 1, last, epoch + 1.0)) for name in ("loss", "epoch/loss", "val/loss")]
        # Around the training its clock stands where it ended.
        expected.append(("report/number", (fold, fold, STEPS, float(EPOCHS))))
    names = dict(expected)
    rows = [
        (next(name for name in row if name in names), tuple(row[key] for key in ("fold", "reports", "step", "epoch")))
        for row in trainer.metrics
    ]
    assert rows == expected
    assert list(trainer.metrics[0]) == ["step", "epoch", "fold", "reports", "loss", "lr"]  # no seconds
    assert [type(value) for value in trainer.metrics[0].values()] == [int, float, int, int, float, float]
    of_a_fold = [(0, 0), (0, 0), (1, 0), (2, 0), (2, 1), (2, 1), (3, 1), (4, 1)]  # the fourth and the last: validation
    assert seen == of_a_fold * FOLDS


@pytest.mark.parametrize(
    ("unit", "field", "columns"),
    [
        ("turns", "train.runs", {"turns": 0}),
        ("step", "train.runs", {"k_fold/step": 0}),  # a column that rows have
        ("time", "next_fold.seconds", {}),
    ],
)
def test_a_unit_of_the_graph_around_is_a_column_if_it_tells_something(
    unit: str, field: str, columns: dict[str, int]
) -> None:
    text = K_FOLD.partition("[clock]")[0] + f'[clock]\n{unit} = "{field}"\n'
    graph = Graph.loads(text).replace("next_fold", NextFold).replace("report", Report)
    trainer = folds(graph.set("train", graph=k_fold().nodes["train"].body))
    trainer.run(until="1 batches")
    trainer.run()
    assert {name: value for name, value in trainer.metrics[0].items() if name not in ("loss", "lr")} == {
        "step": 1,
        "epoch": 2 / 3,
        **columns,
    }


def test_after_a_training_inside_of_another_rows_have_the_clock_of_that_again() -> None:
    quiet = fit(epochs=2, save_every="never", validate_every="never", log_every="1 steps")
    inner = quiet.set("finish", after="1 steps")
    trainer = tiny(quiet.insert("inner", graph=inner, after="end_epoch"), train_data=[torch.ones(2, 1)])
    trainer.run()
    rows = [(row["step"], row.get("steps")) for row in trainer.metrics if "lr" in row]
    assert rows == [(1, None), (1, 1), (2, None), (1, 2)]


def around(body: Graph) -> Graph:
    """A graph with one node, which has this body."""
    return Graph("around", "inner", {"inner": Node("inner", "nested", body=body)}, {"inner": (Edge("end"),)})


class Unsized:
    """Data without a length."""

    def __iter__(self) -> Any:
        return iter([torch.ones(2, 1)] * 4)


FIT = fit(epochs=2)


@pytest.mark.parametrize(
    ("graph", "until", "place"),
    [
        (FIT, None, "step 0, epoch 0, batch 0"),  # the data is not opened
        (FIT, "2 batches", "step 2, epoch 0.50, batch 2/4"),
        (FIT, "5 batches", "step 5, epoch 1.25, batch 1/4"),
        (fit(epochs=2, accumulate=4), "2 batches", "step 0, epoch 0.50, batch 2/4, window 2/4"),
        (around(FIT), "3 batches", "step 3, epoch 0.75, batch 3/4"),
        (around(FIT).clock("turns", "inner.runs"), "3 batches", "turns 0, step 3, epoch 0.75, batch 3/4"),
        (Graph("study", "folds", {"folds": Node("folds", "nested", body=k_fold())}, {"folds": (Edge("end"),)})
         .clock("round", "folds.runs"), "1 steps", "round 0, fold 1, reports 0, step 1, epoch 0.67, batch 2/3"),
    ],
)  # fmt: skip
def test_the_position_in_words(graph: Graph, until: str | None, place: str) -> None:
    data = {"data": four(), "train_data": None} if "study" in repr(graph) else {"train_data": four()}
    trainer = tiny(graph, **data)
    if until is not None:
        trainer.run(until=until)
    assert repr(trainer).rstrip(">").endswith(place)


def test_the_position_where_nothing_has_a_length_or_trains() -> None:
    trainer = tiny(FIT, train_data=Unsized())
    trainer.run(until="3 batches")
    assert repr(trainer).rstrip(">").endswith("step 3, epoch 0, batch 3")
    evaluation = tiny("evaluate", optimizer=None, train_data=None, val_data=four())
    evaluation.run(before="eval_batch")
    assert repr(evaluation).rstrip(">").endswith("1 batches, 2 samples")


@pytest.mark.parametrize(
    ("declared", "described"), [({"target": "size"}, "batch 1/5, window 1/3"), ({}, "batch 1/5, window 1/?")]
)
def test_the_clock_reads_what_kinds_declare_of_their_counters_whatever_the_names(
    declared: dict[str, str], described: str
) -> None:
    @node
    class Gather:
        """Gather gradients."""

        size: int = 3
        gathered: int = progress(0, counts="backward", **declared)

        def __call__(self) -> None: ...

    graph = FIT.replace("accumulate", Gather).set("train_batch", reads={"window": "accumulate.size"})
    graph = graph.guard("window_complete", "accumulate.gathered >= accumulate.size or next_batch.empty")
    graph = graph.guard("accumulation_reached", "accumulate.gathered > 0 and (window_complete or window_cut)")
    graph = graph.guard("finished", "(finish.due or next_batch.empty) and accumulate.gathered == 0")
    trainer = tiny(graph)
    trainer.run(before="accumulate")
    assert repr(trainer).rstrip(">").endswith(described)
    trainer.run()
    assert trainer.progress["step"]["steps"] == 4


def test_a_node_knows_the_rows_of_an_evaluation_from_those_of_training() -> None:
    heard: set[tuple[bool, bool]] = set()

    @node
    class Hear:
        """Note rows."""

        def on_metrics(self, row: dict[str, float], is_evaluation: bool) -> None:
            heard.add(("val/loss" in row, is_evaluation))

        def __call__(self) -> None: ...

    graph = fit(epochs=1, log_every="1 steps").insert("hear", Hear, after="step")
    tiny(graph, val_data=four()).run()
    assert heard == {(False, False), (True, True)}


@pytest.mark.full
def test_a_run_of_folds_cut_at_any_edge_writes_the_same_rows(tmp_path: Path) -> None:
    whole = assert_exact(World(k_fold(), resources_of_folds), tmp_path, at=5)
    assert [row["fold"] for row in whole.metrics] == sorted(row["fold"] for row in whole.metrics)
    assert len(whole.metrics) == FOLDS * (STEPS + 2 * EPOCHS + 1)


def resources_of_folds() -> dict[str, Any]:
    def step(model: nn.Module, batch: Any, step: int, epoch: int, batch_index: int) -> Any:
        return model(batch).square().mean() * (1 + step + epoch / 3 + batch_index / 7)

    trainer = folds(training_step=step)
    return {name: value for name, value in trainer.resources.items() if name not in ("train_data", "val_data")}


def test_status_and_checkpoints_of_a_fold(tmp_path: Path) -> None:
    trainer = folds(k_fold(every="1 epochs", best="val/loss", keep=10), tmp_path)
    assert trainer.run(until="6 steps") is Outcome.FINISHED, "no fold has as many"
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["step"], status["epoch"], status["clocks"]) == (STEPS, EPOCHS, {"fold": 2, "reports": 2})
    assert status["place"] == f"fold 2, reports 2, step {STEPS}, epoch {EPOCHS}, batch 3/3"
    paths = sorted((tmp_path / "checkpoints").iterdir())
    assert [path.name.partition("-")[2] for path in paths] == ["step-2", "step-4", "step-2", "step-4", "step-4"]
    manifests = [manifest_of(path) for path in paths]
    assert [manifest["clocks"]["fold"] for manifest in manifests] == [1, 1, 2, 2, 2]
    assert {"loss", "epoch/loss", "val/loss"} <= manifests[0]["metrics"].keys()
    assert manifests[-1]["metrics"] == {"report/number": 2}
    assert str(trainer.explain()).startswith(f"fold 2, reports 2, step {STEPS}")
    assert Run(tmp_path).metrics == trainer.metrics


@pytest.mark.parametrize(
    ("until", "place"),
    [
        ("3 steps", "fold 1, reports 0, step 3, epoch 1.67, batch 2/3"),
        ("1 epochs", "fold 1, reports 0, step 2, epoch 1, batch 3/3"),
        ("1 fold", "fold 1, reports 1, step 4, epoch 2, batch 3/3"),
    ],
)
def test_until_counts_the_training_that_runs(until: str, place: str) -> None:
    trainer = folds()
    assert trainer.run(until=until) is trainer.run(until=until) is Outcome.REACHED
    assert repr(trainer) == f"<Trainer of k_fold: stopped, {place}>"
    assert trainer.snapshot().until_done == 1.0
    assert trainer.run() is Outcome.FINISHED


# ---- what a step function is given: the values that a loop written by hand has

ROUNDS = """
format = 1
name = "rounds"
start = "next_batch"

[nodes]
next_batch = { reads = { train_data = "rounds" } }
train = { graph = "BODY" }

[guards]
exhausted = "next_batch.exhausted or next_batch.last"

[edges]
next_batch = ["train"]
train = ["end if exhausted", "next_batch"]

[clock]
batches = "next_batch.batches"
"""
TRAINING = fit(epochs=2, accumulate=2, validate_every="0.5 epochs", save_every="never")
Row = tuple[Any, ...]


def rounds(body: Graph | str) -> Graph:
    graph = Graph.loads(ROUNDS.replace("BODY", body if isinstance(body, str) else "fit"))
    return graph if isinstance(body, str) else graph.set("train", graph=body)


def by_hand(batches: int = 4, validation_batches: int = 2) -> list[Row]:
    """Two epochs with windows of two batches, validated in the middle and at the end of each."""
    rows: list[Row] = []
    step = 0
    for epoch in range(2):
        for index in range(batches):
            rows.append(("train", step, epoch, index))
            if index % 2 == 1 or index == batches - 1:
                step += 1
            if index + 1 in (batches // 2, batches):
                rows += [("validate", step, epoch, batch) for batch in range(validation_batches)]
    return rows


def noting(graph: Graph, rows: list[Row], **more: Any) -> Trainer:
    def training_step(model: nn.Module, batch: Any, stage: str, step: int, epoch: int, batch_index: int) -> Any:
        rows.append((stage, step, epoch, batch_index))
        return model(batch).square().mean()

    given = {"train_data": four(), "val_data": four()[:2], "training_step": training_step, **more}
    return tiny(graph, **given)


@pytest.mark.parametrize("count", [0, 3])
def test_step_epoch_and_batch_index_are_those_of_the_loop_by_hand(count: int) -> None:
    """In rounds around the training its steps and epochs begin again, for the evaluation inside it too."""
    rows: list[Row] = []
    if count:
        noting(rounds(TRAINING), rows, rounds=[torch.zeros(1)] * count).run()
    else:
        noting(TRAINING, rows, validation_step=None).run()
    assert rows == by_hand() * max(count, 1)


def test_where_nothing_trains_it_is_the_outermost_graph_that_counts() -> None:
    rows: list[Row] = []

    def validation_step(model: nn.Module, batch: Any, step: int, epoch: int, batch_index: int) -> Any:
        rows.append((step, epoch, batch_index))
        return model(batch).square().mean()

    given = {"validation_step": validation_step, "optimizer": None, "training_step": None, "train_data": None}
    tiny(rounds("evaluate"), val_data=four()[:2], rounds=[torch.zeros(1)] * 2, **given).run()
    assert rows == [(0, 0, 0), (0, 0, 1)] * 2


def test_stage_loader_and_last_batch() -> None:
    rows: list[Row] = []

    def step(model: nn.Module, batch: Any, stage: str, loader_index: int, is_last: bool) -> Any:
        rows.append((stage, loader_index, is_last))
        return model(batch).square().mean()

    loaders = {"clean": four()[:1], "noisy": four()[:2]}
    tiny(fit(epochs=1), val_data=loaders, train_data=four(), training_step=step).run()
    trained = [("train", 0, False)] * 3 + [("train", 0, True)]
    assert rows == [*trained, ("validate", 0, False), ("validate", 1, False), ("validate", 1, True)]
    rows.clear()
    tiny(fit(steps=1), training_step=step, stage="mine").run()
    assert {row[0] for row in rows} == {"mine"}, "a resource of this name comes first"


@pytest.mark.parametrize("stage", ["test", "predict"])
def test_stage_of_a_graph_of_its_own(stage: str, tmp_path: Path) -> None:
    stages: list[str] = []

    def step(model: nn.Module, batch: Any, stage: str) -> Any:
        stages.append(stage)
        return model(batch)[:, 0].mean() if stage == "test" else model(batch)

    more = {"predictions_file": str(tmp_path / "out.jsonl")} if stage == "predict" else {}
    given = {"optimizer": None, "train_data": None, "training_step": None}
    tiny(stage, **given, **{f"{stage}_data": four()[:1], f"{stage}_step": step}, **more).run()
    assert stages == [stage]


def test_a_row_is_recorded_inside_a_step() -> None:
    def step(model: nn.Module, batch: Any, recorder: Any, batch_index: int, stage: str) -> Any:
        if stage == "train" and batch_index == 1:
            recorder.row({"seen": 1.0})
        return model(batch).square().mean()

    trainer = tiny(TRAINING, train_data=four(), training_step=step)
    trainer.run()
    assert [row["step"] for row in trainer.metrics if "seen" in row] == [0, 2]


@pytest.mark.parametrize(
    ("edit", "columns"),
    [
        (lambda graph: graph, {"loss"}),
        (lambda graph: graph.insert("second", "train_batch", after="train_batch"), {"loss", "second/loss"}),
        (lambda graph: graph.rename("train_batch", "a").insert("b", "train_batch", after="a"), {"a/loss", "b/loss"}),
    ],
)
def test_the_metrics_of_several_nodes_have_their_names(edit: Any, columns: set[str]) -> None:
    for graph in (edit(fit(steps=1, log_every="1 steps")), around(edit(fit(steps=1, log_every="1 steps")))):
        trainer = tiny(graph)
        trainer.run()
        row = next(row for row in trainer.metrics if "lr" in row)
        assert {name for name in row if name.endswith("loss")} == columns
