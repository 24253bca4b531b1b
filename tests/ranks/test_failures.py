"""What a rank does about an error: it says why it is missing, once, and leaves the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
import torch

from graphtrain.errors import GraphtrainError, RankFailedError, RanksDivergedError, UsageError
from graphtrain.ranks import Alone, Failure, Ranks, current_ranks, is_one_of_several, on_all_ranks, prints, using_ranks
from graphtrain.ranks.current import leave


class Noting(Ranks):
    """A rank that notes what it publishes, exchanges and leaves."""

    def __init__(self, rank: int = 1, world_size: int = 2) -> None:
        self.rank, self.world_size, self.local_rank, self.timeout_seconds = rank, world_size, 0, 1.0
        self.store: dict[str, bytes] = {}
        self.exchanged: list[torch.Tensor] = []

    def gather(self, record: bytes) -> list[bytes]:
        return [record] * self.world_size

    def begin_exchange(self, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        self.exchanged += tensors
        return lambda: None

    def publish(self, key: str, value: bytes) -> None:
        self.store[key] = value

    def read(self, key: str, timeout_seconds: float = 0.0) -> bytes | None:
        return self.store.get(key)

    def claim(self, key: str) -> bool:
        return self.store.setdefault(f"claimed/{key}", b"") == b""

    def leave(self) -> None:
        self.times_left += 1

    def ended(self) -> list[int]:
        return []


FAILED = {"rank": 1, "place": "in setup", "kind": "failed"}


@pytest.mark.parametrize(
    ("error", "published", "notes"),
    [
        (ValueError("bad batch"), {**FAILED, "reason": "ValueError: bad batch"}, ["on rank 1"]),
        (KeyboardInterrupt(), {**FAILED, "reason": "KeyboardInterrupt"}, ["on rank 1"]),
        (UsageError("no such file"), {**FAILED, "reason": "UsageError: no such file"}, []),
        (SystemExit(2), {**FAILED, "reason": "SystemExit: 2"}, ["on rank 1"]),
        (
            RankFailedError("rank 0 has ended", "look there"),
            {**FAILED, "reason": "rank 0 has ended", "kind": "lost"},
            [],
        ),
        (RanksDivergedError("on all of them"), None, []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_rank_publishes_why_it_leaves(
    error: BaseException, published: dict[str, object] | None, notes: list[str]
) -> None:
    """And once, however many spans the error passes."""
    ranks = Noting()

    @on_all_ranks("in setup")
    def inside() -> None:
        raise error

    with using_ranks(ranks), pytest.raises(type(error)) as raised, on_all_ranks("outside"):
        inside()
    assert raised.value is error
    assert [json.loads(value) for value in ranks.store.values()] == ([published] if published is not None else [])
    assert getattr(error, "__notes__", []) == notes
    assert ranks.times_left == 1
    assert Failure.first(ranks) == (Failure(**published) if published is not None else None)  # type: ignore[arg-type]


def test_the_first_failure_is_the_cause() -> None:
    ranks = Noting()
    for rank in range(2):
        leave(ranks, f"in `{rank}`", RankFailedError("rank 1 has ended"))
    assert ranks.times_left == 2
    assert Failure.first(ranks) == Failure(1, "in `0`", "rank 1 has ended", "lost")


def test_a_rank_alone_leaves_nobody() -> None:
    ranks, error = Noting(rank=0, world_size=1), ValueError("bad batch")
    leave(ranks, "in setup", error)
    assert not ranks.store and not ranks.times_left and not hasattr(error, "__notes__")
    with pytest.raises(GraphtrainError), using_ranks(Alone()), on_all_ranks("in setup"):
        raise GraphtrainError("no")


@pytest.mark.parametrize(
    ("variables", "is_of_several", "prints_it"),
    [
        ({}, False, True),
        ({"RANK": "1"}, False, True),
        ({"WORLD_SIZE": "2"}, False, True),
        ({"RANK": "0", "WORLD_SIZE": "1"}, False, True),
        ({"RANK": "0", "WORLD_SIZE": "2"}, True, True),
        ({"RANK": "1", "WORLD_SIZE": "2"}, True, False),
    ],
)
def test_before_they_have_joined_rank_0_prints(
    variables: dict[str, str], is_of_several: bool, prints_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphtrain.ranks.current._of_process", None)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert is_one_of_several() is is_of_several
    assert prints("a message") is prints_it
    if not is_of_several:
        assert isinstance(current_ranks(), Alone) and current_ranks() is current_ranks()
