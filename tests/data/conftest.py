"""Cuts, some of them or all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.data import cutting
from tests.data.cutting import AssertExact, Made


@pytest.fixture(params=["some", pytest.param("all", marks=pytest.mark.sweep)])
def assert_exact(request: pytest.FixtureRequest) -> AssertExact:
    """Resume from three cuts, others for each test; in a sweep from all."""

    def check(made: Made, tmp_path: Path, **options: Any) -> None:
        cutting.assert_exact(made, tmp_path, most=3 if request.param == "some" else None, **options)

    return check
