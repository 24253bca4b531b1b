"""What people write who come from other trainers is answered with the line to write here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import graphtrain
from graphtrain import EditError, Graph, Trainer, UsageError
from graphtrain.trainer.view import ELSEWHERE
from tests.program.small_run import small_trainer


@pytest.mark.parametrize("name", ELSEWHERE)
def test_an_attribute_of_another_trainer(name: str) -> None:
    assert name not in dir(Trainer)
    with pytest.raises(AttributeError) as raised:
        getattr(small_trainer(), name)
    assert str(raised.value) == f"`Trainer` has no `{name}`: {ELSEWHERE[name]}"


def test_an_attribute_of_none() -> None:
    with pytest.raises(AttributeError) as raised:
        _ = small_trainer().nothing
    assert str(raised.value) == "`Trainer` has no `nothing`"
    assert (raised.value.name, hasattr(small_trainer(), "nothing")) == ("nothing", False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"epochs": 3},
            "there is no argument `epochs`\n  hint: it is a setting of the graph: "
            "Trainer(graphtrain.fit(epochs=3), ...).run()",
        ),
        ({"max_epochs": 3}, 'there is no argument `max_epochs`\n  hint: that is `finish.after = "N epochs"` here'),
        ({"untl": "3 steps"}, "there is no argument `untl`\n  hint: did you mean `until`?"),
    ],
)
def test_an_argument_of_another_run(arguments: dict[str, Any], message: str) -> None:
    trainer = small_trainer()
    with pytest.raises(UsageError) as raised:
        trainer.run(**arguments)
    assert str(raised.value) == f"run: {message}"
    assert trainer.state == "ready"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("accumulate", 4, 'of `accumulate` is 4?\n  hint: name it, as in .set("accumulate", every=4)'),
        ("finish", "3 epochs", 'of `finish` is "3 epochs"?\n  hint: name it, as in .set("finish", after="3 epochs")'),
        ("validate/next_batch", 5, "of `validate/next_batch` is 5?\n  hint: name it, as in "
         '.set("validate/next_batch", PARAMETER=5)'),
    ],
)  # fmt: skip
def test_a_parameter_without_its_name(name: str, value: Any, message: str) -> None:
    with pytest.raises(EditError) as raised:
        Graph.load("fit").set(name, value)
    assert str(raised.value) == f"set: which parameter {message}"


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


def test_a_step_that_runs_backward_itself() -> None:
    def own_backward(loss: torch.Tensor) -> torch.Tensor:
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with pytest.raises(RuntimeError) as raised:
        _trained(own_backward)
    assert (
        "`train_batch` runs backward itself: return the loss, without calling loss.backward()" in raised.value.__notes__
    )


@pytest.mark.parametrize(
    "returned", [lambda loss: loss.item(), lambda loss: {"loss": loss.item()}], ids=["a number", "in a mapping"]
)
def test_a_step_that_returns_a_number(returned: Any) -> None:
    with pytest.raises(UsageError, match=r"return the tensor itself, without `.item\(\)` or `float\(\)`"):
        _trained(returned)
