"""The ranks of this process: joining them, if torchrun or another launcher has started it, and leaving them."""

from __future__ import annotations

import contextvars
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from graphtrain.errors import GraphtrainError, RankFailedError, RanksDivergedError
from graphtrain.ranks.ranks import FAILURE, LostRankError, Ranks

_USED: contextvars.ContextVar[Ranks | None] = contextvars.ContextVar("ranks", default=None)
_of_process: Ranks | None = None
_SECONDS_TO_PRINT = 1.0
_LEFT = "_graphtrain_ranks_were_left"  # an attribute of an error for which this rank has left the others


def is_one_of_several() -> bool:
    """True if this process was started as one of several: ``RANK`` is set, and ``WORLD_SIZE`` is not 1."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def current_ranks() -> Ranks:
    """The ranks of this process; joins them at the first call if it was started as one of several.

    Raises:
        UsageError: the other processes cannot be reached.
    """
    global _of_process
    if (ranks := _USED.get() or _of_process) is not None:
        return ranks
    if is_one_of_several():
        from graphtrain.ranks.processes import Processes

        _of_process = Processes()
    else:
        _of_process = Ranks()
    return _of_process


def prints(text: str) -> bool:
    """True if this rank is to print a message: on rank 0, and on others if rank 0 does not have the same message."""
    ranks = _USED.get() or _of_process
    if ranks is None:
        return not is_one_of_several() or os.environ["RANK"] == "0"
    key = f"printed/{hashlib.blake2b(text.encode(errors='replace'), digest_size=16).hexdigest()}"
    if ranks.rank:
        return ranks.read(key, _SECONDS_TO_PRINT) is None
    with suppress(LostRankError):
        ranks.publish(key, b"")
    return True


@contextmanager
def using_ranks(ranks: Ranks) -> Iterator[None]:
    """A context that uses these ranks, which may be threads or come from another launcher."""
    token = _USED.set(ranks)
    try:
        yield
    finally:
        _USED.reset(token)


def failure_of(ranks: Ranks, timeout_seconds: float = 0.0) -> str:
    """The failure that a rank was the first to publish, with its node; empty if there is none within the time."""
    published = ranks.read(FAILURE, timeout_seconds)
    return published.decode() if published is not None else ""


@contextmanager
def on_all_ranks(place: str) -> Iterator[None]:
    """A context or decorator for code outside of a run: if it fails on one rank, the others fail instead of waiting.

    Arguments:
        place: where the failure is, for the message of the others: ``"in setup"``.
    """
    ranks = current_ranks()
    try:
        yield
    except BaseException as error:
        leave(ranks, place, error)
        raise


def leave(ranks: Ranks, place: str, error: BaseException) -> None:
    """Publish an error to the other ranks, and leave them, so that they fail too."""
    if ranks.world_size > 1 and not getattr(error, _LEFT, False):
        # All ranks know of a divergence; and the first failure is the cause of all others.
        if not isinstance(error, RanksDivergedError) and ranks.read(FAILURE) is None:
            failure = f"rank {ranks.rank} failed {place}: {type(error).__name__}: {error}".removesuffix(": ")
            if isinstance(error, RankFailedError):
                failure = error.message
            with suppress(LostRankError):  # no rank is left to read it
                ranks.publish(FAILURE, failure.encode(errors="replace"))
        if not isinstance(error, GraphtrainError):
            error.add_note(f"on rank {ranks.rank}")
        ranks.leave()
        with suppress(AttributeError):
            setattr(error, _LEFT, True)
