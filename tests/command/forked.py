"""Until nobody imports it any more."""

from tests.looking.running import IMPORTED as IMPORTED
from tests.looking.running import Started as Started
from tests.looking.running import nursery as nursery
