"""Runs of several ranks, of another number after each cut: each gradient is in one step, each step is of as many.

The ranks are threads of one process, of which one runs at a time, in an order that is drawn (`tests.fake_ranks`).
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from graphtrain import STOP, Outcome, Trainer
from graphtrain.errors import CheckpointError, GraphtrainError, LifeCycleError, RanksError, SaveFailedError
from graphtrain.ranks import Ranks, using_ranks
from graphtrain.resume import rank_saves
from graphtrain.storage.manifest import read_manifest
from tests.fake_ranks import KilledError, World
from tests.schedules import Plan, is_refused, ranks_of_newest

_MOST_PROCESSES = 60
_WITHOUT_EVENTS = 40  # from then on nothing happens any more
_NOW = "0 batches"
_REFUSED: Any = ("refused", "", [], 0, [], 0)  # with another number of ranks in the middle of a window


@dataclass(frozen=True)
class RankLife:
    """Everything that a life of several ranks depends on.

    Attributes:
        sizes: the numbers of ranks, one after each cut, drawn from these.
        failing: how probable it is that a rank cannot write its files of a checkpoint.
        kills: how probable it is, in the life of a process, that one rank is killed.
        requests: how probable it is, whenever another rank may run, that one is asked to stop or save.
        asks: how probable it is that a step function asks its rank for that.
        saves: how probable it is that a process saves where it has resumed, and ends.
        tokens: True if a window is divided by its tokens; batch k has k + 1 of them.
        stop: the batch of the first epoch in which the step function returns STOP. Default: it never does.
    """

    seed: int
    plan: Plan
    sizes: tuple[int, ...]
    failing: float
    kills: float
    requests: float
    if_failed: str
    asks: float = 0.0
    saves: float = 0.0
    tokens: bool = False
    stop: int | None = None

    @classmethod
    def drawn(cls, seed: int) -> RankLife:
        """The life of a seed."""
        choose = random.Random(seed)
        plan = Plan.drawn(choose)
        return cls(
            seed,
            plan,
            tuple(choose.randint(1, 4) for _ in range(choose.choice([1, 2, 4]))),
            choose.choice([0.0, 0.0, 0.2]),
            choose.choice([0.0, 0.3]),
            choose.choice([0.0, 0.005, 0.02]),  # a start has dozens of such places: with more, nothing is trained
            choose.choice(["stop", "continue"]),
            choose.choice([0.0, 0.1, 0.5]),
            choose.choice([0.0, 0.2]),
            choose.random() < 0.4,
            choose.randrange(plan.batches) if choose.random() < 0.5 else None,
        )

    def smaller(self) -> Iterator[RankLife]:
        """Lives in which one thing less happens."""
        for name in ("failing", "kills", "requests", "asks", "saves"):
            if getattr(self, name):
                yield replace(self, **{name: 0.0})
        if self.tokens or self.stop is not None:
            yield replace(self, tokens=False, stop=None)
        if len(self.sizes) > 1:
            for number in range(len(self.sizes)):
                yield replace(self, sizes=(*self.sizes[:number], *self.sizes[number + 1 :]))

    def live(self, folder: Path) -> str | None:
        """Live it in a folder; returns what is wrong, or None."""
        choose = random.Random(self.seed + 1)
        graph = self.plan.graph().set("checkpoint", if_failed=self.if_failed, keep=3)
        if self.tokens:
            graph = graph.overlay("token_windows").set("validate/eval_batch", per="samples")
        if self.stop is not None:
            graph = graph.set("finish", after="9 epochs")  # which it does not come to
        consumed, began_with = 0, self.sizes[0]
        with self._failing_writes() as stop_failing:
            for number in range(_MOST_PROCESSES):
                is_quiet = number >= _WITHOUT_EVENTS
                if is_quiet:
                    stop_failing()
                world_size = choose.choice(self.sizes) if number else self.sizes[0]
                if not any((folder / "checkpoints").glob("0*")):  # none was written: it begins again
                    began_with = world_size
                until = f"{consumed + choose.randint(1, 9)} batches" if choose.random() < 0.5 else None
                if self.stop is not None and consumed <= self.stop and choose.random() < 0.5:
                    until = f"{self.stop + 1} batches"
                if not is_quiet and choose.random() < self.saves:
                    until = _NOW
                killed_at = choose.randint(1, 400) if not is_quiet and choose.random() < self.kills else None
                order = choose.random()
                ends = self._processes(folder, graph, world_size, began_with, until, order, killed_at, is_quiet)
                if ends and ends[0] == _REFUSED:
                    world_size = ranks_of_newest(folder / "checkpoints")
                    ends = self._processes(folder, graph, world_size, began_with, until, order, killed_at, is_quiet)
                if isinstance(ends, str):
                    return ends
                if not ends:
                    continue
                consumed = ends[0][3]
                if ends[0][0] in (str(Outcome.FINISHED), str(Outcome.ALREADY_FINISHED)):
                    return self._wrong(ends[0], consumed, began_with * self.plan.every)
        return f"it does not end: {ends[0]}"

    def _wrong(self, end: Any, consumed: int, window: int) -> str | None:
        """What is wrong with a run that has ended after these batches."""
        epochs, rest = divmod(consumed, self.plan.batches)
        expected, steps = [0.0] * self.plan.batches, 0
        for length in [self.plan.batches] * epochs + [rest]:
            for begin in range(0, length, window):
                filled, steps = range(begin, min(begin + window, length)), steps + 1
                for batch in filled:
                    expected[batch] += window / sum(number + 1 for number in filled) if self.tokens else 1.0
        if any(abs(count - other) > 1e-5 for count, other in zip(end[2], expected, strict=True)):
            return f"steps by batch: {end[2]}, not {expected}"
        most = consumed if self.stop is None else self.stop + 1 + 2 * max(self.sizes)
        if consumed > most:
            return f"the step function returns STOP in batch {self.stop}, and {consumed} are trained on, not {most}"
        return None if end[5] == steps else f"{end[5]} steps, not {steps}"

    def _step(self, ask: Callable[..., None]) -> Callable[..., Any]:
        def step(model: Any, batch: torch.Tensor, epoch: int) -> Any:
            number = int(batch)
            ask(epoch, number)
            result = {"loss": model(batch), "tokens": batch[0] + 1} if self.tokens else model(batch)
            return (result, STOP) if (epoch, number) == (0, self.stop) else result

        return step

    def _processes(
        self, folder: Path, graph: Any, world_size: int, began_with: int, until: str | None, order: float,
        killed_at: int | None, is_quiet: bool,
    ) -> list[Any] | str:  # fmt: skip
        """The ends of the ranks; empty where one was killed; what is wrong, as a sentence."""
        trainers: dict[int, Trainer] = {}
        window = began_with * self.plan.every

        def life(ranks: Ranks) -> tuple[str, str, list[float], int, list[dict[str, float]], int]:
            def ask(*place: int) -> None:
                drawn = random.Random(f"{order} {ranks.rank} {place}")
                if not is_quiet and drawn.random() < self.asks:
                    asked: Any = drawn.choice(["stop", "save"])
                    trainer._run.requests.ask(asked)

            trainer = trainers[ranks.rank] = self.plan.trainer(
                graph, run_dir=folder, training_step=self._step(ask), not_state=["training_step<ask>"]
            )
            try:
                if until == _NOW:
                    trainer.advance(0)
                    trainer.save()
                how = str(Outcome.REACHED if until == _NOW else trainer.run(until=until))
            except LifeCycleError:  # the run had ended when a rank was killed
                how = str(trainer.run())
            except SaveFailedError as error:
                how = str(error)
            except CheckpointError as error:
                assert is_refused(error)
                return _REFUSED
            counts = (trainer.resources["model"].counts.detach() * window).round(decimals=6).tolist()
            batches, steps = trainer.progress["next_batch"]["batches"], trainer.progress["step"]["runs"]
            return how, trainer.position, counts, batches, trainer.metrics, steps

        def at_switch(world: World) -> None:
            if killed_at is not None and world.switches == killed_at:
                world.killed.add(world.choose.randrange(world_size))
            elif trainers and not is_quiet and world.choose.random() < self.requests:
                asked: Any = world.choose.choice(["stop", "save", "save"])
                trainers[world.choose.choice(sorted(trainers))]._run.requests.ask(asked)

        if world_size == 1:
            with using_ranks(Ranks()):
                ends: list[Any] = [life(Ranks())]
        else:
            world = World(world_size, random.Random(order), at_switch)
            ends = world.run(life)
            if world.killed:
                strange = [end for end in ends if isinstance(end, BaseException)
                           and not isinstance(end, KilledError | RanksError | GraphtrainError)]  # fmt: skip
                return f"a rank is killed, and another one ends with {strange[0]!r}" if strange else []
        for end in ends:
            if isinstance(end, BaseException):
                return f"a rank ends with {end!r}"
            if end[:3] != ends[0][:3] or end[4] != ends[0][4]:
                return f"ranks end differently: {end} and {ends[0]}"
        for path in (folder / "checkpoints").iterdir():
            if path.name.startswith("."):
                return f"a part of a checkpoint is left: {path.name}"
            if read_manifest(path).window_ranks != began_with:
                return f"{path.name} is of windows of {read_manifest(path).window_ranks} ranks, not {began_with}"
        return ends

    @contextmanager
    def _failing_writes(self) -> Iterator[Any]:
        """A span in which some ranks cannot write their part of some checkpoints, until its function is called."""
        write, failing = rank_saves.write_files, [self.failing]

        def write_or_fail(folder: Path, rank: int, *more: Any) -> Any:
            if random.Random(f"{self.seed} {folder.name} {rank}").random() < failing[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(folder, rank, *more)

        rank_saves.write_files = write_or_fail
        try:
            yield lambda: failing.__setitem__(0, 0.0)
        finally:
            rank_saves.write_files = write
