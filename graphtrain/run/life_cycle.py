"""The life cycle of a run as a state machine: which calls are possible when."""

from __future__ import annotations

import logging
from typing import Any

from transitions import Machine, MachineError

from graphtrain.errors import LifeCycleError

# The machine logs every transition at INFO and a failed one at ERROR; the errors raised here are enough.
logging.getLogger("transitions").setLevel(logging.CRITICAL)

_STATES = ["ready", "running", "stopping", "stopped", "finished", "failed"]
_TRANSITIONS = [
    ["start", ["ready", "stopped", "finished"], "running"],
    ["ask_to_stop", ["running", "stopping"], "stopping"],
    ["stop", ["running", "stopping"], "stopped"],
    ["finish", ["running", "stopping"], "finished"],
    ["fail", ["running", "stopping"], "failed"],
]


class _Model:
    """What the machine moves; it adds the method `trigger`."""

    state: str
    trigger: Any


class LifeCycle:
    """ready -> running -> stopping -> stopped, finished or failed.

    >>> life = LifeCycle(); life.start(); life.state
    'running'
    >>> life.start()
    Traceback (most recent call last):
        ...
    graphtrain.errors.LifeCycleError: the run is running: `run`, `advance` and `rewire` cannot be called from inside it
    """

    def __init__(self) -> None:
        self._model = _Model()
        self._machine = Machine(
            self._model, states=_STATES, transitions=_TRANSITIONS, initial="ready", auto_transitions=False
        )

    @property
    def state(self) -> str:
        """ready, running, stopping, stopped, finished or failed."""
        return self._model.state

    def start(self) -> None:
        """Start, or continue."""
        self._go("start")

    def ask_to_stop(self) -> None:
        """A stop is requested; it happens at the next save point."""
        self._go("ask_to_stop")

    def stop(self) -> None:
        """The run has stopped and can continue."""
        self._go("stop")

    def finish(self) -> None:
        """The graph has ended."""
        self._go("finish")

    def fail(self) -> None:
        """A node has raised."""
        self._go("fail")

    def refuse_change(self) -> None:
        """Raise if the run is running, or has failed."""
        if self.is_running or self.state == "failed":
            raise LifeCycleError(_refusal("start", self.state))

    @property
    def is_running(self) -> bool:
        return self.state in ("running", "stopping")

    def _go(self, trigger: str) -> None:
        try:
            self._model.trigger(trigger)
        except MachineError:
            raise LifeCycleError(_refusal(trigger, self.state)) from None


def _refusal(trigger: str, state: str) -> str:
    if trigger != "start":
        return f"`{trigger}` is not possible while the run is {state}"
    if state == "failed":
        return "the run has failed inside a node; make a new Trainer, which resumes from the last checkpoint"
    return f"the run is {state}: `run`, `advance` and `rewire` cannot be called from inside it"
