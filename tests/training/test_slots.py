"""Promises 3 and 4: what nodes and step functions write to slots and are given again: as by hand, and through cuts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, UsageError, fit, node
from tests.world import Resources, World, assert_as_by_hand, assert_exact, world

EPOCHS, BATCHES = 3, 5


class Recurrent(nn.Module):
    """A small LSTM that is given its state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.head = nn.Linear(4, 1)

    def forward(self, inputs: torch.Tensor, hidden: Any) -> tuple[torch.Tensor, Any]:
        outputs, hidden = self.lstm(inputs, hidden)
        return self.head(outputs), hidden


def samples() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(2)
    shapes = ((2, 6, 3), (2, 6, 1))
    return [tuple(torch.randn(shape, generator=generator) for shape in shapes) for _ in range(BATCHES)]  # type: ignore[misc]


def training_step(model: nn.Module, batch: Any, hidden: Any = None) -> dict[str, Any]:
    outputs, hidden = model(batch[0], hidden)
    return {"loss": nn.functional.mse_loss(outputs, batch[1]), "hidden": hidden}


def writing(**train_batch: Any) -> Graph:
    return fit(epochs=EPOCHS, accumulate=2, save_every="never").set("train_batch", **train_batch)


def training(graph: Graph, step: Callable[..., Any] = training_step, **resources: Callable[[], Any]) -> World:
    return world(
        graph,
        model=Recurrent,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.05),
        scheduler="none",
        data=samples,
        training_step=step,
        **{"val_data": lambda: None, **resources},
    )


def truncated_by_hand(resources: Resources, *, is_kept: bool) -> None:
    hidden = None
    for _ in range(EPOCHS):
        hidden = hidden if is_kept else None
        for number, batch in enumerate(resources["train_data"], start=1):
            result = training_step(resources["model"], batch, hidden)
            (result["loss"] / 2).backward()
            hidden = tuple(part.detach() for part in result["hidden"])
            if number % 2 == 0 or number == BATCHES:
                resources["optimizer"].step()
                resources["optimizer"].zero_grad()


# ---- a count of tokens decides when to step and scales the gradients


def counting_step(model: nn.Module, batch: Any, tokens: int = 0) -> dict[str, Any]:
    loss = nn.functional.mse_loss(model(batch[0], None)[0], batch[1], reduction="sum")
    return {"loss": loss, "tokens": tokens + batch[0].shape[1] * len(batch[0])}


@node(effects="clip")
def scale(model: nn.Module, *, tokens: int = 1) -> None:
    """Divide the gradients."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= tokens


@node(writes="tokens")
def clear_tokens() -> int:
    """Count from nothing."""
    return 0


def token_windows() -> Graph:
    """Windows of at least 20 tokens, or 40, whose loss is a mean over the tokens of the window."""
    graph = fit(epochs=EPOCHS, save_every="never").replace("clip", scale, reads={"tokens": "tokens"})
    graph = graph.set("train_batch", reads={"window": "one"}, writes={"tokens": "tokens"})
    graph = graph.guard("window_complete", "tokens >= 20 * (1 + step.steps % 2) or next_batch.empty")
    return graph.insert("forget", clear_tokens, after="zero_grad")


def tokens_by_hand(resources: Resources) -> None:
    model, optimizer, steps = resources["model"], resources["optimizer"], 0
    for _ in range(EPOCHS):
        tokens = 0
        for number, batch in enumerate(resources["train_data"], start=1):
            result = counting_step(model, batch, tokens)
            result["loss"].backward()
            tokens = result["tokens"]
            if tokens >= 20 * (1 + steps % 2) or number == BATCHES:
                scale(model, tokens=tokens)
                optimizer.step()
                optimizer.zero_grad()
                tokens, steps = 0, steps + 1


ROWS: dict[str, tuple[World, Callable[[Resources], None]]] = {
    "truncated backpropagation": (
        training(writing(writes={"hidden": "state"})),
        partial(truncated_by_hand, is_kept=False),
    ),
    "a state that is kept over epochs": (
        training(writing(writes={"hidden": "state"}, keep=["hidden"])),
        partial(truncated_by_hand, is_kept=True),
    ),
    "windows by tokens": (training(token_windows(), counting_step, one=lambda: 1), tokens_by_hand),
}


@pytest.mark.parametrize("name", ROWS)
def test_as_by_hand(name: str) -> None:
    it, loop = ROWS[name]
    assert [problem for problem in it.graph.check() if problem.severity == "error"] == []
    trainer = assert_as_by_hand(it, loop=loop)
    assert all({*row} <= {"step", "epoch", "loss", "lr", "epoch/loss"} for row in trainer.metrics)


class Remembering:
    """A step function that keeps what it writes, and changes it in place before it is given it again."""

    def __init__(self) -> None:
        self.last: torch.Tensor | None = None

    def __call__(self, model: nn.Module, batch: Any, memory: torch.Tensor | None = None) -> dict[str, Any]:
        if self.last is not None:
            self.last.mul_(0.5)
        outputs, _ = model(batch[0], None)
        given = torch.zeros(()) if memory is None else memory.mean()
        self.last = outputs.detach().mean(0)
        return {"loss": nn.functional.mse_loss(outputs + given, batch[1]), "memory": self.last}


# ---- outputs of a body that may be absent

ROUNDS = """
format = 1
name   = "rounds"
start  = "train"

