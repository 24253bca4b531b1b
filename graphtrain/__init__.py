"""PyTorch training whose procedure is an explicit state-machine graph."""

from typing import TYPE_CHECKING, Any

from graphtrain.errors import CheckpointError as CheckpointError
from graphtrain.errors import DataError as DataError
from graphtrain.errors import EditError as EditError
from graphtrain.errors import GraphError as GraphError
from graphtrain.errors import GraphtrainError as GraphtrainError
from graphtrain.errors import GuardError as GuardError
from graphtrain.errors import LifeCycleError as LifeCycleError
from graphtrain.errors import NotFiniteError as NotFiniteError
from graphtrain.errors import Problem as Problem
from graphtrain.errors import UsageError as UsageError
from graphtrain.kind import Repeated as Repeated
from graphtrain.kind import StepFunction as StepFunction
from graphtrain.kind import derived_clock as derived_clock
from graphtrain.kind import node as node
from graphtrain.kind import progress as progress
from graphtrain.kind.declaration import END_EPOCH as END_EPOCH
from graphtrain.kind.declaration import STOP as STOP
from graphtrain.kind.parameter import Above as Above
from graphtrain.kind.parameter import Below as Below
from graphtrain.kind.parameter import Metric as Metric
from graphtrain.kind.trigger import Trigger as Trigger
from graphtrain.lazy import lazy_import as lazy_import
from graphtrain.outcome import Outcome as Outcome
from graphtrain.version import __version__ as __version__

if TYPE_CHECKING:
    from graphtrain.command.run import main as main
    from graphtrain.data.loader import Loader as Loader
    from graphtrain.graph.elements import Edge as Edge
    from graphtrain.graph.elements import Node as Node
    from graphtrain.names import suggestion as suggestion
    from graphtrain.nodes._optimizers import optimizers_of as optimizers_of
    from graphtrain.nodes._optimizers import parameters_of as parameters_of
    from graphtrain.nodes._training_step import CallsTrainingStep as CallsTrainingStep
    from graphtrain.nodes._training_step import loss_and_metrics as loss_and_metrics
    from graphtrain.nodes.end_evaluation import put_back as put_back
    from graphtrain.nodes.train_batch import TrainBatch as TrainBatch
    from graphtrain.program.whole_run import PlannedRun as PlannedRun
    from graphtrain.report.logger import Histogram as Histogram
    from graphtrain.report.logger import Image as Image
    from graphtrain.report.logger import RunLogger as RunLogger
    from graphtrain.report.logger import Text as Text
    from graphtrain.report.recorded import joined as joined
    from graphtrain.report.run import Run as Run
    from graphtrain.report.snapshot import Display as Display
    from graphtrain.report.snapshot import Snapshot as Snapshot
    from graphtrain.report.tensorboard import TensorBoard as TensorBoard
    from graphtrain.report.values import Max as Max
    from graphtrain.report.values import Min as Min
    from graphtrain.report.values import Sum as Sum
    from graphtrain.report.values import described as described
    from graphtrain.storage.named import checkpoint_folder as checkpoint_folder
    from graphtrain.trainer.graph import Graph as Graph
    from graphtrain.trainer.graph import fit as fit
    from graphtrain.trainer.trainer import Trainer as Trainer

# Imported on first use: some need torch, whose import takes about a second, one the command line, some read TOML.
_NAMES_IN = {
    "command.run": "main",
    "data.loader": "Loader",
    "graph.elements": "Edge Node",
    "names": "suggestion",
    "nodes._optimizers": "optimizers_of parameters_of",
    "nodes._training_step": "CallsTrainingStep loss_and_metrics",
    "nodes.end_evaluation": "put_back",
    "nodes.train_batch": "TrainBatch",
    "program.whole_run": "PlannedRun",
    "report.logger": "Histogram Image RunLogger Text",
    "report.recorded": "joined",
    "report.run": "Run",
    "report.snapshot": "Display Snapshot",
    "report.tensorboard": "TensorBoard",
    "report.values": "Max Min Sum described",
    "storage.named": "checkpoint_folder",
    "trainer.graph": "Graph fit",
    "trainer.trainer": "Trainer",
}
_LATE = {name: f"graphtrain.{module}" for module, names in _NAMES_IN.items() for name in names.split()}

# What `from graphtrain import *` gives: all of the above, without the modules that they come from.
__all__ = [
    name
    for name, value in {**globals(), **_LATE}.items()
    if not (name.startswith("_") or name in ("Any", "TYPE_CHECKING"))
    and not getattr(value, "__name__", "").startswith("graphtrain.")
]


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LATE[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
