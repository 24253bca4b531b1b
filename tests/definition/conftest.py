"""What the tests of graphs as values share: kinds declared in one test are gone in the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graphtrain.kind import DECLARED


@pytest.fixture(autouse=True)
def declared_kinds() -> Iterator[None]:
    before = dict(DECLARED)
    yield
    DECLARED.clear()
    DECLARED.update(before)
