"""Signals only set a flag: the run stops at the next save point. A second SIGINT stops at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name)]


class StopSignals:
    """While the block runs, SIGINT, SIGTERM and SIGUSR1 call `stop` with the signal's name.

    Outside the main thread, where Python allows no handlers, it does nothing. In a process forked by the run (a
    loader's worker) SIGINT is ignored, since the terminal sends it to all processes; the others keep their default.

    Arguments:
        stop: called from the handler; it must only set a flag.
    """

    def __init__(self, stop: Callable[[str], None]) -> None:
        self._stop = stop
        self._owner = os.getpid()
        self._previous: dict[int, Any] = {}
        self._interrupted = False

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in _STOPPING:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            if number != signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        if number == signal.SIGINT:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
        self._stop(signal.Signals(number).name)
