"""What people import: the names of the package, and the places that the documentation once named."""

from __future__ import annotations

import importlib

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
    "Factory",
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


def test_a_kind_can_be_imported_by_its_module() -> None:
    clip = importlib.import_module("graphtrain.nodes.clip")
    assert graphtrain.Graph.load("fit").nodes["clip"].use == clip.Clip.__kind__.name
