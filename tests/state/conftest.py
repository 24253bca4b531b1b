"""Cuts, as in the tests of data."""

from tests.data.conftest import assert_exact as assert_exact
