"""What step functions write to slots and are given again: against loops written by hand, through cuts, and refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, Trainer, UsageError, node
from graphtrain.program.resources import StepOutputs
from tests.program.cuts import assert_cuts_are_exact, assert_same, weights

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


def data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [
        (torch.randn(2, 6, 3, generator=generator), torch.randn(2, 6, 1, generator=generator)) for _ in range(BATCHES)
    ]


def training_step(model: nn.Module, batch: Any, hidden: Any = None) -> dict[str, Any]:
    outputs, hidden = model(batch[0], hidden)
    return {"loss": nn.functional.mse_loss(outputs, batch[1]), "hidden": hidden}


def resources() -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(4)
    model = Recurrent()
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.05),
        "train_data": data(),
        "training_step": training_step,
    }


def fit(**train_batch: Any) -> Graph:
    graph = Graph.load("fit").set("checkpoint", every="never").set("finish", after=f"{EPOCHS} epochs")
    return graph.set("accumulate", every=2).set("train_batch", **train_batch)


def make_trainer(graph: Graph, run_dir: Any = None, **others: Any) -> Trainer:
    return Trainer(graph, seed=0, run_dir=run_dir, notify=lambda line: None, display=None, **{**resources(), **others})


def truncated_by_hand(*, kept: bool) -> dict[str, Any]:
    given = resources()
    model, optimizer = given["model"], given["optimizer"]
    hidden = None
    for _ in range(EPOCHS):
        hidden = hidden if kept else None
        for number, batch in enumerate(given["train_data"], start=1):
            result = training_step(model, batch, hidden)
            (result["loss"] / 2).backward()
            hidden = tuple(part.detach() for part in result["hidden"])
            if number % 2 == 0 or number == BATCHES:
                optimizer.step()
                optimizer.zero_grad()
    return dict(model.state_dict())


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("kept", [False, True])
def test_backpropagation_that_is_truncated_equals_the_loop_by_hand_through_cuts(kept: bool) -> None:
    graph = fit(writes={"hidden": "state"}, **({"keep": ["hidden"]} if kept else {}))
    assert graph.check() == []
    cuts = (0, 3, 5, 17, 24, 40) if kept else (5, 22)
    whole = assert_cuts_are_exact(lambda run_dir: make_trainer(graph, run_dir), cuts)
    assert_same(weights(whole), truncated_by_hand(kept=kept))
    assert all(set(row) <= {"step", "epoch", "loss", "lr", "epoch/loss"} for row in whole.metrics)


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


@pytest.mark.full
def test_a_written_tensor_that_the_step_function_keeps_stays_one_through_cuts() -> None:
    graph = fit(writes={"memory": "memory"}, keep=["memory"])
    make = lambda run_dir: make_trainer(graph, run_dir, training_step=Remembering())  # noqa: E731
    assert_cuts_are_exact(make, (4, 12, 19, 33))


def test_what_is_alive_is_saved_and_an_epoch_begins_without_it() -> None:
    for keep, alive in (([], False), (["hidden"], True)):
        trainer = make_trainer(fit(writes={"hidden": "hidden"}, keep=keep))
        trainer.run(until="1 epochs")
        while trainer.position != "next_batch":
            trainer.advance()
        assert (trainer.read("hidden") is not None) == alive
        nodes = trainer._session.compiled.program.by_path
        for path, is_alive in (("begin_epoch", alive), ("train_batch", True), ("decide", True)):
            assert ("hidden" in trainer._session.compiled.liveness.names(nodes[path].index)) == is_alive


def counting_step(model: nn.Module, batch: Any, tokens: int = 0) -> dict[str, Any]:
    loss = nn.functional.mse_loss(model(batch[0], None)[0], batch[1], reduction="sum")
    return {"loss": loss, "tokens": tokens + batch[0].shape[1] * len(batch[0])}


@pytest.mark.full
def test_a_count_of_tokens_decides_when_to_step_and_scales_the_gradients() -> None:
    """Windows of at least 20 tokens, whose loss is a mean over the tokens of the window."""

    @node(effects="clip")
    def scale(model: nn.Module, *, tokens: int = 1) -> None:
        """Divide the gradients."""
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= tokens

    graph = (
        Graph.load("fit")
        .set("checkpoint", every="never")
        .set("finish", after=f"{EPOCHS} epochs")
        .set("train_batch", reads={"window": "clip.norm_type"}, writes={"tokens": "tokens"})
        .replace("clip", scale, reads={"tokens": "tokens"})
        .set("train_batch", reads={"window": "one"})
        .guard("window_complete", "tokens >= 20 * (1 + step.steps % 2) or next_batch.empty")
        .insert("forget", clear_tokens, after="zero_grad")
    )
    make = lambda run_dir: make_trainer(graph, run_dir, training_step=counting_step, one=1)  # noqa: E731
    assert [problem for problem in graph.check() if problem.severity == "error"] == []
    whole = assert_cuts_are_exact(make, (6, 13, 30))
    given = resources()
    model, optimizer = given["model"], given["optimizer"]
    steps = 0
    for _ in range(EPOCHS):
        tokens = 0
        for number, batch in enumerate(given["train_data"], start=1):
            result = counting_step(model, batch, tokens)
            result["loss"].backward()
            tokens = result["tokens"]
            if tokens >= 20 * (1 + steps % 2) or number == BATCHES:
                for parameter in model.parameters():
                    parameter.grad /= tokens
                optimizer.step()
                optimizer.zero_grad()
                tokens, steps = 0, steps + 1
    assert_same(weights(whole), dict(model.state_dict()))


@node(writes="tokens")
def clear_tokens() -> int:
    """Count from nothing."""
    return 0


def test_a_body_begins_with_nothing_written() -> None:
    """Each validation begins with the default, whatever the one before has written."""
    given: list[Any] = []

    def validation_step(model: nn.Module, batch: Any, seen: int = 0) -> dict[str, Any]:
        given.append(seen)
        return {"loss": torch.tensor(1.0), "seen": seen + 1}

    graph = fit(writes={"hidden": "hidden"}).set("validate/eval_batch", writes={"seen": "seen"})
    assert graph.check() == []
    make_trainer(graph, validation_step=validation_step, val_data=data()[:3]).run()
    assert given == [0, 1, 2] * EPOCHS


@pytest.mark.parametrize(
    ("graph", "caller"), [(Graph.load("lbfgs"), "step"), (Graph.load("fit").overlay("sam"), "train_batch")]
)
def test_a_node_that_calls_its_step_function_several_times_writes_nothing_for_it(graph: Graph, caller: str) -> None:
    """Or the second call would begin with what the first one has returned."""
    problems = graph.set(caller, writes={"hidden": "hidden"}).check()
    assert [(problem.code, problem.message) for problem in problems] == [
        ("G115", f"`{caller}` writes no slot `hidden`")
    ]
    assert "several times" in problems[0].hint


def test_what_is_written_is_detached_wherever_it_is() -> None:
    slots: list[Any] = [None, None]
    returned = {"loss": torch.ones(()), "a": ()}
    step = StepOutputs(lambda model, batch: {**returned, "a": (batch, [batch])}, "train_batch", "step", {"a": 1}, slots)
    parameter = torch.ones(2, requires_grad=True)
    assert set(step(None, parameter * 2)) == {"loss"}
    (tensor, [inner]) = slots[1]
    assert not tensor.requires_grad and not inner.requires_grad
    assert slots[0] is None


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ("loss", "`train_batch` writes `hidden`, which `training_step` returns by name; it returned a tensor of shape"),
        ({"loss": 1, "hiden": 2}, "writes `hidden`, which `training_step` did not return; it returned `loss`, `hiden`"),
        ({"loss": 1}, "return it, or take it out of the writes of `train_batch`"),
        (None, "it returned nothing"),
    ],
)
def test_a_slot_that_the_step_function_did_not_return_is_named(returned: Any, expected: str) -> None:
    def step(model: nn.Module, batch: Any) -> Any:
        loss = model(batch[0], None)[0].mean()
        if isinstance(returned, dict):
            return {**returned, "loss": loss}
        return loss if returned else None

    with pytest.raises(UsageError) as caught:
        make_trainer(fit(writes={"hidden": "hidden"}), training_step=step).run()
    assert expected in str(caught.value)


def test_a_slot_without_a_default_is_asked_for_too_early() -> None:
    def step(model: nn.Module, batch: Any, hidden: Any) -> Any:
        return {"loss": model(batch[0], hidden)[0].mean(), "hidden": None}

    with pytest.raises(UsageError, match="asks for `hidden` before a step function has returned it"):
        make_trainer(fit(writes={"hidden": "hidden"}), training_step=step).run()


@pytest.mark.full
def test_what_cannot_be_saved_is_named_when_a_checkpoint_is_made(tmp_path: Any) -> None:
    def step(model: nn.Module, batch: Any, hidden: Any = None) -> Any:
        return {"loss": model(batch[0], None)[0].mean(), "hidden": iter(())}

    graph = fit(writes={"hidden": "hidden"}).set("checkpoint", every="2 batches")
    with pytest.raises(Exception, match="hidden"):
        make_trainer(graph, tmp_path, training_step=step).run()


def test_names_are_checked() -> None:
    (problem,) = fit(writes={"hidden": "hidden"}, keep=["hiden"]).check()
    assert (problem.code, problem.hint) == ("G115", "did you mean `hidden`?")
    (problem,) = fit(writes={"a b": "hidden"}).check()
    assert problem.code == "G115"
    (problem,) = fit().set("step", writes={"hidden": "hidden"}).check()
    assert problem.code == "G115"
