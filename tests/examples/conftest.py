"""The command in a folder of its own, as in the tests of the command."""

from __future__ import annotations

from tests.command.conftest import command as command
from tests.command.conftest import folder as folder
