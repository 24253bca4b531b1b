"""docs/gallery.md shows the files as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gallery.page import PAGE, draw, page, words_of
from tests.gallery.procedures import all_procedures
from tests.shipped import PROCEDURES


def test_it_is_made_of_the_files_as_they_are() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.gallery.page"


@pytest.mark.sweep
def test_its_pictures_are_of_the_graphs_as_they_are(tmp_path: Path) -> None:
    assert {*PROCEDURES} <= {*all_procedures()}
    for name, procedure in all_procedures().items():
        drawn = draw(procedure, tmp_path / f"{name}.svg")
        assert words_of(drawn) == words_of(procedure.picture), f"{name}: python -m tests.gallery.page"
