"""The loop: positions, transitions, and requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, final

from graphtrain.program.requests import Requests

Transition = Callable[[], int]
Answer = TypeVar("Answer")


@final
class Loop:
    """Runs one transition after the other.

    Attributes:
        requests: checked after each transition.
        position: the number of the node that runs next, or is running.
        inside: True while a node runs.
        ended: True if the last transition took an edge to the end; `position` is then that of its node.
    """

    def __init__(self, position: int, requests: Requests) -> None:
        self.position = position
        self.requests = requests
        self.inside = False
        self.ended = False

    def drive(self, transitions: Sequence[Transition], serve: Callable[[], Answer | None]) -> Answer:
        """Run until `serve`, called at each new position with a pending request, returns a result."""
        requests = self.requests
        position = self.position
        self.inside = True
        try:
            while True:
                self.position = position = transitions[position]()
                if requests and (answer := serve()) is not None:
                    return answer
        finally:
            self.inside = False
