"""Promises 10 and 17: a run of several ranks that is cut anywhere and resumed is, to the bit, the run that was not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph
from tests.fake_ranks import assert_exact_on_ranks
from tests.world import World, cross_entropy, small_fit, small_model, world


def by_tokens(model: torch.nn.Module, batch: Any) -> dict[str, Any]:
    return {"loss": cross_entropy(model, batch) * len(batch[1]), "tokens": len(batch[1])}


def of_ranks(graph: Graph | None = None, **more: Any) -> World:
    return world(graph, model=small_model, **{"training_step": cross_entropy, **more})


WORLDS: dict[str, Callable[[], World]] = {
    "windows, validated within epochs": of_ranks,
    "a shuffle buffer": lambda: of_ranks(data="shuffle buffer"),
    "weighed by tokens, carried over epochs": lambda: of_ranks(
        small_fit(accumulate=3), overlays=("token_windows", "carry"), training_step=by_tokens
    ),
    "an average, half precision": lambda: of_ranks(overlays=("ema", "fp16")),
    "an exchange at its node": lambda: of_ranks(edit=lambda graph: graph.set("exchange", overlap=False)),
    "data with a position of its own": lambda: of_ranks(data="with state"),
}


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("name", WORLDS)
def test_a_cut_is_exact(name: str, tmp_path: Path) -> None:
    assert_exact_on_ranks(WORLDS[name](), 2, tmp_path, 1)


@pytest.mark.sweep
@pytest.mark.parametrize("name", WORLDS)
def test_many_cuts_are_exact_on_three_ranks(name: str, tmp_path: Path) -> None:
    assert_exact_on_ranks(WORLDS[name](), 3, tmp_path, 12)
