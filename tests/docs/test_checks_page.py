"""`checks.md` has exactly the codes that can be raised; a row for each."""

from __future__ import annotations

import re
from pathlib import Path

import graphtrain

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
SOURCES = Path(graphtrain.__file__).parent


def test_each_code_that_is_raised_has_its_row_in_order() -> None:
    texts = (path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py"))
    raised = {code for text in texts for code in re.findall(r'"(G[1-7]\d\d)"', text)}
    rows = re.findall(r"^\| (G\d\d\d) \| .+? \| .+? \| .+ \|$", PAGE, flags=re.MULTILINE)
    assert rows == sorted(raised)
