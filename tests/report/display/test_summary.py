"""The summary: counts that agree with torch's own, on as many lines as people read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from graphtrain.report.display.summary import Activity, ModelSummary, Summary


class Tied(nn.Module):
    """A little of everything: parameters of its own, tied ones, frozen ones, buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 8))
        self.embed = nn.Embedding(50, 8)
        self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.LayerNorm(8)])
        self.norm = nn.BatchNorm1d(8).requires_grad_(False)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.embed.weight


def test_totals_are_torchs_own() -> None:
    model = Tied()
    summary = ModelSummary.of(model)
    parameters = list(model.parameters())
    assert summary.parameters == sum(one.numel() for one in parameters) == 50 * 8 + 8 + 8 * 9 + 16 + 16
    assert summary.trainable == sum(one.numel() for one in parameters if one.requires_grad)
    assert summary.bytes == sum(one.nbytes for one in [*parameters, *model.buffers()])
    assert summary.type == "Tied"


def test_rows_are_the_modules_with_their_own_parameters() -> None:
    summary = ModelSummary.of(Tied())
    rows = {row.path: row for row in summary.rows}
    assert list(rows) == ["", "embed", "blocks", "blocks.0", "blocks.1", "norm", "head"]
    assert sum(row.parameters for row in summary.rows if row.path.startswith("blocks.")) == rows["blocks"].parameters
    assert (rows[""].parameters, rows["embed"].parameters, rows["head"].parameters) == (8, 400, 400)
    assert rows["norm"].remark == "frozen" and rows["blocks"].remark == ""


def test_partly_frozen() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)))
    model[0][0].requires_grad_(False)
    summary = ModelSummary.of(model)
    assert summary.rows[0].remark == "4 frozen"
    assert "8 parameters, 4 frozen" in summary.sentence
    assert "all frozen" in ModelSummary.of(model.requires_grad_(False)).sentence


@pytest.mark.parametrize(("number", "shown", "hidden"), [(20, 20, 0), (21, 20, 1), (57, 20, 37)])
def test_many_rows_collapse(number: int, shown: int, hidden: int) -> None:
    summary = ModelSummary.of(nn.Sequential(*[nn.Linear(2, 2) for _ in range(number)]))
    assert (len(summary.rows), summary.hidden) == (shown, hidden)
    text = str(Summary("fit", {"model": summary}, ()))
    assert (f"... and {hidden} more" in text) == bool(hidden)
    assert summary.parameters == number * 6


def test_lazy_modules_wait() -> None:
    summary = ModelSummary.of(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 3), nn.LazyBatchNorm1d()))
    assert summary.parameters == 12 and summary.waiting == 4
    assert "4 more not initialised" in summary.sentence
    assert [row.remark for row in summary.rows] == ["not initialised", "", "not initialised"]


@pytest.mark.parametrize("model", [nn.Linear(3, 2), nn.ReLU(), nn.Linear(3, 2, device="meta"), nn.Module()])
def test_a_model_of_one_module(model: nn.Module) -> None:
    (row,) = ModelSummary.of(model).rows
    assert row.path == "" and row.parameters == sum(one.numel() for one in model.parameters())
    assert "(itself)" in str(Summary("fit", {"model": ModelSummary.of(model)}, ()))


def summary() -> Summary:
    activities = [
        Activity("log", "every", "50 steps"),
        Activity("schedule", "every", "", "bypassed: there is no `scheduler`"),
        Activity("finish", "after", "10 epochs", "raised since"),
    ]
    return Summary("fit", {"model": ModelSummary.of(Tied()), "teacher": ModelSummary.of(nn.Linear(3, 2))}, activities)


def test_as_text() -> None:
    assert str(summary()).splitlines() == [
        "graph fit",
        "  log       every 50 steps",
        "  schedule  bypassed: there is no `scheduler`",
        "  finish    after 10 epochs (raised since)",
        "model: Tied, 512 parameters, 16 frozen, 2.1 KiB",
        "  (itself)  Tied           8",
        "  embed     Embedding    400",
        "  blocks    ModuleList    88",
        "    0       Linear        72",
        "    1       LayerNorm     16",
        "  norm      BatchNorm1d   16  frozen",
        "  head      Linear       400",
        "teacher: Linear, 8 parameters, 32 B",
        "  (itself)  Linear  8",
    ]


def test_text_of_others_stays_text() -> None:
    nasty = "<b>[red]\x1b[2J\n"
    model: Any = type(nasty, (nn.Module,), {})()
    one = Summary(nasty, {nasty: ModelSummary.of(model)}, [Activity(nasty, "every", nasty, nasty)])
    assert all(line.isprintable() for line in str(one).splitlines()) and len(str(one).splitlines()) == 4
    assert "[red]" in str(one) and str(one.activities[0]).isprintable()
