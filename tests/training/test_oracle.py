"""Promises 3 and 7: a run of `fit` trains, steps, validates, saves and ends where plain loops and fractions say."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from graphtrain import DataError, Graph, Trainer
from tests.training.oracle import Event, Setting, Weight, expected, graph_of, observed, trainer_of

LENGTHS = (1, 7, 10, 64)
ACCUMULATE = (1, 3, 4, 10)
CLAIMS = (0, None, 3, -2)  # what `len()` says of the truth: right, nothing, too much, too little
POLICIES = ("step", "scaled", "carry", "drop")
LIMITS = (None, None, 1, 4, 7, 20)
VALIDATION = ((3, 0, None), (3, None, 2), (0, 0, None), (3, 2, None), (3, -1, None), (3, 0, 2), (2, 3, 2))
_EVERY = (
    "1 epochs; 0.25 epochs; 2 epochs; 0.3 epochs; 3 batches; 100 epoch_batches; 3 epoch_batches; 2 steps; 7 samples"
)
_AFTER = "2 epochs; 1.5 epochs; 2.3 epochs; 13 batches; 7 batches; 4 steps; 19 samples"
EVERY = [
    *((text,) for text in _EVERY.split("; ")),
    ("never",),
    ("1 epochs", "4 batches"),
    ("2 steps", "5 epoch_batches"),
]
AFTER = [*((text,) for text in _AFTER.split("; ")), ("3 epochs", "5 steps"), ("20 batches", "1.25 epochs")]


def drawn(seed: int) -> Setting:
    """A setting; one in four has epochs that differ in length."""
    draw = random.Random(seed)
    after, (val_length, val_claim, val_limit) = draw.choice(AFTER), draw.choice(VALIDATION)
    return Setting(
        lengths=(7, 3, 10) if draw.random() < 0.25 else (draw.choice(LENGTHS if seed >= FIRST else LENGTHS[:-1]),),
        claim=CLAIMS[seed % len(CLAIMS)],
        accumulate=draw.choice(ACCUMULATE),
        # Dropped windows never step where an epoch is shorter than one: such a run ends by other units only.
        window=draw.choice(POLICIES if after != ("4 steps",) else POLICIES[:-1]),
        validate=draw.choice(EVERY),
        checkpoint=draw.choice(EVERY),
        after=after,
        limit=draw.choice(LIMITS),
        val_length=val_length,
        val_claim=val_claim,
        val_limit=val_limit,
    )


def countable(setting: Setting) -> Setting:
    """Of data without a length no fraction of an epoch is counted: the next whole number of them instead."""
    if setting.claim is not None:
        return setting

    def whole(texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{math.ceil(float(text[:-7]))} epochs" if text.endswith(" epochs") else text for text in texts)

    return replace(
        setting, validate=whole(setting.validate), checkpoint=whole(setting.checkpoint), after=whole(setting.after)
    )


def assert_as_expected(setting: Setting) -> list[Event]:
    setting = countable(setting)
    events = observed(setting)
    assert events == expected(setting), setting
    return events


FIRST = 10


@pytest.mark.second(64)
@pytest.mark.first(FIRST)
@pytest.mark.parametrize("seed", range(400))
def test_a_run_does_what_the_oracle_says(seed: int) -> None:
    assert_as_expected(drawn(seed))


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_run_ends_with_the_first_epoch_that_is_empty(claim: int | None) -> None:
    events = assert_as_expected(Setting(lengths=(4, 0, 3), claim=claim, accumulate=3, after=("100 batches",)))
    assert [number for kind, *rest in events if kind == "batch" for number in rest] == [1, 2, 3, 4]
    assert assert_as_expected(Setting(lengths=(0,), claim=claim)) == []


# What the oracle says is in turn compared with lists written by hand.


def batches_at(kind: str, setting: Setting) -> list[int]:
    """How many batches had been trained on at each event of that kind."""
    batches, found = 0, []
    for event in assert_as_expected(setting):
        batches += event[0] == "batch"
        found += [batches] if event[0] == kind else []
    return found


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("every", "batches"),
    [
        ("0.25 epochs", [2, 4, 6, 7, 9, 11, 13, 14]),  # after batch ceil(k / 4 * 7) of each epoch
        ("0.3 epochs", [3, 5, 7, 9, 11, 13]),  # 0.3, 0.6, 0.9, 1.2, 1.5, 1.8 of 7 batches, rounded up
        ("2 epochs", [14]),
        ("3 epoch_batches", [3, 6, 10, 13]),
        ("2 steps", [7, 14]),  # steps after batches 4, 7, 11, 14
        ("9 samples", [5, 9, 14]),  # batches hold 2, 3, 1, 2, 3, 1, 2 samples: 8 after the fourth, 11 after the fifth
        ("never", []),
    ],
)
def test_when_a_validation_and_a_checkpoint_are_due(every: str, batches: list[int]) -> None:
    setting = Setting(accumulate=4, validate=(every,), checkpoint=(every,))
    assert batches_at("validated", setting) == batches_at("saved", setting) == batches


@pytest.mark.parametrize(
    ("window", "kind", "batches"),
    [
        ("step", "step", [4, 7, 11, 14]),
        ("scaled", "step", [4, 7, 11, 14]),
        ("carry", "step", [4, 8, 12, 14]),
        ("drop", "step", [4, 11]),
        ("drop", "discard", [7, 14]),
    ],
)
def test_where_the_four_policies_for_a_short_last_window_step(window: str, kind: str, batches: list[int]) -> None:
    assert batches_at(kind, Setting(accumulate=4, window=window)) == batches


@pytest.mark.parametrize(
    ("after", "batches"),
    [
        (("1.5 epochs",), 11),  # 10.5 batches, rounded up
        (("13 batches",), 13),
        (("3 steps",), 11),
        (("9 samples",), 5),
        (("100 batches", "1 epochs"), 7),
    ],
)
def test_where_a_run_ends(after: tuple[str, ...], batches: int) -> None:
    setting = Setting(accumulate=4, after=after)
    assert batches_at("batch", setting)[-1] == batches_at("step", setting)[-1] == batches


@pytest.mark.parametrize("claim", [0, 3])  # a loader that is shorter than it says ends its epoch there
def test_a_step_precedes_the_validation_and_the_checkpoint_that_its_batch_makes_due(claim: int) -> None:
    setting = Setting(lengths=(2,), claim=claim, accumulate=2 + claim, after=("1 epochs",), val_length=1)
    events = [("batch", 1), ("batch", 2), ("step", 3.0), ("val", 1), ("validated",), ("saved",)]
    assert assert_as_expected(setting) == events


def test_an_empty_loader_ends_the_run_at_once_and_is_an_error() -> None:
    said: list[str] = []
    trainer = trainer_of(Setting(lengths=(0,), after=("100 epochs",)), [], notify=said.append)
    with pytest.raises(DataError, match="ended without a batch"):
        trainer.run()
    assert trainer.read("next_batch.batches") == trainer.read("step.steps") == 0
    assert any("no batch" in line for line in said)


# The scale of the gradients

ONE_EPOCH = Graph.load("fit").set("finish", after="1 epochs")
NUMBERS = (1.0, 2.0, 5.0, 8.0, 16.0, 32.0)


def weights(graph: Graph, batches: Sequence[float] = NUMBERS) -> list[float]:
    """The weight of `oracle.Weight` after each step of plain SGD with a learning rate of 1."""
    model, found = Weight(), list[float]()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.register_step_post_hook(lambda *given: found.append(model.weight.item()))
    Trainer(
        graph,
        seed=0,
        model=model,
        optimizer=optimizer,
        train_data=[torch.tensor([number], dtype=torch.float64) for number in batches],
        training_step=lambda model, batch: model.loss(batch),
        device="cpu",
        display=None,
        notify=lambda line: None,
    ).run()
    return found


def test_the_loss_is_divided_by_the_window() -> None:
    assert weights(ONE_EPOCH) == [-1, -3, -8, -16, -32, -64]
    assert weights(ONE_EPOCH.set("accumulate", every=2)) == [-1.5, -8.0, -32.0]
    # The short last window is divided by the whole window too: (1 + 2 + 5 + 8) / 4, then (16 + 32) / 4.
    assert weights(ONE_EPOCH.set("accumulate", every=4)) == [-4.0, -16.0]
    assert weights(ONE_EPOCH.overlay("scaled").set("accumulate", every=4)) == [-4.0, -28.0]


def test_a_window_steps_as_one_large_batch_would() -> None:
    draw = random.Random(0)
    batches = [draw.uniform(-1, 1) for _ in range(12)]
    means = [sum(batches[start : start + 3]) / 3 for start in range(0, 12, 3)]
    small = weights(ONE_EPOCH.set("accumulate", every=3), batches)
    assert small == pytest.approx(weights(ONE_EPOCH, means), abs=1e-12)


def test_gradients_are_clipped_once_a_window_after_the_division() -> None:
    graph = ONE_EPOCH.set("accumulate", every=2).set("clip", max_norm=2.0)
    # (1 + 2) / 2 stays, (5 + 8) / 2 and (16 + 32) / 2 become 2.
    assert weights(graph) == pytest.approx([-1.5, -3.5, -5.5], abs=1e-5)


def test_the_gradients_of_a_discarded_window_are_gone() -> None:
    graph = graph_of(Setting(accumulate=2, window="drop"))
    assert weights(graph.set("finish", after="2 epochs"), [1.0, 2.0, 5.0]) == [-1.5, -3.0]
