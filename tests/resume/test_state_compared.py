"""`docs/state-compared.md`: its form; in a sweep, that it has all set-ups, and that every result is what runs give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.resume.peers import page
from tests.resume.peers.compare import MEANS, OF_ALL, PEERS
from tests.resume.setups import ROWS

VERDICT = re.compile(r"exact|reported|not expressible|differs(, warned)?(: [a-z, ]+)?|error: `\w+`")


def text() -> str:
    return page.PAGE.read_text(encoding="utf-8")


def test_the_page_counts_what_its_tables_say() -> None:
    cells = page.parsed(text())
    assert page.counts(cells) in text()
    assert all(list(cells[means]) == list(OF_ALL) for means in PEERS)
    assert set(cells["graphtrain"]) == set(cells["by hand"])
    assert all(VERDICT.fullmatch(value) for results in cells.values() for value in results.values())


def test_what_differs_in_graphtrain_is_reported() -> None:
    assert set(page.parsed(text())["graphtrain"].values()) <= {"exact", "reported"}


def test_the_versions_are_those_that_are_installed_beside() -> None:
    pins = dict(line.split()[0].split("==") for line in Path("benchmarks/peers.txt").read_text().splitlines()[1:])
    for library in ("lightning", "transformers", "accelerate", "torchdata"):
        assert re.search(rf"{library} {re.escape(pins[library])}\b", text(), re.IGNORECASE), library


@pytest.mark.sweep
@pytest.mark.parametrize("means", MEANS)
def test_every_result_on_the_page_is_that_of_a_run(means: str) -> None:
    cells = page.parsed(text())[means]
    results = page.run(means, cells)
    if results is None:
        pytest.skip(f"not installed, here or in .venv-peers: {', '.join(page.LIBRARIES[means])}")
    assert cells == results


@pytest.mark.sweep
def test_every_set_up_is_on_the_page() -> None:
    lacking = set(ROWS) - set(page.parsed(text())["graphtrain"])
    assert not lacking, "python -m tests.resume.peers.page adds them"
