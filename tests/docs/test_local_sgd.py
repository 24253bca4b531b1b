"""The recipe of local SGD at two ranks, which its page cannot show: each trains by itself, then both have the mean."""

from __future__ import annotations

import contextlib
import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer
from graphtrain.ranks import Ranks
from tests.docs.blocks import read_blocks
from tests.ranks.fake_ranks import run_ranks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
WINDOW = 3  # steps of its own that each rank takes


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    """The names that the page defines."""
    blocks = [block.text for block in read_blocks(PAGE) if block.language == "python"]
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(blocks[0], names)  # noqa: S102 - our own page
        exec(next(block for block in blocks if "class LocalBatch" in block), names)  # noqa: S102
    return names


def on_two_ranks(recipe: dict[str, Any], run_dir: Path | None = None, cut: int = 0) -> list[Trainer]:
    graph: Graph = recipe["local"].set("accumulate", every=WINDOW).set("finish", after="2 epochs")

    def program(ranks: Ranks) -> Trainer:
        trainer = Trainer(graph, run_dir=run_dir, display=None, notify=lambda line: None, **recipe["local_sgd"]())
        if cut:
            trainer.advance(cut)
            trainer.save()
        else:
            trainer.run()
        return trainer

    return run_ranks(2, program)


def weights_of(trainer: Trainer) -> list[Any]:
    return [weight.tolist() for weight in trainer.resources["model"].parameters()]


def by_hand(recipe: dict[str, Any]) -> list[Any]:
    resources = recipe["local_sgd"]()
    model, loss_of = resources["model"], resources["training_step"]
    for _ in range(2):
        batches = list(resources["train_data"])
        own: list[torch.nn.Module] = []
        for number in range(0, len(batches), 2):
            if not own:
                own = [copy.deepcopy(model) for _ in range(2)]
            for local, batch in zip(own, batches[number : number + 2], strict=True):
                gradients = torch.autograd.grad(loss_of(local, batch), list(local.parameters()))
                with torch.no_grad():
                    for weight, gradient in zip(local.parameters(), gradients, strict=True):
                        weight.add_(gradient, alpha=-0.1)
            if number // 2 % WINDOW == WINDOW - 1 or number + 2 == len(batches):
                with torch.no_grad():
                    for weight, *locals_ in zip(*(each.parameters() for each in (model, *own)), strict=True):
                        weight -= sum((weight - local) / 2 for local in locals_)
                own = []
    return [weight.tolist() for weight in model.parameters()]


@pytest.mark.full
def test_two_ranks_train_by_themselves_and_meet(recipe: dict[str, Any]) -> None:
    left, right = on_two_ranks(recipe)
    assert weights_of(left) == weights_of(right) == by_hand(recipe)


@pytest.mark.full
@pytest.mark.parametrize("cut", [9, 20])
def test_a_cut_inside_of_a_window_is_exact(cut: int, recipe: dict[str, Any], tmp_path: Path) -> None:
    whole = on_two_ranks(recipe)
    on_two_ranks(recipe, tmp_path, cut)
    for left, right in zip(whole, on_two_ranks(recipe, tmp_path), strict=True):
        assert left.digest() == right.digest()
        assert weights_of(left) == weights_of(right)
