"""`clip` and `zero_grad` do what torch does, bit for bit, whatever the parameters are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, Trainer, fit
from graphtrain.graph.elements import Edge, Node


class Tagged(torch.Tensor):
    """A tensor of a type of one's own, for which nothing is defined that works on lists."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_foreach" in function.__name__:
            raise NotImplementedError
        return super().__torch_function__(function, types, args, kwargs)


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [one.grad for one in model.parameters()]


def same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and torch.equal(one.to_dense(), other.to_dense())


def mixed() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8).double(), nn.Linear(8, 8), nn.Linear(8, 4).double())


def tagged() -> nn.Module:
    model = nn.Linear(8, 4)
    model.weight = nn.Parameter(model.weight.detach().as_subclass(Tagged))
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)),
    "one": lambda: nn.Linear(8, 4, bias=False),
    "half": lambda: nn.Linear(8, 4).bfloat16(),
    "of two types": mixed,
    "a type of one's own": tagged,
}


def with_gradients(model: nn.Module, scale: float, without: int | None = None) -> nn.Module:
    """The model, each parameter but one with a gradient."""
    generator = torch.Generator().manual_seed(3)
    for number, one in enumerate(model.parameters()):
        drawn = torch.randn(one.shape, generator=generator) * scale
        one.grad = None if number == without else drawn.to(one.dtype).as_subclass(type(one.data))
    return model


def trainer(node: Node, visits: int = 1, **resources: Any) -> Trainer:
    """Of a graph of this node alone, which is visited so often."""
    edges = {node.name: (Edge(node.name, "again"), Edge("end"))}
    guards = {"again": f"{node.name}.runs < {visits}"}
    graph = Graph("some", node.name, {node.name: node}, edges, guards, allow=("G401",))
    return Trainer(graph, seed=0, display=None, notify=lambda line: None, **resources)


def visited(kind: str, optimizer: Any, **parameters: Any) -> None:
    """A node alone, visited once."""
    trainer(Node(kind, kind, parameters), optimizer=optimizer).run()


@pytest.mark.second(95)
@pytest.mark.first(33)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("scale", [0.01, 1.0, 1e30, math.nan])
@pytest.mark.parametrize("without", [None, 0])
def test_clip_is_that_of_torch(model: str, norm_type: float, scale: float, without: int | None) -> None:
    ours, by_hand = (with_gradients(MODELS[model](), scale, without) for _ in range(2))
    visited("clip", torch.optim.SGD(ours.parameters(), lr=0.1), max_norm=0.5, norm_type=norm_type)
    torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 0.5, norm_type=norm_type)
    pairs = list(zip(gradients(ours), gradients(by_hand), strict=True))
    assert len(pairs) >= 1
    for one, other in pairs:
        assert same(one, other) or (one is not None and other is not None and one.isnan().all() and other.isnan().all())


@pytest.mark.parametrize("value", [0.5, 1e-3])
def test_values_are_clipped_as_torch_does(value: float) -> None:
    ours, by_hand = (with_gradients(mixed(), 1.0) for _ in range(2))
    visited("clip", torch.optim.SGD(ours.parameters(), lr=0.1), max_norm=5.0, max_value=value)
    torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 5.0)
    torch.nn.utils.clip_grad_value_(by_hand.parameters(), value)
    assert all(same(one, other) for one, other in zip(gradients(ours), gradients(by_hand), strict=True))


@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
def test_sparse_gradients_are_clipped_and_measured_as_dense_ones(norm_type: float) -> None:
    def trained(sparse: bool) -> tuple[torch.Tensor, float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(10, 4, sparse=sparse), nn.Linear(4, 2))
        trainer = Trainer(
            fit(epochs=1)
            .overlay("gradient_norm")
            .set("gradient_norm", norm_type=norm_type)
            .set("clip", max_norm=0.01, norm_type=norm_type),
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
            training_step=lambda model, batch: model(batch).square().mean(),
            train_data=[torch.tensor([1, 3, 3]), torch.tensor([3, 2])],
            **{"seed": 0, "display": None, "notify": lambda line: None},
        )
        trainer.run()
        norms = [row["epoch/gradient_norm"] for row in trainer.metrics if "epoch/gradient_norm" in row]
        return model[0].weight.detach(), norms[-1]

    (weight, norm), (expected, expected_norm) = trained(True), trained(False)
    assert torch.allclose(weight, expected) and norm == pytest.approx(expected_norm)


def test_clip_tells_gradients_apart_by_their_own_types() -> None:
    """Norms are summed up in another order where they are of several types."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        pairs = [[nn.Parameter(torch.zeros(3)) for _ in range(9)] for _ in range(2)]
        for number, both in enumerate(zip(*pairs, strict=True)):
            drawn = torch.randn(3, generator=generator, dtype=torch.float64)
            for one in both:
                one.grad_dtype = (torch.float32, torch.float64, torch.bfloat16)[number % 3]
                one.grad = drawn.to(one.grad_dtype, copy=True)
        ours, by_hand = pairs
        visited("clip", torch.optim.SGD(ours, lr=0.1), max_norm=0.5)
        torch.nn.utils.clip_grad_norm_(by_hand, 0.5)
        assert all(same(one.grad, other.grad) for one, other in zip(ours, by_hand, strict=True))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_clears_all_of_several_optimizers(set_to_none: bool) -> None:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    for one in weights:
        one.grad = torch.ones(2)
    optimizers = [torch.optim.SGD(weights[:1], lr=0.1), torch.optim.Adam(weights[1:], lr=0.1)]
    both = Node("zero_grad", "zero_grad", {"set_to_none": set_to_none}, reads={"optimizer": ("a", "b")})
    trainer(both, a=optimizers[0], b=optimizers[1]).run()
    found = [one.grad for one in weights]
    assert found == [None] * 3 if set_to_none else all(one is not None and not one.any() for one in found)
