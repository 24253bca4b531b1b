"""What `fit` steps, validates and saves, for hundreds of settings, against an oracle in plain loops and fractions."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from graphtrain import DataError, Graph, Trainer
from tests.program.oracle import Event, Setting, Weight, expected, graph_of, observed, trainer_of

LENGTHS = (0, 1, 7, 10, 64)
ACCUMULATE = (1, 3, 4, 10)
CLAIMS = (0, None, 3, -2)
EVERY = (
    ("1 epochs",),
    ("0.25 epochs",),
    ("2 epochs",),
    ("0.3 epochs",),
    ("3 batches",),
    ("100 epoch_batches",),
    ("3 epoch_batches",),
    ("2 steps",),
    ("7 samples",),
    ("never",),
    ("1 epochs", "4 batches"),
    ("2 steps", "5 epoch_batches"),
)
AFTER = (
    ("2 epochs",),
    ("1.5 epochs",),
    ("2.3 epochs",),
    ("13 batches",),
    ("7 batches",),
    ("4 steps",),
    ("19 samples",),
    ("3 epochs", "5 steps"),
    ("20 batches", "1.25 epochs"),
)
LIMITS = (None, None, 1, 4, 7, 20)
POLICIES = ("step", "scaled", "carry", "drop")
VALIDATION = ((3, 0, None), (3, None, 2), (0, 0, None), (3, 2, None), (3, -1, None), (3, 0, 2), (2, 3, 2))
SETTINGS_EACH = 12
THIRDS = {"a_third": slice(1, None, 3), "second": slice(2, None, 3), "third": slice(0, None, 3)}


def settings(length: int, accumulate: int, claim: int | None) -> Iterator[Setting]:
    """Settings of one length, window and kind of `len()`, the rest drawn by a seed that makes the choice repeatable."""
    draw = random.Random(f"{length} {accumulate} {claim}")
    every = itertools.cycle(draw.sample(EVERY, len(EVERY)))
    for after in itertools.islice(itertools.cycle(draw.sample(AFTER, len(AFTER))), SETTINGS_EACH):
        # Dropped windows never step where an epoch is shorter than one: such a run ends by other units only.
        windows = POLICIES if after != ("4 steps",) else POLICIES[:-1]
        val_length, val_claim, val_limit = draw.choice(VALIDATION)
        yield Setting(
            lengths=(length,),
            claim=claim,
            accumulate=accumulate,
            window=draw.choice(windows),
            validate=next(every),
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


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("part", ["a_third", *(pytest.param(one, marks=pytest.mark.sweep) for one in [*THIRDS][1:])])
@pytest.mark.parametrize("claim", CLAIMS, ids=["sized", "unsized", "len_too_large", "len_too_small"])
@pytest.mark.parametrize("accumulate", ACCUMULATE)
@pytest.mark.parametrize("length", [*LENGTHS[:-1], pytest.param(LENGTHS[-1], marks=pytest.mark.sweep)])
def test_a_run_does_what_the_oracle_says(length: int, accumulate: int, claim: int | None, part: str) -> None:
    for setting in [*settings(length, accumulate, claim)][THIRDS[part]]:
        assert_as_expected(setting)


AMOUNTS = (
    (("3.5 epochs",), ("0.25 epochs",), "7 batches"),
    (("33 batches",), ("2 epochs",), "4 epoch_batches"),
    (("7 steps", "5 epochs"), ("3 epoch_batches", "2 steps"), "1.5 epochs"),
)
# Outside of a sweep each of two choices with each of the third.
VARYING = [
    pytest.param(
        Setting(
            lengths=(7, 3, 10),
            claim=claim,
            accumulate=4,
            window=window,
            after=after,
            validate=every,
            checkpoint=(once,),
        ),
        marks=[] if (row + column + number) % 3 == 0 else pytest.mark.sweep,
    )
    for row, claim in enumerate(CLAIMS)
    for column, window in enumerate(POLICIES)
    for number, (after, every, once) in enumerate(AMOUNTS)
]


@pytest.mark.second(6)
@pytest.mark.full
@pytest.mark.parametrize("setting", VARYING, ids=range(len(VARYING)))
def test_epochs_may_differ_in_length(setting: Setting) -> None:
    assert_as_expected(setting)


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_run_ends_with_the_first_epoch_that_is_empty(claim: int | None) -> None:
    events = assert_as_expected(Setting(lengths=(4, 0, 3), claim=claim, accumulate=3, after=("100 batches",)))
    assert [number for kind, *rest in events if kind == "batch" for number in rest] == [1, 2, 3, 4]


# What the oracle says is in turn compared with lists written by hand.


def trace(setting: Setting, kind: str) -> list[int]:
    """How many batches had been trained on at each event of that kind."""
    batches, found = 0, []
    for event in assert_as_expected(setting):
        batches += event[0] == "batch"
        found += [batches] if event[0] == kind else []
    return found


@pytest.mark.second(4)
@pytest.mark.full
@pytest.mark.parametrize(
    ("every", "batches"),
    [
        ("0.25 epochs", [2, 4, 6, 7, 9, 11, 13, 14]),  # after batch ceil(k / 4 * 7) of each epoch
        ("0.3 epochs", [3, 5, 7, 9, 11, 13]),  # 0.3, 0.6, 0.9, 1.2, 1.5, 1.8 of 7 batches, rounded up
        ("2 epochs", [14]),
        ("3 batches", [3, 6, 9, 12]),
        ("3 epoch_batches", [3, 6, 10, 13]),
        ("2 steps", [7, 14]),  # steps after batches 4, 7, 11, 14
        ("9 samples", [5, 9, 14]),  # batches hold 2, 3, 1, 2, 3, 1, 2 samples: 8 after the fourth, 11 after the fifth
        ("never", []),
    ],
)
def test_when_a_validation_and_a_checkpoint_are_due(every: str, batches: list[int]) -> None:
    setting = Setting(accumulate=4, validate=(every,), checkpoint=(every,))
    assert trace(setting, "validated") == trace(setting, "saved") == batches


@pytest.mark.full
def test_steps_of_the_four_policies_for_a_short_last_window() -> None:
    assert trace(Setting(accumulate=4, window="step"), "step") == [4, 7, 11, 14]
    assert trace(Setting(accumulate=4, window="scaled"), "step") == [4, 7, 11, 14]
    assert trace(Setting(accumulate=4, window="carry"), "step") == [4, 8, 12, 14]
    assert trace(Setting(accumulate=4, window="drop"), "step") == [4, 11]
    assert trace(Setting(accumulate=4, window="drop"), "discard") == [7, 14]


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("after", "batches"),
    [
        ("1.5 epochs", 11),  # 10.5 batches, rounded up
        ("13 batches", 13),
        ("3 steps", 11),
        ("9 samples", 5),
        (["100 batches", "1 epochs"], 7),
    ],
)
def test_where_a_run_ends(after: str | list[str], batches: int) -> None:
    endings = (after,) if isinstance(after, str) else tuple(after)
    assert trace(Setting(accumulate=4, after=endings), "batch")[-1] == batches
    assert trace(Setting(accumulate=4, after=endings), "step")[-1] == batches


def test_a_step_precedes_the_validation_and_the_checkpoint_that_its_batch_makes_due() -> None:
    setting = Setting(lengths=(2,), accumulate=2, after=("1 epochs",), val_length=1)
    events = [("batch", 1), ("batch", 2), ("step", 3.0), ("val", 1), ("validated",), ("saved",)]
    assert assert_as_expected(setting) == events


def test_a_loader_shorter_than_it_says_ends_its_epoch_there() -> None:
    setting = Setting(lengths=(2,), claim=5, accumulate=4, after=("1 epochs",), val_length=0)
    assert assert_as_expected(setting) == [("batch", 1), ("batch", 2), ("step", 3.0), ("validated",), ("saved",)]


def test_an_empty_loader_ends_the_run_at_once_and_is_an_error() -> None:
    said: list[str] = []
    events: list[Event] = []
    trainer = trainer_of(Setting(lengths=(0,), after=("100 epochs",)), events, notify=said.append)
    with pytest.raises(DataError, match="the run ended without a batch: the data is empty"):
        trainer.run()
    assert trainer.read("next_batch.batches") == trainer.read("step.steps") == 0
    assert any("no batch" in line for line in said)


# The scale of the gradients


ONE_EPOCH = Graph.load("fit").set("finish", after="1 epochs")


def weights(graph: Graph, batches: list[float]) -> list[float]:
    """The weight of `oracle.Weight` after each step of plain SGD with a learning rate of 1."""
    model = Weight()
    trainer = Trainer(
        graph,
        seed=0,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        train_data=[torch.tensor([number], dtype=torch.float64) for number in batches],
        training_step=lambda model, batch: model.loss(batch),
        device="cpu",
        notify=lambda line: None,
    )
    found = []
    while trainer.position != "end":
        position = trainer.position
        trainer.advance()
        if position == "step":
            found.append(float(model.weight.detach()))
    return found


def test_the_loss_is_divided_by_the_window() -> None:
    batches = [1.0, 2.0, 5.0, 8.0, 16.0, 32.0]
    assert weights(ONE_EPOCH, batches) == [-1, -3, -8, -16, -32, -64]
    assert weights(ONE_EPOCH.set("accumulate", every=2), batches) == [-1.5, -8.0, -32.0]
    # The short last window is divided by the whole window too: (1 + 2 + 5 + 8) / 4, then (16 + 32) / 4.
    assert weights(ONE_EPOCH.set("accumulate", every=4), batches) == [-4.0, -16.0]


def test_a_window_steps_as_one_large_batch_would() -> None:
    draw = random.Random(0)
    batches = [draw.uniform(-1, 1) for _ in range(12)]
    means = [sum(batches[start : start + 3]) / 3 for start in range(0, 12, 3)]
    small = weights(ONE_EPOCH.set("accumulate", every=3), batches)
    assert small == pytest.approx(weights(ONE_EPOCH, means), abs=1e-12)


def test_gradients_are_clipped_once_a_window_after_the_division() -> None:
    graph = ONE_EPOCH.set("accumulate", every=2).set("clip", max_norm=2.0)
    # (1 + 2) / 2 stays, (5 + 8) / 2 and (16 + 32) / 2 become 2.
    assert weights(graph, [1.0, 2.0, 5.0, 8.0, 16.0, 32.0]) == pytest.approx([-1.5, -3.5, -5.5], abs=1e-5)


def test_the_gradients_of_a_discarded_window_are_gone() -> None:
    graph = graph_of(Setting(accumulate=2, window="drop"))
    assert weights(graph.set("finish", after="2 epochs"), [1.0, 2.0, 5.0]) == [-1.5, -3.0]
