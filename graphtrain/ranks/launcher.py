"""Run a command as several processes on this host, which get the signals of this one and have one exit code."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, final

from graphtrain.errors import UsageError
from graphtrain.outcome import STOPPED
from graphtrain.ranks.current import is_one_of_several

# Set in the started processes: how many there are. Their command line contains --processes too.
LAUNCHED = "GRAPHTRAIN_PROCESSES"

# How long the others may take to end by themselves once one has failed; as in torchrun.
_GRACE_SECONDS = 30.0
_POLLING_SECONDS = 0.05
_SET_PARENT_DEATH_SIGNAL = 1  # of prctl
_FORWARDED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
_FAILED, _BAD_USAGE, _INTERRUPTED = 1, 2, 130


def launched(count: int | None) -> int | None:
    """Start the command line of this process ``--processes`` times, and wait; returns the common exit code.

    Returns None if this process is to train itself: the number is None or 1, or it is one of the started processes.

    Raises:
        UsageError: another launcher has started this process.
    """
    if count is None or LAUNCHED in os.environ:
        return None
    if is_one_of_several():
        raise UsageError(
            f"--processes {count}: torchrun or another launcher has started this process as one of "
            f"{os.environ['WORLD_SIZE']}",
            "leave --processes out; torchrun --nproc-per-node sets the number of processes",
        )
    return launch(count) if count > 1 else None


def launch(count: int) -> int:
    """Start the command line of this process several times, and wait for all; returns the exit code.

    It is 0 if all have finished, 75 if they were stopped, 2 after a usage error in one, 130 after an interrupt, else 1.
    Signals are forwarded to all processes. On Linux they get SIGTERM if this process is killed.
    """
    processes = _Processes()
    # A signal that is ignored, as by nohup, stays ignored, here and in the processes.
    previous = {each: signal.getsignal(each) for each in _FORWARDED if signal.getsignal(each) is not signal.SIG_IGN}
    try:
        for number in previous:
            signal.signal(number, processes.forward)
        processes.start([sys.executable, *sys.orig_argv[1:]], count)
        return processes.wait()
    finally:
        processes.kill()
        for number, handler in previous.items():
            signal.signal(number, handler)


@final
class _Processes:
    """The processes that were started."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[Any]] = []
        self._asked: list[int] = []  # the signals received

    def start(self, command: Sequence[str], count: int) -> None:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            port = listening.getsockname()[1]
        environment = {
            # As under torchrun: as many threads as cores in each process would be slower than one.
            "OMP_NUM_THREADS": "1",
            # If the rank with the store is killed, torch prints a page of addresses for each call to it.
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            **os.environ,
            **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", LAUNCHED), str(count)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        for rank in range(count):
            process = subprocess.Popen(  # noqa: S603  # the command of this process
                command,
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.DEVNULL,
                # Else Ctrl-C would reach each process twice: from the terminal, and from here.
                start_new_session=True,
                preexec_fn=_end_with_parent(os.getpid()),
            )
            self._processes.append(process)
            for number in self._asked:  # those received before it was started
                process.send_signal(number)

    def forward(self, number: int, frame: FrameType | None = None) -> None:
        """A signal handler that passes the signal on to all processes."""
        self._asked.append(number)
        for process in self._processes:
            if process.returncode is None:
                process.send_signal(number)

    def wait(self) -> int:
        """Wait until all have ended; returns the most informative exit code (1 may mean another failed)."""
        killed_at = math.inf
        while None in (codes := [self._code(process) for process in self._processes]):
            if STOPPED in codes and signal.SIGTERM not in self._asked:  # also those that are about to begin
                self.forward(signal.SIGTERM)
            if {*codes} - {None, 0, STOPPED}:
                killed_at = min(killed_at, time.monotonic() + _GRACE_SECONDS)
            if time.monotonic() > killed_at:
                self.kill()
            time.sleep(_POLLING_SECONDS)
        failed = {*codes} - {0, STOPPED}
        if not failed:
            return STOPPED if STOPPED in codes else 0
        return next((code for code in (_BAD_USAGE, _INTERRUPTED) if code in failed), _FAILED)

    def _code(self, process: subprocess.Popen[Any]) -> int | None:
        code = process.poll()
        # A process without handlers has done nothing yet: a forwarded signal has stopped it.
        return STOPPED if code is not None and -code in self._asked and -code != signal.SIGHUP else code

    def kill(self) -> None:
        """Kill the processes that still run."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def _end_with_parent(parent: int) -> Callable[[], None] | None:
    """What a started process calls first, to get SIGTERM when its parent ends; None except on Linux."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() != parent:  # it has already ended
            os.kill(os.getpid(), signal.SIGTERM)

    return ask
