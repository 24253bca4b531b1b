"""Resources that kinds make of others: copies, made once, and ordinary resources from then on."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.plan.scope import ResourceTarget, Scope
from graphtrain.program.dtypes import cast_models


def made_resources(graph: Graph, resources: Mapping[str, Any]) -> dict[str, str]:
    """The resources that the nodes of a graph make: name -> that of the resource they are copies of.

    Those that are supplied are not among them, nor those whose source is missing.

    Raises:
        UsageError: two nodes make one resource of different ones.
    """
    made: dict[str, str] = {}
    makers: dict[str, str] = {}
    for path, name, source in _declared(Scope(graph)):
        if resources.get(name) is not None or resources.get(source) is None:
            continue
        if made.setdefault(name, source) != source:
            raise UsageError(
                f"`{makers[name]}` makes `{name}` as a copy of `{made[name]}`, and `{path}` as one of `{source}`",
                "give one of them another name, in `reads` of its node",
            )
        makers.setdefault(name, path)
    return made


def _declared(outermost: Scope) -> Iterator[tuple[str, str, str]]:
    """The path of a node, what it makes, and of what, as far as both are resources."""
    for scope in outermost.with_inner():
        for node in scope.graph.nodes.values():
            kind = scope.kinds[node.name]
            for slot, copied in kind.makes.items() if kind is not None else ():
                targets = scope.read_by(node, slot), scope.read_by(node, copied.source)
                if all(isinstance(target, ResourceTarget) for target in targets):
                    name, source = (target.name for target in targets if isinstance(target, ResourceTarget))
                    yield f"{scope.path}{node.name}", name, source


def with_copies(
    graph: Graph,
    resources: Mapping[str, Any],
    made: Mapping[str, str],
    kept: Collection[str] = (),
    earlier: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The resources with the copies that are made of some; models have the types in which nodes compute them.

    Arguments:
        made: what is copied now: name -> that of the resource it is a copy of.
        kept: the resources of a trainer that was made, whose types stay. Default: none.
        earlier: the copies among the resources. Default: none.

    Raises:
        UsageError: one of them cannot be copied, or cannot have such a type.
    """
    cast_models(graph, resources, {**earlier, **made}, kept)
    return {**resources, **{name: _copy(name, source, resources[source]) for name, source in made.items()}}


def _copy(name: str, source: str, value: Any) -> Any:
    try:
        copied = copy.deepcopy(value)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise UsageError(
            f"`{name}` is made as a copy of `{source}`, a {type(value).__name__} that cannot be copied: {error}",
            f"let `setup` return a `{name}`, made as `{source}` is",
        ) from None
    for parameter in copied.parameters() if isinstance(copied, torch.nn.Module) else ():
        parameter.requires_grad = False  # an attribute: the method refuses a parameter without a form so far
        parameter.grad = None
    return copied
