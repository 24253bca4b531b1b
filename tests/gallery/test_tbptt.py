"""Truncated backpropagation through time: `split_batch` against loops by hand, through cuts and at two ranks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from graphtrain import Graph, Outcome, Trainer, UsageError
from graphtrain.graphs.gallery.tbptt.split_batch import SplitBatch
from graphtrain.kind import kind_of
from graphtrain.ranks import Ranks
from tests.ranks.fake_ranks import run_ranks

LENGTHS = (7, 3, 6, 8)  # of the batches: a short last split, one split, a whole number of splits
LENGTH = 3
FIT = Graph.load("tbptt")
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


# ---- cuts


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
def test_an_odd_batch_leaves_a_rank_without_splits(tmp_path: Path) -> None:
    lengths = (7, 3, 6)
    whole = at_ranks(RANK_GRAPH, lengths=lengths)
    assert whole[0][1] == whole[1][1]
    for cut in (33,):
        at_ranks(RANK_GRAPH, tmp_path / str(cut), cut, lengths=lengths)
        assert at_ranks(RANK_GRAPH, tmp_path / str(cut), lengths=lengths) == whole


# ---- what is cut


class Pair(NamedTuple):
    inputs: torch.Tensor
    targets: torch.Tensor


def cut(batch: Any) -> list[Any]:
    node = kind_of(SplitBatch).new_instance()
    node.length = LENGTH
    node.setup(None)
    splits = [node(batch, 1)[0]]
    while node.left:
        splits.append(node(batch, 1)[0])
    return splits


def test_nests_are_cut_and_what_has_no_time_is_whole() -> None:
    inputs, targets, lengths = torch.rand(2, 5, 3), torch.rand(2, 5), torch.tensor([5, 4])
    whole = {"inputs": [inputs], "pair": Pair(targets, lengths), "name": "b"}
    first, last = cut(whole)
    assert type(first["pair"]) is Pair and first["name"] == "b"
    assert torch.equal(torch.cat([first["inputs"][0], last["inputs"][0]], 1), inputs)
    assert torch.equal(torch.cat([first["pair"].inputs, last["pair"].inputs], 1), targets)
    assert first["pair"].targets is lengths and last["pair"].targets is lengths
    assert first["inputs"][0].data_ptr() == inputs.data_ptr()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((torch.rand(2, 5), torch.rand(2, 3)), r"the tensors of a batch have the lengths \[3, 5\] along dimension 1"),
        (torch.rand(5), r"have the lengths \[\] along dimension 1"),
        (torch.rand(5, 0), r"have the lengths \[0\] along dimension 1"),
        ("text", r"have the lengths \[\] along dimension 1"),
    ],
)
def test_what_cannot_be_cut_is_refused(batch: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cut(batch)
