"""A span of a past run gone through again, up to the place of a checkpoint, and compared with it bit by bit.

Where two replays disagree with each other, the computation itself is not repeatable; where they agree with each other
and not with the run, something that the run had in memory was not in the checkpoint that the span begins with.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

from graphtrain.errors import CheckpointError, DataError, UsageError
from graphtrain.kind.trigger import Trigger
from graphtrain.program.bind import BoundNode, Program
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Loop, Visit
from graphtrain.program.run_state import RunState
from graphtrain.replay.comparison import Comparison, Difference, compare
from graphtrain.replay.history import Segment
from graphtrain.run.stops import before
from graphtrain.run.trainer import Trainer
from graphtrain.storage.checkpoint import Checkpoint, read_checkpoint

_SPARE_RUNS = 100
_MUCH_MEMORY = 64 << 20


@dataclass(frozen=True)
class Replayed:
    """What came of going through a span once.

    Attributes:
        comparison: with the checkpoint, where the going was nearest to it.
        batches: batches trained.
        notes: what is to be known of the comparison, in words.
    """

    comparison: Comparison
    batches: int
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What is known of a span.

    Attributes:
        replayed: the first going; None if it failed.
        cause: why it differs: "lost" state, or "unrepeatable"; empty if nothing differs, or if it failed.
        node: the first node after which two replays disagree, and where; empty where none is known.
        failure: why the span could not be gone through; empty if it could.
    """

    segment: Segment
    replayed: Replayed | None
    cause: Literal["", "lost", "unrepeatable"] = ""
    node: str = ""
    failure: str = ""

    @property
    def differences(self) -> list[Difference]:
        """What differs from the run."""
        return self.replayed.comparison.differences if self.replayed is not None else []

    @property
    def is_equal(self) -> bool:
        """True if nothing differs."""
        return self.replayed is not None and not self.differences


def verify(segment: Segment, make: Callable[[Segment], Trainer]) -> Verdict:
    """Go through a span, and say how it compares with the run; where it differs, twice more to say why.

    Arguments:
        make: answers a new trainer, set up as the run was when it went through that span.
    """
    try:
        first = _replayed(segment, make)
        if not first.comparison.differences:
            return Verdict(segment, first)
        trace = Trace()
        replays = [first, _replayed(segment, make, trace), _replayed(segment, make, trace.again())]
    except _CannotBeGoneThroughError as error:
        return Verdict(segment, None, failure=str(error))
    if trace.parted:
        return Verdict(segment, first, "unrepeatable", trace.parted)
    found = {tuple(map(str, one.comparison.differences)) for one in replays}
    return Verdict(segment, first, "lost" if len(found) == 1 else "unrepeatable")


class _CannotBeGoneThroughError(Exception):
    """A span, not all of them: what `make` raises is wrong with every span."""


def _replayed(segment: Segment, make: Callable[[Segment], Trainer], trace: Trace | None = None) -> Replayed:
    gone = _gone_through(segment, make(segment), trace)
    if gone.comparison.size > _MUCH_MEMORY:
        # A trainer refers to itself, and where the next one is made there may be no place for two (takes 0.1 s).
        gc.collect()
    return gone


def _gone_through(segment: Segment, trainer: Trainer, trace: Trace | None) -> Replayed:
    try:
        reexecution = Reexecution(read_checkpoint(segment.goal.path), trace)
        trainer.run_gated(reexecution.gate, "auto" if segment.start is None else segment.start.path)
        return reexecution.result()
    except (CheckpointError, DataError, UsageError) as error:
        raise _CannotBeGoneThroughError(str(error)) from None


@dataclass
class Trace:
    """The digest of the state after every transition; a second going is held against the first.

    Attributes:
        parted: where the second going parted from the first, in words; empty if it did not.
    """

    parted: str = ""
    _steps: list[tuple[int, str]] = field(default_factory=list)
    _next: int | None = None

    def again(self) -> Trace:
        """The same, to hold a second going against it."""
        self._next = 0
        return self

    def passed(self, index: int, digest: str, where: Callable[[], str]) -> bool:
        """Note a transition; True once the two have parted."""
        if self._next is None:
            self._steps.append((index, digest))
            return False
        if not self.parted and (self._next >= len(self._steps) or self._steps[self._next] != (index, digest)):
            self.parted = where()
        self._next += 1
        return bool(self.parted)


