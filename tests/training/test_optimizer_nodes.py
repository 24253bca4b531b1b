"""Promise 7: clipping as torch does it, several optimizers and whose gradients they get, schedules."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus
from torch.optim.lr_scheduler import LambdaLR, StepLR

from graphtrain import Edge, Graph, Node, PlannedRun, Trainer, UsageError, fit
from tests.world import (
    Resources,
    World,
    assert_as_by_hand,
    assert_exact,
    run_through,
    seed_generators,
    small_fit,
    world,
)

# ---- clip and zero_grad, bit for bit


class Tagged(torch.Tensor):
    """A tensor of a type of one's own, for which nothing is defined that works on lists."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_foreach" in function.__name__:
            raise NotImplementedError
        return super().__torch_function__(function, types, args, kwargs)


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


def with_gradients(model: nn.Module, scale: float = 1.0, without: int | None = None) -> list[nn.Parameter]:
    """Its parameters, each but one with a gradient."""
    generator = torch.Generator().manual_seed(3)
    for number, one in enumerate(model.parameters()):
        drawn = torch.randn(one.shape, generator=generator) * scale
        one.grad = None if number == without else drawn.to(one.dtype).as_subclass(type(one.data))
    return [*model.parameters()]


def visit(node: Node, **resources: Any) -> None:
    """Run a graph of this node alone."""
    graph = Graph("some", node.name, {node.name: node}, {node.name: (Edge("end"),)}, {}, allow=("G401",))
    Trainer(graph, seed=0, display=None, notify=lambda line: None, **resources).run()


def clip(parameters: list[nn.Parameter], **settings: Any) -> None:
    visit(Node("clip", "clip", settings), optimizer=torch.optim.SGD(parameters, lr=0.1))


def assert_same_gradients(ours: list[nn.Parameter], by_hand: list[nn.Parameter]) -> None:
    for one, other in zip(ours, by_hand, strict=True):
        if one.grad is None or other.grad is None:
            assert one.grad is other.grad
        else:
            assert one.grad.dtype == other.grad.dtype
            assert torch.equal(one.grad, other.grad) or (one.grad.isnan().all() and other.grad.isnan().all())


@pytest.mark.second(60)
@pytest.mark.first(33)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize(("scale", "without"), [(0.01, None), (1.0, None), (1.0, 0), (1e30, 0), (math.nan, None)])
def test_clip_is_that_of_torch(model: str, norm_type: float, scale: float, without: int | None) -> None:
    ours, by_hand = (with_gradients(MODELS[model](), scale, without) for _ in range(2))
    clip(ours, max_norm=0.5, norm_type=norm_type)
    nn.utils.clip_grad_norm_(by_hand, 0.5, norm_type=norm_type)
    assert_same_gradients(ours, by_hand)


@pytest.mark.parametrize("value", [0.5, 1e-3])
def test_values_are_clipped_as_torch_does(value: float) -> None:
    ours, by_hand = (with_gradients(mixed()) for _ in range(2))
    clip(ours, max_norm=5.0, max_value=value)
    nn.utils.clip_grad_norm_(by_hand, 5.0)
    nn.utils.clip_grad_value_(by_hand, value)
    assert_same_gradients(ours, by_hand)


