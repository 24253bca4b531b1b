"""Cuts, one of them or all."""

from __future__ import annotations

import pytest

from tests.data import cutting
from tests.data.cutting import AssertExact


@pytest.fixture(params=["some", pytest.param("all", marks=pytest.mark.sweep)])
def assert_exact(request: pytest.FixtureRequest) -> AssertExact:
    """Resume from one cut, another for each test; in a sweep from all."""
    return cutting.assert_some_exact if request.param == "some" else cutting.assert_exact
