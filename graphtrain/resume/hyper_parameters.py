"""The hyper-parameters that a run was set up with, compared with those of a resume: no difference is ignored silently.

Loading the state of optimizers and schedulers also loads their old hyper-parameters, over the new ones that the script
has set. So what they were set up with is saved before any step, and the user decides about a difference. A checkpoint
holds two things: what was set up last, and what is in force since the user decided. A value that equals either is not a
difference, so the original command and the command with the decision can both be repeated.
"""

from __future__ import annotations

import copy
import inspect
import types
import warnings
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau, SequentialLR

from graphtrain.errors import UsageError
from graphtrain.kind.parameter import show_value
from graphtrain.names import suggestion
from graphtrain.plain import is_equal
from graphtrain.printable import one_line

CLASS = "class"
FUNCTIONS = "lr_lambdas"
INNER = "_schedulers"

# What the steps of a schedule change, and `base_lrs`, which follows from the learning rate of the optimizer.
_MOVING = frozenset(
    {
        *("last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step", "base_lrs"),
        *("T_cur", "T_i"),  # warm restarts
        *("best", "num_bad_epochs", "cooldown_counter"),  # plateaus
    }
)
_MOVING_IN_SCALERS = frozenset({"scale", "_growth_tracker"})

# What the constructors of schedules write into a group; their steps write the rate and the momentum alone.
_WRITTEN_BY_SCHEDULES = ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum")

# Limits of what counts as a setting. The state of a resource may be large, and is read whenever a trainer is made.
_MOST_ENTRIES = 64
_MOST_FIELDS = 1024
_MOST_CHARACTERS = 4096
_DEEPEST = 4

_SAMPLED_STEPS = (0, 1, 10, 100, 1000, 10000)
_NO_SETTING = object()

Values = Mapping[str, Mapping[str, Any]]
"""Resource -> field -> value, as a manifest holds them."""

_ABSENT = {CLASS: "absent"}


@dataclass(frozen=True)
class HyperParameterChange:
    """A hyper-parameter that differs from the saved one.

    Attributes:
        name: ``"optimizer.lr"``.
        saved: the value in force when the run was saved; None if there was none.
        now: the value it is set up with now; None if there is none.
    """

    name: str
    saved: Any
    now: Any

    @property
    def resource(self) -> str:
        return self.name.partition(".")[0]

    @property
    def field(self) -> str:
        return self.name.partition(".")[2]

    def __str__(self) -> str:
        if self.field == CLASS and _ABSENT[CLASS] in (self.saved, self.now):
            new = self.saved == _ABSENT[CLASS]
            return f"{self.resource}: " + ("new, begins as it is set up now" if new else "removed")
        saved, now = ("absent" if value is None else show_value(value).strip('"') for value in (self.saved, self.now))
        return one_line(f"{self.name}: {saved} -> {now}")


