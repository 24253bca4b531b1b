"""Requests to the loop: the mailbox to which signals, the checkpoint writer, breakpoints and kinds post."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, final

from graphtrain.storage.retention import Retention

# stop: a signal arrived. save: a checkpoint is requested. written: one was written,
# or failed. reached: the amount given as `until` is reached. breakpoint: the node given as `before` is next. pause: of
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
class Requests:
    """The mailbox of one run, which the loop checks once after each transition.

    Every method may be called from a signal handler or from another thread: it changes one set atomically. Posting
    twice is the same as once.

    A request that arises on every rank, such as the end of the graph, is posted. One that may arise on a single rank,
    such as a signal, is *asked*: among several ranks it is posted once they agree on it.

    Attributes:
        pending: the requests. The loop tests the truth of this very object, in 10 ns: it is never replaced.
        ask: asks for a request.
        policy: how the next checkpoint is saved, as in the last request.
        retentions: which checkpoints stay, by the paths of the nodes that say so. Default: the newest two.
        values: of the metrics that rank the requested checkpoint; None where it has none.
        failures: the number of failed saves.
        saves: the writer of checkpoints; None before there is one.

    >>> requests = Requests(); requests.post("stop"); requests.post("stop")
    >>> "stop" in requests, requests.take("stop"), requests.take("stop")
    (True, True, False)
    """

    def __init__(self) -> None:
        self.pending: set[Request] = set()
        self.ask: Callable[[Request], None] = self.post
        self.policy = SavePolicy()
        self.retentions: Mapping[str, Retention] = {}
        self.values: dict[str, float | None] = {}
        self.failures = 0
        self.saves: Any = None
        self._returning = ""

    @property
    def stop_policy(self) -> SavePolicy:
        """The same for a checkpoint after which the run stops: that it cannot be written is an error."""
        return replace(self.policy, if_failed="stop")

    @property
    def sync_policy(self) -> SavePolicy:
        """The same for a checkpoint that must be on disk first."""
        return replace(self.stop_policy, mode="sync")

    def post(self, request: Request) -> None:
        """Post a request by name."""
        self.pending.add(request)

    def save(self, policy: SavePolicy | None = None, values: Mapping[str, float | None] | None = None) -> None:
        """Save a checkpoint at the next save point.

        Arguments:
            policy: how. Default: as the last one.
            values: those of the metrics that rank it, in addition to those of other nodes. Default: it has none.
        """
        if policy is not None:
            self.policy = policy
        self.values |= values or {}
        self.pending.add("save")

    def saved(self) -> None:
        """Note that the requested checkpoint is saved."""
        self.pending.discard("save")
        self.values = {}

    def go_back(self, node: str) -> None:
        """Return to a checkpoint, once the visit is over, as the node at a path requests."""
        self._returning = node
        self.pending.add("return")

    def take_return(self) -> str:
        """Take the request to return: the path of its node. Others since that checkpoint are void, except a stop."""
        node, self._returning = self._returning, ""
        self.pending.intersection_update(("stop", "pause"))
        self.saved()
        return node

    def __contains__(self, request: Request) -> bool:
        return request in self.pending

    def take(self, request: Request) -> bool:
        """Take a request; True if it was pending."""
        asked = request in self.pending
        self.pending.discard(request)
        return asked

    def clear(self) -> None:
        """Clear all requests."""
        self.pending.clear()
        self.values = {}
