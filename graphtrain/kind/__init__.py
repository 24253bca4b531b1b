"""What a node can be: kinds, their parameters and their triggers."""

from graphtrain.kind.declaration import DECLARED as DECLARED
from graphtrain.kind.declaration import EFFECTS as EFFECTS
from graphtrain.kind.declaration import FunctionRecord as FunctionRecord
from graphtrain.kind.declaration import Kind as Kind
from graphtrain.kind.declaration import Read as Read
from graphtrain.kind.declaration import StepFunction as StepFunction
from graphtrain.kind.declaration import derived_clock as derived_clock
from graphtrain.kind.declaration import kind_of as kind_of
from graphtrain.kind.declaration import node as node
from graphtrain.kind.declaration import progress as progress
