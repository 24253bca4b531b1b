"""What one resource was set up with, before any step: as a manifest holds it, and as the resource loads it."""

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

from graphtrain.plain import is_equal

CLASS = "class"
FUNCTIONS = "lr_lambdas"
INNER = "_schedulers"

# What the steps of a schedule change, and `base_lrs`, which follows from the learning rate of the optimizer.
MOVING = frozenset(
    {
        *("last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step", "base_lrs"),
        *("T_cur", "T_i"),  # warm restarts
        *("best", "num_bad_epochs", "cooldown_counter"),  # plateaus
    }
)
_MOVING_IN_SCALERS = frozenset({"scale", "_growth_tracker"})

# What the constructors of schedules write into a group; their steps write the rate and the momentum alone.
WRITTEN_BY_SCHEDULES = ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum")

# Limits of what counts as a setting. The state of a resource may be large, and is read whenever a trainer is made.
_MOST_ENTRIES = 64
_MOST_FIELDS = 1024
_MOST_CHARACTERS = 4096
_DEEPEST = 4

_SAMPLED_STEPS = (0, 1, 10, 100, 1000, 10000)
_NO_SETTING = object()


@dataclass(frozen=True)
class ResourceHyperParameters:
    """What a resource was set up with.

    Attributes:
        values: hyper-parameters as a manifest holds them, and the name of the class under ``"class"``.
        state: the same as the resource's `state_dict` has it; of an optimizer the groups, without parameters.
        others: fields of the state that are no settings, such as tensors.
    """

    values: dict[str, Any]
    state: dict[str, Any]
    others: frozenset[str] = frozenset()

    @classmethod
    def of(cls, resource: Any) -> ResourceHyperParameters:
        """What a resource is set up with now.

        >>> ResourceHyperParameters.of(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)).values["lr"]
        0.5
        """
        if isinstance(resource, torch.optim.Optimizer):
            groups = [
                {key: copy.deepcopy(value) for key, value in group.items() if key not in ("params", "param_names")}
                for group in resource.param_groups
            ]
            return cls.of_groups(resource, groups)
        name = {CLASS: type(resource).__name__}
        try:
            state = resource.state_dict()
            if not isinstance(state, Mapping):
                return cls(name, {})
            if isinstance(resource, LRScheduler):
                state = {key: copied for key, value in state.items() if (copied := _copy(value)) is not _NO_SETTING}
                return cls(name | _values_of_schedule(resource, state), state)
            moving = _MOVING_IN_SCALERS if isinstance(resource, GradScaler) else ()
            fields = state.items() if len(state) <= _MOST_FIELDS else ()
            settings = {key: _copy_of_settings(value) for key, value in fields if key not in moving}
            settings = {key: value for key, value in settings.items() if value is not _NO_SETTING}
            others = frozenset(str(key) for key in state if key not in settings)
            return cls(name | {str(key): encoded(value) for key, value in settings.items()}, settings, others)
        except Exception:  # a state that cannot be read is not compared; saving it reports why
            return cls(name, {})

    @classmethod
    def of_groups(cls, optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> ResourceHyperParameters:
        """What an optimizer with these groups is set up with: one value where all groups agree, else a list."""
        # A schedule with a warm-up changes `lr` when it is constructed; `initial_lr` is what the person has set.
        settings = [{**group, "lr": group.get("initial_lr", group.get("lr"))} for group in groups]
        values: dict[str, Any] = {CLASS: type(optimizer).__name__}
        for field in dict.fromkeys(field for group in settings for field in group if field != "initial_lr"):
            of_all = [encoded(group.get(field)) for group in settings]
            values[field] = of_all[0] if all(is_equal(value, of_all[0]) for value in of_all) else of_all
        return cls(values, {"param_groups": groups})


# By the `id` of a resource, from when a trainer is first made with it until it is released. This is the one thing that
# has to be process-wide: the steps of a run change rates and momenta by the schedule, by hand and by plateaus, so a
# second Trainer over the same objects (a notebook cell that is run again) can no longer read from them what was set up.
# Nothing ties it to the first Trainer, and a mark on the objects would be saved: all attributes of a scheduler are.
_first_seen: dict[int, ResourceHyperParameters] = {}


def first_seen(resource: Any) -> ResourceHyperParameters | None:
    """What a resource was set up with when a trainer was first made with it; None if none was."""
    known = _first_seen.get(id(resource))
    if known is None or not isinstance(resource, torch.optim.Optimizer):
        return known
    group_was_added = len(known.state["param_groups"]) != len(resource.param_groups)
    return None if group_was_added else known


def remember(resource: Any, settings: ResourceHyperParameters) -> ResourceHyperParameters:
    """Keep what a resource was set up with for as long as it lives."""
    try:
        if id(resource) not in _first_seen:
            weakref.finalize(resource, _first_seen.pop, id(resource), None).atexit = False
        _first_seen[id(resource)] = settings
    except TypeError:  # a class with slots that cannot be referenced weakly: its `id` may come to mean another object
        pass
    return settings


def note_new_schedule(optimizer: torch.optim.Optimizer) -> None:
    """Add what the constructor of a new schedule has written into the groups of an optimizer seen before it."""
    if (known := first_seen(optimizer)) is not None:
        groups = [
            {**fresh, **{field: copy.deepcopy(group[field]) for field in WRITTEN_BY_SCHEDULES if field in group}}
            for fresh, group in zip(known.state["param_groups"], optimizer.param_groups, strict=True)
        ]
        remember(optimizer, ResourceHyperParameters.of_groups(optimizer, groups))


def is_default(resource: Any, field: str, value: Any) -> bool:
    """True if a field need not have been set by anybody, so that another version of PyTorch may not have it."""
    if not isinstance(resource, torch.optim.Optimizer | LRScheduler):
        return False
    if isinstance(resource, LRScheduler) and field.startswith("_"):
        return True
    parameter = inspect.signature(type(resource).__init__).parameters.get(field)
    if parameter is not None:
        return parameter.default is not parameter.empty and is_equal(encoded(parameter.default), value)
    defaults = getattr(resource, "defaults", {})
    return field in defaults and is_equal(encoded(defaults[field]), value)


def encoded(value: Any) -> Any:
    """A value as a manifest holds it, equal for equal settings."""
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
            return encoded(value.tolist()) if value.numel() <= _MOST_ENTRIES else f"a tensor of {tuple(value.shape)}"
        case Mapping():
            return {str(key): encoded(entry) for key, entry in value.items()}
        case set() | frozenset():
            return _bounded(sorted(map(encoded, value), key=lambda entry: (type(entry).__name__, repr(entry))))
        case list() | tuple():
            return _bounded([encoded(entry) for entry in value])
    return encoded(value.item()) if _is_numpy_scalar(value) else f"a {type(value).__name__}"


def _bounded(values: list[Any]) -> Any:
    if len(values) <= _MOST_ENTRIES:
        return values
    return f"{len(values)} values with checksum {zlib.crc32(repr(values).encode()):08x}"


def _values_of_schedule(scheduler: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    values = {str(key): encoded(value) for key, value in state.items() if key not in (*MOVING, INNER)}
    if isinstance(functions := getattr(scheduler, FUNCTIONS, None), list):
        held = [attributes for attributes in values.get(FUNCTIONS) or () if attributes]  # of callable objects
        values[FUNCTIONS] = [*map(_samples, functions), *held]
    if INNER in state:
        inner = zip(getattr(scheduler, INNER), state[INNER], strict=True)
        values[INNER] = [_values_of_schedule(*pair) for pair in inner]
    return values


def _samples(function: Any) -> list[float | None]:
    """A function cannot be saved or compared; its values can."""

    def at(step: int) -> float | None:
        try:
            value, repeated = float(function(step)), float(function(step))
        except Exception:  # it may not be defined for this step
            return None
        return value if is_equal(value, repeated) else None

    return [at(step) for step in _SAMPLED_STEPS]


def _copy(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # a lock, or what holds one
        return _NO_SETTING


def _copy_of_settings(value: Any, depth: int = 1) -> Any:
    """A copy of what is plain and small, of a mapping its entries that are; `_NO_SETTING` of anything else.

    A state may be large and may not be copyable, so what is no setting is neither copied nor looked into.
    """
    if value is None or isinstance(value, bool | int | float) or _is_numpy_scalar(value):
        return value
    if isinstance(value, str):
        return value if len(value) <= _MOST_CHARACTERS else _NO_SETTING
    if (
        not isinstance(value, Mapping | list | tuple | set | frozenset)
        or len(value) > _MOST_ENTRIES
        or depth > _DEEPEST
    ):
        return _NO_SETTING
    if isinstance(value, Mapping):
        entries = {key: _copy_of_settings(entry, depth + 1) for key, entry in value.items()}
        settings = {key: entry for key, entry in entries.items() if entry is not _NO_SETTING}
        return settings if settings or not value else _NO_SETTING
    copied = [_copy_of_settings(entry, depth + 1) for entry in value]
    if any(entry is _NO_SETTING for entry in copied):
        return _NO_SETTING
    return copied if isinstance(value, list) else tuple(copied) if isinstance(value, tuple) else set(copied)


def _is_numpy_scalar(value: Any) -> bool:
    return type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item")
