"""Calls of the disk; they are in `tests.simulation.disk`."""

from tests.simulation.disk import Calls as Calls
