"""The logger CSV: one row for what one step has, every row once over kills, further columns as they come."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph
from graphtrain.errors import UsageError
from graphtrain.report.csv import CSV
from graphtrain.report.logger import Beginning
from graphtrain.report.rows import joined
from tests.resume.rank_runs import run, trainer_of


def graph(fit: Graph) -> Graph:
    """Rows of the log at odd steps too, and a metric that comes only in the second epoch."""
    return fit.set("log", every="3 steps").set("finish", after="3 epochs")


def training_step(model: torch.nn.Module, batch: Any, epoch: int) -> dict[str, Any]:
    loss = (model(batch[0]) - batch[1]).square().mean()
    return {"loss": loss, **({"late": 1.0} if epoch else {})}


def table(path: Path) -> list[dict[str, float]]:
    with path.open(newline="") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def test_one_row_has_what_one_step_has(tmp_path: Path) -> None:
    given: dict[str, Any] = {"graph": graph, "training_step": training_step, "loggers": [CSV()]}
    (end,) = run(1, tmp_path / "run", **given)
    rows = table(tmp_path / "run" / "metrics.csv")
    assert rows == joined(end.metrics)
    assert len(rows) == len({row["step"] for row in rows}) < len(end.metrics)
    assert {"epoch/loss", "val/error"} <= rows[1].keys() and rows[1]["step"] == 6
    header = (tmp_path / "run" / "metrics.csv").read_text().splitlines()[0]
    assert header.split(",")[:3] == ["step", "epoch", "loss"] and "late" in header


@pytest.mark.full
def test_a_killed_run_has_every_row_once(tmp_path: Path) -> None:
    """Saved, trained on, abandoned and resumed, at several places: the table is that of the run never cut."""
    given: dict[str, Any] = {"graph": graph, "training_step": training_step}
    run(1, tmp_path / "whole", loggers=[CSV()], **given)
    whole = (tmp_path / "whole" / "metrics.csv").read_bytes()
    for cut in range(5, 200, 70):
        run_dir = tmp_path / str(cut)
        first = trainer_of(run_dir, loggers=[CSV()], **given)
        first.advance(cut)
        first.save()
        first.advance(20)
        trainer_of(run_dir, loggers=[CSV()], **given).run()
        assert (run_dir / "metrics.csv").read_bytes() == whole, cut


def test_a_metric_that_a_step_has_twice_is_a_row_of_its_own(tmp_path: Path) -> None:
    logger = CSV(tmp_path / "own.csv")
    with pytest.raises(UsageError, match="before `begin`"):
        logger({"step": 1, "epoch": 0.5, "loss": 1.0}, 1)
    with pytest.raises(UsageError, match="pass run_dir to Trainer, or path"):
        CSV().begin(Beginning(Graph.load("fit")))
    rows: list[dict[str, float]] = [{"step": 1, "epoch": 0.5, "fold": 0, "loss": 1.0}]
    logger.begin(Beginning(Graph.load("fit"), rows, clocks=("fold",)))
    for further in (
        {"step": 1, "epoch": 0.5, "fold": 0, "val": 2.0},
        {"step": 1, "epoch": 0.5, "fold": 0, "loss": 3.0},
        {"step": 1, "epoch": 0.5, "fold": 1, "val": 4.0, "new": 5.0},
        {"step": 1, "epoch": 0.5, "fold": 1, "loss": float("inf")},
    ):
        rows.append(further)
        logger(further, 1)
        assert table(tmp_path / "own.csv") == joined(rows, ("fold",))
    assert (tmp_path / "own.csv").read_text() == (
        "step,epoch,fold,loss,val,new\n1,0.5,0,1.0,2.0,\n1,0.5,0,3.0,,\n1,0.5,1,inf,4.0,5.0\n"
    )