@final
class HyperParameters:
    """The hyper-parameters of optimizers, schedulers and other resources with a `state_dict`, before any step.

    For objects that an earlier HyperParameters has seen, they are those of that time, even if they were trained since.

    Arguments:
        stateful: by name; modules only by name, because their state is what is trained.
        former: those of the run so far, in force for the same resources. Default: all resources are new.

    Attributes:
        made: what was set up, by resource and field.
        values: what is in force: the same, unless a resume kept saved ones.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    >>> HyperParameters({"optimizer": optimizer}).values["optimizer"]["lr"]
    0.5
    """

    def __init__(self, stateful: Mapping[str, Any], former: HyperParameters | None = None) -> None:
        self._resources = {
            name: resource for name, resource in stateful.items() if not isinstance(resource, torch.nn.Module)
        }
        self._fresh: dict[str, _SetUp] = {}
        self.made: dict[str, dict[str, Any]] = {name: {} for name in stateful}
        self.values: dict[str, dict[str, Any]] = {name: {} for name in stateful}
        for resource in self._resources.values():
            if isinstance(resource, LRScheduler) and _first_seen(resource) is None:
                _note_new_schedule(resource.optimizer)
        for name, resource in self._resources.items():
            in_force: dict[str, Any] = {}
            if former is not None and former._resources.get(name) is resource:
                fresh, in_force = former._fresh[name], former.values[name]
            else:
                fresh = _first_seen(resource) or _remember(resource, _SetUp.of(resource))
            self._fresh[name] = fresh
            self.made[name] = fresh.values
            self.values[name] = {**fresh.values, **in_force}

    def differences(self, saved: Values | None, in_force: Values | None = None) -> list[HyperParameterChange]:
        """The hyper-parameters that equal neither the set-up of the saved run nor what was in force, by name.

        Arguments:
            saved: what was set up then. None: unknown, so nothing differs.
            in_force: what was in force then. Default: the same.

        >>> def made(rate):
        ...     return HyperParameters({"optimizer": torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=rate)})
        >>> [str(change) for change in made(0.1).differences(made(0.5).values)]
        ['optimizer.lr: 0.5 -> 0.1']
        """
        if saved is None:
            return []
        changes = []
        for name in sorted({*saved, *self.made}):
            before, now = saved.get(name, _ABSENT), self.made.get(name, _ABSENT)
            if before.get(CLASS) != now.get(CLASS):  # then the other fields cannot be compared
                names = before.get(CLASS, "there"), now.get(CLASS, "there")
                changes.append(HyperParameterChange(f"{name}.{CLASS}", *names))
                continue
            kept = {**before, **(in_force or {}).get(name, {})}
            others = self._fresh[name].others if name in self._fresh else ()
            for field in dict.fromkeys([*before, *now]):
                change = HyperParameterChange(f"{name}.{field}", kept.get(field), now.get(field))
                is_same = is_equal(before.get(field), change.now) or is_equal(change.saved, change.now)
                if is_same or field in others:
                    continue
                value = before[field] if field in before else now[field]
                if (field in before and field in now) or not _is_default(self._resources.get(name), field, value):
                    changes.append(change)
        return changes

    def chosen(self, names: Iterable[str], saved: Values | None, in_force: Values | None = None) -> set[str]:
        """The fields that the user's names cover: ``"optimizer"`` all that differ, ``"optimizer.lr"`` this one.

        For a tuple of optimizers, these names apply to each, and ``"optimizer[0]"`` is the first.

        Raises:
            UsageError: a name is not that of a hyper-parameter.
        """
        before = saved or {}
        known = {name: {*before.get(name, {}), *self.made.get(name, {})} - {CLASS} for name in {*before, *self.made}}
        given, names = [name.strip() for name in names], []
        for name in given:
            resource, dot, field = name.partition(".")
            items = [item for item in known if item == resource or item.startswith(f"{resource}[")]
            covered = [f"{item}{dot}{field}" for item in items if not dot or field in known[item]]
            if not covered:
                everything = [*known, *(f"{resource}.{field}" for resource in known for field in known[resource])]
                raise UsageError(f"from_setup: there is no `{name}`", suggestion(name, everything))
            names += covered
        changes = [*self.differences(saved, in_force), *self.differences(in_force)]
        # A resource of another class is taken as a whole: its fields are not those of the saved one.
        replaced = {change.resource for change in changes if change.field == CLASS}
        single = {name for name in names if "." in name and name.partition(".")[0] not in replaced}
        return {change.name for change in changes if change.resource in names} | single

    def in_use(self, names: Iterable[str]) -> dict[str, Any]:
        """The present values of hyper-parameters, which training may have changed, by their names."""
        values: dict[str, Any] = {}
        for name in names:
            resource, field = self._resources.get(name.partition(".")[0]), name.partition(".")[2]
            if resource is not None:
                states = getattr(resource, "param_groups", None) or [resource.state_dict()]
                values[name] = encoded([state.get(field) for state in states])
        return values

    def cannot_keep(self, change: HyperParameterChange) -> bool:
        """True if no checkpoint holds the saved value: an object of another class, or the functions of a schedule."""
        if change.field not in (FUNCTIONS, INNER):
            return change.field == CLASS
        if change.field == INNER and _fields_in(change.saved) != _fields_in(change.now):
            return True
        saved, now = (_samples_in({change.field: value}) for value in (change.saved, change.now))
        if is_equal(saved, now):
            return False
        # The attributes of callable objects are saved; plain functions are not.
        functions = _functions(self._resources.get(change.resource))
        return any(isinstance(function, types.FunctionType | partial) for function in functions)

    def apply(self, chosen: set[str], in_force: Values | None = None) -> list[str]:
        """Replace loaded hyper-parameters by the chosen ones, as set up now.

        If the rate of an optimizer or one of its schedules was chosen, its schedules restart and are stepped as often
        as before: the rate becomes what it would be if the new values had always applied.

        Returns:
            Notes for the user.

        Raises:
            UsageError: a scheduler was stepped before any trainer was made with it.
        """
        kept = in_force or {}
        # Counted before any field is taken: the inner schedules of a sequence are one field, counters included. The
        # steps of a plateau cannot be replayed: they need past metrics.
        steps = {
            name: _steps_of(resource.state_dict())
            for name, resource in self._resources.items()
            if isinstance(resource, LRScheduler) and not isinstance(resource, ReduceLROnPlateau)
        }
        for name, resource in self._resources.items():
            fields = _fields_of(name, chosen)
            if isinstance(resource, torch.optim.Optimizer):
                # An optimizer of another class is as set up now, but an earlier trainer may have changed its rate.
                self._take_groups(name, resource, {"lr", *_WRITTEN_BY_SCHEDULES} if CLASS in fields else fields)
            elif name in steps and CLASS in fields:
                steps[name] = 0
                self._take_fields(name, resource, {*self._fresh[name].state})
            else:
                self._take_fields(name, resource, fields - {CLASS})
        # Replayed after that, with the settings of all: one schedule may follow the rate that another has set.
        notes = []
        for name, optimizer in self._resources.items():
            if isinstance(optimizer, torch.optim.Optimizer):
                self._replay(name, steps, chosen, kept.get(name, {}).get("lr"))
                notes += [
                    f"`{other}` sets the rate from its next step on"
                    for other, resource in self._resources.items()
                    if not isinstance(resource, LRScheduler) and getattr(resource, "optimizer", None) is optimizer
                    if f"{name}.lr" in chosen or _fields_of(other, chosen)
                ]
        for name, made in self.made.items():
            fields = _fields_of(name, chosen)
            # Functions are always those of now: no checkpoint holds others.
            others = {} if CLASS in fields else kept.get(name, {})
            self.values[name] = made | {f: value for f, value in others.items() if f not in {CLASS, FUNCTIONS, *fields}}
        return notes

    def _take_groups(self, name: str, optimizer: torch.optim.Optimizer, fields: set[str]) -> None:
        # Groups that were added during training are not among those that were set up.
        for group, fresh in zip(optimizer.param_groups, self._fresh[name].state["param_groups"], strict=False):
            for field in sorted(fields - {"lr", "initial_lr", "params", CLASS}):
                if field in fresh:
                    _set_rate(group, field, fresh[field])
                else:
                    group.pop(field, None)
            for field in {"lr", "initial_lr"} & group.keys() if "lr" in fields else ():
                _set_rate(group, field, fresh.get("initial_lr", fresh["lr"]))

    def _take_fields(self, name: str, resource: Any, fields: set[str]) -> None:
        if not fields:
            return
        fresh, loaded = self._fresh[name].state, resource.state_dict()
        state = {field: value for field, value in loaded.items() if field not in fields or field in fresh}
        taken = {field: value for field, value in fresh.items() if field in fields}
        if isinstance(resource, LRScheduler):
            _load_exactly(resource, {**state, **copy.deepcopy(taken)})
        else:
            resource.load_state_dict({**state, **{field: _merged(loaded.get(field), taken[field]) for field in taken}})

    def _replay(self, name: str, steps: Mapping[str, int], chosen: set[str], rate_in_force: Any) -> None:
        """Replay the schedules of an optimizer, if its rate or one of them was chosen.

        They restart with the `initial_lr` of each group and are stepped as often as before, at 2 us a step: only some
        schedules can compute the rate of a given step.
        """
        optimizer, fields = self._resources[name], _fields_of(name, chosen)
        schedules = {other: self._resources[other] for other in steps if self._resources[other].optimizer is optimizer}
        is_chosen = fields & {"lr", CLASS, *_WRITTEN_BY_SCHEDULES} or any(
            _fields_of(each, chosen) for each in schedules
        )
        if not schedules or not is_chosen:
            return
        for other in schedules:
            if _steps_of(self._fresh[other].state) > 0:
                raise UsageError(
                    f"`{other}` was stepped before any Trainer was made with it: what it began with is not known",
                    "make a new scheduler, and a new Trainer with it",
                )
        fresh_groups = self._fresh[name].state["param_groups"]
        for number, (group, fresh) in enumerate(zip(optimizer.param_groups, fresh_groups, strict=True)):
            # A group saved without a schedule does not hold the initial rate; the manifest does.
            first = rate_in_force[number : number + 1] if isinstance(rate_in_force, list) else [rate_in_force]
            is_known = "lr" not in fields and all(isinstance(rate, int | float) for rate in first or [None])
            group.setdefault("initial_lr", float(first[0]) if is_known else copy.deepcopy(group["lr"]))
            for field in _WRITTEN_BY_SCHEDULES:
                if field in fresh:
                    group.setdefault(field, copy.deepcopy(fresh[field]))
            _set_rate(group, "lr", group["initial_lr"])
        most = max(steps[other] for other in schedules)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of a step before the optimizer's first
            for scheduler in schedules.values():
                _construct_again(scheduler)
            for step in range(most):
                for other, scheduler in schedules.items():
                    count = steps[other]
                    if (step + 1) * count // most > step * count // most:  # one may count epochs, another steps
                        scheduler.step()


