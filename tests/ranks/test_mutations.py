"""What ranks do is needed: without any part of it, a test of schedules, divergence or rounds fails."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from graphtrain import Outcome
from graphtrain.data.shares import Windows
from graphtrain.errors import RanksDivergedError
from graphtrain.program import agreement as agreement_module
from graphtrain.program.agreement import Agreement
from graphtrain.program.gradient_windows import GradientWindows
from graphtrain.program.requests import Requests
from graphtrain.program.rounds import Rounds
from graphtrain.ranks import Ranks, Record
from tests.ranks.fake_ranks import BrokenProtocolError, World
from tests.ranks.schedules import Plan, run_plan
from tests.ranks.test_divergence import PLAN, branch_on, run_with
from tests.ranks.test_schedules import check

Patch = pytest.MonkeyPatch


def exchange_twice(patch: Patch) -> None:
    once = Agreement.exchange

    def twice(self: Agreement, parameters: Any) -> None:
        once(self, parameters)
        once(self, parameters)

    patch.setattr(Agreement, "exchange", twice)


def divide_by_every(patch: Patch) -> None:
    def of_one(self: GradientWindows, counter: Any, declared: Any) -> Callable[[], int]:
        return self._cells.field(counter, declared.target).read

    patch.setattr(GradientWindows, "next_size", of_one)


def keep_gradients_of_rank_0(patch: Patch) -> None:
    def dropped(self: Agreement, parameters: Any, *buffers: Any, **options: Any) -> None:
        if self.rank:
            for parameter in parameters:
                parameter.grad = None
        exchange(self, parameters, *buffers, **options)

    exchange = Agreement.exchange
    patch.setattr(Agreement, "exchange", dropped)


def no_padding(patch: Patch) -> None:
    def gather(self: Agreement, value: Any) -> list[Any]:
        payload = agreement_module.pack(value, "gathered", agreement_module.Tensors("gathered"))
        self.synchronise("gather", agreement_module.Record(payload_bytes=len(payload)))
        return [agreement_module.unpack(data, {}) for data in self._together(lambda: self.ranks.gather(payload))]

    patch.setattr(Agreement, "gather", gather)


def reduce_before_synchronising(patch: Patch) -> None:
    def exchange(self: Agreement, parameters: Any, *buffers: Any, **options: Any) -> None:
        agreement_module.exchange_tensors(self.ranks, list(parameters))
        self.synchronise("exchange")

    patch.setattr(Agreement, "exchange", exchange)


def idle_ranks_train(patch: Patch) -> None:
    patch.setattr(Rounds, "source", lambda self, bound: None)


def act_on_own_signals(patch: Patch) -> None:
    patch.setattr(Requests, "ask", Requests.post)


MUTATIONS = [
    exchange_twice, divide_by_every, keep_gradients_of_rank_0, no_padding, reduce_before_synchronising,
    idle_ranks_train, act_on_own_signals,
]  # fmt: skip


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_fails_some_schedule(mutation: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutation(monkeypatch)
    for seed in range(12):
        try:
            check(seed)
        except Exception:
            return
    pytest.fail(f"no schedule notices {mutation.__name__}")


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
