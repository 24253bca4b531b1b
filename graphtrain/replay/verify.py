"""Whether a run is exact: each span between two checkpoints is replayed, and compared with what was saved, bit by bit.

Where two replays disagree with each other, the computation itself is not repeatable. Where they agree with each other
and not with the run, something that the run had in memory was not in the checkpoint that the span begins with.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace

from graphtrain.replay.history import Segment
from graphtrain.replay.reexecution import Trace, Verdict, reexecute
from graphtrain.run.trainer import Trainer

_MUCH_MEMORY = 64 << 20


def verify(segment: Segment, make: Callable[[Segment], Trainer]) -> Verdict:
    """Replay a span, and compare it with the run; where it differs, replay it twice more to find out why.

    Arguments:
        make: returns a new trainer, set up as the run was in that span. What it raises is wrong with every span.
    """

    def replay(trace: Trace | None = None) -> Verdict:
        verdict = reexecute(segment, make(segment), trace)
        if verdict.comparison.size > _MUCH_MEMORY:
            # A trainer is part of a cycle of references, and there may be no memory for it and the next (takes 0.1 s).
            gc.collect()
        return verdict

    first = replay()
    if first.failure or first.is_equal:
        return first
    # Hashing the state after every node is slow, so the first replay, which is mostly equal, goes without.
    traced = Trace()
    compared = Trace(expected=traced.digests)
    verdicts = [first, replay(traced), replay(compared)]
    for verdict in verdicts:
        if verdict.failure:
            return verdict
    if compared.divergence:
        return replace(first, cause="unrepeatable", divergence=compared.divergence)
    outcomes = {tuple(map(str, verdict.comparison.differences)) for verdict in verdicts}
    return replace(first, cause="lost" if len(outcomes) == 1 else "unrepeatable")
