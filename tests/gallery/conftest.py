"""The command, as the tests of the examples run it."""

from tests.command.conftest import command as command
from tests.command.conftest import folder as folder
