"""`graphtrain show --save-points`: where a checkpoint can be made, as the run itself decides it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from graphtrain import Graph, Trainer
from graphtrain.kind import DECLARED
from graphtrain.plan.slots import save_points_of
from tests.command.conftest import Command
from tests.command.running import Result

# `opened` is alive from where it is written until it is read, a window apart; `closed` is plain.
KINDS = """\
from graphtrain import node


@node(writes=("handle", "number"), transient="handle")
def opened(batch):
    return iter(batch), 3


@node
def closed(handle, number):
    assert number == 3


def setup():
    raise AssertionError("not called")
"""


@pytest.fixture
def kinds(folder: Path) -> Iterator[Path]:
    (folder / "mine.py").write_text(KINDS)
    text = """\
format = 1
extends = "fit"

[[edit]]
insert = "opened"
after = "next_batch"

[[edit]]
insert = "closed"
after = "step"
"""
    (folder / "my.toml").write_text(text)
    before = dict(DECLARED)
    yield folder
    DECLARED.clear()
    DECLARED.update(before)


def marks(result: Result) -> dict[str, str]:
    """Node -> the last cell of its row, for the outermost graph."""
    table = result.out.partition("\nguards")[0].splitlines()
    column = table[1].index("save point before it")
    return {
        line.split()[0]: re.sub(r"\s+", " ", line[column:]).strip() for line in table[2:] if line and line[0] != " "
    }


def test_fit(command: Command) -> None:
    result = command("show", "fit", "--save-points")
    assert (result.code, result.err) == (0, "")
    marks_of = marks(result)
    assert marks_of.keys() == Graph.load("fit").nodes.keys()
    assert {name for name, mark in marks_of.items() if mark != "yes"} == {"train_batch"}
    assert marks_of["train_batch"] == "yes, with batch, samples"
    assert "yes, with validate/split, validate/training_state, validate/batch, validate/samples" in result.out
    assert "a checkpoint can be made before 19 of 19 nodes" in result.out


def test_a_transient_slot(kinds: Path, command: Command) -> None:
    result = command("show", "my.toml", "--save-points", "--script", "mine.py")
    assert (result.code, result.err) == (0, "")
    marks_of = marks(result)
    refused = {name for name, mark in marks_of.items() if mark.startswith("no")}
    # From behind `opened` on, whatever way is taken, until `closed` has read it.
    assert {"train_batch", "accumulate", "step", "closed"} <= refused
    assert not refused & {"opened", "zero_grad"}
    assert {marks_of[name] for name in refused} == {"no: handle is transient"}
    assert f"a checkpoint can be made before {19 + 2 - len(refused)} of 21 nodes" in result.out
    assert "save point" not in command("show", "my.toml").out


def test_it_agrees_with_a_run(kinds: Path, command: Command) -> None:
    """The same analysis on stand-ins as on the resources of a run."""
    assert command("show", "my.toml", "--save-points", "--script", "mine.py").code == 0
    graph = Graph.load("my.toml").set("clip", max_norm=1.0)
    model = torch.nn.Linear(2, 1)
    data = [torch.ones(2, 2)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(
        graph,
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.ConstantLR(optimizer),
        train_data=data,
        val_data=data,
        training_step=lambda model, batch: model(batch).sum(),
        display=None,
    )
    points = save_points_of(graph)
    assert trainer.save_points() == [point.path for point in points if not point.transient]
    compiled = trainer._session.compiled
    assert [compiled.liveness.names(index) for index in range(len(points))] == [set(point.alive) for point in points]


def test_kinds_that_nobody_declares(kinds: Path, command: Command) -> None:
    result = command("show", "my.toml", "--save-points")
    assert result.code == 2 and "opened" in result.err and "Traceback" not in result.err
    assert command("show", "my.toml").code == 0, "without them the text can be shown"


def test_the_script_of_a_show_is_only_imported(kinds: Path, command: Command) -> None:
    assert command("show", "my.toml", "--script", "mine.py").code == 0
    assert "mine" in sys.modules
    assert "there is no script `none.py`" in command("show", "fit", "--script", "none.py").err
