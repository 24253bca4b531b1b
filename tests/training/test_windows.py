"""Promise 7: accumulation, also by tokens, samples and expressions, with short, failed and skipped windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import NotFiniteError, Outcome, Trainer, UsageError
from tests.fake_ranks import run_ranks
from tests.world import (
    Resources,
    World,
    assert_as_by_hand,
    assert_exact,
    by_hand,
    cross_entropy,
    seed_generators,
    small_fit,
    world,
)

SIZES = (3, 1, 4, 2, 5)


def weights(trainer: Trainer) -> list[Any]:
    return [parameter.tolist() for parameter in trainer.resources["model"].parameters()]


def mapped(*sizes: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Sequences of four tokens each, of which some are padding."""
    draw = torch.Generator().manual_seed(1)
    inputs = [torch.randn(size, 4, 3, generator=draw) for size in sizes or SIZES]
    return [(tokens, torch.rand(tokens.shape[:2], generator=draw) < 0.6) for tokens in inputs]


def summed(model: nn.Module, batch: Any) -> torch.Tensor:
    inputs, mask = batch
    loss: torch.Tensor = ((model(inputs)[..., 0] - inputs.sum(-1)).square() * mask).sum()
    return loss


def tokens_on_device(model: nn.Module, batch: Any) -> dict[str, Any]:
    return {"loss": summed(model, batch), "tokens": batch[1].sum(), "half": torch.tensor(0.5)}


def tokens_as_number(model: nn.Module, batch: Any) -> dict[str, Any]:
    return {"loss": summed(model, batch), "tokens": int(batch[1].sum()), "half": 0.5}


def of_tokens(step: Callable[..., Any], *overlays: str, epochs: int = 3, **nodes: dict[str, Any]) -> World:
    graph = small_fit(epochs=epochs, clip=0.3, validate_every="never", overlays=overlays)
    for name, parameters in nodes.items():
        graph = graph.set(name, **parameters)
    return world(
        graph,
        model=lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)),
        data=mapped,
        scheduler="none",
        training_step=step,
    )


def divided(count: Callable[[Any], Any], means: list[float], policy: str = "step", epochs: int = 3) -> Any:
    """A loop that divides the gradients of a window by what it has counted."""

    def loop(resources: Resources) -> None:
        model, optimizer, data = resources["model"], resources["optimizer"], resources["train_data"]
        counted: Any = 0
        total, number = 0.0, 0
        for index in range(epochs * len(data)):
            loss = summed(model, data[index % len(data)])
            loss.backward()  # type: ignore[no-untyped-call]
            counted, total, number = counted + count(data[index % len(data)]), total + loss.item(), number + 1
            is_cut = index + 1 == epochs * len(data) or (policy != "carry" and (index + 1) % len(data) == 0)
            if number == 2 or (is_cut and policy != "drop"):
                for parameter in model.parameters():
                    parameter.grad /= counted
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                optimizer.step()
            if number == 2 or is_cut:
                means.append(total / float(counted))
                optimizer.zero_grad()
                counted, total, number = 0, 0.0, 0

    return loop


@pytest.mark.parametrize("step", [tokens_on_device, tokens_as_number])
@pytest.mark.parametrize("policy", ["step", "carry", "drop"])
def test_a_window_is_divided_by_its_tokens(policy: str, step: Callable[..., Any]) -> None:
    means: list[float] = []
    it = of_tokens(step, "token_windows", *([] if policy == "step" else [policy]))
    loop = divided(lambda batch: step(nn.Linear(3, 1), batch)["tokens"], means, policy)
    trainer = assert_as_by_hand(it, loop=loop)
    if policy != "drop":  # whose rows are those of steps
        rows = [row for row in trainer.metrics if "loss" in row]
        assert [row["loss"] for row in rows] == pytest.approx(means, rel=1e-12)
        assert {row["half"] for row in rows} == {0.5}


def test_samples_are_counted_without_a_word_from_the_step_function() -> None:
    it = of_tokens(summed, "token_windows", train_batch={"per": "samples"})
    assert_as_by_hand(it, loop=divided(lambda batch: len(batch[0]), []))


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("policy", ["carry", "drop", "scaled"])
@pytest.mark.parametrize("step", [tokens_on_device, tokens_as_number])
def test_what_a_window_has_counted_survives_cuts(step: Callable[..., Any], policy: str, tmp_path: Path) -> None:
    overlays = [policy] if policy == "scaled" else ["token_windows", policy]
    assert_exact(of_tokens(step, *overlays), tmp_path, at=3)


