"""Rounds in which some ranks have no batch: every gradient and every metric counts as in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, Loader, Trainer, node, progress
from graphtrain.errors import DataError
from graphtrain.ranks import Ranks
from tests.checks.corpus import undeclared
from tests.program.sam import SamBatch
from tests.ranks.fake_ranks import run_ranks

SAMPLES = 22


def numbers(samples: int = SAMPLES) -> torch.Tensor:
    return torch.randn(samples, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def squared(model: Any, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    return loss


Edit = Callable[[Graph], Graph]


def fit(every: int, edit: Edit = lambda graph: graph) -> Graph:
    graph = Graph.load("fit").set("accumulate", every=every).set("finish", after="2 epochs")
    return edit(graph.set("checkpoint", every="never").set("log", every="1 steps"))


class End:
    """What a rank has come to."""

    def __init__(self, trainer: Trainer) -> None:
        model: nn.Module = trainer.resources["model"]
        self.weights = torch.cat([weight.detach().flatten() for weight in model.parameters()])
        self.metrics = list(trainer.metrics)
        self.progress = {path: dict(fields) for path, fields in trainer.progress.items()}


def trained(world_size: int, graph: Graph, **resources: Any) -> list[End]:
    def program(ranks: Ranks) -> End:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        supplied = {
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
            "train_data": Loader(numbers(), batch_size=2, shuffle=True),
            "training_step": squared,
            **{name: value() if name.endswith("data") else value for name, value in resources.items()},
        }
        trainer = Trainer(graph, seed=0, display=None, notify=lambda line: None, **supplied)
        trainer.run()
        return End(trainer)

    return run_ranks(world_size, program, seed=world_size)


def assert_as_alone(window: int, edit: Edit = lambda graph: graph, **resources: Any) -> End:
    """At any world size that divides a window, weights, rows and counters are those of one process."""
    (alone,) = trained(1, fit(window, edit), **resources)
    for world_size in (2, 3, 4):
        if window % world_size:
            continue
        for end in trained(world_size, fit(window // world_size, edit), **resources):
            assert torch.allclose(end.weights, alone.weights, rtol=0, atol=1e-12), world_size
            assert [row.keys() for row in end.metrics] == [row.keys() for row in alone.metrics]
            for row, expected in zip(end.metrics, alone.metrics, strict=True):
                assert row == pytest.approx(expected, rel=1e-12), (world_size, row["step"])
            for path in alone.progress:
                for name in ("batches", "samples", "epoch", "epochs", "last", "exhausted", "empty", "steps", "count"):
                    if name in alone.progress[path]:
                        assert end.progress[path][name] == alone.progress[path][name], (world_size, path, name)
    return alone


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("samples", [22, 9, 1])
def test_short_windows_and_epochs(samples: int) -> None:
    """Five batches on four ranks with windows of four, and fewer batches than ranks."""
    assert_as_alone(12, train_data=lambda: Loader(numbers(samples), batch_size=2, shuffle=True))
    assert_as_alone(4, train_data=lambda: Loader(numbers(samples), batch_size=2, shuffle=True))


class Early:
    """Data that gives fewer batches than it says, or more."""

    def __init__(self, length: int, says: int) -> None:
        self.length, self.says = length, says

    def __len__(self) -> int:
        return self.says

    def __iter__(self) -> Any:
        return iter(numbers().split(2)[: self.length])


@pytest.mark.full
@pytest.mark.parametrize(("length", "says"), [(5, 7), (7, 5), (1, 3)])
def test_data_that_ends_elsewhere_than_it_says(length: int, says: int) -> None:
    alone = assert_as_alone(4, train_data=lambda: Early(length, says))
    assert alone.progress["next_batch"]["batches"] == 2 * length


@pytest.mark.full
def test_lists_of_samples_that_are_fewer_than_they_say() -> None:
    class Lists(list[Any]):
        def __len__(self) -> int:
            return 9

    lists = [[0, 1, 2], [3], [4, 5], [6, 7], [8]]
    assert_as_alone(4, train_data=lambda: Loader(numbers(), batch_sampler=Lists(lists)))


def test_data_without_a_batch() -> None:
    with pytest.raises(DataError, match="ended without a batch"):
        trained(3, fit(1), train_data=lambda: Loader([]))


# ---- evaluation


@pytest.mark.sweep
def test_a_validation_has_the_means_of_all_samples() -> None:
    def only_sometimes(model: Any, batch: torch.Tensor, batch_index: int) -> dict[str, Any]:
        metrics = {"loss": squared(model, batch), "index": float(batch_index)}
        return metrics | ({"rare": 3.0 + batch_index} if batch_index in (2, 3) else {})

    def edit(graph: Graph) -> Graph:
        return graph.overlay("sanity").set("sanity/next_batch", limit=3)

    for samples in (15, 3, 2):
        alone = assert_as_alone(
            12,
            edit,
            val_data=lambda samples=samples: Loader(numbers(samples), batch_size=3),
            validation_step=only_sometimes,
        )
        assert any("sanity/loss" in row for row in alone.metrics)
        assert any("val/rare" in row for row in alone.metrics) is (samples == 15)


@pytest.mark.full
def test_validations_of_several_data() -> None:
    def edit(graph: Graph) -> Graph:
        graph = graph.insert(
            "test", graph="evaluate", at="decide", before="checkpoint", reads={"val_data": "test_data"}, every="1 steps"
        )
        return graph.set("test/begin_evaluation", split="test")

    alone = assert_as_alone(
        12, edit, val_data=lambda: [numbers(2), numbers(1), numbers(5)], test_data=lambda: [numbers(1)]
    )
    assert {name for row in alone.metrics for name in row} >= {"val/loss", "test/loss"}


@pytest.mark.full
def test_an_average_of_a_mean_by_samples() -> None:
    """Batches of other sizes on each rank weigh by their samples; those that a function counts, by what it says."""

    def tokens(batch: torch.Tensor) -> int:
        return 10 * len(batch) + 1

    data = [numbers(size) for size in (1, 4, 2, 3, 1, 2, 5)]
    for made in (lambda: data, lambda: Loader(numbers(7), batch_size=2)):
        alone = assert_as_alone(4, train_data=made, val_data=made, batch_size=tokens)
        assert alone.progress["next_batch"]["samples"] % 10


# ---- what nodes do where a rank has no batch


def test_what_a_step_function_returned_stays_on_a_rank_without_a_batch() -> None:
    """Five batches on two ranks: the second has none in the last round of an epoch."""
    seen: list[tuple[int, int, Any]] = []

    def program(ranks: Ranks) -> None:
        def training_step(model: Any, batch: torch.Tensor, epoch: int, batch_idx: int, hidden: Any = None) -> Any:
            seen.append((epoch, batch_idx, hidden))
            return {"loss": squared(model, batch), "hidden": (epoch, batch_idx)}

        torch.manual_seed(0)
        model = nn.Linear(3, 1).double()
        graph = fit(1).set("train_batch", writes={"hidden": "hidden"}, keep=["hidden"])
        Trainer(
            graph,
            display=None,
            notify=lambda line: None,
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            train_data=[*numbers(10).split(2)],
            training_step=training_step,
        ).run()

    run_ranks(2, program)
    of_second = sorted(each for each in seen if each[1] % 2)
    assert of_second == [(0, 1, None), (0, 3, (0, 1)), (1, 1, (0, 3)), (1, 3, (1, 1))]


def replaced(kind: Any) -> Edit:
    return lambda graph: graph.replace("train_batch", kind.implementation).set(
        "train_batch", reads={"window": "accumulate.window"}
    )


@pytest.mark.full
def test_two_passes_on_one_batch() -> None:
    kind = undeclared("sam_batch", SamBatch, writes="loss", effects="backward")
    assert_as_alone(4, replaced(kind))


@node(family="compute")
class Looking:
    """Add losses up."""

    seen: int = progress(0, in_digest=False)

    def __call__(self, loss: torch.Tensor) -> None:
        assert loss.ndim == 0
        self.seen += 1


INNER = Graph.loads(
    """
format  = 1
name    = "inner"
start   = "train_batch"
outputs = ["loss"]

[nodes]
train_batch = {}

[edges]
train_batch = ["end"]
"""
)


@pytest.mark.full
def test_a_body_in_which_an_outer_batch_is_trained_on() -> None:
    """Its backward passes fill the window outside, and a node that reads what it hands out has none without a batch."""

    def edit(graph: Graph) -> Graph:
        graph = graph.replace("train_batch", "choice").set("train_batch", graph=INNER)
        return graph.insert("look", Looking, after="train_batch")

    assert [end.progress["look"]["seen"] for end in trained(2, edit(fit(2)))] == [12, 10]
    assert_as_alone(4, edit)
