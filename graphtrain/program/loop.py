"""The loop: positions, transitions, and what makes it stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, final

from graphtrain.outcome import Outcome
from graphtrain.program.save_policy import SavePolicy

Transition = Callable[[], int]

# save: a checkpoint is wanted. written: one was written, or failed to be. stop: a signal came. pause: one transition
# was asked for. reached: the amount given as `until` is reached. ended: an edge led to the end of the outermost graph.
Request = Literal["save", "written", "stop", "pause", "reached", "ended"]


@final
class Loop:
    """One transition after the other.

    Attributes:
        pending: requests that came up during a transition; looked at once after each, as a whole.
        position: the node that runs next, or that is running.
        inside: True while a node runs.
        ended: True if the last transition took an edge to the end; `position` is then the node that it left.
    """

    def __init__(self, position: int, pending: list[Request]) -> None:
        self.position = position
        self.pending = pending
        self.inside = False
        self.ended = False

    def drive(self, transitions: Sequence[Transition], serve: Callable[[], Outcome | None]) -> Outcome:
        """Run until `serve`, asked about the pending requests at each new position, answers an outcome."""
        pending = self.pending
        position = self.position
        self.inside = True
        try:
            while True:
                self.position = position = transitions[position]()
                if pending and (outcome := serve()) is not None:
                    return outcome
        finally:
            self.inside = False

    def choose_again(self, exits: Sequence[Transition]) -> None:
        """Choose the exit edge of the node at `position` anew, without running it; it may not lead to the end now."""
        self.position = exits[self.position]()
        self.ended = "ended" in self.pending
        self.pending.clear()


class CheckpointRequests:
    """What the kind `checkpoint` speaks to: it asks, and the engine saves once the exit edge is chosen.

    Attributes:
        policy: how the next checkpoint is saved, that of a stop included: as was asked for last.
        is_busy: answers True while a checkpoint is being written.
    """

    def __init__(self, pending: list[Request]) -> None:
        self._pending = pending
        self.policy = SavePolicy()
        self.is_busy: Callable[[], bool] = lambda: False

    def request(self, policy: SavePolicy | None = None) -> None:
        """Ask for a checkpoint at the next save point."""
        if policy is not None:
            self.policy = policy
        if "save" not in self._pending:
            self._pending.append("save")
