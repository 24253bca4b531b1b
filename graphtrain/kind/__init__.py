"""What a node can be: kinds, declared by the signature of a function or class, with their parameters and triggers.

Promise: a declaration is enough to draw, check and compile a node; nothing of the kind runs for that, and no torch is
imported.

Other rooms use:
    batch_limit: most_batches
    declaration: END_EPOCH, FROM, LEFT_OUT, RANKS, StepRequest, STOP, WrittenBatches
    fields: EPOCH_FIELDS, Field, IDLE, ON_GRADIENTS, ROUND
    parameter: Above, Below, coerce, coerce_item, is_trigger, known_mode, Metric, Mode, Parameter, plain_value,
        Precision, REQUIRED, show_value
    signatures: descriptions_of, hints_of
    trigger: as_fraction, decimal, known_units, next_multiple, Term, Trigger
"""

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