def test_clip_tells_gradients_apart_by_their_own_types() -> None:
    """Norms are summed up in another order where they are of several types."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        ours, by_hand = ([nn.Parameter(torch.zeros(3)) for _ in range(9)] for _ in range(2))
        for number, both in enumerate(zip(ours, by_hand, strict=True)):
            drawn = torch.randn(3, generator=generator, dtype=torch.float64)
            for one in both:
                one.grad_dtype = (torch.float32, torch.float64, torch.bfloat16)[number % 3]
                one.grad = drawn.to(one.grad_dtype, copy=True)
        clip(ours, max_norm=0.5)
        nn.utils.clip_grad_norm_(by_hand, 0.5)
        assert_same_gradients(ours, by_hand)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
def test_sparse_gradients_are_clipped_and_measured_as_dense_ones(norm_type: float) -> None:
    def trained(sparse: bool) -> tuple[torch.Tensor, float]:
        graph = fit(epochs=1, overlays="gradient_norm").set("gradient_norm", norm_type=norm_type)
        it = world(
            graph.set("clip", max_norm=0.01, norm_type=norm_type),
            model=lambda: nn.Sequential(nn.Embedding(10, 4, sparse=sparse), nn.Linear(4, 2)),
            optimizer="SGD",
            data=lambda: [torch.tensor([1, 3, 3]), torch.tensor([3, 2])],
            training_step=lambda model, batch: model(batch).square().mean(),
        ).but(val_data=None)
        ended = run_through(it, None).trainer
        norms = [row["epoch/gradient_norm"] for row in ended.metrics if "epoch/gradient_norm" in row]
        return ended.resources["model"][0].weight.detach(), norms[-1]

    (weight, norm), (expected, expected_norm) = trained(True), trained(False)
    assert torch.allclose(weight, expected) and norm == pytest.approx(expected_norm)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_clears_all_of_several_optimizers(set_to_none: bool) -> None:
    weights = with_gradients(mixed())
    optimizers = {"a": torch.optim.SGD(weights[:1], lr=0.1), "b": torch.optim.Adam(weights[1:], lr=0.1)}
    visit(Node("zero_grad", "zero_grad", {"set_to_none": set_to_none}, reads={"optimizer": ("a", "b")}), **optimizers)
    assert all((one.grad is None) if set_to_none else (one.grad is not None and not one.grad.any()) for one in weights)


# ---- only_own: no gradients for parameters of other optimizers


class Gan(nn.Module):
    """Two networks, and a scale that both optimizers have."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(2, 2)
        self.critic = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        self.scale = nn.Parameter(torch.ones(1))
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)


def critic_loss(model: Gan, batch: torch.Tensor) -> torch.Tensor:
    fake = model.generator(torch.randn(len(batch), 2)) * model.scale
    return softplus(model.critic(fake)).mean() + softplus(-model.critic(batch * model.frozen)).mean()


def generator_loss(model: Gan, batch: torch.Tensor) -> torch.Tensor:
    return softplus(-model.critic(model.generator(torch.randn(len(batch), 2)) * model.scale)).mean()


LOSSES = {"d_optimizer": critic_loss, "g_optimizer": generator_loss}


def adversarial(only_own: bool = True, **parameters: Any) -> World:
    """Both optimizers are cleared after the step of each, as by one list of gradients."""
    nodes = [Node("next_batch", "next_batch")]
    for part, loss in (("d", "critic_loss"), ("g", "generator_loss")):
        reads = {"optimizer": f"{part}_optimizer"}
        settings = {"only_own": only_own, **parameters}
        nodes.append(Node(f"{part}_batch", "train_batch", settings, reads={**reads, "training_step": loss}))
        nodes += [Node(f"{part}_step", "step", reads=reads), Node(f"{part}_clear", "zero_grad", reads=reads)]
    nodes.append(Node("finish", "finish"))
    edges = {one.name: (Edge(other.name),) for one, other in itertools.pairwise(nodes)}
    edges["finish"] = (Edge("end", "done"), Edge("next_batch"))
    units = {"epochs": "next_batch.epochs", "batches": "next_batch.batches", "steps": "d_step.steps"}
    named = {each.name: each for each in nodes}
    graph = Graph("adversarial", "next_batch", named, edges, {"done": "finish.due"}, units)
    graph = graph.set("finish", after="2 epochs")

    def make() -> Resources:
        model = Gan()
        return {
            "model": model,
            "g_optimizer": torch.optim.Adam([*model.generator.parameters(), model.scale], lr=0.01),
            "d_optimizer": torch.optim.Adam([*model.critic.parameters(), model.scale, model.frozen], lr=0.01),
            "train_data": [torch.randn(8, 2) + 3 for _ in range(5)],
            "critic_loss": critic_loss,
            "generator_loss": generator_loss,
        }

    return World(graph, make)


