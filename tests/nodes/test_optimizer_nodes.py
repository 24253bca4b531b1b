"""`clip` and `zero_grad` do what torch does, bit for bit, whatever the parameters are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, Trainer, fit
from graphtrain.data.batch import sample_counter
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


@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
def test_sparse_gradients_are_clipped_and_measured_as_dense_ones(norm_type: float) -> None:
    def trained(sparse: bool) -> tuple[torch.Tensor, float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(10, 4, sparse=sparse), nn.Linear(4, 2))
        trainer = Trainer(
            fit(epochs=1)
            .overlay("gradient_norm")
            .set("gradient_norm", norm_type=norm_type, per_parameter=True)
            .set("clip", max_norm=0.01, norm_type=norm_type),
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
            training_step=lambda model, batch: model(batch).square().mean(),
            train_data=[torch.tensor([1, 3, 3]), torch.tensor([3, 2])],
            **{"seed": 0, "display": None, "notify": lambda line: None},
        )
        trainer.run()
        norms = [row["epoch/gradient_norm/0.weight"] for row in trainer.metrics if "epoch/gradient_norm" in row]
        return model[0].weight.detach(), norms[-1]

    (weight, norm), (expected, expected_norm) = trained(True), trained(False)
    assert torch.allclose(weight, expected) and norm == pytest.approx(expected_norm)


def test_clip_keeps_no_graph_of_gradients_that_have_one() -> None:
    def weight() -> nn.Parameter:
        made = nn.Parameter(torch.full((3,), 2.0))
        made.grad = made.exp()
        return made

    ours, by_hand = weight(), weight()
    visited("clip", torch.optim.SGD([ours], lr=0.1), max_norm=0.5)
    torch.nn.utils.clip_grad_norm_([by_hand], 0.5)
    assert ours.grad is not None and by_hand.grad is not None
    assert same(ours.grad.detach(), by_hand.grad.detach())
    assert type(ours.grad.grad_fn) is type(by_hand.grad.grad_fn)


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


def _add_a_group(optimizer: torch.optim.Optimizer, further: nn.Parameter) -> None:
    optimizer.add_param_group({"params": [further]})


def _extend_a_group(optimizer: torch.optim.Optimizer, further: nn.Parameter) -> None:
    optimizer.param_groups[0]["params"].append(further)


def _replace_in_a_group(optimizer: torch.optim.Optimizer, further: nn.Parameter) -> None:
    optimizer.param_groups[0]["params"][0] = further


def _replace_a_list(optimizer: torch.optim.Optimizer, further: nn.Parameter) -> None:
    optimizer.param_groups[0]["params"] = [further]


def _replace_all_groups(optimizer: torch.optim.Optimizer, further: nn.Parameter) -> None:
    optimizer.param_groups.clear()
    optimizer.add_param_group({"params": [further]})


@pytest.mark.parametrize(
    "change", [_add_a_group, _extend_a_group, _replace_in_a_group, _replace_a_list, _replace_all_groups]
)
@pytest.mark.parametrize("node", ["clip", "zero_grad"])
def test_parameters_that_come_while_it_runs_are_seen(
    node: str, change: Callable[[torch.optim.Optimizer, nn.Parameter], None]
) -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([first], lr=0.1)
    parameters = {"max_norm": 0.5} if node == "clip" else {}
    twice = trainer(Node(node, node, parameters), visits=2, optimizer=optimizer)
    first.grad, second.grad = torch.ones(2), torch.ones(2)
    twice.advance(1)
    assert second.grad.tolist() == [1.0, 1.0]
    change(optimizer, second)
    twice.run()
    assert second.grad is None or second.grad.norm() <= 0.5


@pytest.mark.parametrize("method", ["step", "zero_grad"])
def test_a_method_that_an_optimizer_is_given_while_it_runs_is_called(method: str) -> None:
    """As a scheduler does, which wraps `step`."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    twice = trainer(Node(method, method), visits=2, optimizer=optimizer)
    twice.advance(1)
    called = []
    setattr(optimizer, method, lambda **options: called.append(method))
    twice.run()
    assert called == [method]


def test_a_way_to_clear_that_all_optimizers_were_given_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(torch.optim.Optimizer, "zero_grad", lambda self, set_to_none=True: called.append(set_to_none))
    visited("zero_grad", torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1))
    assert called == [True]


def test_an_optimizer_may_be_anything_that_steps_and_clears() -> None:
    class Wrapping:
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.step, self.zero_grad = inner.step, inner.zero_grad

    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    visited("zero_grad", Wrapping(torch.optim.SGD([weight], lr=0.1)))
    assert weight.grad is None


class Counting(torch.optim.SGD):
    """An optimizer with a way of its own to clear."""

    cleared = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.cleared += 1
        super().zero_grad(set_to_none)


def _with_a_method_of_its_class(weight: nn.Parameter) -> Any:
    return Counting([weight], lr=0.1)


def _with_a_method_of_its_own(weight: nn.Parameter) -> Any:
    optimizer = torch.optim.SGD([weight], lr=0.1)
    plain = optimizer.zero_grad

    def zero_grad(set_to_none: bool = True) -> None:
        optimizer.cleared += 1
        plain(set_to_none)

    optimizer.cleared = 0
    optimizer.zero_grad = zero_grad
    return optimizer


@pytest.mark.parametrize("make", [_with_a_method_of_its_class, _with_a_method_of_its_own])
@pytest.mark.parametrize("node", ["zero_grad", "discard"])
def test_an_optimizer_with_its_own_way_to_clear_is_asked(node: str, make: Callable[[nn.Parameter], Any]) -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = make(weight)
    visited(node, optimizer)
    assert optimizer.cleared == 1 and weight.grad is None


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


def test_the_samples_of_a_batch_are_counted_at_its_first_tensor() -> None:
    count = sample_counter()

    def deep() -> Iterator[tuple[Any, int]]:
        eight = torch.zeros(8, 3)
        yield eight, 8
        yield (eight, torch.zeros(5)), 8
        yield [[eight], torch.zeros(5)], 8
        yield ("name", eight), 8
        yield ((), [], eight), 8
        yield ({}, eight), 8
        yield {"name": "x", "input": eight}, 8
        yield [{"input": eight}], 8
        yield torch.tensor(1.0), 1
        yield (torch.tensor(1.0), eight), 1
        yield (), 1
        yield None, 1
        yield "text", 1
        yield torch.zeros(0, 3), 0

    for batch, samples in deep():
        assert count(batch) == samples, batch


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
def test_the_samples_of_a_nested_tensor_are_counted() -> None:
    assert sample_counter()((torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(4, 3)]), "a")) == 2