@final
class Reexecution:
    """One going towards the place of a checkpoint; never further than the run had come by then.

    Arguments:
        goal: the checkpoint.
        trace: takes a digest after every transition, which is slow. Default: none is made.
    """

    def __init__(self, goal: Checkpoint, trace: Trace | None = None) -> None:
        self._goal = goal
        self._trace = trace
        self._ended = bool(goal.manifest["ended"])
        self._nearest: Comparison | None = None
        self._misses = 0

    def gate(self, compiled: CompiledGraph, loop: Loop) -> list[Visit]:
        """The visits that stop there."""
        self._compiled, self._loop = compiled, loop
        self._began, self._batches = time.monotonic(), compiled.run_clock.trained()[0]
        self._place = compiled.locate(self._goal.manifest["position"], self._goal.sections["slots"], self._ended)
        self._expected = self._essential(self._goal.sections)
        self._clocked = _rows_by_the_clock(compiled.program)
        self._probes = [
            (bound.instance, name, value)
            for bound in compiled.program.nodes
            for name, value in self._expected["progress"].get(bound.path, {}).items()
            if value is None or isinstance(value, bool | int | float | str)
        ]
        self._yard, spare = self._yardstick()
        self._most = self._goal.sections["progress"][self._yard.path]["runs"]
        record, limit = self._yard.instance, self._most + spare
        visits = before(compiled.table.visits, self._yard.index, loop, lambda: record.runs >= limit)
        if not self._ended:
            visits = before(visits, self._place, loop, self._arrived)
        return visits if self._trace is None else [self._traced(index, visit) for index, visit in enumerate(visits)]

    def result(self) -> Replayed:
        """What came of it, once the run has stopped."""
        seconds = time.monotonic() - self._began
        notes: list[str] = []
        comparison = self._nearest
        if comparison is None:
            comparison = self._compared()
            there, here = self._goal.manifest["position"], self._compiled.path(self._loop.position)
            if (here, self._loop.ended) == (there, self._ended):
                pass
            elif any(_by_the_clock(bound, self._compiled.program) for bound in self._compiled.program.nodes):
                notes.append(f"`{there}` was not reached, for the clock on the wall decides; compared before `{here}`")
            else:
                comparison.differences.insert(0, Difference("position", f"{there} -> not reached, stopped at {here}"))
        if self._clocked:
            notes.append("means of metrics are not compared, for rows are made by the clock on the wall")
        if comparison.differences:
            notes += self._compiled.program.timed()
        return Replayed(comparison, self._compiled.run_clock.trained()[0] - self._batches, seconds, tuple(notes))

    # ---- the place

    def _arrived(self) -> bool:
        """True at the place of the checkpoint; what is like it is remembered, should there be nothing nearer."""
        misses = sum(_differs(getattr(instance, name), value) for instance, name, value in self._probes)
        near = self._yard.instance.runs == self._most
        if misses and (not near or (self._nearest is not None and misses >= self._misses)):
            return False
        comparison = self._compared()
        found = misses, len(comparison.differences)
        if self._nearest is None or found < (self._misses, len(self._nearest.differences)):
            self._nearest, self._misses = comparison, misses
        return not comparison.differences

    def _yardstick(self) -> tuple[BoundNode, int]:
        """A node whose runs tell how far the run is, the one that counts batches, and how many more may be spared.

        A graph whose clock counts nothing is held to the runs of the node itself: those of a junction differ by some
        where observers fire by the clock on the wall.
        """
        nodes, units = self._compiled.program.main.nodes, self._compiled.graph.units
        for unit in sorted(units, key=lambda one: one != "batches"):
            bound = nodes[units[unit].partition(".")[0]]
            if not bound.bypassed and not bound.kind.observer:
                return bound, 0
        bound = nodes[self._goal.manifest["position"].partition("/")[0]]
        return bound, self._goal.sections["progress"][bound.path]["runs"] - bound.instance.runs + _SPARE_RUNS

    # ---- the state

    def _compared(self) -> Comparison:
        compiled = self._compiled
        state = compiled.state.capture(compiled.alive(self._place, self._ended))
        comparison = compare(self._expected, self._essential(state.sections()))
        if self._clocked:
            means = comparison.in_section("metrics")
            comparison.differences = [one for one in comparison.differences if one not in means]
        return comparison

    def _essential(self, sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        try:
            return self._compiled.state.essential(RunState.of(sections)).sections()
        except KeyError as error:
            raise UsageError(
                f"the checkpoint has nothing of the node {error}: setup supplies other resources than it did then"
            ) from None

    def _traced(self, index: int, visit: Visit) -> Visit:
        compiled, loop, trace = self._compiled, self._loop, self._trace
        assert trace is not None
        path = compiled.path(index)

        def traced() -> int:
            position = visit()
            alive = compiled.alive(position, "ended" in loop.requests)
            if trace.passed(index, compiled.state.digest(alive), lambda: f"`{path}` ({compiled.run_clock.describe()})"):
                loop.requests.pause()
            return position

        return traced


def _differs(now: Any, value: Any) -> bool:
    return type(now) is not type(value) or now != value


def _by_the_clock(bound: BoundNode, program: Program) -> bool:
    """True if a node fires at moments that no replay meets again."""
    trigger = bound.parameters.get(bound.kind.trigger or "")
    if bound.bypassed or not isinstance(trigger, Trigger):
        return False
    return any(not owner.kind.fields[counted].in_digest for owner, counted, _ in program.terms(bound, trigger))


def _rows_by_the_clock(program: Program) -> bool:
    """True if an observer takes means of metrics at such moments."""
    return any(
        bound.kind.observer
        and any(one.name == "recorder" for one in (*bound.kind.reads, *(bound.kind.setup_reads or ())))
        and _by_the_clock(bound, program)
        for bound in program.nodes
    )
