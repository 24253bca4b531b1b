"""The panel: what it shows, and that it shows it on four lines of any terminal."""

from __future__ import annotations

import re
from io import StringIO
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from graphtrain.report.display.panel import Panel, parts, plain_text
from graphtrain.report.snapshot import Snapshot
from tests.report.display.runs import snapshot
from tests.report.display.test_snapshot import snapshots

LONG = {f"validation/a_rather_long_name_of_a_metric/{number}": number + 0.5 for number in range(12)}


def lines(one: Snapshot, width: int) -> list[str]:
    return plain_text(Panel(one), width).splitlines()


def test_all_of_it_on_a_wide_terminal() -> None:
    assert lines(snapshot(), 120) == [
        f"epoch 3/10 {'━' * 12}╸{' ' * 47} 21 %  batch 117/938 · step 4812 · window 2/4",
        "loss 0.04231  accuracy 0.987  lr 0.001  val/loss 0.051",
        "812 batches/s  26.0 k samples/s  41 s elapsed  2 min 13 s left  1.2 GiB on cpu",
        "time: data 8 %  train 84 %  validate 6 %  save 2 %",
    ]


@pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 100, 200])
@pytest.mark.parametrize("metrics", [{}, {"loss": 0.5}, LONG, {"損失" * 40: 1.0, "é" * 300: 2.0}, {"x": float("nan")}])
@pytest.mark.parametrize("colour", [None, "truecolor"])
def test_it_fits(width: int, metrics: dict[str, float], colour: Any) -> None:
    for state in ("running", "failed", "finished"):
        one = snapshot(metrics=metrics, state=state, position="validate/eval_batch")
        file = StringIO()
        console = Console(file=file, width=width, color_system=colour, force_terminal=True, no_color=False)
        console.print(Panel(one), crop=False)
        shown = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue()).splitlines()
        assert len(shown) == (4 if metrics else 3)
        assert all(cell_len(line) <= width for line in shown), shown
        assert ("\x1b[" in file.getvalue()) == (colour is not None)


@pytest.mark.sweep
@given(snapshots, st.integers(1, 200))
def test_anything_fits(one: Snapshot, width: int) -> None:
    shown = lines(one, width)
    assert len(shown) <= 4
    assert all(cell_len(line) <= width for line in shown)


def test_a_narrow_terminal_keeps_what_matters() -> None:
    first, metrics, pace, _ = lines(snapshot(position="validate/next_batch"), 60)
    assert first.startswith("epoch 3/10 ━") and first.endswith("batch 117/938 · in validate")
    assert metrics.startswith("loss 0.04231")
    assert pace == "812 batches/s  26.0 k samples/s  2 min 13 s left"
    assert lines(snapshot(), 70)[2] == "812 batches/s  26.0 k samples/s  41 s elapsed  2 min 13 s left"


@pytest.mark.full
def test_losses_are_shown_first_and_the_rest_is_counted() -> None:
    metrics = {"lr": 0.1, "loss": 0.5, "val/loss": 0.75, "val/accuracy": 0.25}
    for order in permutations(metrics):
        latest = {name: metrics[name] for name in order}
        assert lines(snapshot(metrics=latest), 40)[1] == "loss 0.5  lr 0.1  val/loss 0.75  +1 more"
        assert lines(snapshot(metrics=latest), 32)[1] == "loss 0.5  val/loss 0.75  +2 more"
    assert lines(snapshot(metrics={**LONG, **metrics}), 120)[1].endswith("/0 0.5  +11 more")
    assert "more" not in lines(snapshot(), 120)[1]


@pytest.mark.parametrize(
    ("changes", "head"),
    [
        ({"epoch": 0.0, "batch": 0}, "epoch 1/10"),
        ({"epoch": 2.5, "batch": 469}, "epoch 3/10"),
        ({"epoch": 3.0, "batch": 938}, "epoch 3/10"),
        ({"epoch": 3.0, "batch": 0}, "epoch 4/10"),
        ({"epoch": 2.0, "batch": 7, "epoch_batches": None}, "epoch 3/10"),
        ({"epoch": 10.0, "batch": 938}, "epoch 10/10"),
        ({"epoch": 10.0, "batch": 7, "epoch_batches": None, "state": "finished"}, "epoch 10/10"),
        ({"epoch": 2.5, "end": ("500 steps",)}, "epoch 3"),
        ({"epoch": 2.5, "end": ("10 epochs", "5 epochs")}, "epoch 3/5"),
        ({"epoch": 2.5, "end": ("5 epochs", "10 epochs")}, "epoch 3/5"),
        ({"epoch": None}, ""),
    ],
)
def test_the_number_of_the_epoch(changes: dict[str, Any], head: str) -> None:
    assert parts(snapshot(**changes)).epoch == head


def test_ends_of_other_units_are_named() -> None:
    said = parts(snapshot(end=("5000 steps", "2 hours")))
    assert said.step == "step 4812/5000" and said.ends == ("until 2 hours",)


@pytest.mark.parametrize(
    ("state", "position", "place"),
    [
        ("running", "train_batch", ""),
        ("running", "validate/eval_batch", "in validate"),
        ("running", "outer/inner/node", "in outer/inner"),
        ("failed", "train_batch", "failed in train_batch"),
        ("interrupted", "step", "interrupted in step"),
        ("stopped", "step", "stopped"),
        ("finished", "end", "finished"),
    ],
)
def test_where_it_is(state: str, position: str, place: str) -> None:
    one = snapshot(state=state, position=position)
    assert parts(one).place == place
    assert lines(one, 120)[0].endswith(f" · {place}" if place else "window 2/4")
    assert ("left" in lines(one, 120)[2]) == (state == "running")


def test_the_bar_shows_the_run_or_else_the_epoch() -> None:
    assert parts(snapshot(done=0.5)).done == 0.5
    assert parts(snapshot(done=None)).done == 117 / 938
    assert parts(snapshot(done=None, epoch_batches=None)).done is None
    assert "━" not in lines(snapshot(done=None, epoch_batches=None), 120)[0]
    full, half = (lines(snapshot(done=done), 120)[0].count("━") for done in (1.0, 0.5))
    assert full == 2 * half > 0


def test_text_of_others_commands_nothing() -> None:
    nasty = "[red]x\x1b[2J\nz"
    one = snapshot(
        state=nasty, graph=nasty, position=f"{nasty}/x", metrics={nasty: 1.0}, device=nasty, rates={nasty: 1.0},
        seconds={nasty: 1.0}, end=(nasty,), epoch=None, batch=None, step=None, window=None,
    )  # fmt: skip
    shown = lines(one, 200)
    assert len(shown) == 4
    assert all("\x1b" not in line and r"[red]x\x1b[2J\nz" in line for line in shown)


def test_a_terminal_without_unicode() -> None:
    class Ascii(StringIO):
        encoding = "ascii"

    console = Console(file=Ascii(), width=100, color_system=None)
    console.print(Panel(snapshot()))
    assert isinstance(console.file, Ascii)
    assert console.file.getvalue().isascii() and "--" in console.file.getvalue()