def _fields_of(resource: str, chosen: set[str]) -> set[str]:
    return {name.partition(".")[2] for name in chosen if name.partition(".")[0] == resource}


def _functions(scheduler: Any) -> Iterator[Any]:
    """The functions of a scheduler and of those within it."""
    yield from getattr(scheduler, FUNCTIONS, None) or ()
    for inner in getattr(scheduler, INNER, None) or ():
        yield from _functions(inner)


def _fields_in(values: Any) -> list[Any]:
    """The names of the fields of each schedule in a list of them: other ones for one of another class."""
    schedules = values if isinstance(values, list) else ()
    return [[sorted(fields), _fields_in(fields.get(INNER))] for fields in schedules]


def _samples_in(values: Any) -> list[Any]:
    """The samples of these functions in saved values."""
    if not isinstance(values, Mapping):
        return []
    inner = values.get(INNER)
    samples = [values[FUNCTIONS]] if FUNCTIONS in values else []
    return samples + [sample for fields in (inner if isinstance(inner, list) else ()) for sample in _samples_in(fields)]


def _merged(loaded: Any, fresh: Any) -> Any:
    """`fresh` merged into `loaded`: only plain entries of the set-up are known, the others stay as loaded."""
    if isinstance(loaded, Mapping) and isinstance(fresh, Mapping):
        return {**loaded, **{key: _merged(loaded.get(key), entry) for key, entry in fresh.items()}}
    return copy.deepcopy(fresh)


