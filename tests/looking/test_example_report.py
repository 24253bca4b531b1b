"""The example report in the docs is of the page as it is; `python -m tests.looking.test_example_report` renews it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from graphtrain.report.page.document import self_contained

EXAMPLE = Path(__file__).parents[2] / "docs" / "images" / "example-report.html"


def renewed(text: str) -> str:
    """The same runs, as the page shows them now."""
    content = re.search(r'<script type="application/json" id="content">(.*?)</script>', text, re.DOTALL)
    assert content is not None
    return self_contained(json.loads(content[1]))


def test_it_has_the_scripts_and_styles_of_now() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert text == renewed(text)


if __name__ == "__main__":
    EXAMPLE.write_text(renewed(EXAMPLE.read_text(encoding="utf-8")), encoding="utf-8")
