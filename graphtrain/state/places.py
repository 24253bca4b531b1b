"""The places of objects in what a `state_dict` saves, by which they are referred to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from graphtrain.names import plainly_named
from graphtrain.state.kinds import CONSTANTS, KINDS, category_of, replaced

CONTAINERS = frozenset({"list", "mapping", "deque", "set", "object", "buffer"})
"""The categories of objects that are changed in place, and can be found where others hold them too."""

Place = tuple[Any, ...]


def places(stateful: Mapping[str, Any]) -> Iterator[tuple[Place, Any]]:
    """What a `state_dict` saves, and gradients, with the place of each: tensors, of other objects also containers."""
    for path, value in stateful.items():
        if isinstance(value, torch.nn.Module):
            for name, parameter in plainly_named(value.named_parameters()):
                yield (path, "tensor", name), parameter
                if parameter.is_leaf and parameter.grad is not None:
                    yield (path, "grad", name), parameter.grad
            for name, tensor in plainly_named(value.named_buffers()):
                yield (path, "tensor", name), tensor
        elif isinstance(value, torch.optim.Optimizer):
            for number, state in enumerate(value.state.values()):
                yield from _parts_by_name((path, "state", number), state)
            for number, group in enumerate(value.param_groups):
                tensors = {name: part for name, part in group.items() if isinstance(part, torch.Tensor)}
                yield from _parts_by_name((path, "group", number), tensors)
        elif category_of(type(value)) == "object":
            yield from _parts_by_name((path, "attribute"), dict(zip(*KINDS["object"].contents(value), strict=True)))


def _parts_by_name(place: Place, named: Mapping[Any, Any]) -> Iterator[tuple[Place, Any]]:
    for name, part in named.items():
        if isinstance(part, torch.Tensor):  # of which there may be 100,000
            yield (*place, name), part
        elif type(part) not in CONSTANTS:  # such as the list of an L-BFGS
            yield from (((*place, name, *keys), inner) for keys, inner in parts_in(part))


def shown_place(place: Place) -> str:
    """A place of `places` for a message.

    >>> shown_place(("optimizer", "state", 0, "exp_avg")), shown_place(("model", "grad", "0.weight"))
    ('optimizer.state[0].exp_avg', 'model.0.weight.grad')
    """
    path, kind, *keys = place
    if kind == "grad":
        return f"{path}.{keys[0]}.grad"
    if kind in ("state", "group"):
        path = f"{path}.{'state' if kind == 'state' else 'param_groups'}[{keys.pop(0)}]"
    name, *inner = keys
    return f"{path}.{name}" + "".join(f"[{key!r}]" for key in inner)


def parts_in(value: Any) -> list[tuple[Place, Any]]:
    """A value, and the parts of nested containers that can be changed in place, with the keys that lead to each."""
    parts: list[tuple[Place, Any]] = []

    def note(part: Any, keys: Place) -> Any:
        if category_of(type(part)) in CONTAINERS | {"tensor", "array"}:
            parts.append((keys, part))
        return part

    replaced(value, note)
    return parts
