"""`checks.md` has exactly the codes that can be raised; a row for each."""

from __future__ import annotations

import re
from pathlib import Path

import graphtrain
from graphtrain.checks.codes import CODES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
SOURCES = Path(graphtrain.__file__).parent


def raised() -> set[str]:
    """Every code, G1xx to G7xx, that the sources raise."""
    codes: set[str] = set()
    for path in SOURCES.rglob("*.py"):
        if path.name != "codes.py":
            codes |= set(re.findall(r'"(G[1-7]\d\d)"', path.read_text(encoding="utf-8")))
    return codes


def test_the_codes_are_those_that_are_raised() -> None:
    assert raised() == set(CODES)


def test_every_code_has_its_row_in_order() -> None:
    rows = re.findall(r"^\| (G\d\d\d) \| (.+?) \| .+? \| .+ \|$", PAGE, flags=re.MULTILINE)
    assert rows == [(code, what.removeprefix("several ranks: ")) for code, what in CODES.items()]
