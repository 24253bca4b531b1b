"""Until nobody imports it any more."""

from tests.looking.conftest import Command as Command
from tests.looking.conftest import command as command
from tests.looking.conftest import folder as folder
from tests.looking.conftest import tiny as tiny
