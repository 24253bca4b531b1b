"""What people write who come from other trainers is answered with the line to write here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import graphtrain
from graphtrain import Graph, Outcome, Trainer, UsageError
from tests.program.small_run import small_trainer


def test_a_number_without_its_unit() -> None:
    (problem,) = Graph.load("fit").set("finish", after=3).check()
    assert problem.message == 'finish.after: expected a trigger such as "100 steps", got 3'
    assert problem.hint == 'name the unit: after = "3 epochs", or "3 steps"'


def _trained(returned: Callable[[torch.Tensor], Any]) -> None:
    model = torch.nn.Linear(2, 1)
    Trainer(
        graphtrain.fit(epochs=1),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.ones(4, 2)] * 2,
        training_step=lambda model, batch: returned(model(batch).square().mean()),
        display=None,
        notify=lambda line: None,
    ).run()


def test_the_best_of_a_run_on_the_disk(tmp_path: Path) -> None:
    small_trainer(tmp_path).run(until="1 steps")
    with pytest.raises(AttributeError, match=rf'`Run` has no `best`: write trainer.load\("{tmp_path}/best"\)'):
        _ = graphtrain.Run(tmp_path).best


@pytest.mark.parametrize(
    "returned", [lambda loss: None, lambda loss: (loss, 1), lambda loss: {"los": loss}, lambda loss: loss.item()]
)
def test_a_step_that_returns_no_loss_is_told_how_to_return_it(returned: Any) -> None:
    with pytest.raises(UsageError, match="must return a scalar loss") as raised:
        _trained(returned)
    assert raised.value.hint.startswith("end it with `return loss`, a tensor without `.item()`")


def test_a_finished_run_that_is_run_again_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    graph = graphtrain.fit(steps=2)
    resources = small_trainer().resources
    Trainer(graph, run_dir=tmp_path, display=None, notify=said.append, **resources).run()
    graph = graph.set("clip", max_norm=1.0)
    again = Trainer(graph, run_dir=tmp_path, display=None, notify=said.append, **resources)
    assert again.run() is again.run() is Outcome.ALREADY_FINISHED
    (line,) = [line for line in said if "nothing is run" in line]
    assert f"the run in `{tmp_path}` was finished before, so nothing is run; changed since, without effect: " in line
    assert "clip.max_norm" in line and "fit(epochs=...)" in line
