"""Guards on what differs between ranks: refused, or reported where ranks part; sound on what a kind has gathered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from graphtrain import Graph, GraphError, Trainer, node
from graphtrain.errors import RanksDivergedError
from graphtrain.ranks import Ranks
from tests.ranks.fake_ranks import run_ranks

# Five batches of one sample each but the last, which has two: on 3 ranks rounds of 3 and 2.
VALUES = [1.0, 2.0, 6.0, 3.0, 5.0, 5.0]


@node(writes="agreed", synchronises=True)
class Largest:
    """The largest value of all ranks that have one."""

    def setup(self, ranks: Any = None) -> None:
        self._ranks = ranks

    def __call__(self, value: Any) -> float:
        own = None if value is None else float(value)
        return max(each for each in self._ranks.gather(own) if each is not None)


@node(writes="high")
def look(loss: torch.Tensor) -> float:
    return float(loss)


def trainer(graph: Graph) -> Trainer:
    model = torch.nn.Linear(1, 1)
    batches = [torch.tensor([value]) for value in VALUES[:4]]
    return Trainer(
        graph.set("finish", after="1 epochs").set("checkpoint", every="never"),
        seed=0,
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        train_data=[*batches, torch.tensor(VALUES[4:])],
        training_step=lambda model, batch: model.weight.sum() * 0 + batch.mean(),
    )


@pytest.mark.full
def test_a_guard_on_a_gathered_value_takes_all_ranks_the_same_way_and_one_on_the_loss_does_not() -> None:
    def skipping(value: str) -> Graph:
        graph = Graph.load("fit").insert("agree", Largest, after="train_batch", reads={"value": "loss"})
        graph = graph.insert("look", look, after="train_batch").insert("discard").connect("discard", "accumulate")
        graph = graph.connect("agree", "discard", when="spike").guard("spike", f"{value} > 5.5")
        return replace(graph, allow=("G701",)) if value == "high" else graph

    def program(value: str, ranks: Ranks) -> int:
        run = trainer(skipping(value))
        run.run()
        return int(run.progress["discard"]["runs"])

    assert run_ranks(3, lambda ranks: program("agreed", ranks)) == [1, 1, 1]
    with pytest.raises(
        RanksDivergedError, match="rank 0 from `agree` to `accumulate`, rank 2 from `agree` to `discard`"
    ):
        run_ranks(3, lambda ranks: program("high", ranks))


def test_a_run_of_several_ranks_refuses_what_one_process_may_do() -> None:
    def program(ranks: Ranks) -> None:
        trainer(Graph.load("fit").remove("exchange"))

    trainer(Graph.load("fit").remove("exchange"))
    with pytest.raises(GraphError, match="G702"):
        run_ranks(2, program)
