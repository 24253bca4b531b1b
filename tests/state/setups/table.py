"""All rows: importing this fills the table."""

from tests.state.setups import bounds as bounds
from tests.state.setups import containers as containers
from tests.state.setups import data as data
from tests.state.setups import generators as generators
from tests.state.setups import in_place as in_place
from tests.state.setups import memory as memory
from tests.state.setups import models as models
from tests.state.setups import objects as objects
from tests.state.setups import optimizers as optimizers
from tests.state.setups import reach as reach
from tests.state.setups import stand_ins as stand_ins
from tests.state.setups import transit as transit
from tests.state.setups.rows import ROWS as ROWS