[nodes]
train  = { graph = "fit", reads = { begun = "train.runs" } }
report = { use = "choice" }

[guards]
done = "train.runs >= 3"

[edges]
train  = ["report"]
report = ["end if done", "train"]
"""


@node(writes="is_first")
def compare(begun: int) -> bool:
    """True in the first round."""
    return begun == 0


@node
class Collect:
    """Note what came out of the training."""

    def __call__(self, collected: list[Any], metrics: Any = "nothing") -> None:
        collected.append(metrics if isinstance(metrics, str) else sorted(metrics))


@node
class CollectAll:
    """Note what came out of the training."""

    def __call__(self, collected: list[Any], metrics: Any) -> None:
        collected.append(metrics)


def rounds(output: str, collect: Any = Collect) -> Graph:
    """Three rounds of training, of which only the first is validated."""
    body = fit(epochs=1, save_every="never").insert("compare", compare, before="begin_epoch")
    body = body.guard("val_check_batch", "validate.due and next_batch.last and is_first")
    graph = Graph.loads(ROUNDS).set("train", graph=replace(body, outputs=(output,)))
    return graph.replace("report", collect)


def collecting(output: str) -> World:
    it = training(rounds(output), one_loss, val_data=lambda: samples()[:2], collected=list)
    return replace(it, options={"not_state": "collected"})


def one_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0], None)[0], batch[1])


THROUGH_CUTS = {
    **{name: it for name, (it, _) in ROWS.items()},
    "a tensor that the step function keeps": training(writing(writes={"memory": "memory"}, keep=["memory"])).but(
        training_step=lambda made: Remembering()
    ),
    "an output that may be absent": collecting("metrics"),
    "an output that is marked as optional": collecting("metrics?"),
}


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("name", THROUGH_CUTS)
def test_through_cuts(name: str, tmp_path: Path) -> None:
    assert_exact(THROUGH_CUTS[name], tmp_path, at=3)


@pytest.mark.parametrize("output", ["metrics", "metrics?"])
def test_what_an_earlier_run_of_the_body_left_is_not_handed_out_again(output: str) -> None:
    trainer = collecting(output).trainer()
    trainer.run()
    assert trainer.resources["collected"] == [["val/loss"], "nothing", "nothing"]


def codes(graph: Graph) -> list[str]:
    """Of the problems, but for those of the slot by which the first round is told."""
    return [problem.code for problem in graph.check() if "is_first" not in problem.message]


@pytest.mark.parametrize("output", ["metrics", "metrics?"])
def test_an_output_that_may_be_absent_needs_a_reader_with_a_default(output: str) -> None:
    assert codes(rounds(output)) == []
    assert codes(rounds(output, CollectAll)) == ["G304"]


def test_the_name_of_an_output_is_checked_and_renamed_without_its_mark() -> None:
    (problem,) = replace(Graph.load("evaluate"), outputs=("metrisc?",)).check()
    assert (problem.code, problem.hint) == ("G115", "did you mean `metrics`?")
    graph = rounds("metrics?").set("train", writes={"metrics": "outcome"}).set("report", reads={"metrics": "outcome"})
    assert codes(graph) == [] and Graph.loads(graph.to_toml()) == graph


# ---- what a step function writes


@pytest.mark.parametrize("keep", [[], ["hidden"]])
def test_an_epoch_begins_without_what_is_written_unless_it_is_kept(keep: list[str]) -> None:
    trainer = training(writing(writes={"hidden": "hidden"}, keep=keep)).trainer()
    trainer.run(until="1 epochs")
    trainer.run(before="next_batch")
    trainer.advance()
    trainer.run(before="begin_epoch")
    trainer.run(before="next_batch")
    assert (trainer.read("hidden") is not None) == bool(keep)


def test_what_is_written_is_detached_wherever_it_is() -> None:
    def step(model: nn.Module, batch: Any) -> dict[str, Any]:
        outputs, hidden = model(batch[0], None)
        return {"loss": outputs.mean(), "parts": (outputs, [hidden[0]])}

    trainer = training(writing(writes={"parts": "parts"}), step).trainer()
    trainer.run(until="1 batches")
    (outputs, [inner]) = trainer.read("parts")
    assert not outputs.requires_grad and not inner.requires_grad


def test_a_body_begins_with_nothing_written() -> None:
    """Each validation begins with the default, whatever the one before has written."""
    given: list[Any] = []

    def validation_step(model: nn.Module, batch: Any, seen: int = 0) -> dict[str, Any]:
        given.append(seen)
        return {"loss": torch.tensor(1.0), "seen": seen + 1}

    graph = writing(writes={"hidden": "hidden"}).set("validate/eval_batch", writes={"seen": "seen"})
    assert graph.check() == []
    training(graph).trainer(validation_step=validation_step, val_data=samples()[:3]).run()
    assert given == [0, 1, 2] * EPOCHS


@pytest.mark.parametrize(
    ("graph", "message", "hint"),
    [
        (fit(overlays="sam").set("train_batch", writes={"hidden": "hidden"}),
         "`train_batch` writes no slot `hidden`", ""),
        (Graph.load("lbfgs").set("step", writes={"hidden": "hidden"}), "`step` writes no slot `hidden`", ""),
        (writing(writes={"hidden": "hidden"}, keep=["hiden"]), "hiden", "did you mean `hidden`?"),
        (writing(writes={"a b": "hidden"}), "a b", ""),
        (writing().set("step", writes={"hidden": "hidden"}), "`step` writes no slot", ""),
    ],
)  # fmt: skip
def test_a_slot_that_cannot_be_written_is_refused(graph: Graph, message: str, hint: str) -> None:
    (problem,) = graph.check()
    assert problem.code == "G115" and message in problem.message and hint in problem.hint


def returning(value: Any) -> Callable[..., Any]:
    def step(model: nn.Module, batch: Any) -> Any:
        loss = model(batch[0], None)[0].mean()
        if isinstance(value, dict):
            return {**value, "loss": loss}
        return loss if value else None

    return step


def asking(model: nn.Module, batch: Any, hidden: Any) -> Any:
    return {"loss": model(batch[0], hidden)[0].mean(), "hidden": None}


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (
            returning("loss"),
            "`train_batch` writes `hidden`, which `training_step` has to return by name; it returned a tensor",
        ),
        (returning({"hiden": 2}), "which `training_step` has to return by name; it returned `hiden`, `loss`"),
        (returning(None), "it returned nothing"),
        (asking, "asks for `hidden` before a step function has returned it"),
    ],
)
def test_a_slot_without_a_value_is_named(step: Any, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        training(writing(writes={"hidden": "hidden"}), step).trainer().run()
    assert expected in str(caught.value)


@pytest.mark.full
def test_what_cannot_be_saved_is_named_when_a_checkpoint_is_made(tmp_path: Path) -> None:
    graph = writing(writes={"hidden": "hidden"}).set("checkpoint", every="2 batches")

    def step(model: nn.Module, batch: Any, hidden: Any = None) -> Any:
        return {"loss": model(batch[0], None)[0].mean(), "hidden": iter(())}

    with pytest.raises(Exception, match="hidden"):
        training(graph, step).trainer(tmp_path).run()
