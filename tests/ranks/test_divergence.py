"""Ranks that part, fail or vanish: an error that names it on every rank, and never a wait for each other."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphtrain import Graph, Outcome, node
from graphtrain.errors import CheckpointError, DataError, RankFailedError, RanksDivergedError, UsageError
from graphtrain.program import agreement as agreements
from graphtrain.program.agreement import Agreement
from graphtrain.program.requests import Requests
from graphtrain.ranks import Ranks, current_ranks
from tests.ranks.fake_ranks import KilledError, World
from tests.ranks.schedules import Plan

PLAN = Plan(batches=6, every=2, validation=2, with_loader=False)


def run_with(graph: Graph, *, by_rank: bool = False, **resources: Any) -> list[Any]:
    world = World(3, random.Random(0))
    return world.run(lambda ranks: PLAN.trainer(graph, **{"rank": ranks.rank} if by_rank else {}, **resources).run())


def agreement_of(ranks: Ranks) -> Agreement:
    return Agreement(ranks, Requests(agrees=True))


@node(writes="branch")
def branch_on(rank: int, step: int, *, of_rank: int = 1, at: int = 2) -> bool:
    return rank == of_rank and step == at


@pytest.mark.first(1)
@pytest.mark.parametrize("of_rank", [0, 1, 2])
def test_a_kind_that_branches_on_its_rank_once_is_named_with_both_edges(of_rank: int) -> None:
    reads = {"step": "step.steps"}
    graph = PLAN.graph().insert("parting", branch_on, after="zero_grad", reads=reads, of_rank=of_rank)
    graph = graph.guard("parted", "branch").connect("parting", "validate", "parted")
    for error in run_with(graph, by_rank=True):
        assert isinstance(error, RanksDivergedError)
        assert "from `parting` to `validate`" in str(error)
        assert "from `parting` to `decide`" in str(error)
        assert f"rank {of_rank or 1} " in str(error)


def test_a_rank_that_fails_is_named_by_the_others_with_its_node() -> None:
    def fails(model: torch.nn.Module, batch: torch.Tensor, step: int) -> torch.Tensor:
        if int(batch) == 5 and step == 0:
            raise ValueError("a bad batch")
        loss: torch.Tensor = model(batch)
        return loss

    outcomes = run_with(PLAN.graph(), training_step=fails)
    failed = [outcome for outcome in outcomes if isinstance(outcome, ValueError) and "bad batch" in str(outcome)]
    assert len(failed) == 1, outcomes
    rank = outcomes.index(failed[0])
    for outcome in outcomes[:rank] + outcomes[rank + 1 :]:
        assert isinstance(outcome, RankFailedError)
        assert f"rank {rank} failed in `train_batch`" in str(outcome)
        assert "ValueError: a bad batch" in str(outcome)


def test_ranks_that_synchronise_for_different_purposes_are_named_with_them() -> None:
    place = "at `the start` (call 1, "
    for message in raised(lambda ranks: agreement_of(ranks).synchronise("save" if ranks.rank else "batch")):
        assert f"rank 0 is {place}batch), rank 1 {place}save)" in message


def test_a_connection_that_is_lost_in_a_sharded_model_is_that_of_a_rank() -> None:
    def act() -> None:
        raise RuntimeError("gloo: Connection closed by peer" if current_ranks().rank else "out of memory")

    first, second = raised(lambda ranks: agreement_of(ranks).forward(act))
    assert first == "out of memory" and second.startswith("rank 0 did not come to call 1, ")


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("seed", range(6))
def test_a_rank_that_is_killed_is_missed_and_nobody_waits(seed: int) -> None:
    def kill(world: World) -> None:
        if world.switches == 20 + 7 * seed:
            world.killed.add(seed % 3)

    world = World(3, random.Random(seed), kill)
    outcomes = world.run(lambda ranks: PLAN.trainer().run())
    assert isinstance(outcomes[seed % 3], KilledError)
    others = [outcome for rank, outcome in enumerate(outcomes) if rank != seed % 3]
    for outcome in others:
        assert isinstance(outcome, RankFailedError)
        assert f"rank {seed % 3} did not come" in str(outcome)


def test_save_on_one_rank_is_one_checkpoint_of_all() -> None:
    saves: dict[int, int] = {}

    def program(ranks: Ranks) -> Outcome:
        trainer = PLAN.trainer()
        saved = trainer._run.requests.saved

        def counted() -> None:
            saves[ranks.rank] = saves.get(ranks.rank, 0) + 1
            saved()

        trainer._run.requests.saved = counted  # type: ignore[method-assign]
        if ranks.rank == 1:
            trainer._run.requests.ask("save")
        return trainer.run()

    PLAN.settings["checkpoint"] = {"every": "never"}
    assert World(2, random.Random(3)).run(program) == [Outcome.FINISHED] * 2
    assert saves == {0: 1, 1: 1}


@pytest.mark.full
def test_clocks_that_are_50_seconds_apart_take_ranks_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = PLAN.graph().set("validate", every="30 seconds").set("log", every="20 seconds")
    graph = graph.set("finish", after="200 seconds")

    def program(ranks: Ranks) -> tuple[Outcome, int, int]:
        trainer = PLAN.trainer(graph)
        ticks = itertools.count()

        def clock(*now: float) -> float:
            seconds = next(ticks)  # one whenever it is read
            return float(seconds + 50 * ranks.rank * (seconds > 10))

        monkeypatch.setattr(trainer._session.watch, "running", clock)
        outcome = trainer.run()
        return outcome, trainer.progress["validate"]["runs"], trainer.progress["next_batch"]["batches"]

    first, second, third = World(3, random.Random(0)).run(program)
    assert first == second == third
    assert isinstance(first, tuple) and first[0] is Outcome.FINISHED and first[1] >= 6
    monkeypatch.setattr(Agreement, "seconds", lambda agreement: agreement.run.seconds())
    assert any(isinstance(outcome, RanksDivergedError) for outcome in World(3, random.Random(0)).run(program))


@pytest.mark.full
def test_weights_that_one_rank_changes_alone_are_found_without_a_save() -> None:
    @node
    def perturb(model: torch.nn.Module, rank: int, step: int) -> None:
        if rank == 1 and step == 2:
            with torch.no_grad():
                model.counts[3] += 0.5

    graph = PLAN.graph().insert("perturb", perturb, after="zero_grad", reads={"step": "step.steps"})
    for error in run_with(graph, by_rank=True):
        assert isinstance(error, RanksDivergedError)
        assert "ranks differ in `model.counts`: " in str(error) and " on rank 0, 2; " in str(error)

    def changed_before(ranks: Ranks) -> None:
        trainer = PLAN.trainer()
        with torch.no_grad():
            trainer.resources["model"].counts += ranks.rank
        trainer.run()

    assert raised(changed_before)[0].startswith("ranks differ in `model.counts`: 'float64 [")


def raised(program: Callable[[Ranks], Any]) -> list[str]:
    return [str(outcome) for outcome in World(2, random.Random(0)).run(program)]


@pytest.mark.parametrize("continues", [False, True])
def test_a_lazy_model_whose_ranks_would_draw_other_weights_is_refused(continues: bool) -> None:
    def program(ranks: Ranks) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LazyLinear(1))
        trainer = PLAN.trainer(**{} if continues else {"model": model})
        trainer.advance(9)
        trainer.rewire(trainer.graph, model=model)

    for message in raised(program):
        assert message.startswith("`model.1.weight` is not initialized yet, and each rank would initialize it ")
        assert "hint: pass a batch through the model in setup()" in message


def test_a_sparse_gradient_is_named() -> None:
    def program(ranks: Ranks) -> Any:
        model = torch.nn.Embedding(6, 3, sparse=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return PLAN.trainer(
            model=model, optimizer=optimizer, training_step=lambda model, batch: model(batch).sum()
        ).run()

    for message in raised(program):
        assert "a parameter of shape [6, 3] has a sparse gradient" in message


@pytest.mark.parametrize("what", ["weights", "graph", "lr"])
def test_ranks_that_continue_with_what_differs(what: str) -> None:
    def program(ranks: Ranks) -> Any:
        trainer = PLAN.trainer()
        trainer.advance(9)
        model = torch.nn.Linear(1, 1)
        with torch.no_grad():
            model.weight.fill_(ranks.rank if what == "weights" else 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (1 + ranks.rank) if what == "lr" else 0.1)
        graph = trainer.graph.set("clip", max_norm=1.0 + ranks.rank) if what == "graph" else trainer.graph
        trainer.rewire(graph, model=model, optimizer=optimizer, training_step=lambda model, batch: model(batch).sum())

    differing = {
        "weights": "`model.weight`: 'float32 [1, 1] ",
        "lr": "`optimizer.lr`: 0.1 on rank 0; ",
    }
    for message in raised(program):
        assert message.startswith(f"ranks differ in {differing.get(what, 'the graph, line ')}")


@pytest.mark.full
def test_what_ranks_have_trained_each_for_itself_does_not_keep_them_from_continuing() -> None:
    def program(ranks: Ranks) -> Outcome:
        model = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.BatchNorm1d(3))
        trainer = PLAN.trainer(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            train_data=[torch.randn(4, 1) + number for number in range(6)],
            val_data=[torch.ones(4, 1)],
            training_step=lambda model, batch: model(batch).square().mean(),
            validation_step=lambda model, batch: {"number": model(batch).mean()},
        )
        trainer.advance(20)
        trainer.rewire(trainer.graph.overlay("ema"), model=torch.nn.Sequential(model))
        return trainer.run()

    assert raised(program) == [str(Outcome.FINISHED)] * 2


@pytest.mark.parametrize("kind", [UsageError, DataError, CheckpointError])
def test_an_error_of_the_leading_rank_has_its_type_on_all_ranks(kind: type[UsageError]) -> None:
    error = agreements._raised(agreements._named(kind("what happened", "what to do")))
    assert type(error) is kind
    assert (error.message, error.hint) == ("what happened", "what to do")  # type: ignore[attr-defined]
