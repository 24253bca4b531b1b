"""Moved to tests/training/oracle.py."""

from tests.training.oracle import *  # noqa: F403
