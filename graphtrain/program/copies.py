"""Copies of resources that kinds ask for."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.plan.preparation import copies_of


def with_copies(resources: Mapping[str, Any], made: Mapping[str, str]) -> dict[str, Any]:
    """The resources and their copies.

    Arguments:
        made: the copies to make: name -> the name of the source.

    Raises:
        UsageError: one of them cannot be copied.
    """
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
