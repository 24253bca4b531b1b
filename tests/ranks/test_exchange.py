"""Promises 9 and 17: sums that begin within the last pass of a window have the bits of an exchange after it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from graphtrain import Graph, StepFunction, TrainBatch, Trainer, UsageError, node
from tests.fake_ranks import FakeRank, assert_exact_on_ranks, begun_sums, outcomes_of, run_ranks
from tests.world import small_fit, world

BATCHES = 7
Patch = pytest.MonkeyPatch
Edit = Callable[[Graph], Graph]
Begun = list[tuple[int, int, int]]


class Layered(nn.Module):
    """Layers that are registered in another order than they are used, one of them for every third batch only."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(6, 1), nn.Linear(4, 6)
        self.rare, self.middle, self.unused = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, inputs: torch.Tensor, *, is_rare: bool = False) -> torch.Tensor:
        hidden = torch.tanh(self.norm(self.frozen(self.first(inputs))))
        hidden = torch.tanh(self.rare(hidden)) if is_rare else hidden
        output: torch.Tensor = self.last(torch.tanh(self.middle(hidden)))
        return output


def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
    number = int(batch[0, 0].abs() * 100)
    loss: torch.Tensor = model(batch, is_rare=number % 3 == 0).square().mean()
    return loss


@pytest.fixture(autouse=True)
def begun(monkeypatch: Patch) -> Begun:
    """What is begun; every weight of these models is a large one, its bias is not."""
    return begun_sums(monkeypatch, large_bytes=24 * 4)


def two_optimizers(model: nn.Module) -> Any:
    parameters = [each for each in model.parameters() if each.requires_grad]
    return [torch.optim.SGD(parameters[:3], lr=0.1, momentum=0.9), torch.optim.AdamW(parameters[3:], lr=0.01)]


def batches() -> list[torch.Tensor]:
    return list(torch.randn(BATCHES, 3, 4))


def trainer_of(graph: Graph, **resources: Any) -> Trainer:
    torch.manual_seed(0)
    model = resources.pop("model", Layered)()
    optimizer = resources.pop("optimizer", lambda model: torch.optim.AdamW(model.parameters(), lr=0.01))(model)
    given = {"model": model, "optimizer": optimizer, "train_data": batches(), "training_step": step, **resources}
    return Trainer(graph, seed=0, display=None, notify=lambda line: None, **given)


def fit(every: int = 1, edit: Edit = lambda graph: graph, *, within: bool = True) -> Graph:
    graph = Graph.load("fit").set("accumulate", every=every).set("clip", max_norm=0.5).set("finish", after="2 epochs")
    return edit(graph.set("checkpoint", every="never").set("log", every="1 steps").set("exchange", overlap=within))


def end_of(graph: Graph, world_size: int = 2, **resources: Any) -> list[Any]:
    def program(ranks: FakeRank) -> Any:
        trainer = trainer_of(graph, **resources)
        trainer.run()
        return trainer.digest(), trainer.metrics, trainer.progress["step"]["steps"]

    return run_ranks(world_size, program)


def skipping(model: Any, batch: torch.Tensor) -> torch.Tensor | None:
    return None if batch[0, 0] > 0.5 else step(model, batch)


def summed(model: Any, batch: torch.Tensor) -> dict[str, Any]:
    count = 1 + int(batch[0, 1].abs() * 10) % 4
    return {"loss": step(model, batch) * count, "tokens": count}


CASES: dict[str, tuple[int, Edit, dict[str, Any]]] = {
    "every batch": (1, lambda graph: graph, {}),
    "windows of two": (2, lambda graph: graph, {}),
    "two optimizers": (2, lambda graph: graph, {"optimizer": two_optimizers}),
    "loss scaling": (2, lambda graph: graph.overlay("fp16"), {}),
    "sums over tokens": (2, lambda graph: graph.overlay("token_windows"), {"training_step": summed}),
    "skipped batches": (1, lambda graph: graph.set("train_batch", skip_none=True), {"training_step": skipping}),
}


