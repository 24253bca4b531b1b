"""Ranks that part, fail or vanish: an error that names it on every rank, and never a wait for each other."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from graphtrain import Graph, Outcome, node
from graphtrain.distributed import Ranks
from graphtrain.errors import RankFailedError, RanksDivergedError
from tests.distributed.fake_ranks import KilledError, World
from tests.distributed.schedules import Plan

PLAN = Plan(batches=6, every=2, validation=2, with_loader=False)


def run_with(graph: Graph, *, by_rank: bool = False, **resources: Any) -> list[Any]:
    world = World(3, random.Random(0))
    return world.run(lambda ranks: PLAN.trainer(graph, **{"rank": ranks.rank} if by_rank else {}, **resources).run())


@node(writes="branch")
def branch_on(rank: int, step: int, *, of_rank: int = 1, at: int = 2) -> bool:
    return rank == of_rank and step == at


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
        hold = trainer._writer.hold

        def counted(run: Any) -> bool:
            saves[ranks.rank] = saves.get(ranks.rank, 0) + 1
            return hold(run)

        trainer._writer.hold = counted  # type: ignore[method-assign]
        if ranks.rank == 1:
            trainer._requests.ask("save")
        return trainer.run()

    PLAN.settings["checkpoint"] = {"every": "never"}
    assert World(2, random.Random(3)).run(program) == [Outcome.FINISHED] * 2
    assert saves == {0: 1, 1: 1}
