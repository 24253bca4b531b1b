"""The ranks that this process is one of: started by torchrun, or alone."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Iterator
from contextlib import contextmanager

from graphtrain.distributed.ranks import Alone, Ranks

_USED: contextvars.ContextVar[Ranks | None] = contextvars.ContextVar("ranks", default=None)
_of_process: Ranks | None = None


def current_ranks() -> Ranks:
    """The ranks of this process, joined where it was started as one of several.

    Processes are started by torchrun, or by ``graphtrain run --processes``: both set ``RANK`` and ``WORLD_SIZE``.

    Raises:
        UsageError: these are set, and there is no way to the other processes.
    """
    global _of_process
    used = _USED.get()
    if used is not None:
        return used
    if _of_process is None:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
            from graphtrain.distributed.processes import Processes

            _of_process = Processes.join()
        else:
            _of_process = Alone()
    return _of_process


@contextmanager
def using_ranks(ranks: Ranks) -> Iterator[None]:
    """While the block runs, and in it alone, the ranks are these: those of another launcher, or threads."""
    token = _USED.set(ranks)
    try:
        yield
    finally:
        _USED.reset(token)
