"""The stored results of `docs/comparison.md`: their form; in a sweep, that every result is that of a run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.resume.peers import results
from tests.resume.peers.compare import MEANS, OF_ALL
from tests.resume.setups import ROWS
from tools.site import set_ups

PAGE = Path(__file__).parents[2] / "docs" / "comparison.md"
VERDICT = re.compile(r"exact|reported|not expressible|differs(, warned)?(: [a-z, ]+)?|error: `\w+`")


def cells() -> results.Cells:
    return results.cells_of(set_ups.stored())


def test_the_page_counts_what_is_stored() -> None:
    assert set_ups.counts() in PAGE.read_text(encoding="utf-8")


def test_the_stored_results_have_the_form_of_those_of_runs() -> None:
    groups = set_ups.stored()
    assert results.text_of(groups) == set_ups.RESULTS.read_text(encoding="utf-8")
    assert results.groups_of(cells()) == groups
    assert [*groups[results.OF_ALL_HEADING]] == [*OF_ALL] and len(set_ups.FRAMEWORKS) == len(MEANS)
    assert all(VERDICT.fullmatch(value) for column in cells().values() for value in column.values())


def test_what_differs_in_graphtrain_is_reported() -> None:
    assert set(cells()["graphtrain"].values()) <= {"exact", "reported"}


def test_the_versions_are_those_that_are_installed_beside() -> None:
    pins = dict(line.split()[0].split("==") for line in Path("tools/benchmarks/peers.txt").read_text().splitlines()[1:])
    text = PAGE.read_text(encoding="utf-8")
    for library in ("lightning", "transformers", "accelerate", "torchdata"):
        assert re.search(rf"{library} {re.escape(pins[library])}\b", text, re.IGNORECASE), library


@pytest.mark.sweep
@pytest.mark.parametrize("means", MEANS)
def test_every_stored_result_is_that_of_a_run(means: str) -> None:
    expected = cells()[means]
    found = results.run(means, expected)
    if found is None:
        pytest.skip(f"not installed, here or in .venv-peers: {', '.join(results.LIBRARIES[means])}")
    assert expected == found


@pytest.mark.sweep
def test_every_set_up_has_a_result() -> None:
    lacking = set(ROWS) - set(cells()["graphtrain"])
    assert not lacking, "python -m tests.resume.peers.results adds them"
