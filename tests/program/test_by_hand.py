"""Moved to tests/world.py."""

from tests.world import assert_same as assert_same
