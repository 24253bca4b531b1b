"""What a process needs of the others: two collective calls, and a store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch


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
    """

    rank: int
    world_size: int
    local_rank: int
    timeout_seconds: float

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
