"""Set-ups that people use, each with what a resume of it must report: `exact`, or what is lost.

Importing this fills the table.
"""

from tests.resume.setups import bounds as bounds
from tests.resume.setups import cases as cases
from tests.resume.setups import containers as containers
from tests.resume.setups import data as data
from tests.resume.setups import generators as generators
from tests.resume.setups import in_place as in_place
from tests.resume.setups import memory as memory
from tests.resume.setups import models as models
from tests.resume.setups import objects as objects
from tests.resume.setups import optimizers as optimizers
from tests.resume.setups import reach as reach
from tests.resume.setups import stand_ins as stand_ins
from tests.resume.setups import transit as transit
from tests.rows import ROWS as ROWS
