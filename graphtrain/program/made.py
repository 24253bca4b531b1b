"""Preparation of resources for nodes before a run: the dtypes of models, and copies, which are made once.

A copy is an ordinary resource from then on.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.kind.parameter import MODEL_DTYPES
from graphtrain.names import plainly_named
from graphtrain.plan.scope import ResourceTarget, Scope, resources_of


def made_resources(graph: Graph, resources: Mapping[str, Any]) -> dict[str, str]:
    """The resources that the nodes of a graph make: name -> the name of the source.

    Supplied resources are not among them, nor those whose source is missing.

    Raises:
        UsageError: two nodes make the same resource from different ones.
    """
    made: dict[str, str] = {}
    makers: dict[str, str] = {}
    for name, source, path in _copies(graph):
        if resources.get(name) is not None or resources.get(source) is None:
            continue
        if made.setdefault(name, source) != source:
            raise UsageError(
                f"`{makers[name]}` makes `{name}` as a copy of `{made[name]}`, and `{path}` as one of `{source}`",
                "give one of them another name, in `reads` of its node",
            )
        makers.setdefault(name, path)
    return made


def _copies(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """The copies that the nodes of a graph declare: the name, that of the source, and the path of the node."""
    for scope in Scope(graph).with_inner():
        for node in scope.graph.nodes.values():
            kind = scope.kinds[node.name]
            for slot, copied in kind.makes.items() if kind is not None else ():
                target, of = scope.read_by(node, slot), scope.read_by(node, copied.source)
                if isinstance(target, ResourceTarget) and isinstance(of, ResourceTarget):
                    yield target.name, of.name, f"{scope.path}{node.name}"


def unlike_sources(graph: Graph, resources: Mapping[str, Any], supplied: Collection[str]) -> list[str]:
    """A line for each module that was supplied in place of a copy, and has other weights than its source.

    Arguments:
        supplied: the names of resources that are not copies.
    """
    lines = []
    for name, source, path in _copies(graph):
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
    for name, request in _casting(graph, resources, {**earlier, **made}).items():
        model = resources[name]
        if name in kept and any(
            tensor.is_floating_point() and tensor.dtype != request.dtype
            for tensor in (*model.parameters(), *model.buffers())
        ):
            raise _changed(request, "by `rewire`")
        model.to(request.dtype)
    return {**resources, **{name: _copy(name, source, resources[source]) for name, source in made.items()}}


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


# ---- the dtypes of models


@dataclass(frozen=True)
class _Request:
    """The precision in which a node computes a model, and the type that it gives its weights, if any."""

    node: str
    model: str
    precision: str
    dtype: torch.dtype | None


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
    for name, request in {**before, **now}.items():
        if (name in before) == (name in now) and before[name].dtype == now[name].dtype:
            continue
        weights = dict(plainly_named(resources[name].named_parameters()))
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
    """The models to which a graph gives a type, each with a node that requires it for the model or a copy.

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
    """The requirements of the nodes of a graph, except those that are bypassed for lack of a resource."""
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
            dtype = getattr(torch, MODEL_DTYPES.get(precision, ""), None)
            for name in resources_of([scope.read_by(node, "model")]):
                yield _Request(f"{scope.path}{node.name}", name, precision, dtype)


def _is_bypassed(scope: Scope, resources: Mapping[str, Any]) -> bool:
    outer, node = scope.outer, scope.outer_node
    if outer is None or node is None:
        return False
    needed = resources_of([outer.read_by(node, slot) for slot in scope.graph.optional])
    return any(resources.get(name) is None for name in needed) or _is_bypassed(outer, resources)
