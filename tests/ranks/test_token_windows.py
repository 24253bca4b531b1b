"""Windows weighed by tokens on several ranks: the count is of all of them, also where a run is cut and resized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Loader
from tests.resume.rank_runs import BATCHES, End, run


def weighed(*overlays: str) -> dict[str, Any]:
    """Batches of two samples, of which each counts from 1 to 7 tokens."""

    def step(model: torch.nn.Module, batch: Any) -> dict[str, Any]:
        tokens = 1 + batch[2] % 7
        errors = (model(batch[0]) - batch[1]).square()[:, 0]
        return {"loss": (errors * tokens).sum(), "tokens": tokens.sum()}

    return {"training_step": step, "is_plain": True, "graph": lambda graph: graph.overlay("token_windows", *overlays)}


def by_hand(windows: list[list[int]]) -> torch.Tensor:
    """The weights after windows of those batches, in the order of the loader."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)).double()
    inputs = torch.randn(BATCHES * 2, 3, dtype=torch.float64)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True), torch.arange(len(inputs)))
    loader = Loader(data, batch_size=2, shuffle=True)
    loader.seed = 0
    order = [batch for epoch in range(3) for batch in loader.batches(epoch)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = weighed()["training_step"]
    for window in windows:
        results = [step(model, order[number]) for number in window]
        total = sum(result["tokens"] for result in results)
        optimizer.zero_grad()
        (sum(result["loss"] for result in results) / total).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


# Of windows of 4 micro-batches, 11 in an epoch.
STEPPED = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10], [11, 12, 13, 14]]
CARRIED = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
DROPPED = [[0, 1, 2, 3], [4, 5, 6, 7], [11, 12, 13, 14], [15, 16, 17, 18]]
WINDOWS = {"": STEPPED, "carry": CARRIED, "drop": DROPPED}


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("policy", "world_size", "every"),
    [
        ("", 1, 4),
        ("", 2, 2),
        pytest.param("", 4, 1, marks=pytest.mark.sweep),
        ("carry", 2, 2),
        ("drop", 2, 2),
        pytest.param("drop", 4, 1, marks=pytest.mark.sweep),
    ],
)
def test_a_window_is_divided_by_the_tokens_of_all_ranks(policy: str, world_size: int, every: int) -> None:
    options = weighed(*([policy] if policy else []))
    overlay = options.pop("graph")
    ends = run(world_size, None, graph=lambda graph: overlay(graph).set("accumulate", every=every), **options)
    expected = by_hand(WINDOWS[policy])
    for end in ends:
        assert (end.weights - expected).abs().max() < 1e-12
        assert end.metrics == ends[0].metrics


def test_rows_have_means_over_tokens_of_all_ranks() -> None:
    options = weighed()
    overlay = options.pop("graph")
    alone = run(1, None, graph=lambda graph: overlay(graph).set("accumulate", every=4), **options)
    for row, row_alone in zip(run(2, None, **weighed())[0].metrics, alone[0].metrics, strict=True):
        assert row == pytest.approx(row_alone, rel=1e-9)


@pytest.fixture(scope="module")
def whole() -> list[End]:
    return run(2, None, **weighed("carry"))


# In the second window, before it is divided, and in the one in which an epoch ends.
CUTS = (20, 24, 36, 18, 22, 37)


@pytest.mark.full
@pytest.mark.parametrize("cuts", [CUTS[:1], pytest.param(range(1, 60), marks=pytest.mark.sweep)], ids=["some", "all"])
def test_wherever_it_is_cut_it_is_exact(whole: list[End], tmp_path: Path, cuts: Any) -> None:
    for number in cuts:
        run_dir = tmp_path / str(number)
        cut = run(2, run_dir, advance=number, seed=number, **weighed("carry"))
        ends = run(2, run_dir, **weighed("carry"))
        assert [end.digest for end in ends] == [end.digest for end in whole], f"cut before {cut[0].position}"
        assert ends[0].metrics == whole[0].metrics


def test_the_graph_is_sound_among_ranks() -> None:
    for name in ("token_windows", "scaled"):
        assert Graph.load("fit").overlay(name).check(ranks=True) == []
