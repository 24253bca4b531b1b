"""One value of what differs between ranks, also where some of them have no batch; and guards that ask it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from graphtrain import Graph, GraphError, Trainer, UsageError, node, progress
from graphtrain.errors import RanksDivergedError
from graphtrain.ranks import Ranks
from tests.ranks.fake_ranks import run_ranks

# Five batches of one sample each but the last, which has two: on 3 ranks rounds of 3 and 2.
VALUES = [1.0, 2.0, 6.0, 3.0, 5.0, 5.0]
ROUNDS = {
    "mean": [3.0, (3.0 + 2 * 5.0) / 3],
    "sum": [9.0, 8.0],
    "min": [1.0, 3.0],
    "max": [6.0, 5.0],
    "first": [1.0, 3.0],
}


@node
class Keep:
    """Keep what ranks have agreed on."""

    values: list[float] = progress([])

    def __call__(self, agreed: float) -> None:
        assert type(agreed) is float
        self.values.append(agreed)


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


def agreeing(how: str, **reads: str) -> Graph:
    graph = Graph.load("fit").set("accumulate", every=9)
    graph = graph.insert("agree", after="train_batch", how=how, reads={"value": "loss", **reads})
    return graph.insert("keep", Keep, after="agree")


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("how", ROUNDS)
def test_all_ranks_have_the_same_number_of_those_with_a_batch(how: str) -> None:
    def program(ranks: Ranks) -> list[float]:
        run = trainer(agreeing(how, weight="samples"))
        run.run()
        values: list[float] = run.progress["keep"]["values"]
        assert run.progress["agree"]["value"] == values[-1]
        return values

    expected = ROUNDS[how]
    assert run_ranks(3, program) == [pytest.approx(expected)] * 3
    assert len({tuple(values) for values in run_ranks(3, program)}) == 1, "to the last bit"


def test_without_weights_each_rank_counts_alike() -> None:
    def program(ranks: Ranks) -> list[float]:
        run = trainer(agreeing("mean"))
        run.run()
        return list(run.progress["keep"]["values"])

    assert run_ranks(3, program) == [[3.0, 4.0]] * 3


@pytest.mark.full
def test_nan_on_one_rank_is_nan_on_all() -> None:
    def program(ranks: Ranks) -> list[float]:
        run = trainer(agreeing("min"))
        run.resources["train_data"][1].fill_(math.nan)
        run.run()
        return list(run.progress["keep"]["values"])

    for values in run_ranks(2, program):
        assert [math.isnan(value) for value in values] == [True, False, False]


def test_one_process_has_the_value_itself() -> None:
    for how in ROUNDS:
        run = trainer(agreeing(how, weight="samples"))
        run.run()
        assert run.progress["keep"]["values"] == [1.0, 2.0, 6.0, 3.0, 5.0]


@pytest.mark.full
def test_a_guard_on_it_takes_all_ranks_the_same_way_and_one_on_the_loss_does_not() -> None:
    @node(writes="high")
    def look(loss: torch.Tensor) -> float:
        return float(loss)

    def skipping(value: str) -> Graph:
        graph = Graph.load("fit").insert("agree", after="train_batch", how="max", reads={"value": "loss"})
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


def test_what_is_no_number_is_refused() -> None:
    graph = Graph.load("fit").insert("agree", after="next_batch", reads={"value": "batch"})
    run = trainer(graph)
    run.resources["train_data"][0] = torch.ones(2, 3)
    with pytest.raises(UsageError, match=r"agree: `value` is a tensor of shape \[2, 3\], which is not a number"):
        run.run()
