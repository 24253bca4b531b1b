"""Signals only set a flag: the run stops at the next save point. A second SIGINT stops at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]


@contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """While the block runs, SIGINT, SIGTERM and SIGUSR1 call `stop`, which must only set a flag.

    Outside the main thread, where Python allows no handlers, it does nothing. In a process forked by the run (a
    loader's worker) SIGINT is ignored, since the terminal sends it to all processes; the others keep their default.
    """
    owner = os.getpid()
    interrupted = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if os.getpid() != owner:
            if number != signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        if number == signal.SIGINT:
            if interrupted:
                raise KeyboardInterrupt
            interrupted = True
        stop()

    previous: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in _STOPPING:
                previous[number] = signal.signal(number, handle)
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