@pytest.mark.second(5)
@pytest.mark.full
@pytest.mark.parametrize("world_size", [3, pytest.param(2, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("case", CASES)
def test_the_results_have_the_bits_of_an_exchange_at_the_node(case: str, world_size: int, begun: Begun) -> None:
    every, edit, resources = CASES[case]
    within = end_of(fit(every, edit), world_size, **resources)
    assert sum(count for _, count, _ in begun) > 0, "some sums begin in the pass"
    assert within == end_of(fit(every, edit, within=False), world_size, **resources)


def test_ranks_begin_what_others_have_begun(begun: Begun) -> None:
    """One without a batch has begun none, and all begin as many: up to the first weight that some rank lacks."""
    ends = end_of(fit(), 3)
    assert len({steps for _, _, steps in ends}) == 1
    windows = [sorted(begun[start : start + 3]) for start in range(0, len(begun), 3)]
    assert all([rank for rank, _, _ in window] == [0, 1, 2] for window in windows)
    assert all(max(count for _, count, _ in window) == total for window in windows for *_, total in window)
    assert any(count < total for window in windows for _, count, total in window)
    assert max(total for window in windows for *_, total in window) > 0, "the unused and the frozen one hold up none"


@node(writes="seen")
def look(model: Any) -> float:
    """Look at what is in a gradient."""
    return float(model.first.weight.grad.sum())


@node(writes="loss", effects="backward")
class Noisy(TrainBatch):
    """Add noise to the gradients of this rank."""

    def __call__(  # type: ignore[override]
        self, model: Any, batch: Any, training_step: StepFunction, samples: int, window: int = 1
    ) -> Any:
        loss = super().__call__(model, batch, training_step, samples, window)
        self._optimizer.param_groups[0]["params"][0].grad += 0.1
        return loss


def by_the_last_count(graph: Graph) -> Graph:
    """A guard that reads what the node before it changes: a full window goes on to the end of the epoch."""
    graph = graph.guard("window_complete", "accumulate.full and accumulate.last_count < accumulate.window")
    return replace(graph, allow=("G409",))


UNKNOWN: dict[str, Edit] = {
    "it is not wanted": lambda graph: graph.set("exchange", overlap=False),
    "a node looks at gradients before": lambda graph: graph.insert("look", look, after="train_batch"),
    "the end depends on what the counter does": by_the_last_count,
    "a visit uses the gradients": lambda graph: graph.set("train_batch", use=Noisy),
    "two nodes run backward": lambda graph: graph.insert("again", "train_batch", after="train_batch"),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("case", UNKNOWN)
def test_where_the_last_pass_is_not_known_gradients_are_exchanged_at_the_node(case: str, begun: Begun) -> None:
    graph = UNKNOWN[case](fit(2))
    assert len(run_ranks(2, lambda ranks: trainer_of(graph).run())) == 2 and not begun


def test_no_exchange_is_open_between_transitions() -> None:
    """Behind the pass gradients are those of all ranks, and the node does nothing."""

    def program(ranks: FakeRank) -> list[tuple[str, float]]:
        trainer, seen = trainer_of(fit(2)), list[tuple[str, float]]()
        while len(seen) < 5:
            if trainer.position in ("accumulate", "exchange", "clip"):
                gradient = trainer.resources["model"].last.weight.grad
                seen.append((trainer.position, float(gradient.sum())))
            trainer.advance()
        return seen

    first, second = run_ranks(2, program)
    assert [place for place, _ in first] == ["accumulate", "accumulate", "exchange", "clip", "accumulate"]
    assert first[0] != second[0] and first[1:4] == second[1:4]
    assert first[1][1] == first[2][1] == first[3][1]


@pytest.mark.full
def test_a_cut_around_the_pass_is_exact(tmp_path: Path) -> None:
    """The first pass after a resume begins no sum, as it is not known which gradients there are: with the same bits."""
    it = world(
        small_fit(), model=Layered, optimizer="Adam with amsgrad", data=batches, training_step=step, val_data=batches
    )
    assert_exact_on_ranks(it, 3, tmp_path, (6, 9, 12))


class Shared(nn.Module):
    """One layer in two checkpoints, whose passes add to its gradient one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, inputs: torch.Tensor, *, is_rare: bool = False) -> torch.Tensor:
        hidden = self.first(inputs)
        for _ in range(2):
            hidden = torch.tanh(checkpoint(self.layer, hidden, use_reentrant=True))
        output: torch.Tensor = self.last(hidden)
        return output


def test_a_gradient_that_one_pass_adds_to_twice_is_refused() -> None:
    end_of(fit(within=False), model=Shared)
    with pytest.raises(UsageError, match=r"^a backward pass adds twice to the gradient of a parameter of shape \[6"):
        end_of(fit(), model=Shared)


@pytest.mark.full
def test_hooks_of_users_come_first() -> None:
    class Hooked(Layered):
        def __init__(self) -> None:
            super().__init__()
            for parameter in (self.first.weight, self.middle.weight):
                parameter.register_post_accumulate_grad_hook(halve)  # type: ignore[no-untyped-call]

    def halve(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad *= 0.5

    assert end_of(fit(), model=Hooked) == end_of(fit(within=False), model=Hooked)


def failing(rank: int) -> None:
    """Train until rank 1 fails in its third pass."""
    trainer = trainer_of(fit())
    passes: list[int] = []

    def fail(parameter: torch.Tensor) -> None:
        passes.append(1)
        if len(passes) == 3:
            assert trainer._session.world._early.count == 1, "one sum is open"
            raise ValueError("too late")

    if rank:
        trainer.resources["model"].first.weight.register_post_accumulate_grad_hook(fail)
    trainer.run()


def test_a_rank_that_fails_in_the_pass_is_named(begun: Begun) -> None:
    """Sums of its last layers have begun by then, and the others wait for the first."""
    first, second = outcomes_of(2, lambda ranks: failing(ranks.rank))
    assert type(first).__name__ == "RankFailedError" and isinstance(second, ValueError)
    assert str(first).startswith("rank 1 failed in `train_batch` at step 2") and "too late" in str(first)


def test_an_evaluation_has_the_buffers_of_rank_0_and_leaves_each_rank_its_own() -> None:
    def program(ranks: FakeRank) -> list[float]:
        seen: list[float] = []

        def validation_step(model: Any, batch: Any) -> dict[str, float]:
            seen.append(float(model.norm.running_mean.sum()))
            return {"number": 0.0}

        def level() -> float:
            return float(trainer.resources["model"].norm.running_mean.sum())

        graph = fit(2).set("validate", every="6 batches")
        trainer = trainer_of(graph, val_data=batches()[:2], validation_step=validation_step)
        trainer.run(until="4 batches")  # a window
        stepped = level()
        trainer.run(until="6 batches")
        before = level()
        while trainer.progress["validate"]["runs"] == 0:
            trainer.advance()
        return [stepped, before, level(), *seen[:1]]

    (stepped, own, _, evaluated), (stepped_too, before, after, evaluated_too) = run_ranks(2, program)
    assert stepped == stepped_too and own != before == after and evaluated == evaluated_too == own
