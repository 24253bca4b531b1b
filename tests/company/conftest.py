"""The command called in this process, in a folder of its own, as the tests of `looking` call it."""

from tests.looking.conftest import command as command
from tests.looking.conftest import folder as folder
