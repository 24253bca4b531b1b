"""`--dry-run`: every node once, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphtrain import Graph, Trainer
from graphtrain.graph.registry import known_overlays
from tests.looking.conftest import Command

SCRIPT = """\
import pathlib
import torch
from graphtrain import Graph, main

pathlib.Path("calls").touch()

def note(name):
    with open("calls", "a") as file:
        file.write(name + "\\n")

def training_step(model, batch):
    note("train")
    return model(batch).square().mean()

def validation_step(model, batch):
    note("val")
    return {"loss": model(batch).mean()}

class Logger:
    def __call__(self, metrics, step):
        note("row")

graph = (
    Graph.load("fit").set("schedule", every="1 steps")
    .set("accumulate", every=4).set("validate", every="5 epochs", from_="2 epochs").set("log", every="1000 steps")
    .set("checkpoint", best="val/loss").set("finish", after="100 epochs")
)

def setup(batches: int = 50):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        "train_data": [torch.randn(2, 2) for _ in range(batches)],
        "val_data": [torch.randn(2, 2) for _ in range(batches)],
        "training_step": training_step,
        "validation_step": validation_step,
        "loggers": [Logger()],
    }

if __name__ == "__main__":
    main(setup)
"""


def test_every_node_runs_once_and_nothing_is_written(folder: Path, command: Command) -> None:
    (folder / "script.py").write_text(SCRIPT)
    before = {path.name for path in folder.iterdir()}
    for words in ((), ("--run-dir", "r", "--tensorboard", "next_batch.limit=9")):
        result = command("run", "script.py", "--dry-run", *words)
        assert result.code == 0, result.err
        assert "dry run: every node was reached\n" in result.err, result.err
        assert Path("calls").read_text().split() == ["train", "val"]
        assert {path.name for path in folder.iterdir()} == before | {"calls"}
        Path("calls").unlink()
        Path("calls").touch()


def test_what_is_not_reached_is_listed(folder: Path, command: Command) -> None:
    (folder / "script.py").write_text(SCRIPT)
    (folder / "my.toml").write_text(
        'format = 1\nextends = "fit"\n[[edit]]\ninsert = "rest"\nuse = "choice"\n'
        '[[edit]]\nguard = "late"\nexpression = "step.steps > 8"\n'
        '[[edit]]\nconnect = "clip"\ntarget = "rest"\nwhen = "late"\nfirst = true\n'
        '[[edit]]\nconnect = "rest"\ntarget = "step"\n'
        '[[edit]]\ninsert = "again"\ngraph = "evaluate"\nat = "decide"\nbefore = "checkpoint"\nevery = "never"\n'
        '[[edit]]\nset = "again/begin_evaluation"\nsplit = "again"\n'
    )
    words = ["run", "script.py", "--graph", "my.toml", "--dry-run"]
    assert "StepLR counts epochs by its documentation" in command(*words).err, "as a run would be refused"
    result = command(*words, "schedule.every=1 epochs")
    assert result.code == 0, result.err
    assert "dry run: every node was reached but `rest`, `again`\n" in result.err, result.err


def test_a_mistake_in_what_would_come_late_is_met(folder: Path, command: Command) -> None:
    (folder / "script.py").write_text(SCRIPT.replace('{"loss": model(batch).mean()}', "model.missing"))
    result = command("run", "script.py", "--dry-run")
    assert (result.code, "has no attribute 'missing'" in result.err) == (1, True), result.err
    assert not Path("runs").exists()


@pytest.mark.parametrize("overlay", ["ema", "swa", "early_stop", "carry", "save_first"])
def test_overlays_are_tried_too(overlay: str) -> None:
    assert overlay in known_overlays()
    model = torch.nn.Linear(2, 1)
    trainer = Trainer(
        Graph.load("fit").overlay(overlay).set("accumulate", every=3).dry_run(),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.randn(2, 2)] * 7,
        val_data=[torch.randn(2, 2)] * 7,
        training_step=lambda model, batch: model(batch).square().mean(),
        display=None,
        notify=lambda line: None,
    )
    trainer.run()
    unreached = {"exchange", "clip", "step", "zero_grad"} if overlay == "carry" else set()
    assert {*trainer.unreached} <= unreached
    assert trainer.progress["train_batch"]["runs"] == 1