def test_a_window_that_is_thrown_away_takes_its_count_with_it() -> None:
    trainer = of_tokens(tokens_as_number, "token_windows", "drop").trainer()
    while trainer.read("discard.runs") == 0:
        trainer.advance()
    assert trainer.read("train_batch.window_count") == 0


def test_evaluation_has_means_over_tokens_too() -> None:
    it = of_tokens(tokens_on_device, "token_windows", epochs=1, validate={"every": "1 epochs"})
    trainer = it.but(val_data=lambda made: mapped()).trainer()
    trainer.run()
    model = trainer.resources["model"].eval()
    total = sum(summed(model, batch).item() for batch in mapped())
    assert trainer.metrics[-1]["val/loss"] == pytest.approx(total / sum(int(mask.sum()) for _, mask in mapped()))
    own: Any = lambda model, batch: {"loss": float(len(batch[0]))}  # noqa: E731
    trainer = it.but(val_data=lambda made: mapped(), validation_step=lambda made: own).trainer()
    trainer.run()
    assert trainer.metrics[-1]["val/loss"] == sum(size * size for size in SIZES) / sum(SIZES)


@pytest.mark.parametrize("returned", [{}, {"tokens": -1}, {"tokens": float("nan")}])
def test_a_count_that_is_none_is_an_error(returned: dict[str, Any]) -> None:
    it = of_tokens(lambda model, batch: {"loss": summed(model, batch), **returned}, "token_windows")
    with pytest.raises(UsageError, match=r"`training_step` returned tokens = (None|-1|nan)"):
        it.trainer().run()


def stepped(policy: str, sizes: Sequence[int], every: int) -> list[float]:
    """The gradient of every step, where that of a batch is its number."""
    seen: list[float] = []

    class Noting(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            seen.append(float(self.param_groups[0]["params"][0].grad))

    graph = small_fit(accumulate=every, clip=None, validate_every="never", overlays=[policy] if policy else [])
    world(
        graph,
        model=lambda: nn.Linear(1, 1, bias=False),
        optimizer=lambda parameters: Noting(parameters, lr=1.0),
        data=lambda: [torch.tensor([float(size)]) for size in sizes],
        training_step=lambda model, batch: model.weight.sum() * batch[0],
    ).trainer().run()
    return seen


def test_a_short_window_is_divided_by_what_it_has_or_by_a_whole_one() -> None:
    numbers = (8, 16, 4, 12, 2, 6)
    assert stepped("", numbers, 4) == [10.0, 2.0] * 2
    assert stepped("scaled", numbers, 4) == [10.0, 4.0] * 2
    assert stepped("carry", numbers, 4) == [10.0, (2 + 6 + 8 + 16) / 4, (4 + 12 + 2 + 6) / 4]
    assert stepped("drop", numbers, 4) == [10.0, 10.0]


@pytest.mark.parametrize("expression", ["4 if next_batch.epoch == 0 else 2", "1 + next_batch.epoch"])
def test_windows_by_epoch_or_any_expression(expression: str) -> None:
    def loop(resources: Resources) -> None:
        model, optimizer, data = resources["model"], resources["optimizer"], resources["train_data"]
        for epoch in range(2):
            size = eval(expression.replace("next_batch.epoch", str(epoch)))  # noqa: S307 - a text of this file
            for start in range(0, len(data), size):
                for batch in data[start : start + size]:
                    (summed(model, batch) / size).backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                optimizer.step()
                optimizer.zero_grad()

    assert_as_by_hand(of_tokens(summed, epochs=2, accumulate={"reads": {"every": expression}}), loop=loop)


# ---- losses and batches that are None

LENGTH = 7
NUMBERS = [torch.full((1, 2), float(number)) for number in range(LENGTH)]


def squared(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    return loss


def none_for_odd(model: nn.Module, batch: torch.Tensor) -> torch.Tensor | None:
    return None if batch[0, 0] % 2 else squared(model, batch)


def linear(data: Callable[[], Any], step: Callable[..., Any], window: int = 1, **nodes: dict[str, Any]) -> World:
    graph = small_fit(accumulate=window, clip=None, validate_every="never")
    for name, parameters in nodes.items():
        graph = graph.set(name, **parameters)
    return world(graph, model=lambda: nn.Linear(2, 1), data=data, scheduler="none", training_step=step)


def skipping(window: int) -> Any:
    """A loop in which None adds nothing; a short window at the end of an epoch."""

    def loop(resources: Resources) -> None:
        model, optimizer = resources["model"], resources["optimizer"]
        for _ in range(2):
            for place, batch in enumerate(resources["train_data"], 1):
                loss = None if batch is None else none_for_odd(model, batch)
                if loss is not None:
                    (loss / window).backward()  # type: ignore[no-untyped-call]
                if place % window == 0 or place == LENGTH:
                    optimizer.step()
                    optimizer.zero_grad()

    return loop


@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_loss_that_is_none_is_skipped(window: int) -> None:
    it = linear(lambda: NUMBERS, none_for_odd, window, train_batch={"skip_none": True})
    assert_as_by_hand(it, loop=skipping(window))


def test_without_it_none_is_an_error_that_names_it() -> None:
    with pytest.raises(UsageError, match="it returned") as caught:
        linear(lambda: NUMBERS, none_for_odd).trainer().run()
    assert "train_batch.skip_none = true" in caught.value.hint


# ---- losses that are not finite

BATCHES, EPOCHS = 7, 3
FAULTS = {2: math.inf, 5: math.nan}


def with_faults(faults: dict[int, float], window: int = 2, *, drop: bool = False, checked: bool = True) -> World:
    """Batches with a value that is not finite, by number."""

    def data() -> Any:
        draw = torch.Generator().manual_seed(3)
        batches = [torch.rand(6, 4, generator=draw) + 0.1 for _ in range(BATCHES)]
        for number, value in faults.items():
            batches[number][0, 0] = value
        return batches

    graph = small_fit(epochs=EPOCHS, accumulate=window, clip=None, log_every="3 steps", validate_every="never")
    graph = graph.overlay("check_finite") if checked else graph
    return world(
        graph.set("check_loss", action="drop") if drop else graph,
        model=lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.25), nn.Linear(6, 1)),
        data=data,
        training_step=lambda model, batch: (model(batch) - batch.sum(1, keepdim=True)).square().mean(),
    )


