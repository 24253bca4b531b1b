"""A run as data: the progress of its nodes, the value of a name, its summary, and what loggers are told of it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graphtrain.display.summary import Activity, ModelSummary, Summary
from graphtrain.kind.declaration import FROM
from graphtrain.kind.parameter import plain_value
from graphtrain.kind.trigger import AT_END, Trigger
from graphtrain.metrics.logger import Beginning
from graphtrain.names import suggestion
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.run.drawing import picture_of

# Amounts of a trigger that a summary lists.
_MOST_AMOUNTS = 3


def progress_of(compiled: CompiledGraph) -> dict[str, Mapping[str, Any]]:
    """The progress of every node: path -> field -> value, guard fields that are computed included."""
    return {
        bound.path: {
            name: getattr(bound.instance, name)
            for name in bound.kind.fields
            if name != "due" and hasattr(bound.instance, name)
        }
        for bound in compiled.program.nodes
    }


def value_of(name: str, compiled: CompiledGraph, resources: Mapping[str, Any]) -> Any:
    """The value of ``"node.field"``, of a slot, or of a resource.

    Raises:
        KeyError: there is no such node, field or slot.
    """
    program = compiled.program
    path, dot, field = name.partition(".")
    if not dot:
        if name in resources:
            return resources[name]
        known = [*program.slot_names, *resources]
        if name not in known:
            raise KeyError(f"there is no slot `{name}`; {suggestion(name, known)}")
        return program.slots[program.slot_index(name)]
    planned = program.plan.by_path.get(path)
    if planned is None or planned.kind is None:
        raise KeyError(f"there is no node `{path}`; {suggestion(path, program.plan.by_path)}")
    known = [*planned.kind.parameters, *planned.kind.fields]
    if field not in known:
        raise KeyError(f"`{path}` has no field `{field}`; {suggestion(field, known)}")
    if path not in program.by_path:  # in a body that is bypassed
        return compiled.compiler.absent(path, field)
    bound = program.by_path[path]
    if field in bound.kind.parameters and field not in bound.planned.expressions:
        return bound.parameters[field]
    return compiled.compiler.field_getter(bound, field)()


def summary_of(compiled: CompiledGraph) -> Summary:
    """The models with their parameters, and what the graph does when."""
    program = compiled.program
    modules = {name: value for name, value in program.resources.items() if isinstance(value, torch.nn.Module)}
    activities = []
    for bound in program.main.nodes.values():
        verb = bound.kind.trigger
        trigger = bound.parameters.get(verb or "")
        if verb is not None and isinstance(trigger, Trigger) and not bound.bypassed:
            texts = ["at the end" if text == AT_END else text for text in trigger.texts]
            amount = "" if trigger.is_never else " or ".join(texts[:_MOST_AMOUNTS])
            if amount and (start := bound.parameters.get(FROM)) is not None:
                amount += f", from {start}"
            remark = f"when {' or '.join(bound.planned.also_due)}" if bound.planned.also_due else ""
            if amount:
                remark = f"also {remark}" if remark else ""
            activities.append(Activity(bound.path, verb, amount, remark or ("" if amount else "never")))
    models = {name: ModelSummary.of(module) for name, module in modules.items()}
    return Summary(compiled.graph.title, models, activities)


def beginning_of(
    compiled: CompiledGraph,
    rows: Sequence[Mapping[str, float]],
    given: Mapping[str, Any],
    resources: Mapping[str, Mapping[str, Any]],
    run_dir: Path | None,
) -> Beginning:
    """What loggers are told where a run begins or resumes: all hyper-parameters, and all parameters of nodes.

    Arguments:
        rows: the rows of metrics so far.
        given: hyper-parameters that are none of a resource, such as the seed.
        resources: name -> hyper-parameter -> value.
    """
    hyper_parameters = dict(given)
    for name, fields in resources.items():
        hyper_parameters |= {f"{name}.{field}": value for field, value in fields.items()}
    for bound in compiled.program.nodes:
        values = {name: value for name, value in bound.parameters.items() if value is not None}
        hyper_parameters |= {f"{bound.path}.{name}": plain_value(value) for name, value in values.items()}
    picture = functools.partial(picture_of, compiled.graph)
    return Beginning(compiled.graph, tuple(rows), hyper_parameters, run_dir, picture, compiled.run_clock.columns)
