"""Verifies that a run is exact: replays each span between two checkpoints, and compares it bit by bit with the second.

The replay passes the node before which the checkpoint was saved many times. It stops at the pass whose state equals the
checkpoint. If none does, it stops once it has trained as many batches, and reports the nearest pass.

Several ranks replay together: each compares its own state, and they share the verdict, so that they stay together.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from graphtrain.errors import RanksError, UsageError
from graphtrain.plain import is_scalar
from graphtrain.program import run_state
from graphtrain.program.bind import ProgramNode
from graphtrain.program.breakpoints import Breakpoint, with_breakpoints
from graphtrain.program.loop import Transition
from graphtrain.proof.comparison import StateDifference, compare, is_same
from graphtrain.proof.history import Segment
from graphtrain.ranks import current_ranks
from graphtrain.resume.session import Session
from graphtrain.storage.checkpoint import Checkpoint, read_checkpoint
from graphtrain.storage.state_files import state_digest
from graphtrain.trainer.trainer import Trainer

_SPARE_RUNS = 100


@dataclass(frozen=True)
class Verdict:
    """The result of replaying a span.

    Attributes:
        differences: between the checkpoint and the replay at its nearest pass.
        notes: possible reasons for them, one sentence each.
        failure: why the span could not be replayed; empty if it could.
    """

    segment: Segment
    differences: Sequence[StateDifference] = ()
    notes: Sequence[str] = ()
    failure: str = ""

    @property
    def is_equal(self) -> bool:
        """True if nothing differs."""
        return not self.failure and not self.differences


def verify_segment(segment: Segment, make: Callable[[Segment], Trainer]) -> Verdict:
    """Replay a span, and compare the state at its end with the checkpoint.

    Arguments:
        make: returns a new trainer, set up as the run was in the span. Its errors are raised: they concern every span.
    """
    gc.collect()  # the trainer before is part of a cycle of references, and there may be no memory for both
    trainer, ranks = make(segment), current_ranks()
    try:
        reexecution = _Reexecution(read_checkpoint(segment.goal.path, rank=ranks.rank, world_size=ranks.world_size))
        trainer.run_to(reexecution.begin, "auto" if segment.start is None else segment.start.path)
        return reexecution.verdict(segment)
    except RanksError:
        raise
    except Exception as error:  # also of the user's code, which did not raise in the run
        return Verdict(segment, failure=f"{type(error).__name__}: {error}")


@final
class _Reexecution:
    """A replay towards a checkpoint."""

    def __init__(self, goal: Checkpoint) -> None:
        self._goal = goal
        self._goal_path = goal.manifest.position
        self._goal_ended = goal.manifest.ended
        self._nearest: list[StateDifference] | None = None
        self._nearness: tuple[float, float] = math.inf, math.inf  # its counters that differ, and all its differences

    def begin(self, session: Session) -> list[Transition]:
        """The transitions, with breakpoints where the replay stops; the session is at the start of the span."""
        self._compiled, self._loop, self._gather = session.compiled, session.loop, session.world.gather
        compiled = session.compiled
        if self._goal.manifest.sharded:
            from graphtrain.resume.sharded import assembled  # which few runs need

            self._goal, _ = assembled(self._goal, compiled.state.objects.modules.values(), current_ranks().rank)
        self._goal_index = compiled.locate(self._goal_path, self._goal.sections["slots"], self._goal_ended)
        self._expected = self._essential(self._goal.sections)
        # Comparing every tensor takes time, so the numbers in the progress of nodes are compared first.
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
            breakpoints.append(Breakpoint(self._goal_index, self._is_goal))
        return with_breakpoints(compiled.compiler.transitions, breakpoints, session.requests)

    def verdict(self, segment: Segment) -> Verdict:
        """The comparison, once the run has stopped."""
        program, differences = self._compiled.program, self._nearest
        if differences is None:  # the node was never passed, or the run was at its end
            differences = self._compare()
            path = program.nodes[self._loop.position].path
            # Where wall-clock time decides whether the node is passed, a state that equals is enough.
            if (path, self._loop.ended) != (self._goal_path, self._goal_ended) and not program.timed_nodes:
                how = f"{self._goal_path} -> not reached, stopped at {path}"
                differences.insert(0, StateDifference("position", how))
        of_ranks = self._gather([[difference.path, difference.how] for difference in differences])
        if len(of_ranks) > 1:
            first_ranks: dict[tuple[str, str], int] = {}
            for rank, pairs in enumerate(of_ranks):
                for path, how in pairs:
                    first_ranks.setdefault((path, how), rank)
            differences = [StateDifference(path, f"{how} (rank {rank})") for (path, how), rank in first_ranks.items()]
        return Verdict(segment, differences, program.timed() if differences else ())

    # ---- the end of the span

    def _is_goal(self) -> bool:
        """True if the state equals the checkpoint. Otherwise the differences are kept, if they are the fewest."""
        own_mismatches = sum(not is_same(getattr(record, name), value) for record, name, value in self._counters)
        mismatches = sum(self._gather(own_mismatches))
        # Earlier passes differ in their counters. After the last batch this may be the goal, with another state.
        if mismatches and (self._runs() != self._goal_runs or mismatches >= self._nearness[0]):
            return False
        differences = self._compare()
        count = sum(self._gather(len(differences)))
        if (mismatches, count) < self._nearness:
            self._nearest, self._nearness = differences, (mismatches, count)
        return not count

    def _runs(self) -> list[int]:
        """How often the counting node has run, after the number of runs of each enclosing node."""
        return [node.instance.runs for node in self._counting]

    def _counting_node(self) -> tuple[ProgramNode, int]:
        """The node whose runs measure the replay, and how many more of them it may take than the run.

        In a graph that counts nothing it is the goal itself: its runs may differ, as observers fire by wall-clock time.
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

    # ---- the state

    def _compare(self) -> list[StateDifference]:
        alive = self._compiled.alive(self._goal_index, self._goal_ended)
        now = self._essential(run_state.capture(self._compiled.state, alive))
        if differences := compare(self._expected, now):
            return differences
        before, after = (state_digest(state)[:16] for state in (self._expected, now))
        # A digest also covers the order of mappings, and which objects are shared.
        return [] if before == after else [StateDifference("digest", f"{before} -> {after}")]

    def _essential(self, sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """The state that the continuation depends on, as in `Trainer.digest`: no clocks, no progress of observers."""
        try:
            return run_state.essential(self._compiled.state, sections)
        except KeyError as error:
            raise UsageError(
                f"the checkpoint has no progress of the node {error}: `setup` supplies other resources than in the run"
            ) from None