def test_a_loss_that_is_not_finite_is_named_when_a_row_is_recorded(tmp_path: Path) -> None:
    with_faults(FAULTS).trainer(tmp_path).run(until="4 batches")
    for run_dir in (None, tmp_path):  # what was not read before a cut is named after it
        trainer = with_faults(FAULTS).trainer(run_dir)
        with pytest.raises(NotFiniteError, match="the loss is nan at batch 3 of epoch 1, after step 1"):
            trainer.run()
        assert trainer.read("next_batch.batches") == 6, "where the first row was due"


def test_finite_runs_are_the_same_with_and_without() -> None:
    for checked in (False, True):
        assert_as_by_hand(with_faults({}, checked=checked), epochs=EPOCHS, clip=None)


@pytest.mark.parametrize("window", [1, 2, 3])
def test_windows_with_a_fault_are_dropped_as_by_hand(window: int) -> None:
    steps = 0

    def loop(resources: Resources) -> None:
        nonlocal steps
        model, optimizer, count = resources["model"], resources["optimizer"], 0
        seed_generators(11)
        for number, batch in [*enumerate(resources["train_data"], 1)] * EPOCHS:
            loss = resources["training_step"](model, batch)
            (loss / window).backward()
            count += 1
            if not math.isfinite(loss.detach()):
                optimizer.zero_grad()
                count = 0
            if count == window or (number == BATCHES and count):
                optimizer.step()
                optimizer.zero_grad()
                resources["scheduler"].step()
                steps, count = steps + 1, 0

    it, lines = with_faults(FAULTS, window, drop=True), list[str]()
    trainer = assert_as_by_hand(it, loop=loop)
    assert (trainer.read("step.steps"), trainer.read("check_loss.dropped")) == (steps, EPOCHS * len(FAULTS))
    assert it.trainer(lines=lines).run() is Outcome.FINISHED
    assert len([line for line in lines if "the window is dropped" in line]) == 1
    assert all(math.isfinite(value) for row in trainer.metrics for value in row.values())


@pytest.mark.full
def test_dropped_windows_are_exact_through_cuts(tmp_path: Path) -> None:
    assert_exact(with_faults(FAULTS, drop=True), tmp_path, at=4)


def test_ranks_drop_a_window_together() -> None:
    def run(ranks: Any) -> Any:
        trainer = with_faults(FAULTS, 1, drop=True).trainer()
        trainer.run()
        return weights(trainer), trainer.read("step.steps"), trainer.read("check_loss.dropped")

    first, second = run_ranks(2, run)
    assert first == second
    assert first[1:] == (EPOCHS * (4 - 2), EPOCHS * 2)  # batches 3 and 4, and 5 and 6, of an epoch of 7


