"""Values as plain data that refer to objects instead of containing them, and back.

An object that was reached from the roots is referred to by its path, a tensor in a `state_dict` by its place there, and
an object that is new by a number: it is described once, by what it holds. So two places that held one object hold one
again, and a view is a view of its base again.

A description may come from a stranger. Nothing is imported and nothing is called: classes and functions are those that
modules of the user's own, imported already, define themselves; methods are those of objects that are there; objects
are their attributes.
"""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from graphtrain.errors import CheckpointError
from graphtrain.state.category import category_of, is_users
from graphtrain.state.contents import FORMS
from graphtrain.state.nested import CONSTANTS, replaced

_MOST_SHOWN = 120

# What can be changed in place, and be found again where others hold it too.
CHANGED_IN_PLACE = frozenset({"tensor", "array", "list", "mapping", "deque", "set", "object", "buffer"})

# What goes wrong where a description is not one that a `Describer` has made.
MALFORMED = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)

TUPLES_OF_TORCH: Mapping[str, Any] = {
    kind.__qualname__: kind for kind in (PackedSequence, *torch.return_types.all_return_types)
}


class UnknownStateError(Exception):
    """Something that cannot be described; the text says where it is and what."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{shown_path(path)} {what}")


def shown_path(path: str) -> str:
    """A path for a message: what is in a variable is called like the variable, and the middle of a long one left out.

    >>> shown_path("step<calls>.cell_contents.total")
    'step<calls>.total'
    """
    shown = path.replace(".cell_contents", "")
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[: _MOST_SHOWN // 2]}...{shown[-_MOST_SHOWN // 2 :]}"


def places(stateful: Mapping[str, Any]) -> Iterable[tuple[tuple[Any, ...], Any]]:
    """What a `state_dict` saves, and gradients, with the place of each: tensors, of other objects also containers."""
    for path, value in stateful.items():
        if isinstance(value, torch.nn.Module):
            for name, parameter in value.named_parameters():
                yield (path, "tensor", name), parameter
                if parameter.grad is not None:
                    yield (path, "grad", name), parameter.grad
            for name, tensor in value.named_buffers():
                yield (path, "tensor", name), tensor
        elif isinstance(value, torch.optim.Optimizer):
            for number, state in enumerate(value.state.values()):
                for name, part in state.items():
                    if isinstance(part, torch.Tensor):
                        yield (path, "state", number, name), part
                    elif type(part) not in CONSTANTS:  # such as the list of an L-BFGS
                        yield from (((path, "state", number, name, *keys), part) for keys, part in parts_in(part))
            for number, group in enumerate(value.param_groups):
                for name, tensor in group.items():
                    if isinstance(tensor, torch.Tensor):
                        yield (path, "group", number, name), tensor
        elif category_of(type(value)) == "object":
            for name, part in zip(*FORMS["object"].contents(value), strict=True):
                yield from (((path, "attribute", name, *keys), part) for keys, part in parts_in(part))


def parts_in(value: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """A value, and the parts of nested containers that can be changed in place, with the keys that lead to each."""
    parts: list[tuple[tuple[Any, ...], Any]] = []

    def note(part: Any, keys: tuple[Any, ...]) -> Any:
        if category_of(type(part)) in CHANGED_IN_PLACE:
            parts.append((keys, part))
        return part

    replaced(value, note)
    return parts


def is_plain_class(kind: type) -> bool:
    """True for an importable class of the user's own whose objects are their attributes, and nothing else."""
    special = ("__new__", "__del__", "__setstate__", "__getstate__", "__reduce__", "__reduce_ex__")
    return (
        is_users(kind.__module__)
        and "<" not in kind.__qualname__
        and category_of(kind) == "object"
        and not any(
            name in vars(base) and not _is_generated(vars(base)[name]) for base in kind.__mro__[:-1] for name in special
        )
    )


def _is_generated(method: Any) -> bool:
    """True for a method that a decorator of classes made: that of frozen dataclasses, or of attrs."""
    return getattr(method, "__globals__", {}).get("__name__") in ("dataclasses", "attr._make")


def is_saveable(tensor: torch.Tensor) -> bool:
    """True for tensors whose values a checkpoint can hold."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout in (torch.strided, torch.sparse_coo)
        and not (tensor.is_meta or tensor.is_quantized or tensor.is_nested)
    )


def name_of(value: Any, path: str, *, is_enum: bool = False) -> tuple[str, str]:
    module, name = value.__module__, value.__qualname__
    try:
        if found_by_name(module, name, is_enum=is_enum) is value:
            return module, name
    except CheckpointError:
        pass
    raise UnknownStateError(path, f"is `{name}`, which cannot be found by its name: define it at the top of a module")


def found_by_name(module: str, name: str, *, is_enum: bool = False) -> Any:
    """A class or function that a module of the user's own defines, or a class of enumeration members, by name."""
    value: Any = sys.modules.get(module)
    if not isinstance(value, types.ModuleType) or not (is_users(module) or is_enum):
        raise CheckpointError(f"there is no module `{module[:100]}` of yours")
    for part in name.split("."):
        value = vars(value).get(part)
        if not isinstance(value, type | types.FunctionType):
            raise CheckpointError(f"there is no `{name[:100]}` in the module `{module[:100]}`")
    # Not what the module has only imported, as `from subprocess import run`.
    if (value.__module__, value.__qualname__) != (module, name) or (is_enum and not issubclass(value, enum.Enum)):
        raise CheckpointError(f"the module `{module[:100]}` does not define `{name[:100]}` itself")
    return value
