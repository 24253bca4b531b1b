"""Agreement between ranks: their position, requests to any of them, and values that they exchange.

Ranks *synchronise*: each gathers the records of all, in one small call. They do so before every other collective call,
before a batch is fetched (unless they did since the last one), before every save, and at the start and stop of a run.
Values that may differ between ranks, such as signals and clocks, enter the run only through these records: every rank
takes the same edges. If ranks take different edges, all of them raise an error that names both.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, final

import msgpack
import torch

from graphtrain import errors
from graphtrain.errors import GraphtrainError, RankFailedError, RanksDivergedError
from graphtrain.program.requests import Request, Requests
from graphtrain.ranks import LostRankError, Ranks
from graphtrain.ranks.current import failure_of, leave
from graphtrain.storage.encoding import Tensors, UnsaveableError, pack, unpack

if TYPE_CHECKING:
    from graphtrain.ranks.buckets import GradientSums

Record = dict[str, Any]
"""What a rank sends to the others when they synchronise: plain data, where it is and what may differ between ranks."""

# The first call of a synchronisation sends this many bytes, or somewhat more than the longest record of an exchange so
# far. A second call sends the rest of a longer record.
_RECORD_BYTES = 512
# The report of a failed rank reaches the others within this time after their call fails.
_GRACE_SECONDS = 5.0
_GRACE_ATTEMPTS = 10
# A call within a sharded model that another rank has left raises a RuntimeError with one of these.
_LOST_CONNECTION = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe")


@final
class Agreement:
    """The agreement of one rank with the others.

    Arguments:
        requests: the requests of the run. A request of one rank reaches all of them when they synchronise.

    Attributes:
        ranks, rank, world_size: the processes, the number of this one, and how many there are.
        position: returns the number of the node of this rank that is running, or is next; before the run, 0.
        path_of: returns the path of a node by its number.
        place: returns where this rank is, for messages: ``"in `step` at step 10"``.
        running_seconds: returns how long this rank has trained, by its own clock.
        buffers: returns the buffers of all modules, by their paths.
        synchronised: False if a batch was fetched since ranks last synchronised.
        requested: requests of step functions on this rank: the path of the node, and the name of the request.
        handle_request: called on all ranks with each request of a step function on any rank.
        saves_known: how many saves rank 0 had completed when ranks last synchronised.
        sharded: True if a model is sharded over the ranks. Its backward passes sum gradients over them.
    """

    sharded = False

    def __init__(self, ranks: Ranks, requests: Requests) -> None:
        self.ranks, self.rank, self.world_size = ranks, ranks.rank, ranks.world_size
        self._requests, self._requests_of_any = requests, deque[Request]()
        if self.world_size > 1:
            requests.ask = self._requests_of_any.append  # a signal may interrupt anything
        self.position: Callable[[], int] = lambda: 0
        self.path_of: Callable[[int], str] = lambda position: "the start"
        self.place: Callable[[], str] = lambda: "before the run"
        self.running_seconds: Callable[[], float] = lambda: 0.0
        self.buffers: Callable[[], Mapping[str, torch.Tensor]] = dict
        self.synchronised = False
        self.requested: list[tuple[str, str]] = []
        self.handle_request: Callable[[str, str], None] = lambda path, request: None
        self._seconds = 0.0
        self.saves_known = 0
        self._choices: list[tuple[int, int]] = []
        self._early: GradientSums | None = None
        self._is_summed = False  # within the last pass of the window
        self._summed: Sequence[torch.Tensor] = ()  # the parameters of the last exchange
        self._record_bytes = _RECORD_BYTES

    def seconds(self) -> float:
        """How long rank 0 had trained when ranks last synchronised; with one process, how long it has trained."""
        return self._seconds if self.world_size > 1 else self.running_seconds()

    def watch_choices(self, position: int, leave: Callable[[], int]) -> Callable[[], int]:
        """The call that chooses the edge of a node, which also records the choice until ranks synchronise."""

        def noted() -> int:
            target = leave()
            self._choices.append((position, target))
            return target

        return noted

    # ---- synchronising

    def synchronise(
        self, purpose: Literal["start", "batch", "exchange", "gather", "save", "stop", "forward"], **known: Any
    ) -> list[Record]:
        """Gather the records of all ranks; requests to any of them become requests to this one.

        For one process, nothing is gathered.

        Arguments:
            known: additional entries of the record of this rank: plain data.

        Raises:
            RanksDivergedError: the ranks are not at the same place, or took different edges to it.
            RankFailedError: one of them has failed, has ended, or did not arrive in time.
        """
        if self.world_size == 1:
            return []
        record = {
            "sync_point": [purpose, self.position(), self._choices],
            "requests": [self._requests_of_any.popleft() for _ in range(len(self._requests_of_any))],
            "seconds": self.running_seconds(),
            "saves_over": self._requests.saves.saves_over() if self._requests.saves is not None else 0,
            "requested": self.requested,
            **known,
        }
        of_ranks = self._gather(msgpack.packb(record))
        records: list[Record] = [*map(msgpack.unpackb, of_ranks)]
        if any(each["sync_point"] != records[0]["sync_point"] for each in records):
            self._diverged(records)
        if purpose == "exchange":
            self._record_bytes = max(self._record_bytes, _RECORD_BYTES + max(map(len, of_ranks)))
        self._choices.clear()
        # A run that is saved or resumed here synchronises next where any other run does.
        self.synchronised = purpose not in ("start", "save", "stop")
        self._seconds = records[0]["seconds"]
        for request in {request for each in records for request in each["requests"]}:
            self._requests.add(request)
        if records[0]["saves_over"] > self.saves_known:
            self.saves_known = records[0]["saves_over"]
            self._requests.add("written")
        if self.synchronised:
            self.requested.clear()
            for path, request in sorted({(path, name) for each in records for path, name in each["requested"]}):
                self.handle_request(path, request)
        return records

    def before_batch(self, **known: Any) -> list[Record]:
        """Synchronise, unless ranks did since a batch was last fetched and `known` is empty.

        Arguments:
            known: about a batch that was just fetched, as for `synchronise`.
        """
        records = [] if self.synchronised and not known else self.synchronise("batch", **known)
        self.synchronised = False
        return records

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank: plain data of any size."""
        if self.world_size == 1:
            return [value]
        records = self.synchronise("gather", value=pack(value, "gathered", Tensors("gathered")))
        return [unpack(record["value"]) for record in records]

    def begin(self, parameters: Sequence[torch.Tensor]) -> None:
        """Sum the gradients of these parameters over ranks while the next `backward` runs, before `exchange`.

        All ranks call it at the same node, and then `exchange` with the same parameters. The pass is the last of the
        window; a rank without a batch runs none.
        """
        from graphtrain.ranks.buckets import GradientSums  # which one process never needs

        self._early, self._is_summed = GradientSums(self.ranks, parameters, self._summed), False

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass, at most once in a visit; after `begin`, gradients are summed meanwhile."""
        if (early := self._early) is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self._together(lambda: early.within(loss.backward))

    @torch.no_grad()
    def exchange(self, parameters: Sequence[torch.Tensor], buffers: Mapping[str, torch.Tensor] | None = None) -> None:
        """Sum the gradients of these parameters over ranks, and give all ranks the buffers of rank 0.

        Sharded parameters and buffers are skipped: their backward pass has summed the gradients. After `begin` this is
        called within the pass, and again at the node that exchanges, where nothing is left to do.

        A parameter without a gradient on all ranks keeps none; if only some have none, theirs count as zeros. A buffer
        whose shape or type differs between ranks, such as a cache, is not changed.

        Arguments:
            buffers: by their paths. Default: those of all modules.
        """
        if parameters and self._is_summed:
            self._is_summed = False
            return
        from graphtrain.ranks.buckets import GradientSums  # which one process never needs

        buffers = self.buffers() if buffers is None else buffers
        if self.sharded:
            from graphtrain.ranks.sharded import is_sharded

            parameters = [parameter for parameter in parameters if not is_sharded(parameter)]
            buffers = {path: buffer for path, buffer in buffers.items() if not is_sharded(buffer)}
        self._is_summed = self._early is not None
        sums, self._early = self._early or GradientSums(self.ranks, parameters), None
        summed = self._together(lambda: sums.exchange(buffers, functools.partial(self.synchronise, "exchange")))
        if parameters:
            self._summed = summed

    def forward(self, act: Callable[[], Any]) -> None:
        """Run a sharded model, once all ranks have arrived.

        Raises:
            RankFailedError: one of them has failed, has ended, or did not arrive in time.
        """
        self.synchronise("forward")
        self._together(act)

    # ---- calls on every rank, and calls on rank 0 for all

    def together(self, act: Callable[[], Any]) -> Any:
        """The result of a call that every rank makes. If it fails on some ranks, all raise the error of the first.

        Raises:
            GraphtrainError: the call raised it.
        """
        result, failed = None, None
        try:
            result = act()
        except GraphtrainError as error:
            failed = error
        for rank, plain in enumerate(self.gather(error_as_plain(failed) if failed is not None else None)):
            if plain is not None:
                raise failed if rank == self.rank and failed is not None else error_of_plain(plain)
        return result

    def on_rank_0(self, act: Callable[[], Any]) -> Any:
        """The result of a call that rank 0 makes for all: plain data, or None.

        Raises:
            GraphtrainError: the call raised it; every rank does.
        """
        return self.gather(self.together(act if self.rank == 0 else lambda: None))[0]

    # ---- failing

    def fail(self, error: BaseException) -> None:
        """Report to the other ranks why this one stops, and leave them, so that they fail at once."""
        self._early, self._summed, self._record_bytes = None, (), _RECORD_BYTES
        leave(self.ranks, self.place(), error)

    def _gather(self, data: bytes) -> list[bytes]:
        """The data of all ranks, of any length; in one call if it is short on all of them."""
        sent, first = len(data).to_bytes(8, "little") + data, self._record_bytes
        parts: list[bytes] = self._together(lambda: self.ranks.gather(sent[:first].ljust(first, b"\0")))
        sizes = [8 + int.from_bytes(part[:8], "little") for part in parts]
        if (more := max(sizes) - first) > 0:
            rest: list[bytes] = self._together(lambda: self.ranks.gather(sent[first:].ljust(more, b"\0")))
            parts = [first + last for first, last in zip(parts, rest, strict=True)]
        return [part[8:size] for part, size in zip(parts, sizes, strict=True)]

    def _together(self, call: Callable[[], Any]) -> Any:
        """The result of a collective call."""
        try:
            return call()
        except (LostRankError, RuntimeError) as error:
            lost = str(error)  # the error itself would keep connections open
            is_lost = isinstance(error, LostRankError) or any(word in lost for word in _LOST_CONNECTION)
            if isinstance(error, GraphtrainError) or not is_lost:
                raise
        # Find out which rank is missing, and why.
        for _ in range(_GRACE_ATTEMPTS):
            missing = self.ranks.ended()  # read first: a rank reports its failure before it ends
            if failure := failure_of(self.ranks, 0.0 if missing else _GRACE_SECONDS / _GRACE_ATTEMPTS):
                raise RankFailedError(failure)
            if missing:
                break
        failure = "ended without a message" if missing else "did not arrive in time"
        if not missing:
            try:
                self.ranks.publish(f"late/{self.rank}", b"")
                other_ranks = [rank for rank in range(self.world_size) if rank != self.rank]
                missing = [rank for rank in other_ranks if self.ranks.read(f"late/{rank}", 1.0) is None]
            except LostRankError:  # the rank with the store is gone
                missing = [0]
        who = f"rank {', '.join(map(str, missing))} {failure}" if missing else f"a rank is gone: {lost.splitlines()[0]}"
        raise RankFailedError(
            f"{who}; the others wait {self.place()}",
            "see what it printed last: a process that ends without a message was killed, often because memory ran out. "
            f"Ranks wait {self.ranks.timeout_seconds:g} s for each other; GRAPHTRAIN_TIMEOUT_SECONDS changes that",
        )

    def _diverged(self, records: Sequence[Record]) -> NoReturn:
        """Raise an error with the first edge at which ranks diverged, and their positions."""
        of_ranks = []
        for purpose, position, choices in (record["sync_point"] for record in records):
            edges = [f"from `{self.path_of(node)}` to `{self.path_of(target)}`" for node, target in choices]
            of_ranks.append([*edges, f"is at `{self.path_of(position)}` ({purpose})"])
        lines = next(lines for lines in zip(*of_ranks, strict=False) if len(set(lines)) > 1)
        other = next(rank for rank, line in enumerate(lines) if line != lines[0])
        raise RanksDivergedError(
            f"ranks took different edges, or are not at the same place: rank 0 {lines[0]}, rank {other} {lines[other]}",
            "a guard read a value that differs between ranks: let a kind gather it and make one value; or a node "
            "communicates on some ranks only: let all ranks take part, or none",
        )


# The errors that every rank can raise from plain arguments: message and hint, except for the first.
_ERRORS: dict[str, Callable[..., GraphtrainError]] = {UnsaveableError.__name__: UnsaveableError} | {
    name: kind for name, kind in vars(errors).items() if getattr(kind, "__init__", 0) is GraphtrainError.__init__
}


def error_as_plain(error: GraphtrainError) -> list[str]:
    """An error as plain data: the name of the nearest type in `_ERRORS`, and its arguments."""
    kind = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _ERRORS), "")
    if isinstance(error, UnsaveableError):
        return [kind, error.path, error.reason, error.hint]
    return [kind, error.message, error.hint]


def error_of_plain(plain: Sequence[str]) -> GraphtrainError:
    """The error of another rank, from `error_as_plain`."""
    kind, *arguments = plain
    return _ERRORS.get(kind, GraphtrainError)(*arguments)
