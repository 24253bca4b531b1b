"""A module of the user's own that nothing imports before the training step does."""

from __future__ import annotations

FACTORS = {"scale": 1.0}

steps = 0  # which only others set
_calls = 0


def factor() -> float:
    """A smaller one in every call."""
    global _calls
    _calls += 1
    FACTORS["scale"] *= 0.9
    return FACTORS["scale"] / _calls