def _construct_again(scheduler: Any) -> None:
    """Repeat the end of a schedule's constructor: base rates from `initial_lr`, counters to zero, the first rate.

    Only the constructors of PyTorch's base classes are called, which have no settings, so the loaded ones stay. That of
    a sequence undoes what the constructors of its schedules did to the rate.
    """
    if isinstance(scheduler, SequentialLR | ChainedScheduler):
        for inner in scheduler._schedulers:
            _construct_again(inner)
    if isinstance(scheduler, SequentialLR):
        SequentialLR.__init__(scheduler, scheduler.optimizer, scheduler._schedulers, scheduler._milestones)
    elif isinstance(scheduler, ChainedScheduler):
        ChainedScheduler.__init__(scheduler, scheduler._schedulers, scheduler.optimizer)
    else:
        LRScheduler.__init__(scheduler, scheduler.optimizer)


def _load_exactly(scheduler: LRScheduler, state: dict[str, Any]) -> None:
    """Load a state and remove everything else: `load_state_dict` leaves the fields of another class where they are."""
    for field in scheduler.state_dict().keys() - state.keys():
        vars(scheduler).pop(field, None)
    for inner, inner_state in zip(getattr(scheduler, INNER, ()), state.get(INNER, ()), strict=False):
        _load_exactly(inner, inner_state)
    scheduler.load_state_dict(state)


