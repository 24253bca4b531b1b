"""The life cycle of a run as a state machine: which calls are possible when."""

from __future__ import annotations

from typing import Literal, final

from graphtrain.errors import LifeCycleError

Event = Literal["start", "recover", "ask_to_stop", "stop", "finish", "fail"]

_RUNNING = ("running", "stopping")
# Event -> the states in which it is possible, and the state that follows.
_TRANSITIONS: dict[Event, tuple[tuple[str, ...], str]] = {
    "start": (("ready", "stopped", "finished"), "running"),
    "recover": (("failed",), "running"),  # from the last save point
    "ask_to_stop": (_RUNNING, "stopping"),  # at the next save point
    "stop": (_RUNNING, "stopped"),
    "finish": (_RUNNING, "finished"),
    "fail": (_RUNNING, "failed"),
}


@final
class LifeCycle:
    """ready -> running -> stopping -> stopped, finished or failed; from each of these running again.

    >>> life = LifeCycle(); life.go("start"); life.state
    'running'
    >>> life.go("start")
    Traceback (most recent call last):
        ...
    graphtrain.errors.LifeCycleError: the run is running: ... cannot be called from inside it
    """

    def __init__(self) -> None:
        self.state = "ready"

    @property
    def is_running(self) -> bool:
        return self.state in _RUNNING

    def go(self, event: Event) -> None:
        """Go to the state that follows."""
        self.refuse(event)
        self.state = _TRANSITIONS[event][1]

    def refuse(self, event: Event) -> None:
        """Raise if the event is not possible now."""
        if self.state in _TRANSITIONS[event][0]:
            return
        if event != "start":
            raise LifeCycleError(f"`{event}` is not possible while the run is {self.state}")
        if self.state == "failed":
            raise LifeCycleError(
                "the run has failed inside a node; `run` resumes it from its last save point, and so does a new Trainer"
            )
        calls = "`run`, `advance`, `load`, `rewire`"
        raise LifeCycleError(f"the run is {self.state}: {calls} cannot be called from inside it")
