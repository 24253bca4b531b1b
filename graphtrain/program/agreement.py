"""Agreement between ranks: their position, requests to any of them, and values that they exchange.

Ranks *synchronise*: each gathers the records of all, in one small call. They do so before every other collective call,
before a batch is fetched, unless they did since the last one, before every save, and at the start and the stop of a
run. Values that may differ between ranks (signals, clocks, whether a checkpoint is still being written) enter the run
only through these records, so that every rank takes the same edges. If ranks take different edges, all of them raise an
error that names both.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, final

import msgpack
import torch

from graphtrain import errors
from graphtrain.errors import GraphtrainError, RankFailedError, RanksDivergedError
from graphtrain.program.requests import Requests
from graphtrain.ranks import LostRankError, Ranks, Record
from graphtrain.ranks.current import failure_of, leave
from graphtrain.state.generators import RandomAside, named_generators, seed_everything
from graphtrain.storage.encoding import Tensors, UnsaveableError, pack, unpack

if TYPE_CHECKING:
    from graphtrain.ranks.buckets import GradientSums

Purpose = Literal["start", "batch", "exchange", "gather", "payload", "save", "stop", "forward"]
_PURPOSES: tuple[Purpose, ...] = ("start", "batch", "exchange", "gather", "payload", "save", "stop", "forward")
_ASKED = 65535  # the most requests of one kind in a record

# The report of a failed rank reaches the others within this time after their call fails.
_GRACE_SECONDS = 5.0
_GRACE_ATTEMPTS = 10
_MASK = 2**64 - 1


class RunOfRank:
    """The run of a rank, as reported to the others; this class is for a run that is not set up."""

    @property
    def position(self) -> int:
        """The number of the node that is running, or is next."""
        return 0

    @property
    def place(self) -> str:
        """The same for messages: ``"in `step` at step 10"``."""
        return "before the run"

    def seconds(self) -> float:
        """How long it has trained, by its own clock."""
        return 0.0

    def path_of(self, position: int) -> str:
        """The path of a node by its number."""
        return "the start"

    def buffers(self) -> Mapping[str, torch.Tensor]:
        """The buffers of all modules, by their paths."""
        return {}


@final
class Agreement:
    """One rank's part in the agreement.

    Arguments:
        requests: the requests of the run. Those to this rank are passed on, and those to any rank are posted.

    Attributes:
        ranks: the processes; this one's `rank` among them, and their number, the `world_size`.
        run: this rank's run; before it is set up, one at the start.
        synchronised: False if a batch was fetched since ranks last synchronised.
        asked: requests by step functions of this rank since then, as bits with the same meaning on all ranks.
        learn: called on all ranks with the requests by step functions of any rank.
        grant: called on all ranks before they fetch a batch.
        calls: how many times they have synchronised since they last joined.
        saves_known: how many saves were over then, as known to rank 0.
        sharded: True if a model is sharded over the ranks: its backward passes add up gradients.
        mesh: the shape of the mesh over which it is; empty if none is.
    """

    sharded = False
    mesh: tuple[int, ...] = ()

    def __init__(self, ranks: Ranks, requests: Requests) -> None:
        self.ranks, self.rank, self.world_size = ranks, ranks.rank, ranks.world_size
        self._requests = requests
        self.run = RunOfRank()
        self.calls = 0
        self._times_left = ranks.times_left
        self.synchronised = False
        self.asked = 0
        self.learn: Callable[[int], None] = lambda asked: None
        self.grant: Callable[[], None] = lambda: None
        self._seconds = 0.0
        self.saves_known = 0
        self._choices: list[tuple[int, int]] = []
        self._early: GradientSums | None = None
        self._summed: Sequence[torch.Tensor] = ()  # the parameters of the last exchange that `begin` has prepared
        # The bytes of gradients, and of buffers, that any record carries: ranks that diverge still meet.
        self._room = (0, 0)
        self._carried: list[bytes] = []
        self._records: list[Record] = []

    def seconds(self) -> float:
        """How long rank 0 had trained when ranks last synchronised; of one process, how long it has."""
        return self._seconds if self.world_size > 1 else self.run.seconds()

    def watch_choices(self, position: int, leave: Callable[[], int]) -> Callable[[], int]:
        """The choice of an exit edge of a node with several, which is recorded until ranks synchronise."""
        choices = self._choices

        def noted() -> int:
            target = leave()
            choices.append((position, target))
            return target

        return noted

    # ---- synchronising

    def synchronise(self, purpose: Purpose, partial: Record | None = None, carried: bytes = b"") -> list[Record]:
        """Gather the records of all ranks; requests to any of them become requests to this one.

        For one process, nothing is gathered.

        Arguments:
            partial: a record with the fields known to the caller: `digest`, `payload_bytes`, `length` and
                `samples`. The others are filled in here. Default: none is known.
            carried: at most as many bytes as there is room for.

        Raises:
            RanksDivergedError: the ranks are not at the same place, or took different edges to it.
            RankFailedError: one of them has failed, has ended, or did not come in time.
        """
        if self.world_size == 1:
            return []
        if self._times_left != self.ranks.times_left:  # one has failed, and is behind the others
            self._times_left, self.calls = self.ranks.times_left, 0
            self._early, self._summed, self._room = None, (), (0, 0)
        self.calls += 1
        asked = self._requests.take_asked()
        record = partial or Record()
        record.call, record.purpose, record.position = self.calls, _PURPOSES.index(purpose), self.run.position
        record.choices = hash(tuple(self._choices)) & _MASK  # of integers, whose hash is the same in every process
        record.stops, record.saves = min(asked["stop"], _ASKED), min(asked["save"], _ASKED)
        record.seconds = self.run.seconds()
        record.saves_done = self._requests.saves.over()
        record.asked, self.asked = self.asked, 0
        sent = record.packed() + carried.ljust(sum(self._room), b"\0")
        gathered = self._together(lambda: self.ranks.gather(sent))
        records = [Record.of(data[: Record.size]) for data in gathered]
        if any(_spot(each) != _spot(record) for each in records):
            self._diverged(records)
        self._choices.clear()
        self._records, self._carried = records, [data[Record.size :] for data in gathered]
        # Where a run was saved or resumed makes no difference to where ranks synchronise next.
        self.synchronised = purpose not in ("start", "save", "stop")
        self._seconds = records[0].seconds
        if any(each.stops for each in records):
            self._requests.post("stop")
        if any(each.saves for each in records):
            self._requests.post("save")
        if records[0].saves_done > self.saves_known:
            self.saves_known = records[0].saves_done
            self._requests.post("written")
        if any(each.asked for each in records):
            self.learn(functools.reduce(operator.or_, (each.asked for each in records)))
        return records

    def before_batch(self, partial: Record | None = None) -> list[Record]:
        """Synchronise, unless ranks did since a batch was last fetched, and nothing is known about the next one.

        Arguments:
            partial: about a batch that was just fetched, as for `synchronise`. Default: none is known.
        """
        records = [] if self.synchronised and partial is None else self.synchronise("batch", partial)
        self.synchronised = False
        self.grant()
        return records

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in the order of ranks: plain data of any size."""
        if self.world_size == 1:
            return [value]
        payload = pack(value, "gathered", Tensors("gathered"))
        records = self.synchronise("gather", Record(payload_bytes=len(payload)))
        return [unpack(each) for each in self._gather_payloads(payload, records)]

    @contextlib.contextmanager
    def drawing_alike(self) -> Iterator[None]:
        """A span in which all ranks draw the same random numbers, by a seed that rank 0 draws."""
        seed = self.gather(int(torch.randint(2**62, ())))[0]
        with RandomAside(named_generators().values()):
            seed_everything(int(seed))
            yield

    def begin(self, parameters: Sequence[torch.Tensor]) -> None:
        """Let the gradients of these parameters be summed within the pass that `backward` runs before `exchange`.

        All ranks call it at the same node, and then `exchange` with the same parameters. The pass is the last of the
        window; a rank without a batch runs none.
        """
        from graphtrain.ranks.buckets import GradientSums  # which one process never needs

        self._early = GradientSums(self.ranks, parameters, self._summed, carried=self._room[0] > 0)

    def backward(self, loss: torch.Tensor) -> None:
        """Run backward, at most once in a visit; the sums of gradients begin in it if they are expected to."""
        if self._early is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self._early.within(loss.backward)

    @torch.no_grad()
    def exchange(
        self,
        parameters: Sequence[torch.Tensor],
        buffers: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """Sum the gradients of these parameters over ranks, and give all ranks the buffers of rank 0.

        Sharded parameters and buffers are left out: a backward pass has added up the gradients of those.

        A parameter without a gradient on any rank keeps none; if some ranks have none, it counts there as zeros. A
        buffer whose shape or type differs between ranks, such as a cache, stays as it is.

        Arguments:
            buffers: by their paths. Default: those of all modules.
        """
        from graphtrain.ranks import buckets as sums  # which one process never needs

        buffers = self.run.buffers() if buffers is None else buffers
        if self.sharded:
            from graphtrain.ranks.sharded import is_sharded

            parameters = [parameter for parameter in parameters if not is_sharded(parameter)]
            buffers = {path: buffer for path, buffer in buffers.items() if not is_sharded(buffer)}
        early, self._early = self._early or sums.GradientSums(self.ranks), None
        begun = early.count
        present = bytes(parameter.grad is not None for parameter in parameters)
        forms = {f"{path} {buffer.dtype} {tuple(buffer.shape)}": buffer for path, buffer in buffers.items()}
        shared = [*sums.joined(forms.values())]
        own = [each for each in parameters if each.grad is not None and not sums.is_large(each)]
        small = sums.buckets_of(own) if self._room[0] else []
        carried = [sums.packed(small, self._room[0]), sums.packed(shared, self._room[1])]
        payload: bytes = msgpack.packb([begun, present, [*forms]])
        digest = hashlib.blake2b(payload, digest_size=8).digest()
        record = Record(digest=digest, payload_bytes=len(payload))
        records = self.synchronise("exchange", record, b"".join(carried))
        if all(each.digest == digest for each in records):
            size = len(carried[0])
            sums.put_carried(small if size else (), [data[:size] for data in self._carried])
            sums.put_carried(shared if carried[1] else (), [self._carried[0][size:]])
        else:
            carried = [b"", b""]
            counts, flags, names = zip(*map(msgpack.unpackb, self._gather_payloads(payload, records)), strict=True)
            begun, present, common = max(counts), bytes(map(max, *flags)), set(names[0]).intersection(*names)
            forms = {form: buffer for form, buffer in forms.items() if form in common}
            shared = [*sums.joined(forms.values())]
        summed = [parameter for parameter, has_gradient in zip(parameters, present, strict=True) if has_gradient]

        rest = () if carried[1] else shared
        self._together(lambda: early.finish(begun, summed, rest, own if carried[0] else ()))
        room = self._room[0]
        if parameters:  # the sum of two has the same bits in either order, as in an exchange
            self._summed, is_carried = summed, self.world_size == 2
            room = sums.carried_size(each for each in summed if not sums.is_large(each)) if is_carried else 0
        self._room = (room, sums.carried_size(forms.values()))

    def exchange_with(self, number: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Sum a number over ranks in the call that sums the gradients of these parameters; its sum, in their type."""
        carrier = torch.zeros((), dtype=parameters[0].dtype, device=parameters[0].device)
        carrier.grad = number.to(carrier)
        self.exchange([*parameters, carrier])
        return carrier.grad

    def forward(self, act: Callable[[], Any]) -> None:
        """Run a sharded model: all ranks do, or none.

        Raises:
            RankFailedError: one of them has failed, has ended, or did not come in time.
        """
        self.synchronise("forward")
        try:
            act()
            return
        except RuntimeError as error:
            lost = str(error)
            if not _is_of_connection(lost):
                raise
        self._lost(lost)

    # ---- calls that rank 0 makes for all

    def together(self, act: Callable[[], Any]) -> Any:
        """The result of a call that every rank makes; if it fails on some, all raise the error of the first of them.

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

    def lead(self, act: Callable[[], Any]) -> Any:
        """The result of a call that rank 0 makes for all: plain data, or None.

        Raises:
            GraphtrainError: the call raised it; every rank does.
        """
        return self.gather(self.together(act if self.rank == 0 else lambda: None))[0]

    # ---- failing

    def fail(self, error: BaseException) -> None:
        """Report to the other ranks why this one is missing, and leave them, so that they fail at once."""
        leave(self.ranks, self.run.place, error)

    def _gather_payloads(self, payload: bytes, records: Sequence[Record]) -> list[bytes]:
        """The values of all ranks, of the sizes in their records."""
        longest = max(record.payload_bytes for record in records)
        gathered: list[bytes] = self._together(lambda: self.ranks.gather(payload.ljust(longest, b"\0")))
        return [data[: record.payload_bytes] for data, record in zip(gathered, records, strict=True)]

    def _together(self, call: Callable[[], Any]) -> Any:
        """The result of a collective call."""
        try:
            return call()
        except LostRankError as error:
            lost = str(error)  # the error itself would keep connections open
        self._lost(lost)

    def _lost(self, why: str) -> NoReturn:
        """Raise an error with what is known about a rank that does not take part."""
        for _ in range(_GRACE_ATTEMPTS):
            missing = self.ranks.ended()  # read first: a rank reports its failure before it ends
            if failure := failure_of(self.ranks, 0.0 if missing else _GRACE_SECONDS / _GRACE_ATTEMPTS):
                raise RankFailedError(failure)
            if missing:
                break
        what = "has ended without a message"
        if not missing and (missing := self._missing()):
            what = f"did not come to call {self.calls}, where others wait {self.run.place}"
        who = f"rank {', '.join(map(str, missing))} {what}" if missing else f"a rank is gone: {why.splitlines()[0]}"
        last = f"; ranks last synchronised at `{self.run.path_of(self._records[0].position)}`" if self._records else ""
        raise RankFailedError(
            who + last,
            "see what it printed last: a process that ends without a message was killed, often because memory ran out; "
            f"ranks wait {self.ranks.timeout_seconds:g} s for each other, or GRAPHTRAIN_TIMEOUT_SECONDS",
        )

    def _missing(self) -> list[int]:
        try:
            self.ranks.publish(f"late/{self.calls}/{self.rank}", b"")
        except LostRankError:  # the rank with the store is gone
            return [0]
        others = [rank for rank in range(self.world_size) if rank != self.rank]
        return [rank for rank in others if self.ranks.read(f"late/{self.calls}/{rank}", 1.0) is None]

    def _diverged(self, records: Sequence[Record]) -> NoReturn:
        """Raise an error with the first edge at which ranks diverged, and their positions."""
        choices = [f"from `{self.run.path_of(each)}` to `{self.run.path_of(target)}`" for each, target in self._choices]
        mine = records[self.rank]
        place = f"is at `{self.run.path_of(mine.position)}` (call {mine.call}, {_PURPOSES[mine.purpose]})"
        self.ranks.publish(f"choices/{self.calls}/{self.rank}", "\n".join([*choices, place]).encode())
        of_ranks = [
            (self.ranks.read(f"choices/{self.calls}/{rank}", _GRACE_SECONDS) or b"is gone").decode().splitlines()
            for rank in range(self.world_size)
        ]
        lines = next(lines for lines in zip(*of_ranks, strict=False) if len(set(lines)) > 1)
        other = next(rank for rank, line in enumerate(lines) if line != lines[0])
        raise RanksDivergedError(
            f"ranks took different edges, or are not at the same place: rank 0 {lines[0]}, rank {other} {lines[other]}",
            "a guard read a value that differs between ranks: let a kind gather it and make one value first; or a node "
            "communicates on some ranks only: every rank must take part, or none",
        )


def _spot(record: Record) -> tuple[int, int, int, int]:
    return record.call, record.purpose, record.position, record.choices


# Those that every rank can make of the same arguments: a message and a hint, but for the first.
_ERRORS: dict[str, Callable[..., GraphtrainError]] = {UnsaveableError.__name__: UnsaveableError} | {
    name: kind for name, kind in vars(errors).items() if getattr(kind, "__init__", 0) is GraphtrainError.__init__
}


def error_as_plain(error: GraphtrainError) -> list[str]:
    """An error as plain data: the nearest of its types that every rank can make, and the arguments."""
    kind = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _ERRORS), "")
    if isinstance(error, UnsaveableError):
        return [kind, error.path, error.reason, error.hint]
    return [kind, getattr(error, "message", str(error)), getattr(error, "hint", "")]


def error_of_plain(plain: Sequence[str]) -> GraphtrainError:
    """The error that was made plain, on another rank."""
    kind, *arguments = plain
    return _ERRORS.get(kind, GraphtrainError)(*arguments)


def _is_of_connection(message: str) -> bool:
    """True for the message of a collective call that another rank has left."""
    return any(word in message for word in ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe"))
