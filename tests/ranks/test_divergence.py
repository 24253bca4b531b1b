"""Promise 17: ranks that part, differ, fail or vanish are named, with their nodes, on every rank; nobody waits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from graphtrain import Graph, Outcome, node
from tests.fake_ranks import FakeRank, KilledError, World, outcomes_of, run_ranks
from tests.schedules import Plan
from tests.world import cross_entropy, small_model, world

PLAN = Plan(batches=6, every=2, validation=2, with_loader=False, settings={"checkpoint": {"every": "never"}})


def run_with(graph: Graph, *, by_rank: bool = False, **resources: Any) -> list[Any]:
    return outcomes_of(
        3, lambda ranks: PLAN.trainer(graph, **{"rank": ranks.rank} if by_rank else {}, **resources).run()
    )


def kind_of(outcome: Any) -> str:
    return type(outcome).__name__


# ---- ranks that part


@node(writes="branch")
def branch_on(rank: int, step: int, *, of_rank: int = 1, at: int = 2) -> bool:
    return rank == of_rank and step == at


def parting(target: str, of_rank: int = 1) -> Graph:
    reads = {"step": "step.steps"}
    graph = PLAN.graph().insert("parting", branch_on, after="zero_grad", reads=reads, of_rank=of_rank)
    if target == "aside":  # the ranks part and meet again
        graph = graph.insert("aside", "choice", after="parting")
        return graph.guard("parted", "branch").connect("parting", "decide", "parted")
    return graph.guard("parted", "branch").connect("parting", target, "parted")


@pytest.mark.first(1)
@pytest.mark.parametrize("of_rank", [0, 1, 2])
def test_a_kind_that_branches_on_its_rank_once_is_named_with_both_edges(of_rank: int) -> None:
    for error in run_with(parting("validate", of_rank), by_rank=True):
        assert kind_of(error) == "RanksDivergedError"
        for words in ("from `parting` to `validate`", "from `parting` to `decide`", f"rank {of_rank or 1} "):
            assert words in str(error)


@pytest.mark.full
def test_ranks_that_part_and_meet_again_are_seen_by_what_they_have_chosen() -> None:
    assert [kind_of(outcome) for outcome in run_with(parting("aside"), by_rank=True)] == ["RanksDivergedError"] * 3


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


@pytest.mark.full
def test_a_guard_on_a_gathered_value_takes_all_ranks_the_same_way_and_one_on_the_loss_does_not() -> None:
    def skipping(value: str) -> Graph:
        graph = PLAN.graph().insert("agree", Largest, after="train_batch", reads={"value": "loss"})
        graph = graph.insert("look", look, after="train_batch").insert("discard").connect("discard", "accumulate")
        graph = graph.connect("agree", "discard", when="spike").guard("spike", f"{value} > 3.5")
        return replace(graph, allow=("G701",)) if value == "high" else graph

    def program(value: str) -> Callable[[FakeRank], int]:
        def run(ranks: FakeRank) -> int:
            step = lambda model, batch: model.counts.sum() * 0 + batch.double().mean()  # noqa: E731
            trainer = PLAN.trainer(skipping(value).set("finish", after="1 epochs"), training_step=step)
            trainer.run()
            return int(trainer.progress["discard"]["runs"])

        return run

    assert run_ranks(3, program("agreed")) == [1, 1, 1]
    errors = " ".join(str(each) for each in outcomes_of(3, program("high")))
    assert "rank 0 from `agree` to `accumulate`, rank 1 from `agree` to `discard`" in errors


@pytest.mark.full
def test_clocks_that_are_50_seconds_apart_take_ranks_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = PLAN.graph().set("validate", every="30 seconds").set("log", every="20 seconds")
    graph = graph.set("finish", after="200 seconds")

    def program(ranks: FakeRank) -> tuple[Outcome, int, int]:
        trainer = PLAN.trainer(graph)
        ticks = itertools.count()

        def clock(*now: float) -> float:
            seconds = next(ticks)  # one whenever it is read
            return float(seconds + 50 * ranks.rank * (seconds > 10))

        monkeypatch.setattr(trainer._session.watch, "running", clock)
        outcome = trainer.run()
        return outcome, trainer.progress["validate"]["runs"], trainer.progress["next_batch"]["batches"]

    first, second, third = run_ranks(3, program)
    assert first == second == third
    assert first[0] is Outcome.FINISHED and first[1] >= 6


# ---- what differs at the start, or where a run is continued


def differing(ranks: FakeRank, what: str) -> dict[str, Any]:
    """What a rank begins with."""
    torch.manual_seed(ranks.rank if what == "weights" else 0)
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    if what == "lazy":
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LazyLinear(1))
    lr = 0.5 + ranks.rank if what == "lr" else 0.1
    if what == "wrapped":
        model = torch.nn.Sequential(torch.nn.DataParallel(model))
    trained = [torch.zeros(1)] if what == "lazy" else [*model.parameters()]
    given: dict[str, Any] = {
        "graph": PLAN.graph().set("accumulate", every=2 + (ranks.rank if what == "graph" else 0)),
        "model": model,
        "optimizer": torch.optim.SGD(trained, lr=lr),
        "train_data": [torch.ones(2, 2)] * (6 - (ranks.rank if what == "length" else 0)),
        "training_step": lambda model, batch: model(batch).square().mean(),
        "val_data": [torch.ones(2, 2)],
        "validation_step": lambda model, batch: {"number": model(batch).mean()},
    }
    if what == "shape":
        given["further"] = torch.nn.Linear(2 + ranks.rank, 1)
    if what == "arguments":
        given["about"] = {"arguments": {"width": 3 + ranks.rank}}
    if what == "exchange":
        given["graph"] = given["graph"].remove("exchange")
    if what == "unread" and ranks.rank:
        given["max_epochs"] = 3
    return given


AT_THE_START = {
    "weights": "ranks differ in `model.0.weight`: 'float32 [2, 2] ",
    "shape": "ranks differ in `further.weight`: 'float32 [1, 2] ",
    "length": "ranks differ in the length of `train_data`: 6 on rank 0; 5 on rank 1",
    "graph": "ranks differ in the graph, line ",
    "lr": "ranks differ in `optimizer.lr`: 0.5 on rank 0; 1.5 on rank 1",
    "arguments": "ranks differ in `width`: 3 on rank 0; 4 on rank 1",
    "wrapped": "`model` is wrapped in DataParallel, which exchanges ",
    "lazy": "`model.1.weight` is not initialized yet, and each rank would initialize it ",
    "exchange": "G702",
}


@pytest.mark.parametrize("what", AT_THE_START)
def test_ranks_that_begin_with_what_differs(what: str) -> None:
    outcomes = outcomes_of(2, lambda ranks: PLAN.trainer(**differing(ranks, what)).run())
    assert len({*map(str, outcomes)}) == 1
    assert isinstance(outcomes[0], Exception) and AT_THE_START[what] in str(outcomes[0])


CONTINUED = {
    "weights": "ranks differ in `model.0.weight`: ",
    "graph": "ranks differ in the graph, line ",
    "lr": "ranks differ in `optimizer.lr`: 0.5 on rank 0",
    "lazy": "`model.1.weight` is not initialized yet",
}


@pytest.mark.parametrize("what", CONTINUED)
def test_ranks_that_continue_with_what_differs(what: str) -> None:
    def program(ranks: FakeRank) -> Any:
        trainer = PLAN.trainer()
        trainer.advance(9)
        given = differing(ranks, what)
        given |= {"train_data": None, "val_data": None, "validation_step": None}
        trainer.rewire(given.pop("graph"), **{name: value for name, value in given.items() if value is not None})

    for outcome in outcomes_of(2, program):
        assert CONTINUED[what] in str(outcome)


def test_ranks_of_other_seeds_are_named() -> None:
    it = world(model=small_model, training_step=cross_entropy)
    for outcome in outcomes_of(2, lambda ranks: it.trainer(seed=ranks.rank).run()):
        assert "ranks differ in `seed`: 0 on rank 0; 1 on rank 1" in str(outcome)


@pytest.mark.full
def test_weights_that_one_rank_changes_alone_are_found_without_a_save() -> None:
    @node
    def perturb(model: torch.nn.Module, rank: int, step: int) -> None:
        if rank == 1 and step == 2:
            with torch.no_grad():
                model.counts[3] += 0.5  # type: ignore[index, operator]

    graph = PLAN.graph().insert("perturb", perturb, after="zero_grad", reads={"step": "step.steps"})
    for error in run_with(graph, by_rank=True):
        assert kind_of(error) == "RanksDivergedError"
        assert "ranks differ in `model.counts`: " in str(error) and " on rank 0; " in str(error)


def test_a_sparse_gradient_is_named() -> None:
    def program(ranks: FakeRank) -> Any:
        model = torch.nn.Embedding(6, 3, sparse=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = lambda model, batch: model(batch).sum()  # noqa: E731
        return PLAN.trainer(model=model, optimizer=optimizer, training_step=step).run()

    for outcome in outcomes_of(2, program):
        assert "a parameter of shape [6, 3] has a sparse gradient" in str(outcome)


# ---- ranks that fail or vanish


@pytest.mark.full
def test_a_rank_that_fails_is_named_by_the_others_with_its_node() -> None:
    def fails(model: torch.nn.Module, batch: torch.Tensor, step: int) -> torch.Tensor:
        if int(batch) == 5 and step == 0:
            raise ValueError("a bad batch")
        loss: torch.Tensor = model(batch)
        return loss

    outcomes = run_with(PLAN.graph(), training_step=fails)
    (rank,) = [number for number, outcome in enumerate(outcomes) if kind_of(outcome) == "ValueError"]
    for outcome in outcomes[:rank] + outcomes[rank + 1 :]:
        assert kind_of(outcome) == "RankFailedError"
        assert f"rank {rank} failed in `train_batch`" in str(outcome) and "ValueError: a bad batch" in str(outcome)


def test_what_one_rank_refuses_before_the_run_is_told_to_the_others() -> None:
    first, second = outcomes_of(2, lambda ranks: PLAN.trainer(**differing(ranks, "unread")).run())
    assert kind_of(second) == "GraphError" and str(first).startswith("rank 1 failed before the run: GraphError: ")


@pytest.mark.full
@pytest.mark.second(2)
@pytest.mark.parametrize("seed", range(6))
def test_a_rank_that_is_killed_is_missed_and_nobody_waits(seed: int) -> None:
    def kill(world: World) -> None:
        if world.switches == 20 + 7 * seed:
            world.killed.add(seed % 3)

    outcomes: list[Any] = World(3, random.Random(seed), kill).run(lambda ranks: PLAN.trainer().run())
    assert isinstance(outcomes.pop(seed % 3), KilledError)
    for outcome in outcomes:
        assert kind_of(outcome) == "RankFailedError" and f"rank {seed % 3} did not arrive in time" in str(outcome)
