"""The ranks that this process is one of: started by torchrun or by a launcher like it, or alone."""

from __future__ import annotations

import contextvars
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

from graphtrain.lazy import part
from graphtrain.ranks.ranks import Alone, LostRankError, Ranks

_USED: contextvars.ContextVar[Ranks | None] = contextvars.ContextVar("ranks", default=None)
_of_process: Ranks | None = None


def is_one_of_several() -> bool:
    """True for a process that was started as one of several: ``RANK`` is set, and ``WORLD_SIZE`` is more than 1."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


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
        if is_one_of_several():
            _of_process = part("processes").Processes.join()
        else:
            _of_process = Alone()
    return _of_process


def prints(text: str, *, is_of_all: bool = False) -> bool:
    """True for the rank that prints a message which several of them have: the first that asks.

    Ranks that have not joined each other yet cannot agree on one; then it is rank 0. Where the rank is gone that has
    the store, they cannot any more; then each prints.

    Arguments:
        is_of_all: True for a message that all ranks have which are left: then the first of them prints it.
    """
    ranks = _USED.get() or _of_process
    if ranks is not None:
        digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=16).hexdigest()
        try:
            return ranks.claim(f"printed/{digest}")
        except LostRankError:
            return not is_of_all or ranks.rank == min({*range(ranks.world_size)} - {*ranks.ended()})
    return not is_one_of_several() or os.environ["RANK"] == "0"


@contextmanager
def using_ranks(ranks: Ranks) -> Iterator[None]:
    """While the block runs, and in it alone, the ranks are these: those of another launcher, or threads."""
    token = _USED.set(ranks)
    try:
        yield
    finally:
        _USED.reset(token)
