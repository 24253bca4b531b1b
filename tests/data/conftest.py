"""Cuts, some of them or all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.data import cutting
from tests.data.cutting import AssertExact, Made


@pytest.fixture(params=["some", pytest.param("all", marks=pytest.mark.sweep)])
def assert_exact(request: pytest.FixtureRequest) -> AssertExact:
    """Go on from every third cut, at another place in a window each time, or from as many as a test says; in a sweep
    from each."""

    def check(made: Made, tmp_path: Path, *, every: int = 3, **options: Any) -> None:
        cutting.assert_exact(made, tmp_path, every=every if request.param == "some" else 1, **options)

    return check
