"""Windows weighed by tokens, by samples, and by their true size: against loops by hand, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer, UsageError

FIT = Graph.load("fit").set("log", every="1 steps").set("checkpoint", every="never")
SIZES = (3, 1, 4, 2, 5)
WINDOW = 2


def batches(sizes: Sequence[int] = SIZES) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Sequences of four tokens each, of which some are padding."""
    draw = torch.Generator().manual_seed(1)
    inputs = [torch.randn(size, 4, 3, generator=draw) for size in sizes]
    return [(tokens, torch.rand(tokens.shape[:2], generator=draw) < 0.6) for tokens in inputs]


def model_of() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def losses(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    inputs, mask = batch
    return ((model(inputs)[..., 0] - inputs.sum(-1)).square() * mask).sum()


def tokens_on_device(model: torch.nn.Module, batch: Any) -> dict[str, Any]:
    return {"loss": losses(model, batch), "tokens": batch[1].sum(), "half": torch.tensor(0.5)}


def tokens_as_number(model: torch.nn.Module, batch: Any) -> dict[str, Any]:
    return {"loss": losses(model, batch), "tokens": int(batch[1].sum()), "half": 0.5}


def trainer_of(graph: Graph, step: Callable[..., Any], run_dir: Path | None = None, **more: Any) -> Trainer:
    model = model_of()
    resources: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.05),
        "train_data": batches(),
        "training_step": step,
    }
    graph = graph.set("accumulate", every=WINDOW).set("clip", max_norm=0.3)
    return Trainer(
        graph, seed=0, run_dir=run_dir, display=None, device="cpu", **{"notify": lambda line: None, **resources, **more}
    )


def weights(trainer: Trainer) -> list[list[float]]:
    return [parameter.detach().flatten().tolist() for parameter in trainer.resources["model"].parameters()]


def by_hand(policy: str, epochs: int, count: Callable[[Any], Any], *, limit: int | None = None) -> tuple[Any, Any]:
    """The weights, and the mean loss of each window that is stepped or thrown away."""
    model, data = model_of(), batches()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    counted: Any = 0
    total, number, means = 0.0, 0, []
    last = epochs * len(data) if limit is None else limit
    for index in range(last):
        batch = data[index % len(data)]
        loss = losses(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        counted, total, number = counted + count(batch), total + loss.item(), number + 1
        is_cut = index + 1 == last or (policy != "carry" and (index + 1) % len(data) == 0)
        if number == WINDOW or (is_cut and policy != "drop"):
            for parameter in model.parameters():
                parameter.grad /= counted
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
        if number == WINDOW or is_cut:
            means.append(total / float(counted))
            optimizer.zero_grad()
            counted, total, number = 0, 0.0, 0
    return [parameter.detach().flatten().tolist() for parameter in model.parameters()], means


@pytest.mark.first(5)
@pytest.mark.parametrize("step", [tokens_on_device, tokens_as_number])
@pytest.mark.parametrize("policy", ["step", "carry", "drop"])
def test_a_window_is_divided_by_its_tokens(policy: str, step: Callable[..., Any]) -> None:
    overlays = ["token_windows"] if policy == "step" else ["token_windows", policy]
    trainer = trainer_of(FIT.overlay(*overlays).set("finish", after="3 epochs"), step)
    trainer.run()
    expected, means = by_hand(
        policy, 3, lambda batch: batch[1].sum() if step is tokens_on_device else int(batch[1].sum())
    )
    assert weights(trainer) == expected
    if policy != "drop":  # whose rows are those of steps
        rows = [row for row in trainer.metrics if "loss" in row]
        assert [row["loss"] for row in rows] == pytest.approx(means, rel=1e-12)
        assert {row["half"] for row in rows} == {0.5}


def test_samples_are_counted_without_a_word_from_the_step_function() -> None:
    graph = FIT.overlay("token_windows").set("train_batch", per="samples").set("finish", after="2 epochs")
    trainer = trainer_of(graph, losses)
    trainer.run()
    assert weights(trainer) == by_hand("step", 2, lambda batch: len(batch[0]))[0]


@pytest.mark.full
@pytest.mark.parametrize("step", [tokens_on_device, tokens_as_number])
@pytest.mark.parametrize("cuts", [1, pytest.param(60, marks=pytest.mark.sweep)])
def test_a_cut_in_mid_window_keeps_the_count(step: Callable[..., Any], cuts: int, tmp_path: Path) -> None:
    graph = FIT.overlay("token_windows", "carry").set("finish", after="3 epochs")
    whole = trainer_of(graph, step)
    whole.run()
    for cut in random.Random(cuts).sample(range(4, 80), cuts):
        first = trainer_of(graph, step, tmp_path / str(cut))
        first.advance(cut)
        first.save()
        second = trainer_of(graph, step, tmp_path / str(cut))
        second.run()
        assert weights(second) == weights(whole), f"cut before {first.position}"
        assert second.digest() == whole.digest()
        assert second.metrics == whole.metrics


def test_a_window_that_is_thrown_away_takes_its_count_with_it() -> None:
    graph = FIT.overlay("token_windows", "drop").set("finish", after="2 epochs")
    trainer = trainer_of(graph, tokens_as_number)
    while trainer.progress["discard"]["runs"] == 0:
        trainer.advance()
    assert trainer.read("train_batch.counted") == 0


def test_evaluation_has_means_over_tokens_too() -> None:
    graph = FIT.overlay("token_windows").set("finish", after="1 epochs")
    trainer = trainer_of(graph, tokens_on_device, val_data=batches())
    trainer.run()
    model = trainer.resources["model"].eval()
    total = sum(losses(model, batch).item() for batch in batches())
    tokens = sum(int(batch[1].sum()) for batch in batches())
    assert trainer.metrics[-1]["val/loss"] == pytest.approx(total / tokens, rel=1e-6)

    def own(model: torch.nn.Module, batch: Any) -> dict[str, Any]:
        return {"loss": float(len(batch[0]))}

    trainer = trainer_of(graph, tokens_on_device, val_data=batches(), validation_step=own)
    trainer.run()
    assert trainer.metrics[-1]["val/loss"] == sum(size * size for size in SIZES) / sum(SIZES)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({}, "`training_step` returned no `tokens`, over which its loss is a sum"),
        ({"tokens": -1}, "`training_step` returned tokens = -1"),
        ({"tokens": float("nan")}, "`training_step` returned tokens = nan"),
    ],
)
def test_a_count_that_is_none_is_an_error(returned: dict[str, Any], message: str) -> None:
    trainer = trainer_of(FIT.overlay("token_windows"), lambda model, batch: {"loss": losses(model, batch), **returned})
    with pytest.raises(UsageError, match=message):
        trainer.run()


