"""Another graph in place: everything goes on, bitwise as if it had been so from the start, or is refused unharmed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, GraphError, LifeCycleError, Outcome, Trainer, UsageError, node, progress
from tests.engine.small_run import small_graph, small_trainer


@pytest.mark.parametrize("loader", ["Loader", "DataLoader", "own generator", "unsized", "list"])
@pytest.mark.parametrize("transitions", [1, 7, 13, 22, 35, 44])
def test_the_same_graph_again_changes_nothing(loader: str, transitions: int) -> None:
    whole, rewired = small_trainer(loader=loader), small_trainer(loader=loader)
    whole.run()
    rewired.advance(transitions)
    before = rewired.digest()
    rewired.rewire(small_graph())
    assert rewired.digest() == before
    rewired.run()
    assert (rewired.digest(), rewired.metrics) == (whole.digest(), whole.metrics)


@pytest.mark.parametrize("transitions", [7, 22, 44])
def test_nodes_that_are_set_up_anew_go_on_exactly(transitions: int) -> None:
    """A `limit` that is never reached makes `next_batch` another node: its data is opened again where it was."""
    whole = small_trainer(loader="DataLoader")
    whole.run()
    rewired = small_trainer(loader="DataLoader")
    rewired.advance(transitions)
    rewired.rewire(small_graph().set("next_batch", limit=1000).set("clip", norm_type=2))
    rewired.run()
    assert rewired.metrics == whole.metrics


def test_nodes_that_are_as_they_were_are_not_set_up_again() -> None:
    """So an iterator that can be iterated over only once goes on."""
    batches = iter([torch.full((2, 1), float(n)) for n in range(6)])
    trainer = tiny(train_data=batches)
    trainer.run(until="2 batches")
    trainer.rewire(trainer.graph.set("log", every="1 steps").guard("log_due", "log.due and step.steps > 3"))
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["next_batch"]["batches"] == 6
    assert [row["step"] for row in trainer.metrics] == [4, 5, 6, 6]


def test_a_changed_window_holds_from_now_on() -> None:
    trainer = tiny()
    trainer.run(until="2 steps")
    trainer.rewire(trainer.graph.set("accumulate", every=2))
    trainer.run()
    assert trainer.progress["step"]["steps"] == 2 + 2, "two batches alone, one window of two, and the last one alone"


def test_a_raised_ending_goes_on_from_the_end() -> None:
    trainer, longer = tiny(), tiny(Graph.load("fit").set("finish", after="2 epochs"))
    assert trainer.run() is Outcome.FINISHED
    trainer.rewire(trainer.graph.set("finish", after="2 epochs"))
    assert (trainer.state, trainer.position) == ("finished", "end")
    assert trainer.run() is Outcome.FINISHED
    longer.run()
    assert trainer.digest() == longer.digest()
    assert trainer.run() is Outcome.ALREADY_FINISHED


def test_before_it_begins_any_graph_will_do() -> None:
    trainer = tiny()
    trainer.rewire(Graph.load("fit").set("finish", after="3 steps"))
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["step"]["steps"] == 3


def test_a_kind_that_is_declared_anew_takes_the_progress_over() -> None:
    def declare(amount: int) -> Any:
        @node(name="tally")
        class Tally:
            """Count."""

            counted: int = progress(0)

            def __call__(self) -> None:
                self.counted += amount

        return Tally

    graph = Graph.load("fit").insert("tally", declare(1), after="step").set("finish", after="1 epochs")
    trainer = tiny(graph)
    trainer.run(until="2 steps")
    assert trainer.progress["tally"]["counted"] == 2
    declare(10)
    trainer.rewire(Graph.load("fit").insert("tally", "tally", after="step").set("finish", after="1 epochs"))
    trainer.run()
    assert trainer.progress["tally"]["counted"] == 2 + 30
    assert trainer.progress["tally"]["runs"] == 5


def test_a_lost_position_is_refused_until_it_is_named() -> None:
    trainer = tiny()
    while trainer.advance() != "accumulate":
        pass
    renamed = trainer.graph.rename("accumulate", "gather")
    before = trainer.digest()
    with pytest.raises(UsageError, match="the run stands before the node `accumulate`, which this graph does not have"):
        trainer.rewire(renamed)
    assert (trainer.position, trainer.digest()) == ("accumulate", before)
    trainer.rewire(renamed, rename={"accumulate": "gather"})
    assert trainer.position == "gather" and trainer.read("gather.count") == 1
    assert trainer.run() is Outcome.FINISHED


def test_a_slot_that_is_missing_is_refused() -> None:
    @node(writes="noise")
    def draw_noise() -> Any:
        return torch.zeros(1)

    @node
    def use_noise(noise: Any) -> None:
        pass

    plain = Graph.load("fit").set("finish", after="1 epochs")
    noisy = plain.insert("draw", draw_noise, after="next_batch").insert("use", use_noise, after="accumulate")
    trainer = tiny(plain)
    while trainer.advance() != "accumulate":
        pass
    with pytest.raises(UsageError, match="this graph needs the slot `noise` at `accumulate`"):
        trainer.rewire(noisy)
    assert trainer.run() is Outcome.FINISHED, "unharmed"


def test_a_slot_that_is_read_with_a_default_is_not_missed(tmp_path: Path) -> None:
    @node(writes="average")
    def average_loss(loss: Any, average: Any = None) -> Any:
        return loss if average is None else 0.5 * average + 0.5 * loss

    plain = Graph.load("fit").set("finish", after="1 epochs")
    trainer = tiny(plain, run_dir=tmp_path)
    trainer.run(until="2 steps")
    trainer.rewire(plain.insert("average_loss", average_loss, after="step"))
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["average_loss"]["runs"] == 3 and trainer.read("average") is not None


def test_further_resources_come_with_the_graph_that_reads_them() -> None:
    @node
    def average_weights(model: Any, average: Any, *, decay: float = 0.9) -> None:
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            mean.data.lerp_(parameter.data, 1 - decay)

    trainer = tiny()
    trainer.run(until="2 steps")
    graph = trainer.graph.insert("average_weights", average_weights, after="step")
    with pytest.raises(GraphError, match="`average` is read by `average_weights`"):
        trainer.rewire(graph)
    average = torch.nn.Linear(1, 1)
    trainer.rewire(graph, average=average)
    assert trainer.run() is Outcome.FINISHED
    assert trainer.read("average") is average and trainer.progress["average_weights"]["runs"] == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda graph: graph.set("accumulate", evry=2), "evry"),
        (lambda graph: graph.insert("teach", teach, after="step"), "`teacher` is read by `teach`"),
    ],
)
def test_a_graph_with_errors_is_refused_whole(change: Callable[[Graph], Graph], message: str) -> None:
    trainer = tiny()
    trainer.run(until="1 steps")
    with pytest.raises(GraphError, match=message):
        trainer.rewire(change(trainer.graph))
    assert trainer.run() is Outcome.FINISHED


@node
def teach(teacher: Any) -> None:
    """Stand-in."""


def test_neither_inside_a_run_nor_after_a_failure() -> None:
    trainers: list[Trainer] = []

    def training_step(model: Any, batch: Any) -> Any:
        trainers[0].rewire("fit")

    trainers.append(tiny(training_step=training_step))
    with pytest.raises(LifeCycleError, match="`rewire` cannot be called from inside it"):
        trainers[0].run()
    with pytest.raises(LifeCycleError, match="has failed"):
        trainers[0].rewire("fit")


def test_a_checkpoint_after_it_is_one_of_the_new_graph(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path)
    trainer.advance(22)
    trainer.rewire(small_graph(every=3))
    trainer.save()
    trainer.run()
    again = small_trainer(tmp_path, graph=small_graph(every=3))
    assert again.run() is Outcome.ALREADY_FINISHED
    assert again.digest() == trainer.digest()


def tiny(graph: Graph | None = None, **more: Any) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    run_dir = more.pop("run_dir", None)
    resources = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "train_data": [torch.full((2, 1), float(n)) for n in range(5)],
        "training_step": lambda model, batch: model(batch).square().mean(),
        **more,
    }
    graph = graph if graph is not None else Graph.load("fit").set("finish", after="1 epochs")
    return Trainer(graph, run_dir, display=None, say=lambda line: None, **resources)
