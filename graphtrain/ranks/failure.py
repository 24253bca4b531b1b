"""Why a rank does not come: what it tells the others before it leaves."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import ParamSpec, TypeVar, final

from graphtrain.errors import GraphtrainError, RankFailedError, RanksError
from graphtrain.outcome import STOPPED
from graphtrain.ranks.current import current_ranks
from graphtrain.ranks.ranks import FAILURE, LostRankError, Ranks

_LEFT = "_graphtrain_ranks_were_left"  # of an error that passes several spans
Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


@final
@dataclass(frozen=True)
class Failure:
    """The failure of a rank.

    Attributes:
        rank: which one.
        place: where: ``"in `train_batch` at step 10"``.
        reason: the type of the error and its message.
        kind: "failed"; "stopped" by a signal before anything was trained; or "lost", where it was another rank that
            did not come, as `reason` says.
    """

    rank: int
    place: str
    reason: str
    kind: str = "failed"

    def publish(self, ranks: Ranks) -> None:
        """Tell the other ranks, unless one of them has told of another failure before: the first one is the cause."""
        if ranks.read(FAILURE) is None:
            with suppress(LostRankError):  # nobody is there to read it
                ranks.publish(FAILURE, json.dumps(asdict(self)).encode())

    @classmethod
    def first(cls, ranks: Ranks, timeout_seconds: float = 0.0) -> Failure | None:
        """The failure that was published; None where there is none within the time."""
        value = ranks.read(FAILURE, timeout_seconds)
        return cls(**json.loads(value)) if value is not None else None

    @classmethod
    def of(cls, rank: int, place: str, error: BaseException) -> Failure:
        """The failure that an error is."""
        if isinstance(error, RankFailedError):
            return cls(rank, place, error.message, "lost")
        if isinstance(error, SystemExit) and error.code == STOPPED:
            return cls(rank, place, "", "stopped")
        return cls(rank, place, f"{type(error).__name__}: {error}".removesuffix(": "))


@contextmanager
def on_all_ranks(place: str) -> Iterator[None]:
    """A span outside of a run: what fails in it on one rank, such as `setup`, fails the others as soon as they wait.

    Arguments:
        place: for the message on the others: ``"in setup"``.
    """
    ranks = current_ranks()
    try:
        yield
    except BaseException as error:
        leave(ranks, place, error)
        raise


def leave(ranks: Ranks, place: str, error: BaseException) -> None:
    """Tell the other ranks of an error, and leave them, so that they learn it at once."""
    if ranks.world_size > 1 and not getattr(error, _LEFT, False):
        if isinstance(error, RankFailedError) or not isinstance(error, RanksError):  # those are raised on all of them
            Failure.of(ranks.rank, place, error).publish(ranks)
        if not isinstance(error, GraphtrainError):
            error.add_note(f"on rank {ranks.rank}")
        ranks.leave()
        with suppress(AttributeError):
            setattr(error, _LEFT, True)


def fails_on_all_ranks(place: str) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Make a function one in which a rank does not fail alone, as in `on_all_ranks`."""

    def guard(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(function)
        def guarded(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
            with on_all_ranks(place):
                return function(*arguments, **named)

        return guarded

    return guard