@pytest.mark.parametrize("only_own", [True, False])
def test_it_trains_what_a_loop_that_toggles_trains(only_own: bool) -> None:
    def loop(resources: Resources) -> None:
        model = resources["model"]
        seed_generators(11)
        for batch in resources["train_data"] * 2:
            for name, loss_of in LOSSES.items():
                own = {id(each) for group in resources[name].param_groups for each in group["params"]}
                flags = {each: each.requires_grad for each in model.parameters()}
                for each in model.parameters() if only_own else ():
                    each.requires_grad_(flags[each] and id(each) in own)
                loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
                for each, flag in flags.items():
                    each.requires_grad_(flag)
                resources[name].step()
                resources[name].zero_grad()

    trainer = assert_as_by_hand(adversarial(only_own), ("model", *LOSSES), loop=loop)
    flags = {name: each.requires_grad for name, each in trainer.resources["model"].named_parameters()}
    assert [name for name, flag in flags.items() if not flag] == ["frozen"]


def test_flags_are_put_back_when_the_step_function_raises() -> None:
    seen: list[bool] = []

    def failing(model: Gan, batch: torch.Tensor) -> torch.Tensor:
        seen.append(model.generator.weight.requires_grad)
        raise ValueError("no label")

    trainer = adversarial().but(critic_loss=lambda made: failing).trainer()
    with pytest.raises(ValueError, match="no label"):
        trainer.run()
    assert seen == [False] and trainer.resources["model"].generator.weight.requires_grad


def test_whose_turn_it_is_must_be_known() -> None:
    it = adversarial()
    reads = {key: value for key, value in it.graph.nodes["d_batch"].reads.items() if key != "optimizer"}
    nodes = {**it.graph.nodes, "d_batch": replace(it.graph.nodes["d_batch"], reads=reads)}
    without = it.but(replace(it.graph, nodes=nodes, allow=("G404", "G408", "G410", "G411")))
    for wrong, message in (
        (without, "only_own = true: the node needs an `optimizer`"),
        (adversarial(turn=5), "an index below 1"),
    ):
        with pytest.raises(UsageError, match=message):
            wrong.trainer().run()


def test_an_optimizer_that_replaces_another_is_seen() -> None:
    trainer = adversarial().trainer()
    trainer.run(until="2 batches")
    model = trainer.resources["model"]
    trainer.rewire(trainer.graph, g_optimizer=torch.optim.SGD(model.generator.parameters(), lr=0.1))
    trainer.run()
    assert model.generator.weight.grad is None


# ---- schedules

BATCHES = 6


def squared(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    return loss


def scheduled(
    graph: Graph | None = None, optimizer: Any = "SGD", scheduler: Any = "none", step: Any = squared, **more: Any
) -> World:
    """Six batches an epoch, a row at every step."""
    return world(
        graph or small_fit(accumulate=1, clip=None, validate_every="never"),
        model=lambda: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)),
        optimizer=optimizer,
        scheduler=scheduler,
        data=lambda: [torch.randn(4, 2) for _ in range(BATCHES)],
        training_step=step,
        **more,
    ).but(val_data=None)


FIT = small_fit(accumulate=1, clip=None, validate_every="never")
PLACES = {
    "before the schedule": FIT,
    "a schedule of batches": FIT.set("schedule", every="3 batches").set("finish", after="9 steps"),
}


@pytest.mark.parametrize("name", PLACES)
def test_rows_have_the_rate_of_the_last_step(name: str, tmp_path: Path) -> None:
    """In these graphs `log` comes before `schedule`. A hook of the optimizer notes the rate of each step."""
    rates: list[float] = []

    def make(parameters: Any) -> torch.optim.Optimizer:
        made = torch.optim.SGD(parameters, lr=0.01)
        made.register_step_pre_hook(lambda each, *_: rates.append(each.param_groups[0]["lr"]))
        return made

    def slower(optimizer: Any) -> Any:
        return LambdaLR(optimizer, lambda steps: 1 / (1 + steps))

    it = scheduled(PLACES[name], make, slower)
    rows = [row for row in run_through(it, tmp_path).trainer.metrics if "lr" in row]
    assert rows and rates[0] == 0.01
    assert [row["lr"] for row in rows] == [rates[max(int(row["step"]) - 1, 0)] for row in rows]


