"""What is done with another number of ranks, and in a save, is needed: without it a resume is not equal any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Outcome, Trainer
from graphtrain.errors import RanksDivergedError
from graphtrain.program.bind import Program
from graphtrain.resume import rank_resume
from graphtrain.storage.sharing import Sharing
from tests.resume.rank_runs import run
from tests.resume.test_rank_resume import assert_equal

BETWEEN, IN_VALIDATION, WINDOW = 12, 49, 6  # transitions

Mutate = Callable[[pytest.MonkeyPatch], None]


def take_the_window_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Program, "window_ranks", property(lambda program: 1, lambda program, value: None), raising=False
    )


def drop_means_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_resume._Resized, "_means", lambda resized: resized._states[0]["metrics"])


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize(
    ("mutate", "cut", "world_size"),
    [
        (take_the_window_of_now, BETWEEN, 1),
        (drop_means_of_others, IN_VALIDATION, 1),
    ],
)
def test_another_number_of_ranks_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutate: Mutate, cut: int, world_size: int
) -> None:
    whole = run(2, None, is_plain=True)
    run(2, tmp_path, advance=cut, is_plain=True)
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        assert_equal(run(world_size, tmp_path, is_plain=True), whole)


def test_a_rank_that_writes_alone_decides_nothing_alone(tmp_path: Path) -> None:
    def saved(run_dir: Path, *, asks_itself: bool) -> tuple[list[Outcome | None], list[int]]:
        """Rank 1 says that it is writing, for as long as it trains; saves that would wait for it are left out."""

        def act(trainer: Trainer) -> Outcome:
            is_rank_1 = trainer._session.world.rank == 1
            trainer._run.writer.is_writing = lambda: is_rank_1  # type: ignore[method-assign]
            if asks_itself:
                trainer._run.requests.is_busy = lambda: is_rank_1  # type: ignore[method-assign]
            return trainer.run()

        ends = run(2, run_dir, act=act, graph=lambda graph: graph.set("checkpoint", every="1 steps", if_busy="skip"))
        return [end.outcome for end in ends], [end.progress["checkpoint"]["skipped"] for end in ends]

    assert saved(tmp_path / "agreed", asks_itself=False) == ([Outcome.FINISHED] * 2, [4, 4])
    with pytest.raises(RanksDivergedError):
        saved(tmp_path / "local", asks_itself=True)


@pytest.mark.full
def test_what_is_each_ranks_own_is_saved_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of: Any = Sharing.of

    def all_of_rank_0(state: Any, told: Sequence[Any], leaves: Sequence[Any]) -> Sharing:
        return of(state, [told[0]] * len(told), [leaves[0]] * len(leaves))  # type: ignore[no-any-return]

    whole = run(2, None)
    monkeypatch.setattr(Sharing, "of", all_of_rank_0)
    run(2, tmp_path, advance=WINDOW)
    monkeypatch.undo()
    monkeypatch.setattr("graphtrain.resume.restore._expect_digest", lambda *arguments, **how: None)
    ends = run(2, tmp_path)
    assert [end.digest for end in ends] != [end.digest for end in whole]
