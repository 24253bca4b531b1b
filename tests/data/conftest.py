"""Cuts, some of them or all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.data import cutting
from tests.data.cutting import AssertExact, Made


@pytest.fixture(params=["some", pytest.param("all", marks=pytest.mark.sweep)])
def assert_exact(request: pytest.FixtureRequest) -> AssertExact:
    """Resume from every third cut, at various positions in a window, or as a test asks; in a sweep from all."""

    def check(made: Made, tmp_path: Path, *, every: int = 3, **options: Any) -> None:
        cutting.assert_exact(made, tmp_path, every=every if request.param == "some" else 1, **options)

    return check
