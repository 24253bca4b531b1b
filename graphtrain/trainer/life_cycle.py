"""The life cycle of a run as a `transitions` machine: which calls are possible when."""

from __future__ import annotations

from typing import Any, Literal, final

from graphtrain.errors import LifeCycleError

Event = Literal["start", "recover", "ask_to_stop", "stop", "finish", "fail"]

_ACTIVE = ["running", "stopping"]
_TRANSITIONS: list[list[Any]] = [  # event, the states in which it is possible, and the state that follows
    ["start", ["ready", "stopped", "finished"], "running"],
    ["recover", ["failed"], "running"],  # from the last save point
    ["ask_to_stop", _ACTIVE, "stopping"],  # at the next save point
    ["stop", _ACTIVE, "stopped"],
    ["finish", _ACTIVE, "finished"],
    ["fail", _ACTIVE, "failed"],
]


@final
class LifeCycle:
    """ready -> running -> stopping -> stopped, finished or failed; from each of these running again.

    Attributes:
        machine: the `transitions.Machine`, which docs/resuming.md has a picture of.

    >>> life = LifeCycle(); life.go("start"); life.state
    'running'
    >>> life.go("start")
    Traceback (most recent call last):
        ...
    graphtrain.errors.LifeCycleError: the run is running: ... cannot be called from inside it
    """

    state: str  # which the machine sets

    def __init__(self) -> None:
        from transitions import Machine  # here, for commands that run nothing import this module too

        states = ["ready", *_ACTIVE, "stopped", "finished", "failed"]
        self.machine = Machine(self, states, initial="ready", transitions=_TRANSITIONS, auto_transitions=False)

    @property
    def is_active(self) -> bool:
        return self.state in _ACTIVE

    def go(self, event: Event) -> None:
        """Go to the state that follows."""
        self.refuse(event)
        self.machine.events[event].trigger(self)

    def refuse(self, event: Event) -> None:
        """Raise if the event is not possible now."""
        if event in self.machine.get_triggers(self.state):
            return
        if event != "start":
            raise LifeCycleError(f"`{event}` is not possible while the run is {self.state}")
        if self.state == "failed":
            raise LifeCycleError(
                "the run has failed inside a node; `run` resumes it from its last save point, and so does a new Trainer"
            )
        calls = "`run`, `advance`, `load`, `rewire`"
        raise LifeCycleError(f"the run is {self.state}: {calls} cannot be called from inside it")
