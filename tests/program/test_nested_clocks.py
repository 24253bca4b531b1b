"""Nested graphs: rows, status, `until` go by the clock of the graph that trains, with a column for each around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Edge, Graph, Node, Outcome, Trainer, UsageError, node, progress
from graphtrain.proof.history import RunHistory
from graphtrain.proof.replay import parse_moment
from graphtrain.report.display.choose import PlainLines
from graphtrain.report.display.panel import Panel, parts, plain_text
from graphtrain.report.recorder import Recorder
from graphtrain.report.snapshot import Snapshot
from graphtrain.resume.restore import repeated
from graphtrain.storage.checkpoint import read_manifest
from graphtrain.trainer.breakpoints import parse_amount

FOLDS, BATCHES, EPOCHS = 2, 3, 2
STEPS = 2 * EPOCHS  # of a fold: windows of two batches

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
steps   = "train/step.steps"
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

    _recorder: Recorder

    def setup(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __call__(self) -> None:
        self.reports += 1
        self._recorder.row({"report/number": self.reports})


def k_fold(**checkpoint: Any) -> Graph:
    graph = Graph.loads(K_FOLD).replace("next_fold", NextFold).replace("report", Report)
    for name, parameters in {
        "accumulate": {"every": 2},
        "log": {"every": "1 steps"},
        "checkpoint": checkpoint or {"every": "never"},
        "finish": {"after": f"{EPOCHS} epochs"},
    }.items():
        graph = graph.set(f"train/{name}", **parameters)
    return graph


def resources() -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Linear(2, 1)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "data": [torch.full((2, 2), float(number)) for number in range(1, BATCHES + 2)],
        "training_step": lambda model, batch: model(batch).square().mean(),
    }


def make_trainer(graph: Graph, run_dir: Any = None, **others: Any) -> Trainer:
    settings = {"display": None, "notify": lambda line: None}
    return Trainer(graph, seed=0, run_dir=run_dir, **{**settings, **resources(), **others})


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("fold", "reports", "step", "epoch"))


def test_rows_have_the_clock_of_the_graph_that_trains_and_a_column_for_each_around() -> None:
    seen: list[tuple[Any, ...]] = []

    def training_step(model: nn.Module, batch: Any, step: int, epoch: int) -> Any:
        seen.append((step, epoch))
        return model(batch).square().mean()

    trainer = make_trainer(k_fold(), training_step=training_step)
    trainer.run()
    expected = []
    for fold in range(1, FOLDS + 1):
        for epoch in range(EPOCHS):
            first, last = 2 * epoch + 1, 2 * epoch + 2
            expected.append(("loss", (fold, fold - 1, first, (3 * epoch + 2) / 3)))
            expected += [(name, (fold, fold - 1, last, epoch + 1.0)) for name in ("loss", "epoch/loss", "val/loss")]
        # Around the training its clock stands where it ended.
        expected.append(("report/number", (fold, fold, STEPS, float(EPOCHS))))
    assert [(next(name for name in row if name in dict(expected)), place(row)) for row in trainer.metrics] == expected
    assert list(trainer.metrics[0]) == ["step", "epoch", "fold", "reports", "loss", "lr"]  # no seconds, `steps` once
    assert [type(value) for value in trainer.metrics[0].values()] == [int, float, int, int, float, float]
    of_a_fold = [(0, 0), (0, 0), (1, 0), (2, 0), (2, 1), (2, 1), (3, 1), (4, 1)]  # the fourth and the last: validation
    assert seen == of_a_fold * FOLDS


def test_after_a_training_inside_of_another_rows_have_the_clock_of_that_again() -> None:
    def fit(after: str) -> Graph:
        quiet = Graph.load("fit").set("checkpoint", every="never").set("validate", every="never")
        return quiet.set("log", every="1 steps").set("finish", after=after)

    given = {"train_data": [torch.ones(2, 2)], "data": None}
    trainer = make_trainer(fit("2 epochs").insert("inner", graph=fit("1 steps"), after="end_epoch"), **given)
    trainer.run()
    rows = [(row["step"], row.get("steps")) for row in trainer.metrics if "lr" in row]
    assert rows == [(1, None), (1, 1), (2, None), (1, 2)]


def test_the_clock_of_the_outermost_graph_comes_first() -> None:
    study = Graph("study", "folds", {"folds": Node("folds", "nested", body=k_fold())}, {"folds": (Edge("end"),)})
    trainer = make_trainer(study.clock("round", "folds.runs"))
    trainer.advance(2)
    assert "round 0, fold 1, reports 0, step 0" in str(trainer.explain())


def test_a_node_knows_the_rows_of_an_evaluation_from_those_of_training() -> None:
    heard: set[tuple[bool, bool]] = set()

    @node
    class Hear:
        """Note rows."""

        def on_metrics(self, row: dict[str, float], is_evaluation: bool) -> None:
            heard.add(("val/loss" in row, is_evaluation))

        def __call__(self) -> None: ...

    batches = resources()["data"][:2]
    graph = Graph.load("fit").set("finish", after="1 epochs").set("log", every="1 steps")
    graph = graph.insert("hear", Hear, after="step")
    make_trainer(graph, train_data=batches, val_data=batches, data=None).run()
    assert heard == {(False, False), (True, True)}


@pytest.mark.full
@pytest.mark.parametrize("interval", [23, pytest.param(1, marks=pytest.mark.sweep)])
def test_a_run_cut_at_any_edge_writes_the_same_rows(interval: int, tmp_path: Path) -> None:
    whole = make_trainer(k_fold(), tmp_path / "whole")
    transitions = 0
    while whole.position != "end":
        whole.advance()
        transitions += 1
    rows = (tmp_path / "whole/metrics.jsonl").read_bytes()
    assert rows.count(b'"fold": 2') == rows.count(b'"fold": 1') == STEPS + 2 * EPOCHS + 1
    for cut in range(1, transitions, interval):
        run_dir = tmp_path / str(cut)
        first = make_trainer(k_fold(), run_dir)
        first.advance(cut)
        first.save()
        resumed = make_trainer(k_fold(), run_dir)
        resumed.run()
        assert (run_dir / "metrics.jsonl").read_bytes() == rows, first.position
        assert resumed.digest() == whole.digest()


def test_status_display_and_checkpoints_of_a_fold(tmp_path: Path) -> None:
    lines: list[str] = []
    graph = k_fold(every="1 epochs", best="val/loss", keep=10)
    trainer = make_trainer(graph, tmp_path, display=PlainLines(lines.append, interval_seconds=0))
    trainer.run(until="6 steps")  # no fold has as many
    assert trainer.state == "finished"
    # The lines are written by a thread: one in the middle may be late, and tell of what came after it.
    last = [line for line in lines if "report/number" in line][-1]
    assert last.split("  ")[:4] == ["fold 2", "reports 2", f"step {STEPS}", f"epoch {EPOCHS}.00"]
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["step"], status["epoch"], status["clocks"]) == (STEPS, EPOCHS, {"fold": 2, "reports": 2})
    assert status["place"] == f"fold 2, reports 2, step {STEPS}, epoch {EPOCHS}, batch 3/3"
    snapshot = Snapshot.from_plain(status)
    assert parts(snapshot).facts[:4] == ("fold 2", "reports 2", "epoch 2/2", "batch 3/3")
    assert "fold" not in dict(parts(snapshot).metrics)
    assert plain_text(Panel(snapshot)).startswith("fold 2")
    paths = sorted((tmp_path / "checkpoints").iterdir())
    assert [path.name.partition("-")[2] for path in paths] == ["step-2", "step-4", "step-2", "step-4", "step-4"]
    manifests = [read_manifest(path) for path in paths]
    assert [manifest.clocks["fold"] for manifest in manifests] == [1, 1, 2, 2, 2]
    assert {"loss", "epoch/loss", "val/loss"} <= manifests[0].metrics.keys()
    assert manifests[-1].metrics == {"report/number": 2}
    assert [checkpoint.path for checkpoint in RunHistory(tmp_path, pytest.fail).lineage()] == paths
    assert str(trainer.explain()).startswith(f"fold 2, reports 2, step {STEPS}")


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        ("3 steps", ["fold 1, reports 0, step 3, epoch 1.67, batch 2/3"] * 2),
        ("1 epochs", ["fold 1, reports 0, step 2, epoch 1, batch 3/3"] * 2),
        ("1 fold", ["fold 1, reports 1, step 4, epoch 2, batch 3/3"] * 2),
    ],
)
def test_until_counts_the_training_that_runs(until: str, expected: list[str]) -> None:
    trainer = make_trainer(k_fold())
    assert [trainer.run(until=until) for _ in expected] == [Outcome.REACHED] * len(expected)
    assert f": stopped, {expected[0]}>" in repr(trainer).replace("<Trainer of k_fold", "")
    assert trainer.snapshot().until_done == 1.0
    assert trainer.run() is Outcome.FINISHED


def test_a_moment_of_a_replay_is_one_of_the_outermost_clock() -> None:
    assert str(parse_moment("1 fold", k_fold())) == "1 fold"
    with pytest.raises(UsageError, match="`epochs` is not on the clock of `k_fold`"):
        parse_moment("3 epochs", k_fold())
    assert str(parse_amount("2 hours", k_fold())) == "2 hours"


def test_what_is_repeated_is_not_counted_across_folds() -> None:
    status = {"trained": [2, 1.0], "clock_of": "train", "clocks": {"fold": 2}}
    assert repeated(5, status, nested={"clock_of": "train", "clocks": {"fold": 1}}) == "repeating what came after it"
    assert repeated(1, status, nested={"clock_of": "train", "clocks": {"fold": 2}}) == "repeating 1 batch"


def test_phases_are_told_apart_by_a_clock_of_the_graph_around() -> None:
    text = """
        format = 1
        start = "pretrain"
        [nodes]
        pretrain = { graph = "fit" }
        tune = { graph = "fit" }
        [edges]
        pretrain = ["tune"]
        tune = ["end"]
        """
    phase = Graph.load("fit").set("finish", after="2 steps").set("log", every="1 steps")
    rows = []
    for clock_text in ("", '[clock]\npretrained = "pretrain.runs"'):
        graph = Graph.loads(text + clock_text).set("pretrain", graph=phase).set("tune", graph=phase)
        model = nn.Linear(2, 1)
        trainer = Trainer(
            graph,
            display=None,
            notify=lambda line: None,
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            train_data=[torch.ones(2, 2)] * 3,
            training_step=lambda model, batch: model(batch).square().mean(),
        )
        trainer.run()
        rows.append([(row["step"], row.get("pretrained")) for row in trainer.metrics if "lr" in row])
    assert rows == [[(1, None), (2, None)] * 2, [(1, 0), (2, 0), (1, 1), (2, 1)]]