# ---- a short window


def stepped(policy: str, sizes: Sequence[int], every: int) -> list[float]:
    """The gradient of every step, where that of a batch is its number."""
    weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    model = torch.nn.Module()
    model.weight = weight
    seen: list[float] = []

    class Noting(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            seen.append(float(weight.grad))  # type: ignore[arg-type]

    trainer = Trainer(
        FIT.overlay(*([policy] if policy else [])).set("accumulate", every=every).set("finish", after="2 epochs"),
        seed=0,
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=Noting([weight], lr=1.0),
        train_data=[torch.tensor([float(size)], dtype=torch.float64) for size in sizes],
        training_step=lambda model, batch: model.weight * batch[0],
    )
    trainer.run()
    return seen


def test_a_short_window_is_divided_by_what_it_has_or_by_a_whole_one() -> None:
    numbers = (8, 16, 4, 12, 2, 6)
    assert stepped("", numbers, 4) == [10.0, 2.0] * 2
    assert stepped("scaled", numbers, 4) == [10.0, 4.0] * 2
    assert stepped("carry", numbers, 4) == [10.0, (2 + 6 + 8 + 16) / 4, (4 + 12 + 2 + 6) / 4]
    assert stepped("drop", numbers, 4) == [10.0, 10.0]


@pytest.mark.parametrize("expression", ["4 if next_batch.epoch == 0 else 2", "1 + next_batch.epoch"])
def test_windows_by_epoch_or_any_expression(expression: str) -> None:
    graph = FIT.set("accumulate", reads={"every": expression}).set("finish", after="2 epochs")
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    trainer = Trainer(
        graph.set("clip", max_norm=0.3),
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=optimizer,
        train_data=batches(),
        training_step=losses,
    )
    trainer.run()
    trained = weights(trainer)
    model, data = model_of(), batches()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for epoch in range(2):
        size = eval(expression.replace("next_batch.epoch", str(epoch)))  # noqa: S307 - a text of this file
        for start in range(0, len(data), size):
            for batch in data[start : start + size]:
                (losses(model, batch) / size).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            optimizer.zero_grad()
    assert trained == [parameter.detach().flatten().tolist() for parameter in model.parameters()]
