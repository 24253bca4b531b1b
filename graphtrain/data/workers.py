"""The worker processes of a loader, and the signals that are meant for the run and not for its workers."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any

_FOR_THE_RUN = {getattr(signal, name) for name in ("SIGINT", "SIGUSR1", "SIGHUP") if hasattr(signal, name)}

# Workers that ignore SIGTERM must be killed at exit, or Python would wait for them.
_STARTED: weakref.WeakSet[Any] = weakref.WeakSet()


def iterate(data: Any) -> Iterator[Any]:
    """``iter(data)``, whose workers are started with the signals blocked that ask the run to stop.

    A terminal sends Ctrl-C to every process of the group, and a job queue its warning; workers killed by it would end
    the run before it reaches a save point. SIGTERM is not blocked, because it ends processes that a worker starts
    itself; see `start_worker`. A signal that arrives meanwhile is delivered to the run afterwards.
    """
    if not getattr(data, "num_workers", 0) or not hasattr(signal, "pthread_sigmask"):
        return iter(data)
    context = getattr(data, "multiprocessing_context", None) or multiprocessing.get_context()
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_RUN)
    children_before = set(multiprocessing.active_children())
    try:
        if context.get_start_method() != "fork":
            resource_tracker.ensure_running()  # which unblocks signals when it starts
            signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_RUN)
        return iter(data)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
        _STARTED.update(set(multiprocessing.active_children()) - children_before)


def start_worker(worker_init_fn: Callable[[int], Any] | None, worker_id: int) -> None:
    """The `worker_init_fn` of a `Loader`: SIGTERM is ignored while the parent lives; then the user's function runs.

    So a SIGTERM to the whole process group, as job queues send it, stops the run at its next save point. The workers of
    a plain DataLoader are killed by it, and the run with them: torch installs its own handler there.
    """
    signal.signal(signal.SIGTERM, _ignore_while_parent_lives)
    if worker_init_fn is not None:
        worker_init_fn(worker_id)


def _ignore_while_parent_lives(signal_number: int, frame: FrameType | None) -> None:
    parent = multiprocessing.parent_process()
    if parent is None or not parent.is_alive():
        signal.signal(signal_number, signal.SIG_DFL)
        os.kill(os.getpid(), signal_number)


@atexit.register
def _end_workers() -> None:
    with contextlib.suppress(ValueError, AssertionError):  # a process that is closed, or not a child of this fork
        alive = [process for process in _STARTED if process.is_alive()]
        if alive and hasattr(signal, "SIGCHLD"):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would report their end as a failure
        for process in alive:
            process.kill()
