"""What one resource was set up with, before any step: its hyper-parameters, and what it takes to put them back."""

from __future__ import annotations

import copy
import inspect
import weakref
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler

CLASS = "class"
LAMBDAS = "lr_lambdas"

# What moves while a schedule goes on, and what follows from the learning rate of the optimizer.
MOVING = frozenset(
    {
        *("last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step", "base_lrs"),
        *("T_cur", "T_i"),  # warm restarts
        *("best", "num_bad_epochs", "cooldown_counter"),  # plateaus
    }
)
_SCALER_MOVING = frozenset({"scale", "_growth_tracker"})
_NOT_HYPER = frozenset({"params", "param_names", "initial_lr"})

# What the constructors of schedules write into a group; their steps write the rate and the momentum alone.
OF_SCHEDULES = ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum")

_LAMBDA_STEPS = (0, 1, 10, 100, 1000, 10000)
_MOST_ENTRIES = 64
_MOST_FIELDS = 1024
_MOST_CHARACTERS = 4096
_DEEPEST = 4
_NOT_PLAIN = object()


@dataclass(frozen=True)
class ResourceHyperParameters:
    """What a resource was set up with.

    Attributes:
        values: hyper-parameters as a manifest holds them, and the name of the class under ``"class"``.
        state: the same as the resource's `state_dict` has it; of an optimizer the groups, without parameters.
        others: the fields that are there but are no settings, such as tensors.
    """

    values: dict[str, Any]
    state: dict[str, Any]
    others: frozenset[str] = frozenset()


# Objects that were trained and are given to a new Trainer were set up once, before they moved.
_first: weakref.WeakKeyDictionary[Any, ResourceHyperParameters] = weakref.WeakKeyDictionary()


def first_setting(resource: Any) -> ResourceHyperParameters:
    """What a resource was set up with when it was first seen."""
    if (known := known_setting(resource)) is not None:
        return known
    return _remembered(resource, setting_of(resource))


def known_setting(resource: Any) -> ResourceHyperParameters | None:
    """What a resource was set up with; None if it is seen for the first time."""
    known = _first.get(resource) if _has_identity(resource) else None
    if known is not None and isinstance(resource, torch.optim.Optimizer):
        same_groups = len(known.state["param_groups"]) == len(resource.param_groups)
        return known if same_groups else None  # a group was added since
    return known


def with_new_schedule(optimizer: torch.optim.Optimizer) -> ResourceHyperParameters:
    """The first setting of an optimizer, with what the constructor of a new schedule has written into its groups."""
    former = first_setting(optimizer)
    groups = [
        {**made, **{field: copy.deepcopy(group[field]) for field in OF_SCHEDULES if field in group}}
        for made, group in zip(former.state["param_groups"], optimizer.param_groups, strict=True)
    ]
    values = {CLASS: type(optimizer).__name__} | _values_of_groups(groups)
    return _remembered(optimizer, ResourceHyperParameters(values, {"param_groups": groups}))


def setting_of(resource: Any) -> ResourceHyperParameters:
    """What a resource is set up with now.

    >>> setting_of(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)).values["lr"]
    0.5
    """
    kind = {CLASS: type(resource).__name__}
    if isinstance(resource, torch.optim.Optimizer):
        groups = [_copied_group(one) for one in resource.param_groups]
        return ResourceHyperParameters(kind | _values_of_groups(groups), {"param_groups": groups})
    try:
        state = resource.state_dict()
        if not isinstance(state, Mapping):
            return ResourceHyperParameters(kind, {})
        if isinstance(resource, LRScheduler):
            state = {key: copied for key, one in state.items() if (copied := _copy(one)) is not _NOT_PLAIN}
            return ResourceHyperParameters(kind | _values_of_schedule(resource, state), state)
        own = _SCALER_MOVING if isinstance(resource, GradScaler) else frozenset[str]()
        if len(state) > _MOST_FIELDS:
            return ResourceHyperParameters(kind, {}, frozenset(map(str, state)))
        small = _plain_copy({key: value for key, value in state.items() if key not in own}, most=_MOST_FIELDS)
        others = frozenset(str(key) for key in state if key not in small)
        return ResourceHyperParameters(kind | {str(key): plain(value) for key, value in small.items()}, small, others)
    except Exception:  # a state that cannot be read is compared with nothing; saving it says why
        return ResourceHyperParameters(kind, {})


def is_default(resource: Any, field: str, value: Any) -> bool:
    """True if a field need not have been set by anybody, so that another version of PyTorch may not know it."""
    if not isinstance(resource, torch.optim.Optimizer | LRScheduler):
        return False
    if isinstance(resource, LRScheduler) and field.startswith("_"):
        return True
    parameter = inspect.signature(type(resource).__init__).parameters.get(field)
    if parameter is not None:
        return parameter.default is not parameter.empty and same(plain(parameter.default), value)
    defaults = getattr(resource, "defaults", {})
    return field in defaults and same(plain(defaults[field]), value)


