"""SIGINT, SIGTERM, SIGUSR1 and SIGHUP stop a run at its next save point; a second SIGINT interrupts it at once.

A signal that was ignored before, as by nohup, stays ignored.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_ACKNOWLEDGED = "stopping as soon as possible; Ctrl-C again stops at once, without saving"
_STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]


@contextlib.contextmanager
def stop_signals(stop: Callable[[int], None]) -> Iterator[None]:
    """While the block runs, signals call `stop` with their number; the first SIGINT is acknowledged at once.

    `stop` must only set a flag. Outside the main thread, where Python allows no handlers, nothing is handled.
    """
    process, is_interrupted = os.getpid(), False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        if os.getpid() != process:  # a forked child, such as a worker; a terminal interrupts it too
            if number != signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        if number == signal.SIGINT and is_interrupted:
            raise KeyboardInterrupt
        stop(number)
        if number == signal.SIGINT:
            is_interrupted = True
            with contextlib.suppress(Exception):  # within another write, or nobody sees it
                print(_ACKNOWLEDGED, file=sys.stderr, flush=True)  # noqa: T201  # whoever pressed Ctrl-C waits

    is_main = threading.current_thread() is threading.main_thread()
    numbers = [number for number in _STOPPING if is_main and signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
