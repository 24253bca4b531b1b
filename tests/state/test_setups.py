"""Set-ups that people use: cut, resumed in another process, and compared bit for bit with the run that was never cut.

What a resume reports is part of the table: where it says that it is exact, nothing may differ.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.state.setups.cutting import COMPARED, TRANSITIONS, forked, in_a_fresh_interpreter, resumed, whole
from tests.state.setups.mutations import resumed_without
from tests.state.setups.table import ROWS

CUTS = 6
EXACT = [name for name, row in ROWS.items() if row.is_exact]
# Of every kind of object some: what was restored once is saved again, and restored again.
CUT_TWICE = [
    "hidden_state",
    "old_weight_norm",
    "view_of_a_buffer_that_is_not_persistent",
    "replay_buffer",
    "task_object",
    "list_that_holds_itself",
    "lookahead_around_adam",
    "data_that_caches",
]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A row, whose library is imported before processes are forked."""
    if library := ROWS[request.param].requires:
        pytest.importorskip(library)
    return str(request.param)


def cuts_of(name: str, count: int) -> list[int]:
    return sorted(random.Random(name).sample(TRANSITIONS, count))


def check(name: str, expected: dict[str, Any], actual: dict[str, Any]) -> None:
    """What is reported is what the table says, and where that is "exact", nothing differs."""
    row = ROWS[name]
    if row.reports.startswith("refused: "):
        assert row.reports.removeprefix("refused: ") in actual.get("refused", f"not refused: {actual}")
        return
    assert "refused" not in actual, actual["refused"]
    (line,) = [line for line in actual["lines"] if line.startswith("resumed ")]
    if not row.is_exact:
        assert "not exact" in line, line
        assert row.reports in line, line
        return
    assert line.endswith("exact") and "not exact" not in line, line
    for what in COMPARED:
        assert actual[what] == expected[what], f"{what} after {line}"


@pytest.mark.parametrize("name", ROWS, indirect=True)
def test_a_resume_is_exact_where_it_says_so(name: str, tmp_path: Path) -> None:
    expected = forked(whole, name, tmp_path, cuts_of(name, 1), file=tmp_path / "answer")
    is_refused = "refused" in expected
    check(
        name, expected, expected if is_refused else forked(resumed, name, tmp_path / "cut0", file=tmp_path / "answer")
    )


@pytest.mark.parametrize("name", CUT_TWICE, indirect=True)
def test_a_resume_of_a_resume_is_exact(name: str, tmp_path: Path) -> None:
    check_cut_twice(name, tmp_path, forked(whole, name, tmp_path, [20], file=tmp_path / "answer"))


def check_cut_twice(name: str, folder: Path, expected: dict[str, Any]) -> None:
    (folder / "again").mkdir()
    check(name, expected, forked(resumed, name, folder / "cut0", [5], file=folder / "answer"))
    check(name, expected, forked(resumed, name, folder / "again" / "cut0", file=folder / "answer"))


@pytest.mark.sweep
@pytest.mark.parametrize("name", ROWS, indirect=True)
def test_every_row_from_six_cuts(name: str, tmp_path: Path) -> None:
    """One in a fresh interpreter; and saving itself changes nothing of the run."""
    row, file = ROWS[name], tmp_path / "answer"
    cuts = cuts_of(name, CUTS)
    expected = forked(whole, name, tmp_path / "never cut", (), file=file)
    saved = forked(whole, name, tmp_path, cuts, file=file)
    if "refused" in saved:
        check(name, expected, saved)
        return
    assert {what: saved[what] for what in COMPARED} == {what: expected[what] for what in COMPARED}
    answers = [in_a_fresh_interpreter(name, tmp_path / "cut3", file=file)]
    answers += [forked(resumed, name, tmp_path / f"cut{number}", file=file) for number in range(CUTS) if number != 3]
    for actual in answers:
        check(name, expected, actual)
    if row.is_exact:
        again = tmp_path / "twice"
        again.mkdir()
        check_cut_twice(name, again, forked(whole, name, again, cuts[:1], file=file))
    elif not row.bound and not row.reports.startswith("refused"):
        assert any(actual[what] != expected[what] for actual in answers for what in COMPARED[:2])


@pytest.mark.sweep
@pytest.mark.parametrize("name", EXACT, indirect=True)
def test_an_exact_row_diverges_without_what_it_needs(name: str, tmp_path: Path) -> None:
    """From one of six cuts; a row that says that it needs nothing does not."""
    row, file = ROWS[name], tmp_path / "answer"
    expected = forked(whole, name, tmp_path, cuts_of(name, CUTS), file=file)
    is_equal = (
        all(expected[what] == actual.get(what) for what in COMPARED[:2])
        for number in (3, 1, 4, 2, 5, 0)
        for actual in (forked(resumed_without, row.needs, name, tmp_path / f"cut{number}", file=file),)
    )
    assert all(is_equal) if row.stateless else not all(is_equal)
