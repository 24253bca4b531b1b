"""`breakpoint()` in the user's code: the time that somebody spends in the debugger is no time of the run."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any


@contextmanager
def untimed_breakpoints(paused: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """While the block runs, `breakpoint()` opens Python's debugger inside of `paused()`, as long as it waits for input.

    A hook that somebody else has set, or names in PYTHONBREAKPOINT, is left alone.
    """
    thread = threading.get_ident()

    def open_debugger(*arguments: Any, **options: Any) -> None:
        import pdb

        class UntimedDebugger(pdb.Pdb):
            def interaction(self, *arguments: Any) -> None:
                if threading.get_ident() != thread:
                    super().interaction(*arguments)
                    return
                with paused():
                    super().interaction(*arguments)

        # An interrupt after `continue` stops the run at its next save point, as any other does.
        UntimedDebugger(nosigint=True).set_trace(sys._getframe(1))

    if sys.breakpointhook is not sys.__breakpointhook__ or os.environ.get("PYTHONBREAKPOINT"):
        yield
        return
    sys.breakpointhook = open_debugger
    try:
        yield
    finally:
        if sys.breakpointhook is open_debugger:
            sys.breakpointhook = sys.__breakpointhook__
