"""Ranks that are processes, on one host or several, joined by torch.distributed."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore  # which torch.distributed does not mark as exported

from graphtrain.distributed.ranks import LostRankError, Ranks
from graphtrain.errors import UsageError

# How long a rank waits for another by default: setup may download, and the first batch may start workers.
_TIMEOUT_SECONDS = 1800.0
_TIMEOUT = "GRAPHTRAIN_TIMEOUT_SECONDS"


@final
class Processes(Ranks):
    """Processes that torchrun has started, or whatever else sets its variables of the environment.

    Records are gathered by gloo, gradients are exchanged by NCCL where they are on CUDA devices, and by gloo elsewhere.
    """

    def __init__(self, store: Any, rank: int, world_size: int, local_rank: int, timeout_seconds: float) -> None:
        self.rank, self.world_size, self.local_rank = rank, world_size, local_rank
        self.timeout_seconds = timeout_seconds
        self._store = store
        self._connections = threading.local()
        timeout = timedelta(seconds=timeout_seconds)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
        self._records = dist.new_group(backend="gloo", timeout=timeout)
        self._tensors: dict[str, Any] = {"cpu": dist.new_group(backend="gloo", timeout=timeout)}
        self._timeout = timeout
        atexit.register(_leave)  # a group that the interpreter ends with aborts the process

    @classmethod
    def join(cls) -> Processes:
        """Join the other processes, as the environment says.

        Raises:
            UsageError: a script has begun another process group, a variable is missing or is no number, or the other
                processes cannot be reached.
        """
        if dist.is_initialized():
            raise UsageError(
                "the script has called torch.distributed.init_process_group",
                "leave it out, and DistributedDataParallel too: graphtrain joins the processes, and exchanges "
                "gradients at the node `exchange`",
            )
        rank, world_size = _number("RANK"), _number("WORLD_SIZE")
        seconds = float(os.environ.get(_TIMEOUT, _TIMEOUT_SECONDS))
        address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), _number("MASTER_PORT")
        # The agent of torchrun has the store, and tells so; without one, rank 0 has it.
        is_master = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and rank == 0
        try:
            store = TCPStore(address, port, world_size, is_master, timedelta(seconds=seconds))
        except (RuntimeError, ValueError) as error:
            raise UsageError(
                f"rank {rank} cannot reach the other processes at {address}:{port}: {str(error).splitlines()[0]}",
                "start all of them with one address and port, as torchrun does",
            ) from None
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        # Without the number of the attempt, a restart finds the addresses of processes that have died.
        prefixed = PrefixStore(f"graphtrain/{attempt}", store)
        return cls(prefixed, rank, world_size, int(os.environ.get("LOCAL_RANK", rank)), seconds)

    def gather(self, record: bytes) -> list[bytes]:
        size = len(record)
        passed = torch.frombuffer(bytearray(record), dtype=torch.uint8)
        gathered = torch.empty(size * self.world_size, dtype=torch.uint8)
        try:
            dist.all_gather_single(gathered, passed, group=self._records)
        except RuntimeError as error:
            raise LostRankError(str(error)) from None
        data = gathered.numpy().tobytes()
        return [data[start : start + size] for start in range(0, size * self.world_size, size)]

    def exchange(self, tensors: Sequence[torch.Tensor]) -> None:
        try:
            works = [
                dist.all_reduce(tensor, group=self._group(tensor.device.type), async_op=True) for tensor in tensors
            ]
            for work in works:
                assert work is not None, "this process is in the group"
                work.wait()
        except RuntimeError as error:
            raise LostRankError(str(error)) from None

    def _group(self, device: str) -> Any:
        if device not in self._tensors:
            backend = "nccl" if device == "cuda" else "gloo"
            self._tensors[device] = dist.new_group(backend=backend, timeout=self._timeout)
        return self._tensors[device]

    def _connection(self) -> Any:
        """The store, for this thread: calls on one connection wait for each other, also for one that waits long."""
        if not hasattr(self._connections, "store"):
            self._connections.store = self._store.clone()
        return self._connections.store

    def publish(self, key: str, value: bytes) -> None:
        try:
            self._connection().set(key, value)
        except RuntimeError as error:
            raise LostRankError(str(error)) from None

    def read(self, key: str, timeout_seconds: float = 0.0) -> bytes | None:
        try:
            store = self._connection()
            if timeout_seconds > 0:
                store.wait([key], timedelta(seconds=timeout_seconds))
            elif not store.check([key]):
                return None
            return bytes(store.get(key))
        except RuntimeError:  # it is not there in time, or whoever has the store is gone
            return None


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _number(name: str) -> int:
    value = os.environ.get(name, "")
    if not value.isdecimal():
        raise UsageError(
            f"{name} is {value!r}, which is no number" if value else f"RANK and WORLD_SIZE are set, and {name} is not",
            "start the processes with torchrun, or with graphtrain run --processes",
        )
    return int(value)