@pytest.mark.parametrize(("index", "rank"), [(4, 0), (5, 1)])
def test_ranks_stop_with_the_same_error(index: int, rank: int) -> None:
    def run(ranks: Any) -> str:
        with pytest.raises(NotFiniteError) as error:
            with_faults({index: math.nan}, 1).trainer().run()
        return str(error.value)

    first, second = run_ranks(2, run)
    assert first == second
    assert first.startswith(f"the loss is nan at batch {index + 1} of epoch 1, after step 2, on rank {rank}")


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("world_size", [2, 1, 3])
def test_what_ranks_have_not_read_is_each_ones_own_in_a_cut(world_size: int, tmp_path: Path) -> None:
    def begin(ranks: Any) -> None:
        trainer = with_faults({5: math.nan}, 1).trainer(tmp_path)
        while trainer.position != "decide" or trainer.read("next_batch.batches") < 4:
            trainer.advance()
        trainer.save()

    def resume(ranks: Any) -> None:
        with pytest.raises(NotFiniteError, match="the loss is nan at batch 6 of epoch 1"):
            with_faults({5: math.nan}, 1).trainer(tmp_path).run()

    run_ranks(2, begin)
    run_ranks(world_size, resume) if world_size > 1 else resume(None)


def test_a_replay_is_led_to_the_batch_and_the_node_where_it_arose(tmp_path: Path) -> None:
    it = with_faults({6: math.nan})
    trainer = it.but(it.graph.set("checkpoint", every="2 batches")).trainer(tmp_path)
    with pytest.raises(NotFiniteError, match="batch 7 of epoch 1"):
        trainer.run()
    assert trainer.replay_options() == ["--to", "42 samples", "--node", "check_loss"]


# ---- norms of gradients


def norm(tensor: torch.Tensor, p: float) -> float:
    absolute = tensor.double().abs()
    return float(absolute.max() if p == math.inf else absolute.pow(p).sum().pow(1 / p))


@pytest.mark.parametrize("p", [2.0, 1.0, 3.5, math.inf])
def test_rows_have_the_mean_norm_of_the_gradients_of_their_steps_before_clipping(p: float) -> None:
    norms: list[float] = []

    def loop(resources: Resources) -> list[float]:
        optimizer, parameters = resources["optimizer"], [*resources["model"].parameters()]

        def backward(loss: torch.Tensor, is_step: bool) -> None:
            (loss / 2).backward()  # type: ignore[no-untyped-call]
            if is_step:
                norms.append(norm(torch.cat([each.grad.flatten() for each in parameters if each.grad is not None]), p))
                nn.utils.clip_grad_norm_(parameters, 0.1)
                optimizer.step()
                optimizer.zero_grad()

        return by_hand(resources, backward=backward)

    graph = small_fit(clip=0.1, log_every="2 steps", validate_every="never", overlays=["gradient_norm"])
    it = world(graph.set("gradient_norm", norm_type=p), training_step=cross_entropy)
    trainer = assert_as_by_hand(it, loop=loop)
    rows = [row for row in trainer.metrics if "gradient_norm" in row]
    assert [row["step"] for row in rows] == [2, 4, 6]
    means = [sum(norms[index : index + 2]) / 2 for index in (0, 2, 4)]
    assert [row["gradient_norm"] for row in rows] == pytest.approx(means, rel=1e-5)
    epoch = [row["epoch/gradient_norm"] for row in trainer.metrics if "epoch/gradient_norm" in row]
    assert epoch == pytest.approx([sum(norms[at : at + 3]) / 3 for at in (0, 3)], rel=1e-5)
    assert max(means) > 0.1


def test_ranks_record_the_norm_of_what_they_have_exchanged() -> None:
    graph = small_fit(accumulate=1, validate_every="never", overlays=["gradient_norm"])
    it = world(graph, model=lambda: nn.Linear(2, 1), data=lambda: NUMBERS[:6], training_step=squared)

    def run(ranks: Any) -> list[float]:
        trainer = it.trainer()
        trainer.run()
        return [row["gradient_norm"] for row in trainer.metrics if "gradient_norm" in row]

    def loop(resources: Resources) -> list[float]:
        model, norms = resources["model"], list[float]()
        for first in [0, 2, 4] * 2:
            losses = [squared(model, batch) / 2 for batch in resources["train_data"][first : first + 2]]
            sum(losses).backward()  # type: ignore[union-attr]
            norms.append(norm(torch.cat([each.grad.flatten() for each in model.parameters()]), 2.0))
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            resources["optimizer"].step()
            resources["scheduler"].step()
            resources["optimizer"].zero_grad()
        return norms

    first, second = run_ranks(2, run)
    assert first == second == pytest.approx(loop(it.resources()), rel=1e-5)
