"""Promise 17: the real engine on several ranks, in any order of theirs: one path, one outcome, every gradient once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from graphtrain import Outcome
from tests.fake_ranks import BrokenProtocolError, FakeRank, run_ranks
from tests.schedules import Plan, run_plan


def check(seed: int) -> None:
    choose = random.Random(seed)
    plan, world_size = Plan.drawn(choose), choose.randint(2, 4)
    ends = run_plan(plan, world_size, seed, requests=choose.choice([0.0, 0.02, 0.2]))
    first = ends[0]
    for end in ends[1:]:
        assert end.edges == first.edges
        assert end.outcomes == first.outcomes
        assert end.position == first.position == "end"
        assert end.counts == first.counts
        assert end.metrics == first.metrics
        for path, fields in first.progress.items():
            assert end.progress[path] == fields, path
    alone = run_plan(plan, world_size, seed)[0]
    assert first.counts == alone.counts, "what is asked of a rank changes what is trained"
    assert first.metrics == alone.metrics
    batches = first.progress["next_batch"]["batches"]
    epochs, rest = divmod(batches, plan.batches)
    expected = [float(epochs + (number < rest)) for number in range(plan.batches)]
    assert first.counts == expected, "every gradient is in one step"


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("part", range(4))
def test_any_order_of_ranks_and_requests(part: int) -> None:
    for seed in range(part * 4, part * 4 + 4):
        check(seed)


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(4))
def test_many_orders(part: int) -> None:
    for seed in range(1000 + part * 50, 1000 + part * 50 + 50):
        check(seed)


@pytest.mark.parametrize("world_size", [2, 4])
def test_windows_stay_those_of_the_world_size_that_the_run_began_with(world_size: int) -> None:
    plan = Plan(batches=7, every=2, validation=1, with_loader=False, settings={"finish": {"after": "1 epochs"}})

    def program(ranks: FakeRank) -> tuple[list[float], int]:
        trainer = plan.trainer()
        trainer._session.compiled.program.window_ranks = 3
        trainer.run()
        counts = trainer.resources["model"].counts.detach() * 3 * 2
        return counts.round(decimals=6).tolist(), trainer.read("step.steps")

    # 6 micro-batches, and the one that is left
    assert run_ranks(world_size, program) == [([1.0] * 7, 2)] * world_size


@pytest.mark.full
def test_a_save_that_one_rank_is_asked_for_is_one_checkpoint_of_all(tmp_path: Path) -> None:
    plan = Plan(batches=6, every=2, validation=2, with_loader=False, settings={"checkpoint": {"every": "never"}})

    def program(ranks: FakeRank) -> Outcome:
        trainer = plan.trainer(run_dir=tmp_path)
        trainer.advance(9)
        if ranks.rank == 1:
            trainer._run.requests.ask("save")
        trainer.advance(6)
        saved.append([path.name for path in (tmp_path / "checkpoints").glob("0*")])
        return trainer.run()

    saved: list[list[str]] = []
    assert run_ranks(2, program, seed=3) == [Outcome.FINISHED] * 2
    assert len(saved[-1]) == 1


def test_calls_of_ranks_that_do_not_meet_fail_these_tests() -> None:
    with pytest.raises(BrokenProtocolError):
        run_ranks(2, lambda ranks: ranks.gather(b"x" * ranks.rank))
