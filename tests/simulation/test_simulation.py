"""Some lives, and that the simulation notices what it is for (promises 10-14)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphtrain.program import run_state
from tests.simulation.__main__ import drawn
from tests.simulation.draw import Event, Life
from tests.simulation.live import fails, prepare, shrunk

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata asks torch for it
SHORT = (47, 59, 63, 87)  # of the first tier: a third of a second each
LIVES = 60  # a minute of processor time
PLAIN = Life((), (), "list", (0,), "SGD", "none", (), ())
KILLED = Life((("accumulate", 0),), (), "Loader", (0,), "AdamW", "cosine", (), (Event("kill", 7), Event("stop", 3)))
FAILED_ONCE = {
    "a cut where the graph is to be rewired": replace(
        PLAIN, rewirings=((3, "log", 605),), events=(Event("kill", 4, 948), Event("cut", 1, 804))
    ),
    "a fork of a copy": replace(PLAIN, events=(Event("stop", 3), Event("copy", 5), Event("fork", 7), Event("cut", 9))),
    "kept settings": replace(
        KILLED, is_set_up_anew=True, events=(Event("stop", 3), Event("kill", 4), Event("stop", 3), Event("kill", 1))
    ),
}


@pytest.mark.first(2)
@pytest.mark.parametrize("seed", SHORT)
def test_a_short_life_ends_as_the_run_that_nothing_happened_to(seed: int) -> None:
    assert fails(drawn(seed)) is None


@pytest.mark.full
@pytest.mark.parametrize("name", FAILED_ONCE)
def test_a_life_of_which_one_failed_once(name: str) -> None:
    assert fails(FAILED_ONCE[name]) is None


@pytest.mark.full
@pytest.mark.parametrize("seed", [seed for seed in range(LIVES) if seed not in SHORT])
def test_a_life_ends_as_the_run_that_nothing_happened_to(seed: int) -> None:
    prepare()
    life = drawn(seed)
    assert fails(life) is None, life


@pytest.mark.sweep
def test_many_lives() -> None:
    prepare()
    failed = {seed: reason for seed in range(1000, 1300) if (reason := fails(drawn(seed))) is not None}
    assert not failed


@pytest.mark.sweep
@pytest.mark.parametrize("section", ["resources", "progress", "random"])
def test_a_section_that_is_not_restored_is_noticed_and_the_life_made_small(
    section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fails(KILLED) is None
    handler = run_state.SECTIONS[section]
    monkeypatch.setitem(run_state.SECTIONS, section, handler._replace(restore=lambda *_: None))
    assert fails(KILLED) is not None
    small = shrunk(KILLED)
    assert isinstance(small, Life) and len(small.events) == 1 and small.edits == () and small.data == "list"
