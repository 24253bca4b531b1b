"""What every test starts from: no kinds but the shipped ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from graphtrain.kind import DECLARED
from tests.proofs.summary import pytest_terminal_summary as pytest_terminal_summary


@pytest.fixture(autouse=True)
def no_kinds_of_other_tests() -> Iterator[None]:
    """Kinds that a test declares are gone after it; those that test modules declare are not found by name."""
    before = dict(DECLARED)
    DECLARED.clear()
    yield
    DECLARED.clear()
    DECLARED.update(before)
