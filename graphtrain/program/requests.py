"""Requests to the loop, by signals, the checkpoint writer, breakpoints and kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, final

from graphtrain.storage.retention import Retention

# stop: a signal arrived. save: a checkpoint is requested. written: a checkpoint was written, or failed. reached: the
# amount `until` is reached. breakpoint: the node `before` is next. pause: return at once, in a replay or after a single
# transition. recorded: a row of metrics was recorded. return: go back to a checkpoint. ended: an edge led to the end.
Request = Literal["stop", "save", "written", "reached", "breakpoint", "pause", "recorded", "return", "ended"]


@dataclass(frozen=True)
class SavePolicy:
    """How a checkpoint is saved.

    Arguments:
        mode: "async" copies the state and writes it while training continues; "sync" writes it first.
        if_failed: "stop" stops the run when a checkpoint cannot be written; "continue" reports it and trains on.
    """

    mode: Literal["async", "sync"] = "async"
    if_failed: Literal["stop", "continue"] = "stop"


@final
class Requests(set[Request]):
    """The pending requests of one run, which the loop checks after each transition.

    `add` and `take` may be called from a signal handler or from another thread.

    A request that arises on every rank, such as the end of the graph, is added. One that may arise on a single rank,
    such as a signal, is *asked*: among several ranks it is added once they agree on it.

    Attributes:
        ask: called with a request that may arise on this rank only.
        policy: how the next checkpoint is saved.
        retentions: path of a node -> which checkpoints it keeps. Default: the newest two are kept.
        values: metric -> its value, by which the requested checkpoint is ranked; None if it has no value.
        failures: the number of failed saves.
        saves: the writer of checkpoints; None before there is one.
        returning: the path of the node that has requested "return".

    >>> requests = Requests(); requests.add("stop"); requests.add("stop")
    >>> "stop" in requests, requests.take("stop"), requests.take("stop")
    (True, True, False)
    """

    def __init__(self) -> None:
        self.ask: Callable[[Request], None] = self.add
        self.policy = SavePolicy()
        self.retentions: Mapping[str, Retention] = {}
        self.values: dict[str, float | None] = {}
        self.failures = 0
        self.saves: Any = None
        self.returning = ""

    def save(self, policy: SavePolicy | None = None, values: Mapping[str, float | None] = MappingProxyType({})) -> None:
        """Save a checkpoint at the next save point.

        Arguments:
            policy: how it is saved. Default: as the last one.
            values: metrics by which it is ranked, in addition to those of other nodes. Default: none.
        """
        self.policy = policy or self.policy
        self.values |= values
        self.add("save")

    def take_return(self) -> str:
        """Take the request "return": the path of its node. All others are dropped, except "stop" and "pause"."""
        self.intersection_update(("stop", "pause"))
        self.values = {}
        return self.returning

    def take(self, request: Request) -> bool:
        """Take a request; True if it was pending."""
        asked = request in self
        self.discard(request)
        return asked

    def clear(self) -> None:
        """Clear all requests."""
        super().clear()
        self.values = {}
