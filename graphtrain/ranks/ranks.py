"""What a process needs of the others: two collective calls, and a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

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

    def __init__(self) -> None:
        self._published: dict[str, bytes] = {}

    def gather(self, record: bytes) -> list[bytes]:
        return [record]

    def exchange(self, tensors: Sequence[torch.Tensor]) -> None:
        """Nothing: a sum over one rank."""

    def publish(self, key: str, value: bytes) -> None:
        self._published[key] = value

    def read(self, key: str, timeout_seconds: float = 0.0) -> bytes | None:
        return self._published.get(key)

    def claim(self, key: str) -> bool:
        return True

    def leave(self) -> None:
        self._published.clear()

    def ended(self) -> list[int]:
        return []
