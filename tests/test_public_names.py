"""What people import: the names of the package, and the places that the documentation once named."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

import graphtrain

NAMES = (
    "Above",
    "Below",
    "CallsTrainingStep",
    "CheckpointError",
    "DataError",
    "Display",
    "Edge",
    "EditError",
    "Graph",
    "GraphError",
    "GraphtrainError",
    "GuardError",
    "LifeCycleError",
    "Loader",
    "Metric",
    "Node",
    "NotFiniteError",
    "Outcome",
    "Problem",
    "Repeated",
    "Run",
    "RunLogger",
    "Snapshot",
    "StepFunction",
    "TensorBoard",
    "TrainBatch",
    "Trainer",
    "Trigger",
    "UsageError",
    "checkpoint_folder",
    "copy_of",
    "derived_clock",
    "described",
    "joined",
    "lazy_import",
    "loss_and_metrics",
    "main",
    "node",
    "optimizers_of",
    "parameters_of",
    "progress",
    "put_back",
    "suggestion",
)


@pytest.mark.parametrize("name", NAMES)
def test_the_package_has_every_public_name(name: str) -> None:
    assert name in dir(graphtrain)
    assert getattr(graphtrain, name).__name__ == name


@pytest.mark.full
def test_a_star_imports_the_public_names_and_no_others() -> None:
    names: dict[str, object] = {}
    exec("from graphtrain import *", names)  # noqa: S102 - a function cannot have it; imports `TensorBoard` and others
    names.pop("__builtins__")
    assert set(NAMES) <= names.keys() <= {*dir(graphtrain)}
    assert not [name for name, value in names.items() if name.startswith("_") or isinstance(value, ModuleType)]


def test_a_kind_can_be_imported_by_its_module() -> None:
    clip = importlib.import_module("graphtrain.nodes.clip")
    assert graphtrain.Graph.load("fit").nodes["clip"].use == clip.Clip.__kind__.name
