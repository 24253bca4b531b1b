"""A module of the user's own beside that of the step function."""

from __future__ import annotations

from typing import Any

COUNT = 0
STATE: dict[str, Any] = {}
SEEN: list[int] = []

_calls = 0


def counted() -> int:
    """How often it was called."""
    global _calls
    _calls += 1
    return _calls


def remembered(step: int) -> float:
    """One more than the mean of all that it was given."""
    SEEN.append(step)
    return 1 + sum(SEEN) / len(SEEN)
