"""The types of numbers that nodes ask of the models they read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.kind.precision import MODEL_DTYPES
from graphtrain.plan.scope import ResourceTarget, Scope, leaves


@dataclass(frozen=True)
class _Request:
    """What a node computes a model in: a precision, and the type that it gives its weights, if any."""

    node: str
    model: str
    precision: str
    dtype: torch.dtype | None


def cast_models(
    graph: Graph, resources: Mapping[str, Any], copies: Mapping[str, str], kept: Collection[str] = ()
) -> None:
    """Give models, in place, the types in which nodes compute them: an optimizer that was made of one keeps it.

    Those are values of the parameter `precision` of a kind that reads a model.

    Arguments:
        copies: what is made as a copy of a model, and has its type: name -> that of the model.
        kept: the models of a trainer that was made, whose types stay. Default: none.

    Raises:
        UsageError: two nodes compute a model in different types, or the type of one that is kept would change.
    """
    for name, request in _casting(graph, resources, copies).items():
        model = resources[name]
        if name in kept and any(
            tensor.is_floating_point() and tensor.dtype != request.dtype
            for tensor in (*model.parameters(), *model.buffers())
        ):
            raise _changed(request, "by `rewire`")
        model.to(request.dtype)


def refuse_other_types(
    former: Graph, graph: Graph, resources: Mapping[str, Any], saved: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raise if saved weights have another type than that which a graph gives their model now.

    Arguments:
        former: the graph that they were trained with.
        resources: models among them, with the types of now.
        saved: the state of each resource.

    Raises:
        UsageError: they would be rounded, or the optimizer would have state of another type.
    """
    before, now = _casting(former, resources), _casting(graph, resources)
    for name, request in {**before, **now}.items():
        if (name in before) == (name in now) and before[name].dtype == now[name].dtype:
            continue
        weights = dict(resources[name].named_parameters())
        if any(
            isinstance(value, torch.Tensor) and key in weights and weights[key].dtype != value.dtype
            for key, value in saved.get(name, {}).items()
        ):
            raise _changed(now.get(name, request), "at a resume", None if name in now else "32-true")


def _changed(request: _Request, when: str, precision: str | None = None) -> UsageError:
    return UsageError(
        f'`{request.node}.precision` cannot become "{precision or request.precision}" {when}: the weights of '
        f"`{request.model}`, and what the optimizer knows of them, have another type",
        f"begin another run with these weights: --init {request.model}=RUN_DIR/checkpoints/NAME/"
        f"{request.model}.safetensors --run-dir OTHER",
    )


def _casting(
    graph: Graph, resources: Mapping[str, Any], copies: Mapping[str, str] = MappingProxyType({})
) -> dict[str, _Request]:
    """The models that a graph gives a type, and a node that asks for it of one or of its copy.

    Raises:
        UsageError: two nodes compute a model in different types.
    """
    requests: dict[str, list[_Request]] = {}
    for request in _requests(Scope(graph), resources):
        source = copies.get(request.model, request.model)
        if isinstance(resources.get(source), torch.nn.Module):
            requests.setdefault(source, []).append(request)
    casting: dict[str, _Request] = {}
    for name, asked in requests.items():
        first = next((request for request in asked if request.dtype is not None), None)
        if first is None:
            continue
        for request in asked:
            if request.dtype is not first.dtype:
                raise UsageError(
                    f'`{first.node}` computes {_named(first, name)} in "{first.precision}", and `{request.node}` '
                    f'{"" if request.model == first.model else _named(request, name) + " "}in "{request.precision}"',
                    f'give both one precision, as in {request.node}.precision="{first.precision}"',
                )
        casting[name] = first
    return casting


def _named(request: _Request, source: str) -> str:
    return f"`{source}`" if request.model == source else f"`{request.model}`, a copy of `{source}`,"


def _requests(outermost: Scope, resources: Mapping[str, Any]) -> Iterator[_Request]:
    """What the nodes of a graph ask, those left out that are bypassed for want of a resource."""
    for scope in outermost.with_inner():
        if _is_bypassed(scope, resources):
            continue
        for node in scope.graph.nodes.values():
            kind = scope.kinds[node.name]
            if kind is None or "precision" not in kind.parameters:
                continue
            precision = node.parameters.get("precision", kind.parameters["precision"].default)
            if precision is None:  # that of the training
                continue
            for target in leaves(scope.read_by(node, "model")):
                if isinstance(target, ResourceTarget):
                    dtype = getattr(torch, MODEL_DTYPES.get(precision, ""), None)
                    yield _Request(f"{scope.path}{node.name}", target.name, precision, dtype)


def _is_bypassed(scope: Scope, resources: Mapping[str, Any]) -> bool:
    outer, node = scope.outer, scope.outer_node
    if outer is None or node is None:
        return False
    needed = (target for slot in scope.graph.optional for target in leaves(outer.read_by(node, slot)))
    missing = any(isinstance(target, ResourceTarget) and resources.get(target.name) is None for target in needed)
    return missing or _is_bypassed(outer, resources)
