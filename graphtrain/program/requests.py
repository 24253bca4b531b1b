"""Requests to the loop: the mailbox to which signals, the checkpoint writer, breakpoints and kinds post."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Literal, final

from graphtrain.storage.run_directory import Retention

# stop: a signal arrived. save: a checkpoint is requested. written: one was written,
# or failed. reached: the amount given as `until` is reached. breakpoint: the node given as `before` is next. pause: of
# a replay, or after a single transition. recorded: a row of metrics was recorded. renewed: a resource was made again.
# return: return to a checkpoint. ended: an edge led to the end.
Request = Literal["stop", "save", "written", "reached", "breakpoint", "pause", "recorded", "renewed", "return", "ended"]


@dataclass(frozen=True)
class SavePolicy:
    """How a checkpoint is saved.

    Arguments:
        retention: which checkpoints stay. Default: the newest two.
        mode: "async" copies the state and writes it while training continues; "sync" writes it first.
        if_failed: "stop" stops the run when a checkpoint cannot be written; "continue" reports it and trains on.
        slim: True stores frozen tensors apart, and files that have not changed as hard links.
    """

    retention: Retention = field(default_factory=Retention)
    mode: Literal["async", "sync"] = "async"
    if_failed: Literal["stop", "continue"] = "stop"
    slim: bool = False


@dataclass(frozen=True)
class Return:
    """A node's request to return to a checkpoint.

    Attributes:
        node: the path of the requesting node.
        to: the path of the node that requested the checkpoint.
        keep: the paths of the nodes whose progress stays as it is.
    """

    node: str
    to: str
    keep: tuple[str, ...]


class Saves:
    """The state of the checkpoints of a run; this class is for a run that makes none."""

    @property
    def returns(self) -> int:
        """How often the run has returned to one."""
        return 0

    def is_writing(self) -> bool:
        """True while this process writes one."""
        return False

    def saved_by(self) -> Collection[str]:
        """The paths of the nodes that have requested one to which the run can return."""
        return ()

    def outcomes(self) -> tuple[int, int]:
        """The numbers of completed and of failed saves of several ranks, as far as this rank knows."""
        return 0, 0


@final
class Requests:
    """The mailbox of one run, which the loop checks once after each transition.

    Every method may be called from a signal handler or from another thread: it changes one set atomically. Posting
    twice is the same as once.

    A request that arises on every rank, such as the end of the graph, is posted. One that may arise on a single rank,
    such as a signal, is *asked*: among several ranks it is posted once they agree on it.

    Arguments:
        agrees: True for one of several ranks, which agree on requests to any of them. Default: False.

    Attributes:
        pending: the requests. The loop tests the truth of this very object, in 10 ns: it is never replaced.
        retention: which checkpoints stay, merged from all nodes that request checkpoints. Default: as in the last
            request.
        value: the ranking metric of the requested checkpoint; None if it has none.
        failures: the number of failed saves.
        running: returns the path of the node that runs.
        saves: the state of checkpoints. Default: none are made.
        is_any_busy: among several ranks, True if any of them was writing a checkpoint when they last synchronised.

    >>> requests = Requests(); requests.post("stop"); requests.post("stop")
    >>> "stop" in requests, requests.take("stop"), requests.take("stop")
    (True, True, False)
    """

    def __init__(self, agrees: bool = False) -> None:
        self.pending: set[Request] = set()
        self._agrees = agrees
        self._asked: deque[Request] = deque()
        self._policy = SavePolicy()
        self.retention: Retention | None = None
        self.value: float | None = None
        self.failures = 0
        self.running: Callable[[], str] = str
        self.saves = Saves()
        self.is_any_busy = False
        self._askers: set[str] = set()
        self._return: Return | None = None

    @property
    def policy(self) -> SavePolicy:
        """How the next checkpoint is saved, also that of a stop: as in the last request."""
        return self._policy if self.retention is None else replace(self._policy, retention=self.retention)

    @policy.setter
    def policy(self, policy: SavePolicy) -> None:
        self._policy = policy

    @property
    def sync_policy(self) -> SavePolicy:
        """The same for a checkpoint that must be on disk first."""
        return replace(self.policy, mode="sync", if_failed="stop")

    def is_busy(self) -> bool:
        """True while a checkpoint is being written, by any rank as far as this one knows."""
        return self.is_any_busy if self._agrees else self.saves.is_writing()

    def post(self, request: Request) -> None:
        """Post a request by name."""
        self.pending.add(request)

    def ask(self, request: Request) -> None:
        """Post a request that may arise on a single rank."""
        if self._agrees:
            self._asked.append(request)
        else:
            self.pending.add(request)

    def take_asked(self) -> Counter[Request]:
        """Take the requests to this rank since the last call, with their counts."""
        return Counter(self._asked.popleft() for _ in range(len(self._asked)))

    def save(self, policy: SavePolicy | None = None, value: float | None = None) -> None:
        """Save a checkpoint at the next save point.

        Arguments:
            policy: how. Default: as the last one.
            value: that of the ranking metric. Default: it has none.
        """
        if policy is not None:
            self.policy = policy
        self.value = value
        self._askers.add(self.running())
        self.pending.add("save")

    @property
    def askers(self) -> frozenset[str]:
        """The paths of the nodes that have requested a checkpoint."""
        return frozenset(self._askers)

    def take_askers(self) -> frozenset[str]:
        """The same, and clear them."""
        askers = self.askers
        self._askers.clear()
        return askers

    def go_back(self, asked: Return) -> None:
        """Return to a checkpoint, once the visit is over."""
        self._return = asked
        self.pending.add("return")

    def take_return(self) -> Return | None:
        """Take the request to return. All other requests since that checkpoint are void, except a stop."""
        asked, self._return = self._return, None
        if asked is not None:
            self.pending.intersection_update(("stop", "pause"))
            self._askers.clear()
        return asked

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
