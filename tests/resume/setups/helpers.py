"""A module of the user's own beside that of the step function."""

from __future__ import annotations

COUNT = 0

_calls = 0


def counted() -> int:
    """How often it was called."""
    global _calls
    _calls += 1
    return _calls
