"""An optimizer of another model is refused when the Trainer is made; one that may be meant is not."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, GraphError, Trainer

EMBEDDING = nn.Embedding(3, 1)


def sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for module in modules for parameter in module.parameters()], lr=0.1)


def training_step(model: nn.Module, batch: Any) -> Any:
    return model(batch).mean()


def make_trainer(graph: Graph | None = None, **resources: Any) -> Trainer:
    model = resources.setdefault("model", nn.Linear(1, 1))
    resources.setdefault("optimizer", sgd(model))
    return Trainer(
        graph or Graph.load("fit").set("finish", after="2 steps"),
        device="cpu",
        display=None,
        notify=resources.pop("notify", lambda line: None),
        **{"train_data": [torch.ones(2, 1)], "training_step": training_step, **resources},
    )


class Holder:
    """A step function that holds a module."""

    def __init__(self, module: Any) -> None:
        self.held = module

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        return model(batch).mean()

    def step(self, model: nn.Module, batch: Any) -> Any:
        return model(batch).mean()


def closure_over(held: Any) -> Callable[..., Any]:
    def step(model: nn.Module, batch: Any) -> Any:
        return model(batch).mean() + sum(0 * parameter.sum() for parameter in held)

    return step


def recursive_over(module: nn.Module) -> Callable[..., Any]:
    """It names a variable that is never assigned."""

    def step(model: nn.Module, batch: Any) -> Any:
        return later(module) if batch is None else model(batch).mean()

    if module is None:
        later = step
    return step


def step_with_a_global(model: nn.Module, batch: Any) -> Any:
    return model(batch).mean() + EMBEDDING.weight.sum()


def test_all_problems_are_reported_at_once() -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(GraphError) as caught:
        make_trainer(
            model=copy.deepcopy(model),
            optimizer=sgd(model),
            train_data={"train": torch.ones(2, 1), "test": []},
            epochs=3,
        )
    foreign, mapping, unread = sorted(caught.value.problems, key=lambda problem: problem.message)
    assert [problem.code for problem in caught.value.problems] == ["G302", "G308", "G309"]
    assert (
        foreign.message == "`optimizer` has parameters like those of `model`, but none of these: it would train a copy"
    )
    assert "make it of the model that the Trainer is given" in foreign.hint
    assert mapping.message.startswith("`train_data` is a mapping (`train`, `test`)")
    assert "train_data=data['train']" in mapping.hint
    assert "epochs" in unread.message


def test_what_is_meant_can_be_allowed() -> None:
    model = nn.Linear(1, 1)
    graph = replace(Graph.load("fit").set("finish", after="2 steps"), allow=("G308",))
    with pytest.raises(GraphError, match="G308"):
        make_trainer(model=model, optimizer=sgd(copy.deepcopy(model)))
    make_trainer(graph, model=model, optimizer=sgd(copy.deepcopy(model)))


@pytest.mark.parametrize("masters", [False, True], ids=["of another form", "of another type"])
def test_other_tensors_may_be_meant_and_a_first_step_without_gradients_is_reported(masters: bool) -> None:
    model = nn.Linear(1, 1).bfloat16() if masters else nn.Linear(1, 1)
    tensors = (
        [nn.Parameter(tensor.float()) for tensor in model.parameters()] if masters else nn.Linear(3, 1).parameters()
    )
    lines: list[str] = []
    trainer = make_trainer(
        model=model,
        optimizer=torch.optim.SGD(tensors, lr=0.1),
        train_data=[torch.ones(2, 1, dtype=torch.bfloat16 if masters else torch.float32)],
        notify=lines.append,
    )
    trainer.run()
    assert [line for line in lines if "no gradient" in line] == [
        "the first step of the optimizer finds no gradient on any of its parameters, and changes nothing; "
        "was it made of the model that is trained?"
    ]


OTHER = nn.Linear(2, 1)


@pytest.mark.parametrize(
    "resources",
    [
        {"model": (model := nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))), "optimizer": sgd(model[1])},
        {"embedding": EMBEDDING, "optimizer": sgd(EMBEDDING)},
        {"training_step": Holder(OTHER), "optimizer": sgd(OTHER)},
        {"training_step": Holder([OTHER]).step, "optimizer": sgd(OTHER)},
        {"training_step": closure_over(list(OTHER.parameters())), "optimizer": sgd(OTHER)},
        {"training_step": functools.partial(Holder({"a": OTHER}).step), "optimizer": sgd(OTHER)},
        {"training_step": step_with_a_global, "optimizer": sgd(EMBEDDING)},
        {"training_step": recursive_over(OTHER), "optimizer": sgd(OTHER)},
        {"optimizer": torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)},
    ],
    ids=["a part", "another", "callable", "method", "closure", "partial", "global", "an empty cell", "a tensor"],
)
def test_what_may_be_meant_is_not_refused(resources: dict[str, Any]) -> None:
    make_trainer(**resources)


def test_an_object_that_is_met_again_nearer_is_looked_into() -> None:
    """First three attributes away, and then as a step function."""
    holder = Holder([OTHER])
    make_trainer(batch_size=Holder(Holder(holder)), training_step=holder.step, optimizer=sgd(OTHER))


def test_a_module_in_a_plain_list_of_the_model_is_reached() -> None:
    model = nn.Linear(1, 1)
    model.__dict__["blocks"] = [OTHER]
    make_trainer(model=model, optimizer=sgd(OTHER))


def test_an_optimizer_that_nothing_reads_is_left_alone() -> None:
    model = nn.Linear(1, 1)
    Trainer(
        "evaluate",
        device="cpu",
        display=None,
        notify=lambda line: None,
        model=copy.deepcopy(model),
        optimizer=sgd(model),
        val_data=[],
        training_step=training_step,
    )


def test_another_model_in_place_needs_its_optimizer() -> None:
    trainer = make_trainer()
    trainer.run(until="1 steps")
    with pytest.raises(GraphError, match="G308"):
        trainer.rewire(trainer.graph, model=nn.Linear(1, 1))
    trainer.run()


def test_validation_data_that_is_a_mapping_is_refused() -> None:
    with pytest.raises(GraphError, match="`val_data` is a mapping"):
        make_trainer(val_data={0: torch.ones(2, 1)})


def test_a_mapping_is_data_for_a_kind_that_does_not_iterate_over_it() -> None:
    from graphtrain import node

    @node(writes=("batch", "samples"), activity="data")
    class PickBatch:
        """Pick a batch by its name."""

        def setup(self, train_data: Any) -> None:
            self._data = train_data

        def __call__(self) -> Any:
            return self._data["a"], 1

    graph = Graph.loads(
        """
        format = 1
        start = "pick_batch"
        [nodes]
        pick_batch = {}
        train_batch = {}
        step = {}
        zero_grad = {}
        [guards]
        done = "step.steps >= 2"
        [edges]
        pick_batch = ["train_batch"]
        train_batch = ["step"]
        step = ["zero_grad"]
        zero_grad = ["end if done", "pick_batch"]
        """
    )
    model = nn.Linear(1, 1)
    Trainer(
        graph,
        device="cpu",
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=sgd(model),
        train_data={"a": torch.ones(2, 1)},
        training_step=training_step,
    ).run()
