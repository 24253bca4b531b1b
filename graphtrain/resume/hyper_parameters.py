"""Compare the hyper-parameters of a resume with the saved ones: no difference is ignored silently.

Loading the state of optimizers and schedulers also loads their old hyper-parameters, over the new ones of the script.
So the initial hyper-parameters are saved, and the user decides about a difference. Later checkpoints have the decision.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, final

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from graphtrain.errors import UsageError
from graphtrain.kind.parameter import show_value
from graphtrain.names import suggestion
from graphtrain.plain import is_equal, is_scalar
from graphtrain.printable import one_line
from graphtrain.state.content import content_hash

CLASS = "class"
FUNCTIONS = "lr_lambdas"
INNER = "_schedulers"

# What the steps of a scheduler change, and `base_lrs`, which follows from the learning rate of the optimizer.
_MOVING = frozenset({
    "last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step", "base_lrs",
    "T_cur", "T_i",  # warm restarts
    "best", "num_bad_epochs", "cooldown_counter",  # plateaus
    "scale", "_growth_tracker",  # scalers
})  # fmt: skip
# The learning rate of a group, and what the constructors of schedulers write into groups.
_RATES = frozenset({"lr", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"})
_MOST_ENTRIES = 64
_SAMPLED_STEPS = (0, 1, 10, 100, 1000, 10000)

Values = Mapping[str, Mapping[str, Any]]
"""Resource -> field -> value, as a manifest holds them."""

_ABSENT = {CLASS: "absent"}


class SettingChange(NamedTuple):
    """A hyper-parameter that differs from the saved one.

    Attributes:
        resource, field: for example ``"optimizer"`` and ``"lr"``.
        saved: the saved value; None if there was none.
        now: the value that is set up now; None if there is none.
    """

    resource: str
    field: str
    saved: Any
    now: Any

    @property
    def name(self) -> str:
        return f"{self.resource}.{self.field}"

    @property
    def cannot_be_kept(self) -> bool:
        """True if the checkpoint does not hold the saved value: that of an object of another class, or lambdas."""
        return self.field.rpartition(".")[2] in (CLASS, FUNCTIONS)

    def __str__(self) -> str:
        if self.field.endswith(FUNCTIONS) and None not in (self.saved, self.now):
            return f"{self.name}: the functions return other values"
        saved, now = ("absent" if value is None else show_value(value).strip('"') for value in (self.saved, self.now))
        return one_line(f"{self.name}: {saved} -> {now}")


@final
class HyperParameters:
    """The hyper-parameters of optimizers, schedulers and gradient scalers before their first step.

    Arguments:
        stateful: name -> resource with a `state_dict`. Modules and objects of other classes have no hyper-parameters.
        former: those of the run so far, which are used for the same objects. Default: all objects are new.

    Attributes:
        set_up: the values of `setup`: resource -> field -> value.
        values: the same, except for saved values that the user has decided to keep.
    """

    def __init__(self, stateful: Mapping[str, Any], former: HyperParameters | None = None) -> None:
        self._resources = {name: each for name, each in stateful.items() if not isinstance(each, torch.nn.Module)}
        self._initial = {name: _state_of(resource) for name, resource in self._resources.items()}
        self.set_up: dict[str, dict[str, Any]] = {name: {} for name in stateful}
        for name, resource in self._resources.items():
            self.set_up[name] = {CLASS: type(resource).__name__, **_settings_in(self._initial[name], resource)}
        self.values = dict(self.set_up)
        for name, resource in former._resources.items() if former is not None else ():
            if former is not None and self._resources.get(name) is resource:
                self._initial[name], self.set_up[name] = former._initial[name], former.set_up[name]
                self.values[name] = former.values[name]

    def differences(self, saved: Values, states: Mapping[str, Any]) -> list[SettingChange]:
        """The hyper-parameters that differ from the saved ones, by name.

        Arguments:
            states: resource -> saved `state_dict`. Objects of a former trainer have its values, which are no change.
        """
        changes: list[SettingChange] = []
        for name in sorted({*saved, *self.set_up}):
            before, now = saved.get(name, _ABSENT), self.set_up.get(name, _ABSENT)
            if before.get(CLASS) != now.get(CLASS):  # then the other fields cannot be compared
                changes.append(SettingChange(name, CLASS, before.get(CLASS, "module"), now.get(CLASS, "module")))
                continue
            resource, kept = self._resources.get(name), dict(before)
            kept |= _settings_in(states[name]) if len(now) > 1 and isinstance(states.get(name), Mapping) else {}
            # Another version of PyTorch may have added a default; groups get other fields only from the user.
            usual = {*resource.defaults, *_RATES} if isinstance(resource, torch.optim.Optimizer) else {*before, *now}
            changes += [
                SettingChange(name, field, before.get(field), now.get(field))
                for field in dict.fromkeys([*before, *now])
                if not any(is_equal(each.get(field), now.get(field)) for each in (before, kept))
                if (field in before and field in now) or field not in usual or field.endswith(f".{CLASS}")
            ]
        return changes

    def names_of(self, changes: Collection[SettingChange]) -> list[str]:
        """The names by which `from_setup` selects these; a schedule, or an object of another class, as a whole."""
        whole = {
            each.resource for each in changes if each.field == CLASS or _restarts(self._resources.get(each.resource))
        }
        return [*dict.fromkeys([each.resource if each.resource in whole else each.name for each in changes])]

    def chosen(self, names: Collection[str], changes: Collection[SettingChange]) -> set[str]:
        """The fields that the user's names select: ``"optimizer"`` all of its fields, ``"optimizer.lr"`` this one.

        The learning rates of an optimizer and the settings of its schedulers are selected together: a scheduler
        restarts with both. In a tuple of optimizers, a name applies to each, and ``"optimizer[0]"`` is the first.

        Raises:
            UsageError: there is no such name.
        """
        known = {f"{name}.{field}" for name, fields in self.set_up.items() for field in fields if field != CLASS}
        covering: dict[str, set[str]] = {}
        for each in known | {change.name for change in changes}:
            resource, _, field = each.partition(".")
            of_all = resource.partition("[")[0]
            covering[each] = {each, resource, of_all, f"{of_all}.{field}"}
        valid = {*self.set_up}.union(*covering.values())
        if unknown := next((name for name in names if name not in valid), None):
            raise UsageError(f"from_setup: there is no `{unknown}`", suggestion(unknown, valid))
        selected = {each for each, matching in covering.items() if matching.intersection(names)}
        for name in self._resources:
            if schedules := self._schedules_of(name):
                rates = {f"{name}.{field}" for field in _RATES}
                together = {each for each in covering if each.partition(".")[0] in schedules or each in rates}
                selected |= together if selected & together else set()
        return selected

    def apply(self, chosen: set[str], saved: Values) -> list[str]:
        """Replace loaded hyper-parameters by the chosen ones of `setup`; returns the resources that this changed.

        If the learning rate of an optimizer or one of its schedulers was chosen, its schedulers restart and are stepped
        as often as before: the rate becomes what it would be if the new values had always applied.

        Raises:
            UsageError: a scheduler cannot restart.
        """
        for name, set_up in self.set_up.items():
            fields = _fields_of(name, chosen)
            kept = {} if CLASS in fields else saved.get(name, {})
            # Functions are always the present ones: no checkpoint holds others.
            self.values[name] = set_up | {f: each for f, each in kept.items() if f not in {CLASS, FUNCTIONS, *fields}}
        loaded = {name: encoded(_state_of(resource)) for name, resource in self._resources.items() if chosen}
        for name, resource in self._resources.items() if chosen else ():
            fields, initial = _fields_of(name, chosen) - {CLASS}, self._initial[name]
            if isinstance(resource, torch.optim.Optimizer):
                schedules = [each for each in self._schedules_of(name) if _fields_of(each, chosen)]
                fields |= _RATES if schedules else {"initial_lr"} if "lr" in fields else set()
                # Groups that were added during training are not among those that were set up.
                for group, former in zip(resource.param_groups, initial.get("param_groups", ()), strict=False):
                    for field in fields:
                        _set(group, field, former)
                self._restart(schedules)
            elif fields and not _restarts(resource):
                state = resource.state_dict()
                resource.load_state_dict({**state, **{field: initial[field] for field in fields & initial.keys()}})
        return [name for name in loaded if not is_equal(encoded(_state_of(self._resources[name])), loaded[name])]

    def _schedules_of(self, name: str) -> list[str]:
        """The schedulers of an optimizer that can restart."""
        optimizer, resources = self._resources[name], self._resources.items()
        return [other for other, each in resources if _restarts(each) and each.optimizer is optimizer]

    def _restart(self, names: Iterable[str]) -> None:
        """Restart schedulers of an optimizer, and step them as often as before, at 2 us a step."""
        steps = {name: _steps_of(self._resources[name].state_dict()) for name in names}
        for name in steps:
            if not self._initial[name] or _steps_of(self._initial[name]) > 0:
                raise UsageError(
                    f"`{name}` was stepped before its Trainer was created: its initial values are not known",
                    "create a new optimizer and a new scheduler, and a new Trainer with them",
                )
            self._resources[name].load_state_dict(copy.deepcopy(self._initial[name]))
        most = max(steps.values(), default=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of a step before the optimizer's first
            for step in range(most):
                for name, count in steps.items():
                    if (step + 1) * count // most > step * count // most:  # one may count epochs, another steps
                        self._resources[name].step()


def _fields_of(resource: str, chosen: set[str]) -> set[str]:
    return {name.partition(".")[2] for name in chosen if name.partition(".")[0] == resource}


def _restarts(resource: Any) -> bool:
    """True for a scheduler, except ReduceLROnPlateau, whose steps need past metrics."""
    return isinstance(resource, LRScheduler) and not isinstance(resource, ReduceLROnPlateau)


def _steps_of(state: Mapping[str, Any]) -> int:
    """How often a scheduler with this state was stepped; a chained one has no counter, but its schedulers do."""
    return int((state if "last_epoch" in state else state[INNER][0])["last_epoch"])


def _set(group: dict[str, Any], field: str, initial: Mapping[str, Any]) -> None:
    """Set a field to its initial value; a tensor in place, since a CUDA graph or a compiled step may hold it."""
    if field not in initial:
        group.pop(field, None)
    elif isinstance(group.get(field), torch.Tensor):
        group[field].fill_(float(initial[field]))
    else:
        group[field] = copy.deepcopy(initial[field])


def _state_of(resource: Any) -> dict[str, Any]:
    """A copy of the settings of an optimizer, a scheduler or a gradient scaler; empty for anything else."""
    if isinstance(resource, torch.optim.Optimizer):
        return {"param_groups": copy.deepcopy([{**group, "params": ()} for group in resource.param_groups])}
    return copy.deepcopy(dict(resource.state_dict())) if isinstance(resource, LRScheduler | GradScaler) else {}


def _settings_in(state: Mapping[str, Any], resource: Any = None) -> dict[str, Any]:
    """The settings in a state, as a manifest holds them; a list of values if parameter groups differ."""
    if isinstance(state.get("param_groups"), list):
        groups = [{**group, "lr": group.get("initial_lr", group.get("lr"))} for group in state["param_groups"]]
        settings: dict[str, Any] = {}
        for field in dict.fromkeys([field for group in groups for field in group]):
            if field not in ("params", "param_names", "initial_lr"):
                first, *rest = values = [encoded(group.get(field)) for group in groups]
                settings[field] = values if [each for each in rest if not is_equal(each, first)] else first
        return settings
    settings = {str(key): encoded(value) for key, value in state.items() if key not in (*_MOVING, FUNCTIONS, INNER)}
    for number, inner_state in enumerate(state.get(INNER, ())):
        inner = getattr(resource, INNER)[number] if resource is not None else None
        fields = ({CLASS: type(inner).__name__} if inner is not None else {}) | _settings_in(inner_state, inner)
        settings |= {f"{INNER}[{number}].{field}": value for field, value in fields.items()}
    if isinstance(functions := getattr(resource, FUNCTIONS, None), list):
        settings[FUNCTIONS] = encoded([*map(_samples, functions)])
    return settings


def encoded(value: Any) -> Any:
    """A value as a manifest holds it, equal for equal settings."""
    if hasattr(value, "tolist"):  # a tensor, or a number of NumPy
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): encoded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        entries = [encoded(entry) for entry in (value if isinstance(value, list | tuple) else sorted(value, key=repr))]
        is_short = len(entries) <= _MOST_ENTRIES and not any(isinstance(entry, list | dict) for entry in entries)
        return entries if is_short else f"{len(entries)} values: {content_hash(entries)[:8]}"
    if isinstance(value, int) and not -(2**63) <= value < 2**64:  # which msgpack does not have
        return hex(value)
    return value if is_scalar(value) and not isinstance(value, bytes) else f"a {type(value).__name__}"


def _samples(function: Any) -> list[float | None]:
    """The values of a function at some steps, with which functions are compared; None where it raises."""
    values: list[float | None] = []
    for step in _SAMPLED_STEPS:
        try:
            values.append(float(function(step)))
        except Exception:
            values.append(None)
    return values