def same(one: Any, other: Any) -> bool:
    """True if two plain values are equal; NaN is what it was.

    >>> same({"best": [float("nan")]}, {"best": [float("nan")]}), same([1], [1, 2])
    (True, False)
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other or (one != one and other != other))


def plain(value: Any) -> Any:
    """A value that a manifest can hold and that compares as what it means."""
    match value:
        case None | bool():
            return value
        case str():
            return str(value)
        case float():
            return float(value)
        case int():
            return int(value) if abs(value) < 2**63 else str(int(value))
        case torch.Tensor():
            return plain(value.tolist()) if value.numel() <= _MOST_ENTRIES else f"a tensor of {tuple(value.shape)}"
        case Mapping():
            return {str(key): plain(one) for key, one in value.items()}
        case set() | frozenset():
            return _bounded(sorted((plain(one) for one in value), key=lambda one: (type(one).__name__, repr(one))))
        case list() | tuple():
            return _bounded([plain(one) for one in value])
    if _is_numpy_scalar(value):
        return plain(value.item())
    return f"a {type(value).__name__}"


def _bounded(values: list[Any]) -> Any:
    """A long list is told by its length and its sum."""
    if len(values) <= _MOST_ENTRIES:
        return values
    return f"{len(values)} values with checksum {zlib.crc32(repr(values).encode()):08x}"


def _values_of_groups(groups: list[dict[str, Any]]) -> dict[str, Any]:
    seen = [
        {**one, "lr": one.get("initial_lr", one.get("lr"))}  # a schedule with a warm-up has moved the rate already
        for one in groups
    ]
    fields = dict.fromkeys(field for one in seen for field in one if field not in _NOT_HYPER)
    return {field: _collapsed([plain(one.get(field)) for one in seen]) for field in fields}


def _values_of_schedule(scheduler: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    values = {str(key): plain(value) for key, value in state.items() if key not in (*MOVING, "_schedulers")}
    if isinstance(functions := getattr(scheduler, LAMBDAS, None), list):
        kept = [one for one in values.get(LAMBDAS) or () if one]  # of callable objects, what they hold
        values[LAMBDAS] = [*(_points(one) for one in functions), *kept]
    if "_schedulers" in state:
        inner = zip(scheduler._schedulers, state["_schedulers"], strict=True)
        values["_schedulers"] = [_values_of_schedule(*one) for one in inner]
    return values


def _points(function: Any) -> list[float | None]:
    """A function cannot be kept; its values can."""

    def at(step: int) -> float | None:
        try:
            value, again = float(function(step)), float(function(step))
        except Exception:  # it may know no such step
            return None
        return value if same(value, again) else None

    return [at(step) for step in _LAMBDA_STEPS]


def _copied_group(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: copy.deepcopy(value) for key, value in group.items() if key not in ("params", "param_names")}


def _copy(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # such as a lock, or what holds one
        return _NOT_PLAIN


def _collapsed(values: list[Any]) -> Any:
    """One value where all groups agree, else the list."""
    return values[0] if all(same(one, values[0]) for one in values) else values


def _plain_copy(value: Any, depth: int = 0, most: int = _MOST_ENTRIES) -> Any:
    """A copy of what is plain and small; of mappings, their plain entries."""
    if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
        return _NOT_PLAIN
    if value is None or isinstance(value, bool | int | float | str) or _is_numpy_scalar(value):
        return value
    if depth > _DEEPEST or not isinstance(value, Mapping | list | tuple | set | frozenset):
        return _NOT_PLAIN
    if len(value) > most:
        return _NOT_PLAIN
    if isinstance(value, Mapping):
        copied = {key: _plain_copy(one, depth + 1) for key, one in value.items()}
        found = {key: one for key, one in copied.items() if one is not _NOT_PLAIN}
        return found if found or not value else _NOT_PLAIN if depth else {}
    entries = [_plain_copy(one, depth + 1) for one in value]
    if any(one is _NOT_PLAIN for one in entries):
        return _NOT_PLAIN
    return (
        tuple(entries) if isinstance(value, tuple) else set(entries) if isinstance(value, set | frozenset) else entries
    )


def _is_numpy_scalar(value: Any) -> bool:
    return type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item")


def _has_identity(resource: Any) -> bool:
    """True for objects that can be weakly referenced and are equal to nothing but themselves."""
    kind: Any = type(resource)
    if kind.__hash__ is not object.__hash__ or kind.__eq__ is not object.__eq__:
        return False
    try:
        weakref.ref(resource)
    except TypeError:
        return False
    return True


def _remembered(resource: Any, setting: ResourceHyperParameters) -> ResourceHyperParameters:
    if _has_identity(resource):
        _first[resource] = setting
    return setting
