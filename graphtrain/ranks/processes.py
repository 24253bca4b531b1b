"""Ranks that are processes on one host or several, connected by torch.distributed."""

from __future__ import annotations

import atexit
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore  # which torch.distributed does not mark as exported

from graphtrain.errors import UsageError
from graphtrain.ranks.alive import is_alive
from graphtrain.ranks.ranks import FAILURE, WITH_DEVICES, LostRankError, Ranks

# How long a rank waits for another by default: setup may download, the first batch may start workers.
_TIMEOUT_SECONDS = "1800"
TIMEOUT = "GRAPHTRAIN_TIMEOUT_SECONDS"
_POLLING_SECONDS = 0.02
_SECONDS_TO_READ = 5.0  # how long the rank with the store stays after it has failed
_SECONDS_TO_JOIN = 0.5  # after which a waiting rank checks whether another has failed
# Two ranks gather and add anything smaller: over gloo, 0.4 ms instead of 1.1 for 20 kB, and 2.2 instead of 2.4 for
# 1.2 MB. A sum of two numbers has the same bits in either order.
_GATHERED_BYTES = 2**18


@final
class Processes(Ranks):
    """Processes started by torchrun, or by another launcher that sets its environment variables.

    Records are gathered by Gloo; gradients are exchanged by NCCL on CUDA devices, and by Gloo elsewhere. The groups are
    created by the first collective call, so that a rank which fails before it can report that in the store.
    """

    def __init__(self) -> None:
        """Connect to the other processes by the variables of the environment.

        Raises:
            UsageError: a variable is missing or not a number, or the other processes cannot be reached.
        """
        self.rank, self.world_size = _number("RANK"), _number("WORLD_SIZE")
        self.local_rank = _number("LOCAL_RANK", str(self.rank))
        self.timeout_seconds = _number(TIMEOUT, _TIMEOUT_SECONDS)
        self._timeout = timedelta(seconds=self.timeout_seconds)
        # The agent of torchrun may have the store, and sets a variable if so; otherwise rank 0 has it.
        self._has_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and self.rank == 0
        # Without the number of the attempt, a restart finds the addresses of processes that have died.
        prefix = f"graphtrain/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self._store = PrefixStore(prefix, self._connected())
        self._keys: Any = PrefixStore("0", self._store)  # the store, until ranks leave
        self._records: Any = None
        self._tensors: dict[str, Any] = {}
        self._mesh: Any = None
        self._processes: dict[int, int] = {}  # rank -> the number of its process, of those on this host
        atexit.register(self._end)

    def _connected(self) -> TCPStore:
        address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), _number("MASTER_PORT")
        # With multi_tenant, a script that initializes its own group gets as far as our message.
        options: dict[str, Any] = {"wait_for_workers": False, "multi_tenant": True}
        try:
            return TCPStore(address, port, self.world_size, self._has_store, self._timeout, **options)
        except (RuntimeError, ValueError) as error:
            raise UsageError(
                f"rank {self.rank} cannot reach the other processes at {address}:{port}: {str(error).splitlines()[0]}",
                "start all processes with the same MASTER_ADDR and MASTER_PORT, as torchrun does",
            ) from None

    def gather(self, record: bytes) -> list[bytes]:
        self._join_groups()
        size = len(record)
        passed = torch.frombuffer(bytearray(record), dtype=torch.uint8)
        gathered = torch.empty(size * self.world_size, dtype=torch.uint8)
        _together(lambda: all_gather(gathered, passed, self._records))
        data = gathered.numpy().tobytes()
        return [data[start : start + size] for start in range(0, size * self.world_size, size)]

    def begin_exchange(self, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        self._join_groups()
        begun: list[Callable[[], Any]] = []
        _together(lambda: begun.extend(self._begin_sum(tensor) for tensor in tensors))
        return lambda: _together(lambda: [wait() for wait in begun])

    def _begin_sum(self, tensor: torch.Tensor) -> Callable[[], Any]:
        """Begin the sum of a tensor; returns a function that waits for it."""
        group = self._group(tensor.device.type)
        if self.world_size > 2 or tensor.nbytes >= _GATHERED_BYTES or tensor.device.type != "cpu":
            wait: Callable[[], Any] = dist.all_reduce(tensor, group=group, async_op=True).wait
            return wait
        parts = tensor.new_empty(2 * tensor.numel())
        work = all_gather(parts, tensor.view(-1), group, async_op=True)
        return lambda: (work.wait(), torch.add(*parts.chunk(2), out=tensor.view(-1)))

    def _join_groups(self) -> None:
        """Create the groups, at the first collective call."""
        if self._records is not None:
            return
        if dist.is_initialized():
            raise UsageError(
                "the script has called torch.distributed.init_process_group",
                "remove that call, and DistributedDataParallel too: graphtrain connects the processes, and exchanges "
                "gradients at the node `exchange`",
            )
        self._wait_for_all()
        backend = WITH_DEVICES if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        ranks: dict[str, Any] = {"store": self._keys, "rank": self.rank, "world_size": self.world_size}

        def join() -> None:
            dist.init_process_group(backend, **ranks, timeout=self._timeout)
            self._tensors["cpu"] = dist.new_group(backend="gloo", timeout=self._timeout)
            self._records = dist.new_group(backend="gloo", timeout=self._timeout)

        try:
            _together(join)
        except LostRankError:
            self._leave_groups()
            raise

    def _wait_for_all(self) -> None:
        """Wait until every rank has joined; unlike creating groups, this notices a rank that has already failed."""
        host, deadline = socket.gethostname(), time.monotonic() + self.timeout_seconds
        self.publish(f"joins/{self.rank}", f"{os.getpid()} {host}".encode())
        for rank in range(self.world_size):
            while (joined := self.read(f"joins/{rank}", _SECONDS_TO_JOIN)) is None:
                if self.read(FAILURE) is not None or time.monotonic() > deadline:
                    raise LostRankError(f"rank {rank} has not joined")
            number, _, other_host = joined.decode().partition(" ")
            if rank != self.rank and other_host == host:
                self._processes[rank] = int(number)

    def _group(self, device: str) -> Any:
        if device not in self._tensors:
            backend = "nccl" if device == "cuda" else "gloo"
            self._tensors[device] = dist.new_group(backend=backend, timeout=self._timeout)
        return self._tensors[device]

    def mesh(self, device_type: str) -> Any:
        from graphtrain.ranks.sharded import mesh_of_group  # which few runs need

        self._join_groups()
        if self._mesh is None:
            _together(lambda: setattr(self, "_mesh", mesh_of_group(device_type, self.world_size)))
        return self._mesh

    def leave(self) -> None:
        self._leave_groups()
        self.times_left += 1
        self._keys = PrefixStore(str(self.times_left), self._store)

    def _end(self) -> None:
        """Leave when the interpreter ends, and keep the store until the others have read why this rank has failed."""
        self._leave_groups()
        if not self.times_left:
            return
        with suppress(RuntimeError):  # the rank with the store has ended
            self._store.set(f"ended/{self.rank}", "")
        deadline = time.monotonic() + _SECONDS_TO_READ
        while self._has_store and time.monotonic() < deadline:
            if self._store.check([f"ended/{rank}" for rank in {*range(self.world_size)}.difference(self.ended())]):
                return
            time.sleep(_POLLING_SECONDS)

    def _leave_groups(self) -> None:
        is_joined, self._records = self._records is not None or bool(self._tensors), None
        self._tensors, self._mesh = {}, None
        if is_joined and dist.is_initialized():
            dist.destroy_process_group()

    def publish(self, key: str, value: bytes) -> None:
        try:
            self._keys.set(key, value)
        except RuntimeError as error:
            raise LostRankError(str(error)) from None

    def read(self, key: str, timeout_seconds: float = 0.0) -> bytes | None:
        deadline = time.monotonic() + timeout_seconds
        try:
            while not self._keys.check([key]):  # the `wait` of the store prints a warning, and blocks other threads
                if time.monotonic() > deadline:
                    return None
                time.sleep(_POLLING_SECONDS)
            return bytes(self._keys.get(key))
        except RuntimeError:  # the rank with the store has ended: this process is about to end too
            time.sleep(min(timeout_seconds, _SECONDS_TO_JOIN))
            return None

    def ended(self) -> list[int]:
        return [rank for rank, process in self._processes.items() if not is_alive(process)]


def all_gather(gathered: torch.Tensor, passed: torch.Tensor, group: Any, *, async_op: bool = False) -> Any:
    """Gather a tensor of each rank of a group into one; returns the work handle if it is asynchronous."""
    # torch 2.13 has deprecated the former name.
    gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
    return gather(gathered, passed, group=group, async_op=async_op)


def _together(call: Callable[[], Any]) -> None:
    """Make a collective call; raises a LostRankError if a rank does not take part."""
    try:
        call()
        return
    except RuntimeError as error:
        lost = str(error)  # the frames of the error itself would keep connections open, and other ranks would wait
    raise LostRankError(lost)


def _number(name: str, default: str = "") -> int:
    value = os.environ.get(name, default)
    if not value.isdecimal():
        raise UsageError(
            f"{name} is {value!r}, which is not a number",
            f"start the processes with torchrun, or with graphtrain run --processes; {TIMEOUT} is in seconds",
        )
    return int(value)
