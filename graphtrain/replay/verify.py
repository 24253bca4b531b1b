"""Whether a run is exact: each span between two checkpoints is replayed, and compared with what was saved, bit by bit.

Where two replays disagree with each other, the computation itself is not repeatable. Where they agree with each other
and not with the run, something that the run had in memory was not in the checkpoint that the span begins with.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from graphtrain.errors import CheckpointError, DataError, UsageError
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Loop, Transition
from graphtrain.replay.comparison import StateDifference
from graphtrain.replay.history import Segment
from graphtrain.replay.reexecution import Reexecution, ReplayResult, Trace
from graphtrain.run.trainer import Trainer
from graphtrain.storage.checkpoint import read_checkpoint

_MUCH_MEMORY = 64 << 20


@dataclass(frozen=True)
class Verdict:
    """What is known of a span.

    Attributes:
        replayed: the first replay; None if it failed.
        cause: why it differs: `lost` state, or `unrepeatable`; empty if nothing differs, or if it failed.
        divergence: the first node after which two replays disagree, and when; empty where none is known.
        failure: why the span could not be replayed; empty if it could.
    """

    segment: Segment
    replayed: ReplayResult | None
    cause: Literal["", "lost", "unrepeatable"] = ""
    divergence: str = ""
    failure: str = ""

    @property
    def differences(self) -> list[StateDifference]:
        """What differs from the run."""
        return self.replayed.comparison.differences if self.replayed is not None else []

    @property
    def is_equal(self) -> bool:
        """True if nothing differs."""
        return self.replayed is not None and not self.differences


def verify(segment: Segment, make: Callable[[Segment], Trainer]) -> Verdict:
    """Replay a span, and compare it with the run; where it differs, replay it twice more to find out why.

    Arguments:
        make: returns a new trainer, set up as the run was in that span.
    """

    def replay(trace: Trace | None = None) -> ReplayResult:
        result = reexecute(segment, make(segment), trace)
        if result.comparison.size > _MUCH_MEMORY:
            # A trainer is part of a cycle of references, and there may be no memory for it and the next (takes 0.1 s).
            gc.collect()
        return result

    try:
        first = replay()
        if not first.comparison.differences:
            return Verdict(segment, first)
        # Hashing the state after every node is slow, so the first replay, which is mostly equal, goes without.
        trace = Trace()
        replays = [first, replay(trace), replay(trace.rewound())]
    except _CannotReplayError as error:
        return Verdict(segment, None, failure=str(error))
    if trace.divergence:
        return Verdict(segment, first, "unrepeatable", trace.divergence)
    outcomes = {tuple(map(str, result.comparison.differences)) for result in replays}
    return Verdict(segment, first, "lost" if len(outcomes) == 1 else "unrepeatable")


class _CannotReplayError(Exception):
    """This span cannot be replayed. What `make` raises is wrong with every span, and is not caught."""


def reexecute(segment: Segment, trainer: Trainer, trace: Trace | None = None) -> ReplayResult:
    """Replay a span once, and compare."""
    reexecution: Reexecution | None = None

    def place(compiled: CompiledGraph, loop: Loop) -> list[Transition]:
        nonlocal reexecution
        reexecution = Reexecution(compiled, loop, goal, trace)
        return reexecution.transitions()

    try:
        goal = read_checkpoint(segment.goal.path)
        trainer.run_to(place, "auto" if segment.start is None else segment.start.path)
        assert reexecution is not None, "placed before anything runs"
        return reexecution.result()
    except (CheckpointError, DataError, UsageError) as error:
        raise _CannotReplayError(str(error)) from None
