"""SIGINT, SIGTERM, SIGUSR1 and SIGHUP stop a run at its next save point; a second SIGINT stops it at once.

A handler only sets a flag. In a command it ends the process until a node has run, since there is nothing to save yet,
and handlers stay until the process ends. A signal that was ignored before, as by nohup, stays ignored.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn, final

from graphtrain.outcome import STOPPED as STOPPED

_STOPPING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
_HANG_UP = getattr(signal, "SIGHUP", None)
# Somebody who presses Ctrl-C repeatedly means one interrupt: a further one would cut short what the first has begun.
_SECONDS_OF_ONE_INTERRUPT = 1.0


class StoppedBeforeTrainingError(SystemExit):
    """A signal came before a command ran its first node: nothing was trained, so the process ends without saving.

    A `SystemExit`, so that what waits for the end of a program, such as asyncio, lets it pass.
    """

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number).name
        super().__init__(STOPPED)


def _nothing(number: int) -> None:
    """What a signal does after the run, which has stopped already."""


def _leave(number: int) -> NoReturn:
    raise StoppedBeforeTrainingError(number)


@final
class StopSignals:
    """The handlers of a run, or of a process.

    In a process forked by the run (a loader's worker) SIGINT is ignored, since the terminal sends it to all processes;
    the others keep their default.

    Arguments:
        stop: called with the number of each signal except a second SIGINT. It must only set a flag, or raise.

    Attributes:
        acknowledgement: what the first SIGINT prints on standard error; empty for nothing.
        received: the number of the last signal; 0 if none came.
    """

    def __init__(self, stop: Callable[[int], None]) -> None:
        self.stop = stop
        self.acknowledgement = ""
        self.received = 0
        self.process = os.getpid()
        self._was_interrupted = False
        self._raised_at = -math.inf
        self._terminals = [descriptor for descriptor in (1, 2) if _is_terminal(descriptor)]
        self._previous: dict[int, Any] = {}

    def install(self) -> None:
        """Handle every signal that is not ignored."""
        for number in _STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self)

    def restore(self) -> None:
        """Restore the previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def ignore(self) -> None:
        """Ignore signals from now on: the interpreter removes every handler as it exits."""
        if os.getpid() == self.process:
            for number in self._previous:
                signal.signal(number, signal.SIG_IGN)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.process:
            if number != signal.SIGINT:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        if number == _HANG_UP:
            self._replace_terminals()
        is_second = self._was_interrupted and number == signal.SIGINT
        self.received = number
        self._was_interrupted |= number == signal.SIGINT
        if is_second:
            if time.monotonic() - self._raised_at > _SECONDS_OF_ONE_INTERRUPT:
                self._raised_at = time.monotonic()
                raise KeyboardInterrupt
            return
        try:
            self.stop(number)
        except BaseException:
            self.stop, self._raised_at = _nothing, time.monotonic()
            raise
        if number == signal.SIGINT and self.acknowledgement:
            _print(self.acknowledgement)

    def _replace_terminals(self) -> None:
        """Replace a terminal that is gone by the null device: a `print` to it would end the run with an error."""
        for descriptor in self._terminals:
            if not _is_terminal(descriptor):
                with contextlib.suppress(OSError):
                    nowhere = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(nowhere, descriptor)
                    os.close(nowhere)


_of_process: StopSignals | None = None


def handle_until_exit() -> None:
    """From now on until the process ends: a signal ends it at once, or, while a `Trainer` runs, stops that run.

    Outside the main thread, where Python allows no handlers, it does nothing.
    """
    global _of_process
    if threading.current_thread() is threading.main_thread():
        _of_process = StopSignals(_leave)
        atexit.register(_of_process.ignore)  # before anything else is, so that it is called last
        _of_process.install()


@contextlib.contextmanager
def stop_signals(stop: Callable[[int], None], acknowledgement: str) -> Iterator[Callable[[], None]]:
    """While the block runs, signals call `stop` with their number; it must only set a flag.

    In a command, signals end the process until the block calls the function it is given, and do nothing after the
    block. Elsewhere the previous handlers are restored. Outside the main thread nothing is handled.

    Arguments:
        acknowledgement: what the first SIGINT prints at once.
    """
    of_process = _of_process if _of_process is not None and _of_process.process == os.getpid() else None
    handlers = of_process or StopSignals(stop)
    is_main = threading.current_thread() is threading.main_thread()

    def take_over() -> None:
        if of_process is None or not is_main:
            return
        of_process.stop, of_process.acknowledgement = stop, acknowledgement
        if of_process.received:  # user code has caught the SystemExit; or an earlier run was stopped
            stop(of_process.received)

    try:
        if of_process is None and is_main:
            handlers.acknowledgement = acknowledgement
            handlers.install()
        yield take_over
    finally:
        if of_process is not None and is_main:
            of_process.stop, of_process.acknowledgement = _nothing, ""
        elif is_main:
            handlers.restore()


def _is_terminal(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def _print(line: str) -> None:
    """Print a line, even if the signal has interrupted another write."""
    try:
        print(line, file=sys.stderr, flush=True)  # noqa: T201  # whoever pressed Ctrl-C waits for an answer
    except RuntimeError:  # during a write to the same stream
        with contextlib.suppress(OSError):
            os.write(2, f"{line}\n".encode())
    except (OSError, ValueError, AttributeError):  # nobody sees it
        pass