@pytest.mark.full
def test_a_warm_up_is_that_of_torch_and_exact_through_cuts(tmp_path: Path) -> None:
    it = scheduled(small_fit(clip=None, validate_every="never"), "AdamW", "warm-up")
    assert PlannedRun(it.graph).steps([None] * BATCHES) == 6
    whole = assert_exact(it, tmp_path, at=3)
    resources, rates = it.resources(), list[float]()
    for _ in range(6):
        rates.append(resources["optimizer"].param_groups[0]["lr"])
        resources["optimizer"].step()
        resources["scheduler"].step()
    assert [row["lr"] for row in whole.metrics if "lr" in row] == rates  # a row comes before the step of the schedule


@pytest.mark.parametrize(("every", "changes"), [("1 steps", 6), ("1 epochs", 2), ("3 batches", 4), ("4 steps", 1)])
def test_a_schedule_counts_steps_epochs_or_batches(every: str, changes: int) -> None:
    graph = FIT.set("accumulate", every=2).set("schedule", every=every)
    trainer = scheduled(graph, scheduler=lambda optimizer: StepLR(optimizer, 1, 0.5)).trainer()
    rate = trainer.resources["optimizer"].param_groups[0]["lr"]
    trainer.run()
    assert trainer.resources["optimizer"].param_groups[0]["lr"] == rate * 0.5**changes


def test_the_rate_of_every_group_is_a_metric() -> None:
    def of_three_groups(parameters: Any) -> torch.optim.Optimizer:
        first, second, *others = parameters
        groups = [{"params": [first], "lr": 0.1}, {"params": [second], "lr": 0.2}]
        return torch.optim.SGD([*groups, {"params": others, "lr": 0.3, "name": "head"}], lr=1.0)

    row = run_through(scheduled(optimizer=of_three_groups), None).trainer.metrics[0]
    rates = {name: value for name, value in row.items() if name.startswith("lr")}
    assert rates == {"lr": 0.1, "lr/1": 0.2, "lr/head": 0.3}


@pytest.mark.parametrize(("every", "decay"), [("", 0.1**12), ("1 epochs", 0.1**2)])
def test_a_scheduler_of_each_optimizer_by_one_node_or_by_two_at_different_times(every: str, decay: float) -> None:
    read = "first" if every else ["first", "second"]
    graph = replace(FIT, optimizer="body").set("schedule", every="1 steps", reads={"scheduler": read})
    for name in ("train_batch", "accumulate", "exchange", "clip", "step", "zero_grad", "log", "finish"):
        graph = graph.set(name, reads={"optimizer": ["body", "head"]})
    if every:
        graph = graph.insert("slow", "schedule", at="decide", after="schedule", every=every)
        graph = graph.set("slow", reads={"scheduler": "second"})
    it = scheduled(graph).but(
        body=lambda made: torch.optim.SGD(made["model"][0].parameters(), lr=1.0),
        head=lambda made: torch.optim.SGD(made["model"][1].parameters(), lr=2.0),
        first=lambda made: StepLR(made["body"], 1, 0.5),
        second=lambda made: StepLR(made["head"], 1, 0.1),
        optimizer=None,
        scheduler=None,
    )
    trainer = run_through(it, None).trainer
    rates = [trainer.resources[name].param_groups[0]["lr"] for name in ("body", "head")]
    assert rates == [0.5**12, pytest.approx(2 * decay)]
    assert (trainer.metrics[0]["lr"], trainer.metrics[0]["lr/1"]) == (1.0, 2.0)


def test_two_nodes_that_step_one_scheduler_at_one_time_are_an_error() -> None:
    graph = FIT.set("schedule", every="1 steps")
    graph = graph.insert("slow", "schedule", at="decide", after="schedule", every="1 steps")
    it = scheduled(graph, scheduler=lambda optimizer: StepLR(optimizer, 1, 0.5))
    with pytest.raises(ValueError, match=r"`schedule` and `slow` both step `scheduler` at the same time .1 steps., so"):
        it.trainer()
