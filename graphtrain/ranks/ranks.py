"""The interface between processes: two collective calls and a store; and the record by which they synchronise."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

if TYPE_CHECKING:
    import torch


FAILURE = "failure"  # the key of the store under which a rank publishes why it is missing
# Of a group for tensors on CUDA devices, and on the host, where the parts of sharded models may be.
WITH_DEVICES = "cpu:gloo,cuda:nccl"


class LostRankError(Exception):
    """A collective call that can never complete: a rank has ended, or has not called it in time."""


class Ranks:
    """One process, the rank, of a world of `world_size`. This class itself is for a process alone.

    Every rank makes the same calls of `gather`, with as many bytes, in the same order, and the same of
    `begin_exchange`, with tensors of the same shapes and types. The end of an exchange follows a `gather` of records
    that announce it, its beginning may precede that. Both raise a `LostRankError` where a rank does not take part. The
    store may be used at any time, and from any thread.

    Attributes:
        rank: the number of this process, from 0.
        world_size: how many processes there are.
        local_rank: the number of this process on its host, from 0.
        timeout_seconds: how long a collective call waits for the other ranks.
        times_left: how many times this rank has left the others.

    >>> ranks = Ranks()
    >>> ranks.gather(b"record"), ranks.rank, ranks.world_size
    ([b'record'], 0, 1)
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    timeout_seconds: float = 0.0
    times_left: int = 0

    def gather(self, record: bytes) -> list[bytes]:
        """What every rank has passed, in the order of ranks: as many bytes on each of them."""
        return [record]

    def begin_exchange(self, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Begin to replace every tensor by its sum over all ranks, in place; the sum has the same bits on each of them.

        Returns:
            A call that waits for the sums. Until it returns, the tensors must not be used.
        """
        return lambda: None

    def publish(self, key: str, value: bytes) -> None:
        """Put a value where every rank can read it, for as long as the run lasts."""

    def read(self, key: str, timeout_seconds: float = 0.0) -> bytes | None:
        """What a rank has published; None where nothing is published within the time."""
        return None

    def claim(self, key: str) -> bool:
        """True for the first rank that claims a key; a LostRankError if the rank that has the store is gone."""
        return True

    def mesh(self, device_type: str, shape: tuple[int, ...]) -> Any:
        """A `DeviceMesh` of this shape over all ranks, for models that are sharded; one for each shape."""
        from graphtrain.ranks.sharded import mesh_of_process  # which few runs need

        return mesh_of_process(device_type, shape)

    def leave(self) -> None:
        """Leave the others: their collective calls fail as soon as they need this rank.

        Published values are deleted. A later collective call joins the ranks again, once all of them have left.
        """

    def ended(self) -> list[int]:
        """The other ranks that this one knows to have ended, such as processes of its host."""
        return []


@final
@dataclass
class Record:
    """What every rank sends to the others when they synchronise: where it is, and what may differ between ranks.

    Attributes:
        call: how many times this rank has synchronised.
        purpose: the reason for the call, a number defined by the caller.
        position: the node that is running, or is next.
        choices: a hash of the edges taken since ranks last synchronised, at nodes with several.
        digest: 8 bytes, a hash of what must be equal, such as which parameters have a gradient; zeros for nothing.
        payload_bytes: the length of what this rank passes next; 0 for nothing.
        stops: how many times this rank was asked to stop since it last synchronised, by signals.
        saves: how many times it was asked for a checkpoint.
        seconds: for how long this rank has trained, by its own clock.
        saves_done: how many saves of the run are over, written or failed, as far as this rank knows.
        samples: the samples in the batch that this rank has fetched.
        asked: what step functions of this rank have requested, as bits defined by the caller.

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
    saves_done: int = 0
    samples: int = 0
    asked: int = 0

    _layout: ClassVar[struct.Struct] = struct.Struct("<QHIQ8sQHHdIqQ")
    size: ClassVar[int] = _layout.size

    def packed(self) -> bytes:
        """The record in `Record.size` bytes."""
        return self._layout.pack(*vars(self).values())  # in the order of the fields; `astuple` takes 31 us, this 1.3

    @classmethod
    def of(cls, data: bytes) -> Record:
        """The record that was packed."""
        return cls(*cls._layout.unpack(data))
