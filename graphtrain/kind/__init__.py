"""What a node can be: kinds, their parameters and their triggers."""

from graphtrain.kind.declaration import FunctionRecord as FunctionRecord
from graphtrain.kind.declaration import Kind as Kind
from graphtrain.kind.declaration import Read as Read
from graphtrain.kind.declaration import Repeated as Repeated
from graphtrain.kind.declaration import Slot as Slot
from graphtrain.kind.declaration import StepFunction as StepFunction
from graphtrain.kind.declaration import WrittenBatches as WrittenBatches
from graphtrain.kind.fields import EFFECTS as EFFECTS
from graphtrain.kind.fields import Field as Field
from graphtrain.kind.fields import derived_clock as derived_clock
from graphtrain.kind.fields import progress as progress
from graphtrain.kind.mark import DECLARED as DECLARED
from graphtrain.kind.mark import OF_ADAPTERS as OF_ADAPTERS
from graphtrain.kind.mark import kind_of as kind_of
from graphtrain.kind.mark import node as node
