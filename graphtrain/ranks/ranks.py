"""The interface between the ranks of a run: two collective calls and a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


FAILURE = "failure"  # the key of the store under which a rank publishes why it has failed
# The backends of a group for tensors on CUDA devices and on the CPU, where parts of sharded models may be.
WITH_DEVICES = "cpu:gloo,cuda:nccl"


class LostRankError(Exception):
    """A collective call cannot complete: a rank has ended, or has not made the call in time."""


class Ranks:
    """This process as one rank of `world_size`. The class itself is for a single process.

    All ranks must make the same calls of `gather` in the same order, with records of the same length, and the same of
    `begin_exchange`, with tensors of the same shapes and dtypes. An exchange may begin before the `gather` that
    announces it, and ends after it. Both raise a `LostRankError` if a rank does not take part. The store, `publish` and
    `read`, may be used at any time and in any thread.

    Attributes:
        rank: the number of this process, from 0.
        world_size: the number of processes.
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
        """The records of all ranks, in their order. All records have the same length."""
        return [record]

    def begin_exchange(self, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Begin to replace every tensor, in place, by its sum over all ranks, which has the same bits on each.

        Returns:
            A function that waits for the sums. Until it returns, the tensors must not be used.
        """
        return lambda: None

    def publish(self, key: str, value: bytes) -> None:
        """Store a value that every rank can read, until the ranks leave."""

    def read(self, key: str, timeout_seconds: float = 0.0) -> bytes | None:
        """A value that a rank has published; None if there is none within the time."""
        return None

    def mesh(self, device_type: str) -> Any:
        """A `DeviceMesh` over all ranks, for sharding models."""
        from graphtrain.ranks.sharded import mesh_of_process  # which few runs need

        return mesh_of_process(device_type, WITH_DEVICES if device_type == "cuda" else "gloo")

    def leave(self) -> None:
        """Leave the other ranks: their collective calls fail as soon as they need this one.

        Published values can no longer be read. A later collective call joins the ranks again, once all have left.
        """

    def ended(self) -> list[int]:
        """The other ranks on this host whose processes have ended."""
        return []
