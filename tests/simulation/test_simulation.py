"""Some lives, and that the simulation notices what it is for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphtrain.program import run_state
from tests.simulation.__main__ import drawn
from tests.simulation.draw import Event, Life
from tests.simulation.live import fails, shrunk

LIVES_OF_ALL = 24  # twenty seconds of processor time; the rest of them are in the sweep
KILLED = Life((("accumulate", 0),), (), "Loader", (0,), "AdamW", "cosine", (), (Event("kill", 9), Event("stop", 3)))


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=pytest.mark.full if seed < LIVES_OF_ALL else pytest.mark.sweep) for seed in range(100)],
)
def test_a_life_ends_as_the_run_that_nothing_happened_to(seed: int) -> None:
    life = drawn(seed)
    assert fails(life) is None, life


@pytest.mark.sweep
@pytest.mark.parametrize("section", ["resources", "progress", "random"])
def test_a_section_that_is_not_restored_is_noticed_and_the_life_made_small(
    section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fails(KILLED) is None
    handler = run_state.SECTIONS[section]
    monkeypatch.setitem(run_state.SECTIONS, section, replace(handler, restore=lambda run, saved, exempt: None))  # type: ignore[index]
    assert fails(KILLED) is not None
    small = shrunk(KILLED)
    assert isinstance(small, Life) and len(small.events) == 1 and small.edits == () and small.data == "list"
