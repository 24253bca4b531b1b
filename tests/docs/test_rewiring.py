"""The page of rewiring answers every heading and every code block of the Loops document."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.blocks import without_fences
from tests.docs.test_lightning import sections_of

DOCS = Path(__file__).parents[2] / "docs"

# The headings of `extensions/loops.rst` and `extensions/loops_advanced.rst` of Lightning 1.5, in order; how many blocks
# of code are under each, before the next one.
HEADINGS = {
    "Loops": 3,
    "Understanding the default Trainer loop": 3,
    "Overriding the default loops": 3,
    "Creating a new loop from scratch": 2,
    "Loop API": 0,
    "Properties": 0,
    "done": 0,
    "skip": 0,
    "Methods": 0,
    "reset": 0,
    "advance": 0,
    "run": 0,
    "Subloops": 1,
    "Built-in Loops": 1,
    "Available Loops in Lightning Flash": 2,
    "Advanced Topics and Examples": 0,
    "Persisting the State of Loops": 2,
}


def rows() -> list[list[str]]:
    page = sections_of(without_fences((DOCS / "rewiring.md").read_text(encoding="utf-8")), "##")
    table = [row for row in page["The Loops document"] if row.startswith("| ")]
    return [[cell.strip() for cell in row.strip("| ").split("|", 2)] for row in table[2:]]


def test_every_heading_and_every_block_has_a_row_with_an_answer() -> None:
    expected = [[name, number] for name, blocks in HEADINGS.items() for number in range(1, blocks + 1) or (0,)]
    assert [[name, int(block.partition(":")[0] or 0)] for name, block, _ in rows()] == expected
    assert all(answer for *_, answer in rows())


def test_what_a_row_links_to_is_there() -> None:
    links = [link for *_, answer in rows() for link in re.findall(r"\]\(([^)]+)\)", answer)]
    assert len(links) > 15
    for link in links:
        name, _, anchor = link.partition("#")
        text = without_fences((DOCS / (name or "rewiring.md")).read_text(encoding="utf-8"))
        headings = [
            re.sub(r"[^\w\- ]", "", line.lstrip("# ")).lower().replace(" ", "-")
            for line in text.splitlines()
            if line.startswith("#")
        ]
        assert not anchor or anchor in headings, link
