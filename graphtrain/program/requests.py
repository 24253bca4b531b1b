"""Requests to the loop: the mailbox to which signals, the checkpoint writer, breakpoints and kinds post."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, final

from graphtrain.storage.retention import Retention

# stop: a signal arrived. save: a checkpoint is requested. written: one was written,
# or failed. reached: the amount of `until` is reached. breakpoint: the node of `before` is next. pause: of
# a replay, or after a single transition. recorded: a row of metrics was recorded.
# return: return to a checkpoint. ended: an edge led to the end.
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
    """The mailbox of one run: the pending requests, which the loop checks once after each transition.

    `add` and `take` may be called from a signal handler or from another thread.

    A request that arises on every rank, such as the end of the graph, is added. One that may arise on a single rank,
    such as a signal, is *asked*: among several ranks it is added once they agree on it.

    Attributes:
        ask: asks for a request.
        policy: how the next checkpoint is saved, as in the last request.
        retentions: which checkpoints stay, by the paths of the nodes that say so. Default: the newest two.
        values: of the metrics that rank the requested checkpoint; None where it has none.
        failures: the number of failed saves.
        saves: the writer of checkpoints; None before there is one.
        returning: the path of the node that requests a return to a checkpoint, once its visit is over.

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
            policy: how. Default: as the last one.
            values: those of the metrics that rank it, in addition to those of other nodes. Default: it has none.
        """
        self.policy = policy or self.policy
        self.values |= values
        self.add("save")

    def take_return(self) -> str:
        """Take the request to return: the path of its node. Others since that checkpoint are void, except a stop."""
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
