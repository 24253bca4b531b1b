"""What ranks do is needed: without any part of it, a test of schedules, divergence or rounds fails."""

from __future__ import annotations

import random
from typing import Any

import pytest

from graphtrain import Outcome
from graphtrain.data.shares import Windows
from graphtrain.errors import RanksDivergedError
from graphtrain.program import agreement as agreement_module
from graphtrain.program.agreement import Agreement
from graphtrain.program.gradient_windows import GradientWindows
from graphtrain.ranks import Ranks, Record
from tests.ranks.fake_ranks import BrokenProtocolError, World
from tests.ranks.schedules import Plan, run_plan
from tests.ranks.test_divergence import PLAN, branch_on, run_with

Patch = pytest.MonkeyPatch


def trained(world_size: int, began_with: int, every: int = 2) -> list[float]:
    """How often each batch was stepped, of a run that began with another number of ranks."""
    plan = Plan(batches=7, every=every, validation=1, with_loader=False, settings={"finish": {"after": "1 epochs"}})
    windows: list[int] = []

    def program(ranks: Ranks) -> list[float]:
        trainer = plan.trainer()
        trainer._session.compiled.program.window_ranks = began_with
        trainer.run()
        if not ranks.rank:
            windows.append(trainer.progress["step"]["steps"])
        counts = trainer.resources["model"].counts.detach() * began_with * every
        return [*counts.round(decimals=6).tolist(), float(trainer.progress["step"]["steps"])]

    return World(world_size, random.Random(0)).run(program)[0]  # type: ignore[return-value]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_windows_stay_those_of_the_world_size_that_the_run_began_with(world_size: int) -> None:
    assert trained(world_size, began_with=3) == [1.0] * 7 + [2.0]  # 6 micro-batches, and the one that is left


@pytest.mark.full
def test_without_the_room_of_a_window_it_takes_more(monkeypatch: Patch) -> None:
    expected = trained(4, began_with=1, every=3)
    assert expected == [1.0] * 7 + [3.0]
    monkeypatch.setattr(GradientWindows, "filled_by", lambda self, bound: Windows())
    assert trained(4, began_with=1, every=3) != expected


@pytest.mark.full
def test_a_request_that_comes_while_records_are_gathered_is_not_lost(monkeypatch: Patch) -> None:
    def asked(at: int, clears: bool) -> int:
        trainers: dict[int, Any] = {}
        plan = Plan(batches=8, every=1, validation=1, with_loader=False, settings={"checkpoint": {"every": "never"}})

        def ask(world: World) -> None:
            if world.switches == at:
                trainers[1]._run.requests.ask("save")

        synchronise = Agreement.synchronise

        def clearing(self: Agreement, *arguments: Any, **options: Any) -> Any:
            records = synchronise(self, *arguments, **options)
            self._requests._asked.clear()
            return records

        if clears:
            monkeypatch.setattr(Agreement, "synchronise", clearing)

        def program(ranks: Ranks) -> int:
            trainer = trainers[ranks.rank] = plan.trainer()
            saved: list[str] = []
            note = trainer._run.requests.saved
            monkeypatch.setattr(trainer._run.requests, "saved", lambda: saved.append(trainer.position) or note())
            trainer.run()
            return len(saved)

        return World(2, random.Random(5), ask).run(program)[0]  # type: ignore[return-value]

    moments = range(44, 47)
    assert [asked(at, clears=False) for at in moments] == [1 for _ in moments]
    assert 0 in [asked(at, clears=True) for at in moments]


@pytest.mark.full
def test_without_choices_in_the_record_ranks_that_part_and_meet_are_not_seen(monkeypatch: Patch) -> None:
    graph = PLAN.graph().insert("parting", branch_on, after="zero_grad", reads={"step": "step.steps"})
    graph = graph.insert("aside", "choice", after="parting").guard("parted", "branch")
    graph = graph.connect("parting", "decide", "parted")
    assert all(isinstance(outcome, RanksDivergedError) for outcome in run_with(graph, by_rank=True))
    monkeypatch.setattr(agreement_module, "hash", lambda choices: 0, raising=False)
    assert run_with(graph, by_rank=True) == [Outcome.FINISHED] * 3


def test_ranks_that_wait_for_each_other_are_a_broken_protocol() -> None:
    def program(ranks: Ranks) -> None:
        if ranks.rank == 0:
            ranks.gather(b"x" * Record.size)

    results = World(2, random.Random(0)).run(program)
    assert "gone" in str(results[0])
    with pytest.raises(BrokenProtocolError):
        World(2, random.Random(0)).run(lambda ranks: ranks.gather(b"x" * ranks.rank))


@pytest.mark.full
def test_a_run_of_ranks_equals_itself_in_any_order() -> None:
    plan = Plan(batches=5, every=2, validation=2, with_loader=True)
    assert run_plan(plan, 3, seed=1)[0].metrics == run_plan(plan, 3, seed=2)[0].metrics
