"""What a process needs of the others: two collective calls, and a store; and the record by which they synchronise."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, ClassVar, final

if TYPE_CHECKING:
    import torch


FAILURE = "failure"  # the key of the store under which a rank tells why it does not come


class LostRankError(Exception):
    """A collective call that can never complete: a rank has ended, or has not come to it in time."""


class Ranks(ABC):
    """One process, the rank, among as many as the world size.

    Every rank makes the same collective calls in the same order: `gather` with as many bytes, `exchange` with tensors
    of the same shapes and types. Whoever calls `exchange` has gathered records before that say so; the store may be
    used at any time, and from any thread.

    Attributes:
        rank: the number of this process, from 0.
        world_size: how many processes there are.
        local_rank: the number of this process on its host, from 0.
        timeout_seconds: how long a collective call waits for the other ranks.
        times_left: how many times this rank has left the others.
    """

    rank: int
    world_size: int
    local_rank: int
    timeout_seconds: float
    times_left: int = 0

    @abstractmethod
    def gather(self, record: bytes) -> list[bytes]:
        """What every rank has passed, in the order of ranks.

        Arguments:
            record: as many bytes on every rank.

        Raises:
            LostRankError: a rank does not take part.
        """

    @abstractmethod
    def exchange(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace every tensor by its sum over all ranks, in place; the sum has the same bits on each of them.

        Raises:
            LostRankError: a rank does not take part.
        """

    @abstractmethod
    def publish(self, key: str, value: bytes) -> None:
        """Put a value where every rank can read it, for as long as the run lasts."""

    @abstractmethod
    def read(self, key: str, timeout_seconds: float = 0.0) -> bytes | None:
        """What a rank has published; None where nothing is published within the time."""

    @abstractmethod
    def claim(self, key: str) -> bool:
        """True for the first rank that asks for a key, which then does for all what is to be done once.

        Raises:
            LostRankError: the rank that has the store is gone.
        """

    @abstractmethod
    def leave(self) -> None:
        """End the part of this rank: the collective calls of the others fail as soon as they need it.

        What was published is forgotten. A later collective call joins the ranks again, once all of them have left.
        """

    @abstractmethod
    def ended(self) -> list[int]:
        """The other ranks of which this one can tell that they have ended, such as processes of its host."""


@final
class Alone(Ranks):
    """The only process.

    >>> ranks = Alone()
    >>> ranks.gather(b"record"), ranks.rank, ranks.world_size
    ([b'record'], 0, 1)
    """

    rank = 0
    world_size = 1
    local_rank = 0
    timeout_seconds = 0.0

    def gather(self, record: bytes) -> list[bytes]:
        return [record]

    def exchange(self, tensors: Sequence[torch.Tensor]) -> None:
        """Nothing: a sum over one rank."""

    def publish(self, key: str, value: bytes) -> None:
        """Nothing: there is nobody to read it."""

    def read(self, key: str, timeout_seconds: float = 0.0) -> bytes | None:
        return None

    def claim(self, key: str) -> bool:
        return True

    def leave(self) -> None:
        """Nothing: there is nobody to leave."""

    def ended(self) -> list[int]:
        return []


@final
@dataclass(frozen=True)
class Record:
    """What every rank tells the others when ranks synchronise: where it is, and what may differ between ranks.

    Attributes:
        call: how many times this rank has synchronised.
        purpose: what for: a number that the caller gives meaning.
        position: the node that is running, or is next.
        choices: a hash of the edges taken since ranks last synchronised, at nodes with several.
        digest: 8 bytes, a hash of what has to be equal, such as which parameters have a gradient; zeros for nothing.
        payload_bytes: the length of what this rank passes next; 0 for nothing.
        stops: how many times this rank was asked to stop since it last synchronised, by signals.
        saves: how many times it was asked for a checkpoint.
        seconds: for how long this rank has trained, by its own clock.
        is_busy: True while it writes a checkpoint.
        has_failed: True if what it was to do, such as copying its state, failed; why is in the store.
        saves_done: how many saves of the run are over, written or failed, as far as this rank knows.
        saves_failed: how many of those have failed.
        has_batch: False where the data of this rank has no further batch.
        length: the batches in the epoch of this rank's data; -1 where it is not known.
        samples: the samples in the batch that this rank has fetched.
        asked: what step functions of this rank have asked for: bits to which the caller gives meaning.

    >>> record = Record(call=3, position=5, seconds=1.5)
    >>> Record.of(record.packed()) == record, len(record.packed()) == Record.size
    (True, True)
    """

    call: int = 0
    purpose: int = 0
    position: int = 0
    choices: int = 0
    digest: bytes = bytes(8)
    payload_bytes: int = 0
    stops: int = 0
    saves: int = 0
    seconds: float = 0.0
    is_busy: bool = False
    has_failed: bool = False
    saves_done: int = 0
    saves_failed: int = 0
    has_batch: bool = True
    length: int = -1
    samples: int = 0
    asked: int = 0

    _layout: ClassVar[struct.Struct] = struct.Struct("<QHIQ8sQHHd??II?qqQ")
    size: ClassVar[int] = _layout.size

    def packed(self) -> bytes:
        """The record in `Record.size` bytes."""
        return self._layout.pack(*astuple(self))

    @classmethod
    def of(cls, data: bytes) -> Record:
        """The record that was packed."""
        return cls(*cls._layout.unpack(data))
