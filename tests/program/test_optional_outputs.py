"""Outputs of a body that may be absent: their readers have a default, and what an earlier run left is not theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from graphtrain import Graph, Trainer, node
from tests.program.cuts import assert_cuts_are_exact
from tests.program.test_expressions import resources

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
        collected.append(metrics if isinstance(metrics, str) else set(metrics))


@node
class CollectAll:
    """Note what came out of the training."""

    def __call__(self, collected: list[Any], metrics: Any) -> None:
        collected.append(metrics)


def rounds(output: str, collect: Any = Collect) -> Graph:
    """Three rounds of training, of which only the first is validated."""
    fit = Graph.load("fit").set("checkpoint", every="never").set("finish", after="1 epochs")
    fit = fit.insert("compare", compare, before="begin_epoch")
    fit = fit.guard("val_check_batch", "validate.due and next_batch.last and is_first")
    graph = Graph.loads(ROUNDS).set("train", graph=replace(fit, outputs=(output,)))
    return graph.replace("report", collect)


def make_trainer(graph: Graph, run_dir: Any = None, collected: list[Any] | None = None) -> Trainer:
    given = resources()
    return Trainer(
        graph,
        seed=0,
        run_dir=run_dir,
        notify=lambda line: None,
        display=None,
        val_data=given["train_data"][:2],
        collected=[] if collected is None else collected,
        not_state=["collected"],
        **given,
    )


def codes(graph: Graph) -> list[str]:
    """Of the problems, but for those of the slot by which the first round is told."""
    return [problem.code for problem in graph.check() if "is_first" not in problem.message]


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("output", ["metrics", "metrics?"])
def test_what_an_earlier_run_of_the_body_left_is_not_handed_out_again(output: str) -> None:
    collected: list[Any] = []
    graph = rounds(output)
    assert codes(graph) == []
    make_trainer(graph, collected=collected).run()
    assert collected == [{"val/loss"}, "nothing", "nothing"]
    assert_cuts_are_exact(lambda run_dir: make_trainer(graph, run_dir), (40, 70, 90))


@pytest.mark.parametrize("output", ["metrics", "metrics?"])
def test_an_output_that_may_be_absent_for_a_reader_without_a_default_is_reported(output: str) -> None:
    assert codes(rounds(output, CollectAll)) == ["G304"]


def test_the_name_of_an_output_is_checked_and_renamed_without_its_mark() -> None:
    (problem,) = replace(Graph.load("evaluate"), outputs=("metrisc?",)).check()
    assert (problem.code, problem.hint) == ("G115", "did you mean `metrics`?")
    graph = rounds("metrics?").set("train", writes={"metrics": "outcome"}).set("report", reads={"metrics": "outcome"})
    assert codes(graph) == []
    assert Graph.loads(graph.to_toml()) == graph
    assert graph.nodes["train"].body is not None
    assert "outputs metrics?" in str(graph)


@node
class CollectLoss:
    """Note the loss of the batch before."""

    def __call__(self, collected: list[Any], loss: Any = "nothing") -> None:
        collected.append(loss if isinstance(loss, str) else float(loss))


def test_a_slot_that_nothing_has_written_is_the_default_of_its_reader() -> None:
    collected: list[Any] = []
    graph = Graph.load("fit").set("finish", after="2 batches").insert("before", CollectLoss, after="next_batch")
    assert graph.check() == []
    make_trainer(graph.insert("behind", CollectLoss, after="train_batch"), collected=collected).run()
    first, loss, again, _ = collected
    assert (first, again) == ("nothing", loss) and isinstance(loss, float)
