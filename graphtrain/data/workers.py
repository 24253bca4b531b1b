"""The worker processes of a loader, and the signals that are meant for the run and not for its workers."""

from __future__ import annotations

import atexit
import contextlib
import functools
import signal
import weakref
from collections.abc import Callable, Iterator
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP")
_FOR_THE_RUN = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]

# Workers that ignore SIGTERM must be killed at exit, or Python would wait for them.
_STARTED: weakref.WeakSet[Any] = weakref.WeakSet()


def iterate(data: Any) -> Iterator[Any]:
    """``iter(data)``, whose workers ignore the signals that ask the run to stop."""
    if not getattr(data, "num_workers", 0) or not hasattr(data, "worker_init_fn"):
        return iter(data)
    given = data.worker_init_fn
    data.worker_init_fn = functools.partial(start_worker, given)
    try:
        iterator: Iterator[Any] = iter(data)
    finally:
        data.worker_init_fn = given
    _STARTED.update(getattr(iterator, "_workers", ()))
    return iterator


def start_worker(worker_init_fn: Callable[[int], Any] | None, worker_id: int) -> None:
    """Ignore signals, then call the user's function; torch ends a worker whose run has died.

    A terminal sends Ctrl-C to every process of the group, and a job queue its warning, or SIGTERM; workers killed by it
    would end the run before it reaches a save point.
    """
    for number in _FOR_THE_RUN:
        signal.signal(number, signal.SIG_IGN)
    if worker_init_fn is not None:
        worker_init_fn(worker_id)


@atexit.register
def _end_workers() -> None:
    with contextlib.suppress(ValueError, AssertionError):  # a process that is closed, or not a child of this fork
        alive = [process for process in _STARTED if process.is_alive()]
        if alive and hasattr(signal, "SIGCHLD"):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would report their end as a failure
        for process in alive:
            process.kill()
