"""The places of objects in what a `state_dict` saves, by which they are referred to: ``optimizer.state[0].exp_avg``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from graphtrain.names import plainly_named
from graphtrain.state.kinds import CONSTANTS, KINDS, category_of, is_constant

_ALL = ("module", "optimizer", "object")
CONTAINERS = frozenset({"list", "mapping", "deque", "set", "object", "buffer"})
"""The categories of objects that are changed in place, and can be found where others hold them too."""
_MOST_NESTED = 100  # a container may hold itself


def places(stateful: Mapping[str, Any], categories: Collection[str] = _ALL) -> Iterator[tuple[str, Any]]:
    """What the `state_dict` of objects of these categories may save, and gradients, with the place of each."""
    for path, value in stateful.items():
        category = category_of(type(value))
        if category not in categories:
            continue
        if category == "module":
            for name, parameter in plainly_named(value.named_parameters()):
                yield f"{path}.{name}", parameter
                if parameter.is_leaf and parameter.grad is not None:
                    yield f"{path}.{name}.grad", parameter.grad
            yield from ((f"{path}.{name}", tensor) for name, tensor in plainly_named(value.named_buffers()))
        elif category == "optimizer":
            for number, state in enumerate(value.state.values()):
                yield from _by_name(f"{path}.state[{number}]", state)
            for number, group in enumerate(value.param_groups):
                tensors = {name: part for name, part in group.items() if isinstance(part, torch.Tensor)}
                yield from _by_name(f"{path}.param_groups[{number}]", tensors)
        else:
            yield from _by_name(path, dict(zip(*KINDS["object"].contents(value), strict=True)))


def _by_name(path: str, named: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for name, part in named.items():
        if isinstance(part, torch.Tensor):  # of which there may be 100,000
            yield f"{path}.{name}", part
        elif type(part) not in CONSTANTS:  # such as the list of an L-BFGS
            yield from parts_in(part, f"{path}.{name}")


def parts_in(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """A value, and the parts of nested containers that can be changed in place, with the path of each."""
    category = category_of(type(value))
    if category in CONTAINERS | {"tensor", "array"}:
        yield path, value
    if category in ("list", "tuple", "deque", "mapping") and depth < _MOST_NESTED:
        keys, parts = KINDS[category].contents(value)
        for key, part in zip(keys or range(len(parts)), parts, strict=True):
            if type(part) not in CONSTANTS and is_constant(key):
                yield from parts_in(part, f"{path}[{key!r}]", depth + 1)
