"""Truncated backpropagation through time: `split_batch` against loops by hand, through cuts and at two ranks."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from graphtrain import Graph, Outcome, PlannedRun, Trainer, UsageError
from graphtrain.kind import kind_of
from graphtrain.nodes.split_batch import SplitBatch
from graphtrain.ranks import Ranks
from tests.ranks.fake_ranks import run_ranks

LENGTHS = (7, 3, 6, 8)  # of the batches: a short last split, one split, a whole number of splits
LENGTH = 3
FIT = Graph.load("fit").overlay("split_batch").set("train_batch", writes={"hidden": "hidden"})
SHORT = FIT.set("finish", after="2 epochs").set("log", every="never").set("checkpoint", every="never")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(2, 3, batch_first=True)
        self.head = torch.nn.Linear(3, 1)

    def forward(self, inputs: Any, hidden: Any) -> Any:
        outputs, hidden = self.lstm(inputs, hidden)
        return self.head(outputs).squeeze(2), hidden


def step(model: Any, batch: Any, hidden: Any = None) -> dict[str, Any]:
    outputs, hidden = model(batch["inputs"], hidden)
    loss = ((outputs - batch["more"][0]).square().mean(1) * batch["weights"]).mean()
    return {"loss": loss, "hidden": hidden}


def batches(lengths: Iterable[int] = LENGTHS) -> list[dict[str, Any]]:
    return [
        {
            "inputs": torch.randn(2, length, 2),
            "more": (torch.randn(2, length), "a text"),
            "weights": torch.rand(2),
        }
        for length in lengths
    ]


def resources(lengths: Iterable[int] = LENGTHS, **more: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Recurrent()
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.05),
        "train_data": batches(lengths),
        "training_step": step,
        **more,
    }


def splits_of(batch: dict[str, Any]) -> list[dict[str, Any]]:
    inputs, targets = batch["inputs"].split(LENGTH, 1), batch["more"][0].split(LENGTH, 1)
    return [
        {"inputs": part, "more": (target, "a text"), "weights": batch["weights"]}
        for part, target in zip(inputs, targets, strict=True)
    ]


def detached(hidden: Any) -> Any:
    return tuple(part.detach() for part in hidden)


def by_hand(window: int = 1, keep: bool = False, epochs: int = 2) -> list[float]:
    given = resources()
    model, optimizer = given["model"], given["optimizer"]
    hidden, count = None, 0
    for _, (number, batch) in itertools.product(range(epochs), enumerate(given["train_data"])):
        hidden = hidden if keep else None
        splits = splits_of(batch)
        for index, part in enumerate(splits):
            result = step(model, part, hidden)
            hidden = detached(result["hidden"])
            (result["loss"] / window).backward()
            count += 1
            if count == window or (index, number) == (len(splits) - 1, len(LENGTHS) - 1):
                optimizer.step()
                optimizer.zero_grad()
                count = 0
    return weights(model)


def weights(model: torch.nn.Module) -> list[float]:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def trained(graph: Graph, run_dir: Path | None = None, **more: Any) -> Trainer:
    return Trainer(graph, seed=0, run_dir=run_dir, display=None, notify=lambda line: None, **resources(**more))


# ---- what is trained


@pytest.mark.full
@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("keep", [False, True])
def test_it_trains_what_the_loop_by_hand_trains(window: int, keep: bool) -> None:
    graph = SHORT.set("split_batch", length=LENGTH).set("accumulate", every=window)
    trainer = trained(graph.set("train_batch", keep=["hidden"]) if keep else graph)
    assert trainer.run() is Outcome.FINISHED
    assert weights(trainer.resources["model"]) == by_hand(window, keep)
    assert trainer.progress["train_batch"]["runs"] == 2 * sum(-(-length // LENGTH) for length in LENGTHS)
    assert trainer.progress["next_batch"]["batches"] == 2 * len(LENGTHS)


def test_a_function_of_the_user_cuts_too() -> None:
    trainer = trained(SHORT, batch_splits=splits_of)
    trainer.run()
    assert weights(trainer.resources["model"]) == by_hand()


def test_a_step_function_is_told_which_split_it_has() -> None:
    told = []

    def counting(model: Any, batch: Any, split_index: int, batch_index: int) -> Any:
        told.append((batch_index, split_index))
        return step(model, batch)["loss"]

    graph = Graph.load("fit").overlay("split_batch").set("split_batch", length=LENGTH)
    trained(graph.set("finish", after="1 epochs"), training_step=counting).run()
    assert told == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]


def test_what_decide_decides_waits_for_the_last_split() -> None:
    graph = SHORT.set("split_batch", length=LENGTH).set("finish", after="1 steps").set("log", every="1 steps")
    trainer = trained(graph)
    trainer.run()
    assert trainer.progress["step"]["steps"] == 3
    assert [row["step"] for row in trainer.metrics] == [3]


# ---- cuts


def expect_cuts_are_exact(folder: Path, cuts: Iterable[int], graph: Graph, **more: Any) -> None:
    whole = trained(graph, **more)
    whole.run()
    for cut in cuts:
        first = trained(graph, folder / str(cut), **more)
        first.advance(cut)
        first.save()
        second = trained(graph, folder / str(cut), **more)
        second.run()
        assert second.digest() == whole.digest(), f"cut before {first.position}"


@pytest.mark.full
def test_a_cut_between_two_splits_is_exact(tmp_path: Path) -> None:
    graph = SHORT.set("split_batch", length=LENGTH).set("accumulate", every=2)
    expect_cuts_are_exact(tmp_path / "length", [9, 17, 40], graph)
    expect_cuts_are_exact(tmp_path / "function", [13], SHORT, batch_splits=splits_of)


@pytest.mark.parametrize("length", [1, 5])
def test_another_length_holds_for_the_next_batch(length: int, tmp_path: Path) -> None:
    graph = SHORT.set("split_batch", length=LENGTH)
    first = trained(graph, tmp_path)
    first.run(before="zero_grad")  # behind the first of three splits
    second = trained(graph.set("split_batch", length=length), tmp_path)
    counts = []
    for _ in range(2):
        second.run(before="next_batch")
        counts.append(second.progress["split_batch"]["index"])
    assert counts == [3, 3 if length == 1 else 1]


def test_other_splits_of_a_batch_that_was_begun_are_refused(tmp_path: Path) -> None:
    trained(SHORT, tmp_path, batch_splits=splits_of).run(before="zero_grad")
    with pytest.raises(UsageError, match="the batch had 3 splits when it was begun, and has 1 now"):
        trained(SHORT.set("split_batch", length=8), tmp_path).run()


@pytest.mark.sweep
@pytest.mark.parametrize("by_function", [False, True])
def test_every_cut_is_exact(tmp_path: Path, by_function: bool) -> None:
    more = {"batch_splits": splits_of} if by_function else {}
    graph = (SHORT if by_function else SHORT.set("split_batch", length=LENGTH)).set("finish", after="1 epochs")
    expect_cuts_are_exact(tmp_path, range(1, 80), graph, **more)


# ---- several ranks


def at_ranks(graph: Graph, run_dir: Path | None = None, cut: int = 0, **more: Any) -> list[Any]:
    def program(ranks: Ranks) -> Any:
        trainer = trained(graph, run_dir, **more)
        if cut:
            trainer.advance(cut)
            trainer.save()
        else:
            trainer.run()
        return trainer.digest(), weights(trainer.resources["model"]), trainer.progress["accumulate"]["last_count"]

    return run_ranks(2, program)


RANK_GRAPH = SHORT.set("split_batch", length=LENGTH)


@pytest.mark.full
def test_ranks_with_different_numbers_of_splits_train_what_the_loop_by_hand_trains() -> None:
    given = resources()
    model, optimizer = given["model"], given["optimizer"]
    parameters = list(model.parameters())
    for _ in range(2):
        for pair in zip(given["train_data"][::2], given["train_data"][1::2], strict=True):
            hidden: list[Any] = [None, None]
            for parts in itertools.zip_longest(*map(splits_of, pair)):
                for rank, part in enumerate(parts):
                    if part is not None:
                        result = step(model, part, hidden[rank])
                        hidden[rank] = detached(result["hidden"])
                        gradients = torch.autograd.grad(result["loss"] / 2, parameters)
                        for parameter, gradient in zip(parameters, gradients, strict=True):
                            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
                optimizer.step()
                optimizer.zero_grad()
    first, second = at_ranks(RANK_GRAPH)
    assert first[1] == second[1] == weights(model)
    assert first[2] == second[2] == 2  # a rank that has no split left counts, with gradients of zero


@pytest.mark.full
def test_a_cut_of_several_ranks_between_two_splits_is_exact(tmp_path: Path) -> None:
    whole = at_ranks(RANK_GRAPH)
    for cut in (14, 23):
        at_ranks(RANK_GRAPH, tmp_path / str(cut), cut)
        assert at_ranks(RANK_GRAPH, tmp_path / str(cut)) == whole


@pytest.mark.full
def test_an_odd_batch_leaves_a_rank_without_splits(tmp_path: Path) -> None:
    lengths = (7, 3, 6)
    whole = at_ranks(RANK_GRAPH, lengths=lengths)
    assert whole[0][1] == whole[1][1]
    for cut in (33,):
        at_ranks(RANK_GRAPH, tmp_path / str(cut), cut, lengths=lengths)
        assert at_ranks(RANK_GRAPH, tmp_path / str(cut), lengths=lengths) == whole


def test_a_guard_on_a_split_differs_between_ranks() -> None:
    graph = RANK_GRAPH.guard("window_cut", or_="split_index > 1")
    assert "G701" in [problem.code for problem in graph.check(ranks=True)]


# ---- what is cut


class Pair(NamedTuple):
    inputs: torch.Tensor
    targets: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Batch:
    inputs: torch.Tensor
    pair: Pair
    name: str = "b"


def cut(batch: Any, function: Callable[[Any], Any] | None = None, **parameters: Any) -> list[Any]:
    node = kind_of(SplitBatch).new_instance()
    for name, value in parameters.items():
        setattr(node, name, value)
    node.setup(None, function)
    splits = [node(batch)[0]]
    while node.left:
        splits.append(node(batch)[0])
    return splits


def test_nests_are_cut_and_what_has_no_time_is_whole() -> None:
    inputs, targets, lengths = torch.rand(2, 5, 3), torch.rand(2, 5), torch.tensor([5, 4])
    whole = Batch(inputs, Pair(targets, lengths))
    first, last = cut(whole, length=3)
    assert type(first) is Batch and type(first.pair) is Pair and first.name == "b"
    assert torch.equal(torch.cat([first.inputs, last.inputs], 1), inputs) and last.inputs.shape == (2, 2, 3)
    assert torch.equal(torch.cat([first.pair.inputs, last.pair.inputs], 1), targets)
    assert first.pair.targets is lengths and last.pair.targets is lengths
    assert first.inputs.data_ptr() == inputs.data_ptr()
    assert whole.inputs is inputs  # the batch stays as it was


@pytest.mark.parametrize(("dimension", "lengths"), [(0, [3, 2]), (-1, [3, 1]), (1, [3, 3])])
def test_dimensions(dimension: int, lengths: list[int]) -> None:
    splits = cut([torch.rand(5, 6, 4)], dimension=dimension, length=3)
    assert [split[0].size(dimension) for split in splits] == lengths


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((torch.rand(2, 5), torch.rand(2, 3)), "the tensors of a batch are 3 and 5 long along dimension 1"),
        (torch.rand(5), "a batch has no tensor with a length along dimension 1"),
        (torch.rand(5, 0), "a batch has no tensor with a length along dimension 1"),
        ("text", "a batch has no tensor with a length along dimension 1"),
    ],
)
def test_what_cannot_be_cut_is_refused(batch: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cut(batch, length=2)


@pytest.mark.parametrize(
    ("function", "length", "message"),
    [
        (None, None, r"split_batch\.length is not set, and there is no `batch_splits`"),
        (list, 3, r"split_batch\.length = 3, and a function `batch_splits` cuts batches too"),
        (lambda batch: [], None, "`batch_splits` returned no splits"),
        (lambda batch: None, None, "`batch_splits` returned a NoneType"),
        (lambda batch: batch, None, "`batch_splits` returned a Tensor"),
    ],
)
def test_settings_that_cut_nothing_are_refused(function: Any, length: int | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cut(torch.rand(2, 5), function, length=length)


def test_how_many_steps_a_run_takes_is_not_known_ahead() -> None:
    with pytest.raises(UsageError, match=r"run\.steps: how many splits a batch has is not known ahead"):
        PlannedRun(SHORT.set("split_batch", length=3)).steps([0] * 4)
