"""What a run is about to do, before it starts: its models, its schedule, its hyper-parameters."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graphtrain.display.summary import Activity, ModelSummary, Summary
from graphtrain.kind.parameter import plain_value
from graphtrain.kind.trigger import Trigger
from graphtrain.metrics.logger import Beginning
from graphtrain.program.bind import Program
from graphtrain.resume.hyper_parameters import HyperParameters
from graphtrain.run.drawing import picture_of

_MOST_AMOUNTS = 3


def summary_of(program: Program) -> Summary:
    """The models among the resources, and every node of the outermost graph that has a trigger and something to do."""
    models = {
        name: ModelSummary.of(resource)
        for name, resource in program.resources.items()
        if isinstance(resource, torch.nn.Module)
    }
    activities = []
    for bound in program.main.nodes.values():
        verb = bound.kind.trigger
        trigger = bound.parameters.get(verb) if verb is not None else None
        if verb is not None and isinstance(trigger, Trigger) and not bound.bypassed:
            amount = " or ".join(str(term) for term in trigger.terms[:_MOST_AMOUNTS])
            activities.append(Activity(bound.path, verb, amount, "" if trigger.terms else "never"))
    return Summary(program.graph.name, models, activities)


def beginning_of(
    program: Program,
    hyper_parameters: HyperParameters,
    rows: Sequence[Mapping[str, float]],
    given: Mapping[str, Any],
    run_dir: Path | None,
) -> Beginning:
    """What loggers get when a run starts: `given`, all parameters of nodes, and all hyper-parameters."""
    nodes = {
        f"{bound.path}.{name}": plain_value(value)
        for bound in program.nodes
        for name, value in bound.parameters.items()
        if value is not None
    }
    values = {
        f"{name}.{field}": value for name, fields in hyper_parameters.values.items() for field, value in fields.items()
    }
    return Beginning(
        program.graph, tuple(rows), {**given, **values, **nodes}, run_dir, functools.partial(picture_of, program.graph)
    )
