"""What a graph asks for before a run begins: copies of resources, and the precisions of models.

A run prepares it, and checks refuse nodes that ask for different things.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.kind.parameter import MODEL_DTYPES
from graphtrain.plan.scope import ResourceTarget, Scope, resources_of


def made_resources(graph: Graph, resources: Mapping[str, Any] | None) -> dict[str, str]:
    """The resources that the nodes of a graph make: name -> the name of the source.

    Supplied resources are not among them, nor those whose source is missing.

    Arguments:
        resources: those supplied. None: not known; all copies are made.

    Raises:
        UsageError: two nodes make the same resource from different ones.
    """
    made: dict[str, str] = {}
    makers: dict[str, str] = {}
    for name, source, path in copies_of(graph):
        if resources is not None and (resources.get(name) is not None or resources.get(source) is None):
            continue
        if made.setdefault(name, source) != source:
            raise UsageError(
                f"`{makers[name]}` makes `{name}` as a copy of `{made[name]}`, and `{path}` as one of `{source}`",
                "give one of them another name, in `reads` of its node",
            )
        makers.setdefault(name, path)
    return made


def copies_of(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """The copies that the nodes of a graph declare: the name, that of the source, and the path of the node."""
    for scope in Scope(graph).with_inner():
        for node in scope.graph.nodes.values():
            kind = scope.kinds[node.name]
            for slot, copied in kind.makes.items() if kind is not None else ():
                target, of = scope.read_by(node, slot), scope.read_by(node, copied.source)
                if isinstance(target, ResourceTarget) and isinstance(of, ResourceTarget):
                    yield target.name, of.name, f"{scope.path}{node.name}"


@dataclass(frozen=True)
class PrecisionRequest:
    """The precision in which a node computes a model."""

    node: str
    model: str
    precision: str
    dtype: str | None  # the name of the type that it gives the weights, if any


def precisions(
    graph: Graph,
    copies: Mapping[str, str],
    resources: Mapping[str, Any] | None,
    model_type: type = object,
) -> dict[str, PrecisionRequest]:
    """The models to which a graph gives a type, each with a node that requires it for the model or a copy.

    Arguments:
        copies: as from `made_resources`.
        resources: those supplied. None: not known.
        model_type: of the resources that are models. Default: any.

    Raises:
        UsageError: two nodes compute a model in different types.
    """
    requests: dict[str, list[PrecisionRequest]] = {}
    for request in _requests(Scope(graph), resources):
        source = copies.get(request.model, request.model)
        if resources is None or isinstance(resources.get(source), model_type):
            requests.setdefault(source, []).append(request)
    casting: dict[str, PrecisionRequest] = {}
    for name, asked in requests.items():
        first = next((request for request in asked if request.dtype is not None), None)
        if first is None:
            continue
        for request in asked:
            if request.dtype != first.dtype:
                raise UsageError(
                    f'`{first.node}` computes {_named(first, name)} in "{first.precision}", and `{request.node}` '
                    f'{"" if request.model == first.model else _named(request, name) + " "}in "{request.precision}"',
                    f'give both one precision, as in {request.node}.precision="{first.precision}"',
                )
        casting[name] = first
    return casting


def _named(request: PrecisionRequest, source: str) -> str:
    return f"`{source}`" if request.model == source else f"`{request.model}`, a copy of `{source}`,"


def _requests(outermost: Scope, resources: Mapping[str, Any] | None) -> Iterator[PrecisionRequest]:
    """The requirements of the nodes of a graph, except those that are bypassed for lack of a resource."""
    for scope in outermost.with_inner():
        if resources is not None and _is_bypassed(scope, resources):
            continue
        for node in scope.graph.nodes.values():
            kind = scope.kinds[node.name]
            if kind is None or "precision" not in kind.parameters:
                continue
            precision = node.parameters.get("precision", kind.parameters["precision"].default)
            if precision is None:  # that of the training
                continue
            for name in resources_of([scope.read_by(node, "model")]):
                yield PrecisionRequest(f"{scope.path}{node.name}", name, precision, MODEL_DTYPES.get(precision))


def _is_bypassed(scope: Scope, resources: Mapping[str, Any]) -> bool:
    outer, node = scope.outer, scope.outer_node
    if outer is None or node is None:
        return False
    needed = resources_of(outer.read_by(node, slot) for slot in scope.graph.optional)
    return any(resources.get(name) is None for name in needed) or _is_bypassed(outer, resources)
