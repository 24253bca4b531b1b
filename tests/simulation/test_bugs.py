"""The bugs that simulated lives have to find; `make bugs` puts them into the source."""

from __future__ import annotations

import ast

import pytest

from tests.simulation.bugs import ROOT, bugs


@pytest.mark.parametrize("name", bugs())
def test_a_bug_changes_one_place_of_the_source_as_it_is(name: str) -> None:
    bug = bugs()[name]
    text = (ROOT / bug["file"]).read_text(encoding="utf-8")
    assert text.count(bug["old"]) == 1
    ast.parse(text.replace(bug["old"], bug["new"]))


def test_there_are_25() -> None:
    assert len(bugs()) >= 25
