"""The worker processes of a loader, which ignore the signals that are meant for the run."""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import signal
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from typing import Any

_FOR_THE_RUN = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)

# Workers that ignore SIGTERM must be killed at exit, or Python would wait for them.
_STARTED: weakref.WeakSet[Any] = weakref.WeakSet()


def iterate(data: Any) -> Iterator[Any]:
    """``iter(data)``, whose workers ignore the signals that ask the run to stop."""
    if not getattr(data, "num_workers", 0) or not hasattr(data, "worker_init_fn"):
        return iter(data)
    worker_init_fn = data.worker_init_fn
    data.worker_init_fn = functools.partial(start_worker, worker_init_fn)
    context = getattr(data, "multiprocessing_context", None) or multiprocessing.get_context()
    # Blocked until the workers, which inherit this, ignore them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_RUN)
    try:
        if context.get_start_method() != "fork":  # Python starts helper processes, which must not end either
            resource_tracker.ensure_running()  # which unblocks two of the signals when it starts
            signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_RUN)
        iterator: Iterator[Any] = iter(data)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        data.worker_init_fn = worker_init_fn
    _STARTED.update(getattr(iterator, "_workers", ()))
    return iterator


def start_worker(worker_init_fn: Callable[[int], Any] | None, worker_id: int) -> None:
    """Ignore signals, then call the user's function; torch ends a worker whose run has died.

    A terminal sends Ctrl-C to every process of the group, and a job queue its warning or SIGTERM; workers that it kills
    would end the run before a save point.
    """
    for number in _FOR_THE_RUN:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_THE_RUN)  # for processes that a worker starts itself
    if worker_init_fn is not None:
        worker_init_fn(worker_id)


@atexit.register
def _end_workers() -> None:
    with contextlib.suppress(ValueError, AssertionError):  # a process that is closed, or not a child of this fork
        alive = [process for process in _STARTED if process.is_alive()]
        if alive:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would report their end as a failure
        for process in alive:
            process.kill()