def _steps_of(state: Mapping[str, Any]) -> int:
    """How often a scheduler with this state was stepped; a chain has no counter, but its schedulers do."""
    inner = state.get(INNER) or [{}]
    return int(state["last_epoch"] if "last_epoch" in state else inner[0].get("last_epoch", 0))


def _set_rate(group: dict[str, Any], field: str, value: Any) -> None:
    """Set a rate; a tensor is changed in place, since a CUDA graph or a compiled step may hold it."""
    if isinstance(group.get(field), torch.Tensor) and isinstance(value, torch.Tensor | int | float):
        group[field].fill_(float(value))
    else:
        group[field] = copy.deepcopy(value)


# ---- what one resource was set up with


@dataclass(frozen=True)
class _SetUp:
    """What a resource was set up with.

    Attributes:
        values: hyper-parameters as a manifest holds them, and the name of the class under ``"class"``.
        state: the same in the form of its `state_dict`; for an optimizer the groups, without parameters.
        others: fields of the state that are not settings, such as tensors.
    """

    values: dict[str, Any]
    state: dict[str, Any]
    others: frozenset[str] = frozenset()

    @classmethod
    def of(cls, resource: Any) -> _SetUp:
        """What a resource is set up with now.

        >>> _SetUp.of(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)).values["lr"]
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
    def of_groups(cls, optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> _SetUp:
        """What an optimizer with these groups is set up with: one value where all groups agree, else a list."""
        # A schedule with a warm-up changes `lr` when it is constructed; `initial_lr` is what the person has set.
        settings = [{**group, "lr": group.get("initial_lr", group.get("lr"))} for group in groups]
        values: dict[str, Any] = {CLASS: type(optimizer).__name__}
        for field in dict.fromkeys(field for group in settings for field in group if field != "initial_lr"):
            of_all = [encoded(group.get(field)) for group in settings]
            values[field] = of_all[0] if all(is_equal(value, of_all[0]) for value in of_all) else of_all
        return cls(values, {"param_groups": groups})


# By the `id` of a resource, from the first trainer made with it until the resource is freed. It has to be process-wide:
# training changes rates and momenta, so a second Trainer over the same objects (a notebook cell that is run again) can
# no longer read from them what was set up. Nothing ties it to the first Trainer, and a mark on the objects would be
# saved: all attributes of a scheduler are.
_SEEN: dict[int, _SetUp] = {}


def _first_seen(resource: Any) -> _SetUp | None:
    """What a resource was set up with when a trainer was first made with it; None if none was."""
    known = _SEEN.get(id(resource))
    if known is None or not isinstance(resource, torch.optim.Optimizer):
        return known
    group_was_added = len(known.state["param_groups"]) != len(resource.param_groups)
    return None if group_was_added else known


def _remember(resource: Any, settings: _SetUp) -> _SetUp:
    """Keep what a resource was set up with for as long as it lives."""
    try:
        if id(resource) not in _SEEN:
            weakref.finalize(resource, _SEEN.pop, id(resource), None).atexit = False
        _SEEN[id(resource)] = settings
    except TypeError:  # a class with slots that cannot be referenced weakly: its `id` may come to mean another object
        pass
    return settings


def _note_new_schedule(optimizer: torch.optim.Optimizer) -> None:
    """Add what the constructor of a new schedule has written into the groups of an optimizer seen before it."""
    if (known := _first_seen(optimizer)) is not None:
        groups = [
            {**fresh, **{field: copy.deepcopy(group[field]) for field in _WRITTEN_BY_SCHEDULES if field in group}}
            for fresh, group in zip(known.state["param_groups"], optimizer.param_groups, strict=True)
        ]
        _remember(optimizer, _SetUp.of_groups(optimizer, groups))


def _is_default(resource: Any, field: str, value: Any) -> bool:
    """True if a field has its default value, so that another version of PyTorch may not have it."""
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
    values = {str(key): encoded(value) for key, value in state.items() if key not in (*_MOVING, INNER)}
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
    """A copy of a plain, small value, or of the plain, small entries of a mapping; else `_NO_SETTING`.

    A state may be large and may not be copyable, so nothing else is copied or inspected.
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
