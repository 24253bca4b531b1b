"""Resources that do not fit are refused when the Trainer is made; an optimizer that trains nothing is reported."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, Trainer


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


@pytest.mark.parametrize("of_copy", [False, True], ids=["of another type", "of a copy"])
def test_a_first_step_without_gradients_is_reported(of_copy: bool) -> None:
    model = nn.Linear(1, 1).bfloat16()
    masters = [nn.Parameter(tensor.float()) for tensor in model.parameters()]
    tensors = copy.deepcopy(model).parameters() if of_copy else masters
    lines: list[str] = []
    trainer = make_trainer(
        model=model,
        optimizer=torch.optim.SGD(tensors, lr=0.1),
        train_data=[torch.ones(2, 1, dtype=torch.bfloat16)],
        notify=lines.append,
    )
    trainer.run()
    assert [line for line in lines if "no gradient" in line] == [
        "the first step of the optimizer finds no gradient on any of its parameters, and changes nothing; "
        "was it made of the model that is trained?"
    ]


def test_a_mapping_is_data_for_a_kind_that_does_not_iterate_over_it() -> None:
    from graphtrain import node

    @node(writes=("batch", "samples"), family="data")
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
