"""What is asked of the loop: the mailbox that signals, the checkpoint writer, breakpoints and kinds post to."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Literal, final

from graphtrain.storage.run_directory import Retention

# stop: a signal came. save: a checkpoint is wanted. written: one was written, or failed to be. reached: the amount that
# was given as `until` is reached. breakpoint: the node given as `before` is next. pause: that of a replay, or the one
# transition asked for. recorded: a row of metrics was recorded. renewed: a resource was made again. return: the run is
# to go back to a checkpoint. ended: an edge led to the end.
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
    """What a node asks the run to go back to.

    Attributes:
        node: the path of the node that asks.
        to: the path of the node whose last checkpoint is meant.
        keep: the paths of the nodes whose progress stays as it is.
    """

    node: str
    to: str
    keep: tuple[str, ...]


class Saves:
    """What becomes of the checkpoints of a run; of one that makes none, this."""

    @property
    def returns(self) -> int:
        """How often the run has gone back to one."""
        return 0

    def is_writing(self) -> bool:
        """True while this process writes one."""
        return False

    def saved_by(self) -> Collection[str]:
        """The paths of the nodes that have asked for one to which the run can go back."""
        return ()

    def outcomes(self) -> tuple[int, int]:
        """How many saves of several ranks are over, and how many of them have failed, as far as this rank knows."""
        return 0, 0


@final
class Requests:
    """The mailbox of one run; the loop looks into it once after each transition.

    Every method may be called from a signal handler or from another thread: it changes one set, in one step of the
    interpreter. Asking twice is asking once.

    What every rank of a run comes to by itself, such as the end of the graph, is posted. What may come to one of them
    alone, a signal for instance, is *asked*: among several ranks it is posted once they agree on it.

    Arguments:
        agrees: True if the process is one of several ranks, which agree on what any of them was asked. Default: False.

    Attributes:
        pending: what is asked for. The loop tests the truth of this very object, in 10 ns: it is never replaced.
        retention: which checkpoints stay, merged of all nodes that ask for checkpoints. Default: as was asked for last.
        value: of the metric by which checkpoints are ranked, for the checkpoint that is asked for; None if it has none.
        failures: how many saves have failed.
        running: answers with the path of the node that runs.
        saves: what becomes of checkpoints. Default: none are made.
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
        """How the next checkpoint is saved, that of a stop included: as was asked for last."""
        return self._policy if self.retention is None else replace(self._policy, retention=self.retention)

    @policy.setter
    def policy(self, policy: SavePolicy) -> None:
        self._policy = policy

    @property
    def sync_policy(self) -> SavePolicy:
        """The same for a checkpoint that must be on the disk before anything else."""
        return replace(self.policy, mode="sync", if_failed="stop")

    def is_busy(self) -> bool:
        """True while a checkpoint is being written, by any rank as far as this one knows."""
        return self.is_any_busy if self._agrees else self.saves.is_writing()

    def post(self, request: Request) -> None:
        """Ask for something by name."""
        self.pending.add(request)

    def ask(self, request: Request) -> None:
        """Ask for something that may be asked of one rank alone."""
        if self._agrees:
            self._asked.append(request)
        else:
            self.pending.add(request)

    def take_asked(self) -> Counter[Request]:
        """What was asked of this rank since the last call, and how many times; from now on it is not."""
        return Counter(self._asked.popleft() for _ in range(len(self._asked)))

    def save(self, policy: SavePolicy | None = None, value: float | None = None) -> None:
        """Save a checkpoint at the next save point.

        Arguments:
            policy: how. Default: as the last one.
            value: of the metric by which checkpoints are ranked. Default: it has none.
        """
        if policy is not None:
            self.policy = policy
        self.value = value
        self._askers.add(self.running())
        self.pending.add("save")

    @property
    def askers(self) -> frozenset[str]:
        """The paths of the nodes that have asked for a checkpoint."""
        return frozenset(self._askers)

    def take_askers(self) -> frozenset[str]:
        """The same; from now on they have not."""
        askers = self.askers
        self._askers.clear()
        return askers

    def go_back(self, asked: Return) -> None:
        """Go back to a checkpoint, once the visit is over."""
        self._return = asked
        self.pending.add("return")

    def take_return(self) -> Return | None:
        """What was asked to go back to. Whatever else came up on the way from there is void, but for a stop."""
        asked, self._return = self._return, None
        if asked is not None:
            self.pending.intersection_update(("stop", "pause"))
            self._askers.clear()
        return asked

    def __contains__(self, request: Request) -> bool:
        return request in self.pending

    def take(self, request: Request) -> bool:
        """True if this was asked for; from now on it is not."""
        asked = request in self.pending
        self.pending.discard(request)
        return asked

    def clear(self) -> None:
        """Forget everything that was asked for."""
        self.pending.clear()
