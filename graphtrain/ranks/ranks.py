"""The interface between processes: two collective calls and a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

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

    def mesh(self, device_type: str) -> Any:
        """A `DeviceMesh` over all ranks, for models that are sharded."""
        from graphtrain.ranks.sharded import mesh_of_process  # which few runs need

        return mesh_of_process(device_type, WITH_DEVICES if device_type == "cuda" else "gloo")

    def leave(self) -> None:
        """Leave the others: their collective calls fail as soon as they need this rank.

        Published values are deleted. A later collective call joins the ranks again, once all of them have left.
        """

    def ended(self) -> list[int]:
        """The other ranks that this one knows to have ended, such as processes of its host."""
        return []
