"""The processes of a loader, and the signals that are meant for the run and not for them."""

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
from typing import Any, final

_FOR_THE_RUN = {getattr(signal, name) for name in ("SIGINT", "SIGUSR1") if hasattr(signal, name)}

# Workers that ignore SIGTERM must be ended otherwise, or Python would wait for them when it exits.
_STARTED: weakref.WeakSet[Any] = weakref.WeakSet()


def iterate(data: Any) -> Iterator[Any]:
    """``iter(data)``, with workers that no signal reaches which asks the run to stop.

    A terminal sends Ctrl-C to every process, a job queue its warning; workers that died of them would take the run
    along before its save point. Processes inherit the signals that are blocked while they start, however they start.
    SIGTERM is not blocked, for what a worker starts itself is ended by it; see `WorkerStart`. A signal that comes
    meanwhile reaches the run afterwards.
    """
    if not getattr(data, "num_workers", 0) or not hasattr(signal, "pthread_sigmask"):
        return iter(data)
    context = getattr(data, "multiprocessing_context", None) or multiprocessing.get_context()
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_RUN)
    before = set(multiprocessing.active_children())
    try:
        if context.get_start_method() != "fork":
            resource_tracker.ensure_running()  # it unblocks signals when it is started
            signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_RUN)
        return iter(data)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
        _STARTED.update(set(multiprocessing.active_children()) - before)


@final
class WorkerStart:
    """What a worker of a `Loader` does first: it ignores SIGTERM while its parent lives, then calls `then`.

    So a SIGTERM to the whole group of processes, as job queues send it, stops the run at its save point. The workers of
    a plain DataLoader die of it, and the run with them: torch has a handler of its own there.
    """

    def __init__(self, then: Callable[[int], Any] | None) -> None:
        self._then = then

    def __call__(self, number: int) -> None:
        signal.signal(signal.SIGTERM, _ignore_while_the_parent_lives)
        if self._then is not None:
            self._then(number)


def _ignore_while_the_parent_lives(number: int, frame: FrameType | None) -> None:
    parent = multiprocessing.parent_process()
    if parent is None or not parent.is_alive():
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


@atexit.register
def _end_workers() -> None:
    with contextlib.suppress(ValueError, AssertionError):  # closed meanwhile; or this is a fork of the run
        alive = [process for process in _STARTED if process.is_alive()]
        if alive and hasattr(signal, "SIGCHLD"):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would take their end for a failure
        for process in alive:
            process.kill()
