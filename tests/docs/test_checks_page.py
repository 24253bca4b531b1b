"""`checks.md` has exactly the codes that can be raised; its blocks are executed by `test_pages`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import graphtrain
from graphtrain.checks.codes import CODES
from tests.docs.blocks import blocks_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
SOURCES = Path(graphtrain.__file__).parent
SECTIONS = {
    heading[1]: text
    for text in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    if (heading := re.match(r"(G\d\d\d): (.+)\n", text))
}


def raised() -> set[str]:
    """Every code, G1xx to G7xx, that the sources raise."""
    codes: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        if path.name != "codes.py":
            codes |= set(re.findall(r'"(G[1-7]\d\d)"', path.read_text(encoding="utf-8")))
    return codes


def test_the_codes_are_those_that_are_raised() -> None:
    assert raised() == set(CODES)


def test_every_code_has_its_section_in_order() -> None:
    assert set(CODES) - set(SECTIONS) == set(), "docs/checks.md has no section for these"
    headings = re.findall(r"^### (G\d\d\d): (.+)$", PAGE, flags=re.MULTILINE)
    assert headings == list(CODES.items())


@pytest.mark.parametrize("code", CODES)
def test_a_section_shows_a_graph_with_that_code_alone_and_the_fix(code: str) -> None:
    section = SECTIONS[code]
    example, shown = blocks_of(section)
    assert example.language in ("toml", "python") and shown.language == "text"
    assert set(re.findall(r"\b(G\d\d\d): ", shown.text)) == {code}
    assert "*Without the check:* " in section and "*The fix:* " in section
