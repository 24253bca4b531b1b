"""Verifies that a run is exact: replays each span between two checkpoints, and compares it bit by bit with the second.

If two replays disagree with each other, the computation itself is not repeatable. If they agree with each other but
not with the run, the first checkpoint of the span lacked something that the run had in memory.

The node before which a checkpoint was made is passed many times on the way. A replay stops at the pass whose state
equals the checkpoint. If there is none, it stops at the number of batches of the checkpoint, and the nearest pass is
reported.

Several ranks replay together, each compares its own state, and all of them share the verdict, so that they never
diverge.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

from graphtrain.errors import CheckpointError, DataError, UsageError
from graphtrain.plain import is_scalar
from graphtrain.program import run_state
from graphtrain.program.bind import ProgramNode
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Loop, Transition
from graphtrain.proof.comparison import StateComparison, StateDifference, compare, is_same
from graphtrain.proof.history import Segment
from graphtrain.ranks import current_ranks
from graphtrain.storage.checkpoint import Checkpoint, read_checkpoint
from graphtrain.storage.state_files import state_digest
from graphtrain.trainer.breakpoints import Breakpoint, with_breakpoints
from graphtrain.trainer.trainer import Trainer

_SPARE_RUNS = 100


@dataclass(frozen=True)
class Verdict:
    """The result for a span, from one replay or several.

    Attributes:
        comparison: that of the first replay with the checkpoint, at the nearest pass; empty if it failed.
        batches: batches trained.
        notes: remarks about the comparison, one sentence each.
        cause: why it differs: `lost` state, or `unrepeatable`; empty if nothing differs, or if it failed.
        failure: why the span could not be replayed; empty if it could.
    """

    segment: Segment
    comparison: StateComparison = field(default_factory=StateComparison)
    batches: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    cause: Literal["", "lost", "unrepeatable"] = ""
    failure: str = ""

    @property
    def is_equal(self) -> bool:
        """True if nothing differs."""
        return not self.failure and not self.comparison.differences


def verify(segment: Segment, make: Callable[[Segment], Trainer]) -> Verdict:
    """Replay a span; if it differs from the run, replay it once more to find the cause.

    Arguments:
        make: returns a new trainer, set up as the run was in a span. An error that it raises concerns every span.
    """
    try:
        ranks = current_ranks()
        goal = read_checkpoint(segment.goal.path, rank=ranks.rank, world_size=ranks.world_size)
    except CheckpointError as error:
        return Verdict(segment, failure=str(error))
    first = _replay(segment, goal, make)
    if first.failure or first.is_equal:
        return first
    second = _replay(segment, goal, make)
    if second.failure:
        return second
    before, now = ([*map(str, verdict.comparison.differences)] for verdict in (first, second))
    return replace(first, cause="lost" if before == now else "unrepeatable")


def _replay(segment: Segment, goal: Checkpoint, make: Callable[[Segment], Trainer]) -> Verdict:
    gc.collect()  # the trainer before is part of a cycle of references, and there may be no memory for both
    trainer = make(segment)
    reexecution = _Reexecution(goal, trainer.gather)
    try:
        trainer.run_to(reexecution.begin, "auto" if segment.start is None else segment.start.path)
        return reexecution.result(segment)
    except (CheckpointError, DataError, UsageError) as error:
        return Verdict(segment, failure=str(error))


@final
class _Reexecution:
    """A replay towards a checkpoint.

    Arguments:
        gather: returns the values of all ranks, in the order of ranks.
    """

    def __init__(self, goal: Checkpoint, gather: Callable[[Any], list[Any]]) -> None:
        self._goal, self._gather = goal, gather
        self._start_time: float | None = None
        self._goal_path = goal.manifest.position
        self._goal_ended = goal.manifest.ended
        self._nearest: StateComparison | None = None
        self._nearness: tuple[float, float] = math.inf, math.inf  # its counters that differ, and all its differences

    def begin(self, compiled: CompiledGraph, loop: Loop) -> list[Transition]:
        """The transitions, with breakpoints where the replay stops; the loop is at the start of the span."""
        self._compiled, self._loop = compiled, loop
        if self._goal.manifest.sharded:
            from graphtrain.resume.sharded import assembled  # which few runs need

            self._goal, _ = assembled(self._goal, compiled.state.objects.modules.values(), current_ranks().rank)
        if self._start_time is None:  # called again where the run was rewired
            self._start_time, self._batches = time.monotonic(), 0
        self._goal_index = compiled.locate(self._goal_path, self._goal.sections["slots"], self._goal_ended)
        self._expected = self._essential(self._goal.sections)
        # A full comparison reads every tensor, so a pass is first judged by the numbers of progress.
        self._counters = [
            (node.instance, name, value)
            for node in compiled.program.nodes
            for name, value in self._expected["progress"].get(node.path, {}).items()
            if is_scalar(value)
        ]
        counter, spare = self._counting_node()
        # A body restarts its counts, so its number of runs comes first.
        self._counting = [*self._compiled.program.nodes_around(counter.scope), counter]
        self._goal_runs = [self._goal.sections["progress"][node.path]["runs"] for node in self._counting]
        most_runs = [*self._goal_runs[:-1], self._goal_runs[-1] + spare]
        breakpoints = [Breakpoint(counter.index, lambda: self._runs() >= most_runs)]
        if not self._goal_ended:  # a run stops at the end by itself
            breakpoints.append(Breakpoint(self._goal_index, self._is_there))
        transitions = [*compiled.compiler.transitions]
        for node, field_name in self._batch_counters():
            transitions[node.index] = self._tallied(transitions[node.index], node.instance, field_name)
        return with_breakpoints(transitions, breakpoints, loop.requests)

    def result(self, segment: Segment) -> Verdict:
        """The comparison, once the run has stopped."""
        assert self._start_time is not None, "it has begun"
        seconds = time.monotonic() - self._start_time
        notes: list[str] = []
        comparison = self._nearest
        if comparison is None:  # the node was never passed, or the run was at its end
            comparison = self._compare()
            path = self._compiled.program.nodes[self._loop.position].path
            if (path, self._loop.ended) != (self._goal_path, self._goal_ended):
                if self._compiled.program.timed_nodes:
                    notes.append(
                        f"`{self._goal_path}` was not reached: that depends on wall-clock time; compared at `{path}`"
                    )
                else:
                    how = f"{self._goal_path} -> not reached, stopped at {path}"
                    comparison.differences.insert(0, StateDifference("position", how))
        comparison = _of_all_ranks(comparison, self._gather)
        if self._compiled.program.records_by_time:
            notes.append("means of metrics are not compared, because wall-clock time decides when a row is logged")
        if comparison.differences:
            notes += self._compiled.program.timed()
        return Verdict(segment, comparison, int(self._batches), seconds, tuple(notes))

    # ---- the place

    def _is_there(self) -> bool:
        """True if the state equals the checkpoint; otherwise the comparison is kept if it is the nearest."""
        own_misses = sum(not is_same(getattr(record, name), value) for record, name, value in self._counters)
        misses = sum(self._gather(own_misses))
        # Earlier passes differ in their counters. With all batches trained this may be the pass, its state damaged.
        if misses and (self._runs() != self._goal_runs or misses >= self._nearness[0]):
            return False
        comparison = self._compare()
        differences = sum(self._gather(len(comparison.differences)))
        if (misses, differences) < self._nearness:
            self._nearest, self._nearness = comparison, (misses, differences)
        return not differences

    def _runs(self) -> list[int]:
        """The number of runs of the node that counts, after those of each enclosing body."""
        return [node.instance.runs for node in self._counting]

    def _counting_node(self) -> tuple[ProgramNode, int]:
        """The node whose runs measure the replay, and how many more of them it may take than the run.

        It is the one that counts batches in the innermost graph around the goal that trains, so that a replay never
        trains on more than the run did; where only a body trains, the one with that body. A graph that counts nothing
        uses the runs of the node itself: those of a junction differ slightly if observers fire by wall-clock time.
        """
        program = self._compiled.program
        around = program.nodes[self._goal_index].scope.around
        scope = next((scope for scope in reversed(around) if scope in program.training), program.main)
        for unit in sorted(scope.graph.units, key=lambda unit: unit != "batches"):
            node = program.clocks[scope][unit].node
            if not node.bypassed and not node.kind.observer:
                return node, 0
        for body in program.training:
            if body is not scope and scope in body.around:
                return program.nodes_around(body)[body.around.index(scope)], 0
        node = program.by_path[scope.path + self._goal_path.removeprefix(scope.path).partition("/")[0]]
        return node, self._goal.sections["progress"][node.path]["runs"] - node.instance.runs + _SPARE_RUNS

    def _batch_counters(self) -> list[tuple[ProgramNode, str]]:
        """The nodes, each with its field, that count the batches of graphs that train."""
        program = self._compiled.program
        clocks = (program.clocks[scope].get("batches") for scope in program.training or [program.main])
        return [(clock.node, clock.field) for clock in clocks if clock is not None]

    def _tallied(self, transition: Transition, record: Any, field_name: str) -> Transition:
        """The transition of a node that counts batches, which are counted over all runs of its body."""

        def run_and_count() -> int:
            before = getattr(record, field_name)
            position = transition()
            self._batches += getattr(record, field_name) - before
            return position

        return run_and_count

    # ---- the state

    def _compare(self) -> StateComparison:
        alive = self._compiled.alive(self._goal_index, self._goal_ended)
        now = self._essential(run_state.capture(self._compiled.state, alive))
        comparison = compare(self._expected, now)
        if not comparison.differences:
            comparison.check(state_digest(self._expected), state_digest(now))
        return comparison

    def _essential(self, sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """The state that the continuation depends on, as in `Trainer.digest`: no clocks, no progress of observers."""
        try:
            return run_state.essential(self._compiled.state, sections)
        except KeyError as error:
            raise UsageError(
                f"the checkpoint has no progress of the node {error}: setup supplies other resources now"
            ) from None


def _of_all_ranks(comparison: StateComparison, gather: Callable[[Any], list[Any]]) -> StateComparison:
    """The common comparison of all ranks, with the differences on any of them."""
    of_ranks = gather([[difference.path, difference.how] for difference in comparison.differences])
    if len(of_ranks) == 1:
        return comparison
    differences: dict[tuple[str, str], StateDifference] = {}
    for rank, lines in enumerate(of_ranks):
        for path, how in lines:
            differences.setdefault((path, how), StateDifference(path, f"{how} (rank {rank})"))
    return replace(comparison, differences=[*differences.values()])
