"""Copies of resources that kinds ask for, and the types of models."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.names import plainly_named
from graphtrain.plan.preparation import PrecisionRequest, copies_of, precisions


def with_copies(
    graph: Graph,
    resources: Mapping[str, Any],
    made: Mapping[str, str],
    kept: Collection[str] = (),
    earlier: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The resources and their copies; models have the types in which nodes compute them.

    Arguments:
        made: the copies to make: name -> the name of the source.
        kept: the resources of an existing trainer, whose types stay. Default: none.
        earlier: the copies among the resources. Default: none.

    Raises:
        UsageError: one of them cannot be copied, or cannot have such a type.
    """
    # In place: an optimizer made for a model keeps it. A copy has the type of its model.
    for name, (request, dtype) in _casting(graph, resources, {**earlier, **made}).items():
        model = resources[name]
        if name in kept and any(
            tensor.is_floating_point() and tensor.dtype != dtype for tensor in (*model.parameters(), *model.buffers())
        ):
            raise _changed(request, "by `rewire`")
        model.to(dtype)
    return {**resources, **{name: _copy(name, source, resources[source]) for name, source in made.items()}}


def unlike_sources(graph: Graph, resources: Mapping[str, Any], supplied: Collection[str]) -> list[str]:
    """A line for each module that was supplied in place of a copy, and has other weights than its source.

    Arguments:
        supplied: the names of resources that are not copies.
    """
    lines = []
    for name, source, path in copies_of(graph):
        copied, model = resources.get(name), resources.get(source)
        if name not in supplied or not (isinstance(copied, torch.nn.Module) and isinstance(model, torch.nn.Module)):
            continue
        pairs = zip(copied.parameters(), model.parameters(), strict=False)
        if not all(is_lazy(mine) or is_lazy(its) or torch.equal(mine, its.to(mine.dtype)) for mine, its in pairs):
            lines.append(
                f"`{name}` begins with other weights than `{source}`, which it follows in `{path}`; for the same ones, "
                f"let `setup` call {name}.load_state_dict({source}.state_dict()), and give --init for both"
            )
    return lines


def _copy(name: str, source: str, value: Any) -> Any:
    try:
        copied = copy.deepcopy(value)
    except (RuntimeError, TypeError, NotImplementedError, AssertionError) as error:
        raise UsageError(
            f"`{name}` is made as a copy of `{source}`, a {type(value).__name__} that cannot be copied: {error}",
            f"let `setup` return a `{name}`, made as `{source}` is, and with its weights: "
            f"{name}.load_state_dict({source}.state_dict())",
        ) from None
    for parameter in copied.parameters() if isinstance(copied, torch.nn.Module) else ():
        parameter.requires_grad = False  # the attribute: the method refuses a parameter without a shape
        parameter.grad = None
    return copied


def refuse_other_types(
    former: Graph, graph: Graph, resources: Mapping[str, Any], saved: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raise if the type of saved weights differs from the one that the present graph gives their model.

    Arguments:
        former: the graph that they were trained with.
        resources: including models, with their present types.
        saved: the state of each resource.

    Raises:
        UsageError: they would be rounded, or the optimizer would have state of another type.
    """
    before, now = _casting(former, resources), _casting(graph, resources)
    for name, (request, dtype) in {**before, **now}.items():
        if (name in before) == (name in now) and before[name][1] == dtype:
            continue
        weights = dict(plainly_named(resources[name].named_parameters()))
        if any(
            isinstance(value, torch.Tensor) and key in weights and weights[key].dtype != value.dtype
            for key, value in saved.get(name, {}).items()
        ):
            raise _changed(request, "at a resume", None if name in now else "32-true")


def _changed(request: PrecisionRequest, when: str, precision: str | None = None) -> UsageError:
    return UsageError(
        f'`{request.node}.precision` cannot become "{precision or request.precision}" {when}: the weights of '
        f"`{request.model}`, and what the optimizer knows of them, have another type",
        f"begin another run with these weights: --init {request.model}=RUN_DIR/checkpoints/NAME/"
        f"{request.model}.safetensors --run-dir OTHER",
    )


def _casting(
    graph: Graph, resources: Mapping[str, Any], copies: Mapping[str, str] = MappingProxyType({})
) -> dict[str, tuple[PrecisionRequest, torch.dtype]]:
    """The models to which a graph gives a type, each with a node that requires it for the model or a copy.

    Raises:
        UsageError: two nodes compute a model in different types.
    """
    asked = precisions(graph, copies, resources, torch.nn.Module)
    return {name: (request, getattr(torch, request.dtype or "")) for name, request in asked.items()}
