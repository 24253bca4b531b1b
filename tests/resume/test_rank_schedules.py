"""Random lives of a run: any order of ranks, requests to some of them, disks that fail, cuts, and other world sizes."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Outcome, Trainer
from graphtrain.errors import CheckpointError, SaveFailedError
from graphtrain.ranks import Alone, Ranks, using_ranks
from graphtrain.resume import rank_saves
from graphtrain.storage.manifest import read_manifest
from tests.ranks.fake_ranks import World
from tests.ranks.schedules import Plan, is_refused, ranks_of_newest

# What a rank has come to: how its life has ended, where, how often each batch was stepped, and the metrics.
Life = tuple[str, str, list[float], dict[str, Any], list[dict[str, float]]]
REFUSED: Life = ("refused", "", [], {}, [])  # with another number of ranks in the middle of a window


def lives(
    plan: Plan, run_dir: Path, choose: random.Random, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> list[Life]:
    """The ends of a run that is resumed, each time with another number of ranks, until it is finished."""
    write, failing = rank_saves.write_files, choose.random() < 0.3

    def write_or_fail(folder: Path, rank: int, *more: Any) -> Any:
        if failing and random.Random(f"{folder.name} {rank}").random() < 0.2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(folder, rank, *more)

    monkeypatch.setattr(rank_saves, "write_files", write_or_fail)
    if_failed = choose.choice(["stop", "continue"])
    graph = plan.graph().set("checkpoint", if_failed=if_failed, keep=3)
    consumed, began_with, ends = 0, sizes[0], list[Any]()
    for number in range(60):
        if number == 40:
            failing = False
        world_size = choose.choice(sizes) if number else sizes[0]
        if ends and ends[0] == REFUSED:
            world_size = ranks_of_newest(run_dir / "checkpoints")
        if not any((run_dir / "checkpoints").glob("*")):  # none was written: it begins again
            began_with = world_size
        until = f"{consumed + choose.randint(1, 9)} batches" if choose.random() < 0.5 else None
        requests = choose.choice([0.0, 0.02, 0.2]) if number < 40 else 0.0
        trainers: dict[int, Trainer] = {}

        def live(
            ranks: Ranks,
            until: str | None = until,
            trainers: dict[int, Trainer] = trainers,
            window: int = began_with * plan.every,
        ) -> Life:
            trainer = trainers[ranks.rank] = plan.trainer(graph, run_dir=run_dir)
            try:
                how = str(trainer.run(until=until))
            except SaveFailedError as error:
                how = str(error)
            except CheckpointError as error:
                assert is_refused(error)
                return REFUSED
            counts = (trainer.resources["model"].counts.detach() * window).round(decimals=6).tolist()
            return how, trainer.position, counts, dict(trainer.progress["next_batch"]), trainer.metrics

        def ask(world: World, requests: float = requests, trainers: dict[int, Trainer] = trainers) -> None:
            if trainers and world.choose.random() < requests:
                asked: Any = world.choose.choice(["stop", "save", "save"])
                trainers[world.choose.choice(sorted(trainers))]._run.requests.ask(asked)

        if world_size > 1:
            ends = World(world_size, random.Random(choose.random()), ask).run(live)
        else:
            with using_ranks(Alone()):
                ends = [live(Alone())]
        for end in ends:
            if isinstance(end, BaseException):
                raise end
            assert end[:3] == ends[0][:3]
            assert end[4] == ends[0][4]
        for path in (run_dir / "checkpoints").iterdir():
            assert not path.name.startswith("."), "no part of a checkpoint is left"
            assert read_manifest(path).window_ranks == began_with
        if ends[0] == REFUSED:
            continue
        consumed = ends[0][3]["batches"]
        if ends[0][0] in (str(Outcome.FINISHED), str(Outcome.ALREADY_FINISHED)):
            return ends
    raise AssertionError(f"it does not end: {ends[0]}")


def check(seed: int, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = random.Random(seed)
    plan = Plan.drawn(choose)
    sizes = [choose.randint(1, 4) for _ in range(choose.choice([1, 2, 4]))]
    _, _, counts, progress, _ = lives(plan, run_dir, choose, monkeypatch, sizes)[0]
    epochs, rest = divmod(progress["batches"], plan.batches)
    assert counts == [float(epochs + (number < rest)) for number in range(plan.batches)], (
        f"every gradient is in one step: {seed}, {sizes}"
    )


@pytest.mark.second(2)
@pytest.mark.first(1)
@pytest.mark.parametrize("seed", [1, 2, 4, 5, 6, 7])
def test_any_life_trains_every_gradient_once(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, tmp_path, monkeypatch)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_lives(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, tmp_path, monkeypatch)
