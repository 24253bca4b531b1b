"""Loggers that raise: the run is as without them. W&B has each row once; a function sees some again after a kill."""

from __future__ import annotations

import runpy
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, RunLogger, Text, Trainer, UsageError
from graphtrain.report.guarded import Guarded
from graphtrain.report.logger import Beginning
from graphtrain.report.wandb import WandB
from tests.docs.blocks import read_blocks

GRAPH = Graph.load("fit").set("log", every="1 steps").set("checkpoint", every="2 steps").set("finish", after="6 steps")


def make(run_dir: Path | None, *loggers: Any, graph: Graph = GRAPH, lr: float = 0.1) -> tuple[Trainer, list[str]]:
    torch.manual_seed(0)
    model, lines = torch.nn.Linear(2, 1), list[str]()
    trainer = Trainer(
        graph,
        run_dir=run_dir,
        seed=0,
        loggers=loggers,
        display=None,
        notify=lines.append,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        train_data=[torch.randn(4, 2) for _ in range(4)],
        training_step=lambda model, batch: model(batch).square().mean(),
    )
    return trainer, lines


def test_a_function_that_raises_is_off_and_the_run_is_as_without_it(tmp_path: Path) -> None:
    rows: list[int] = []

    def logger(row: Mapping[str, float], step: int) -> None:
        rows.append(step)
        if step == 2:
            raise OSError("the disk is\nfull")

    trainer, lines = make(tmp_path, logger)
    trainer.run()
    assert rows == [1, 2] and [row["step"] for row in trainer.metrics] == [1, 2, 3, 4, 4, 5, 6]
    said = [line for line in lines if "logger" in line]
    assert said == ["the logger logger is off: OSError: the disk is full; the run continues without it"]


@pytest.mark.parametrize("call", ["show", "flush", "ended", "close"])
def test_whatever_of_a_logger_raises(call: str) -> None:
    lines: list[str] = []

    class Failing(RunLogger):
        def begin(self, beginning: Beginning) -> None: ...
        def __call__(self, metrics: Mapping[str, float], step: int) -> None: ...
        def close(self) -> None: ...

    def fail(*given: Any) -> None:
        raise UsageError("it is full", "empty it")

    setattr(Failing, call, fail)
    guarded = Guarded(Failing(), lines.append)
    guarded.begin(Beginning(GRAPH))
    guarded({"step": 1}, 1)
    guarded.show("note", Text("a"), 1)
    guarded.flush()
    guarded.ended("finished", None)
    guarded.close()
    assert lines == ["the logger Failing is off: it is full; the run continues without it"]


class Run:
    """Stands for the package wandb, its runs, and what the service has of one: a value for each step."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.history: dict[int, dict[str, Any]] = {}
        self.exit_codes: list[int] = []

    def init(self, **settings: Any) -> Run:
        self.ids.append(settings["id"])
        assert settings["resume"] == "allow" and settings["config"]["optimizer.lr"] == 0.1
        return self

    @property
    def step(self) -> int:
        return max(self.history, default=-1) + 1

    def define_metric(self, name: str, step_metric: str) -> None: ...

    def log(self, values: dict[str, Any], step: int) -> None:
        assert step >= max(self.history, default=0), "the service drops it"
        self.history.setdefault(step, {}).update(values)

    def finish(self, exit_code: int) -> None:
        self.exit_codes.append(exit_code)


@pytest.mark.parametrize("lost", [0, 1, 3], ids=lambda lost: f"{lost} were not sent when it was killed")
def test_wandb_has_every_row_once(lost: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Run()
    monkeypatch.setitem(sys.modules, "wandb", service)  # type: ignore[arg-type]
    whole = make(None)[0]
    whole.run()
    make(tmp_path, WandB())[0].advance(30)
    for step in sorted(service.history)[len(service.history) - lost :]:
        del service.history[step]
    trainer, lines = make(tmp_path, WandB("p", name="a"))
    trainer.run(until="5 steps")
    trainer.run()
    assert [*service.history] == [*range(1, len(whole.metrics) + 1)]
    assert [*service.history.values()] == whole.metrics
    assert len({*service.ids}) == 1 and {*service.exit_codes} == {0}
    assert not [line for line in lines if "logger" in line]


def test_wandb_is_shown_texts_with_the_row_before(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Run()
    monkeypatch.setitem(sys.modules, "wandb", service)  # type: ignore[arg-type]
    logger = WandB()
    logger.begin(Beginning(GRAPH, hyper_parameters={"optimizer.lr": 0.1}))
    logger.show("note", Text("first"), 0)
    logger({"step": 2, "loss": 0.5}, 2)
    logger.show("note", Text("second"), 2)
    assert service.history == {0: {"step": 0, "note": "first"}, 1: {"step": 2, "loss": 0.5, "note": "second"}}


def test_a_package_that_is_not_there_is_an_error_when_the_logger_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match=r"(?s)wandb cannot be imported.*pip install wandb"):
        WandB()


@pytest.mark.full
def test_the_package_itself_takes_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for graph in (GRAPH, GRAPH.set("finish", after="7 steps")):
        trainer, lines = make(tmp_path, WandB("p", mode="offline"), graph=graph)
        trainer.run()
        assert not [line for line in lines if "logger" in line]


def test_the_recipe_for_other_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = read_blocks(Path(__file__).parents[2] / "docs" / "loggers.md")
    (recipe,) = [block.text for block in blocks if "import mlflow" in block.text]
    sent: dict[str, list[Any]] = {"mlflow": [], "trackio": [], "runs": []}

    def start_run(run_id: str | None) -> Any:
        sent["runs"].append(run_id)
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="an id"))

    mlflow = types.SimpleNamespace(start_run=start_run, log_metrics=lambda row, step: sent["mlflow"].append(row))
    trackio = types.SimpleNamespace(
        init=lambda project, name, resume: None, log=lambda row, step: sent["trackio"].append(row)
    )
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "trackio", trackio)  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    Path("services.py").write_text(recipe)
    for transitions in (30, 1000):  # the first process is killed
        before = len(sent["mlflow"])
        trainer, _ = make(tmp_path / "run", *runpy.run_path("services.py")["loggers"])
        trainer.advance(transitions)
    again = [row for row in sent["mlflow"][:before] if row in sent["mlflow"][before:]]
    assert len(again) == 1, "the row after the checkpoint"
    assert [row for row in sent["mlflow"] if row not in again or again.remove(row)] == trainer.metrics
    assert sent["trackio"] == sent["mlflow"] and sent["runs"] == [None, "an id"]
