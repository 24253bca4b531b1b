"""The hyper-parameters that a run was set up with, compared with those of a resume: nothing is ignored silently.

A resume loads the state of optimizers and schedulers, and with it their old hyper-parameters, over the new ones that
the script has set. So they are kept as they were set up, before any step, and a difference is decided by a person.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from graphtrain.errors import UsageError
from graphtrain.names import suggestion
from graphtrain.parameter import show_value

Values = dict[str, dict[str, Any]]

CLASS = "class"

# What moves while a schedule goes on, and what follows from the learning rate of the optimizer.
_MOVING = frozenset(
    {
        *("last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step", "base_lrs"),
        *("T_cur", "T_i"),  # warm restarts
        *("best", "num_bad_epochs", "cooldown_counter"),  # plateaus
        *("scale", "_growth_tracker"),  # the scaler of half precision
    }
)
_ABSENT = {CLASS: "absent"}
_NOT_HYPER = frozenset({"params", "param_names", "initial_lr"})


@dataclass(frozen=True)
class Difference:
    """One hyper-parameter that is not what it was.

    Attributes:
        name: ``"optimizer.lr"``.
        saved: its value when the run began; None if there was none.
        now: what it is set up with now; None if there is none.
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
        shown = ["absent" if one is None else show_value(one).strip('"') for one in (self.saved, self.now)]
        return f"{self.name}: {shown[0]} -> {shown[1]}"


@final
class SetUp:
    """The optimizers, schedulers and other resources with a `state_dict`, as they were before any step.

    Arguments:
        stateful: by name; of modules only that they are there, for their state is what is trained.
        former: what is known of those that are not new. Default: all are.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    >>> SetUp({"optimizer": optimizer}).values["optimizer"]["lr"]
    0.5
    """

    def __init__(self, stateful: Mapping[str, Any], former: SetUp | None = None) -> None:
        self._resources = {name: one for name, one in stateful.items() if not isinstance(one, torch.nn.Module)}
        self._fresh: dict[str, Any] = {}
        self.values: Values = {name: {} for name in stateful}
        for name, one in self._resources.items():
            if former is not None and former._resources.get(name) is one:
                self._fresh[name], self.values[name] = former._fresh[name], former.values[name]
            else:
                self._fresh[name], self.values[name] = copy.deepcopy(_state(one)), _hyper_parameters(one)

    def differences(self, saved: Values) -> list[Difference]:
        """What differs from the values kept with a checkpoint, by name.

        >>> def made(rate): return SetUp({"optimizer": torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=rate)})
        >>> [str(one) for one in made(0.1).differences(made(0.5).values)]
        ['optimizer.lr: 0.5 -> 0.1']
        """
        found = []
        for name in sorted({*saved, *self.values}):
            before, now = saved.get(name, _ABSENT), self.values.get(name, _ABSENT)
            if before.get(CLASS) != now.get(CLASS):  # the names of other fields say nothing any more
                found.append(Difference(f"{name}.{CLASS}", before.get(CLASS, "there"), now.get(CLASS, "there")))
                continue
            for field in dict.fromkeys([*before, *now]):
                one = Difference(f"{name}.{field}", before.get(field), now.get(field))
                if one.saved != one.now:
                    found.append(one)
        return found

    def chosen(self, names: Iterable[str], saved: Values) -> set[str]:
        """The names of differences that a person's choice covers: ``"optimizer"`` means all of its.

        Raises:
            UsageError: a name means nothing here.
        """
        names = [one.strip() for one in names]
        known = {name: {*saved.get(name, {}), *self.values.get(name, {})} - {CLASS} for name in {*saved, *self.values}}
        for name in names:
            resource, dot, field = name.partition(".")
            if resource not in known or (dot and field not in known[resource]):
                everything = [*known, *(f"{one}.{field}" for one, fields in known.items() for field in fields)]
                raise UsageError(f"from_setup: there is no `{name}`", suggestion(name, everything))
        return {
            one.name
            for one in self.differences(saved)
            if one.name in names or one.resource in names or (one.field == CLASS and one.resource in names)
        }

    def begins_anew(self, chosen: Iterable[str]) -> set[str]:
        """The resources whose saved state is not loaded, because they are of another class than before."""
        return {name.partition(".")[0] for name in chosen if name.endswith(f".{CLASS}")}

    def apply(self, chosen: set[str], saved: Values) -> None:
        """Put the chosen hyper-parameters, as set up now, in place of the loaded ones.

        A schedule of learning rates with a chosen field, or over an optimizer whose `lr` was chosen, is gone through
        again from its beginning, by as many steps as it has behind it: the rate is what it would be now, had it always
        been so.

        Raises:
            UsageError: a scheduler was not fresh when the trainer was made.
        """
        anew = self.begins_anew(chosen)
        gone_through: set[str] = set()
        for name, optimizer in self._optimizers():
            fields = {one.partition(".")[2] for one in chosen if one.startswith(f"{name}.")}
            for group, fresh in zip(optimizer.param_groups, self._fresh[name]["param_groups"], strict=True):
                for field in fields - {"lr", CLASS}:
                    group[field] = copy.deepcopy(fresh[field])
            schedulers = [one for one, scheduler in self._schedulers() if scheduler.optimizer is optimizer]
            plateaus = [one for one in schedulers if isinstance(self._resources[one], ReduceLROnPlateau)]
            schedules = [one for one in schedulers if one not in plateaus]
            if "lr" in fields and not schedules:
                for group, fresh in zip(optimizer.param_groups, self._fresh[name]["param_groups"], strict=True):
                    _set_rate(group, "lr", fresh["lr"])
            for one in schedules:
                gone_through.add(one)
                if fields & {"lr", CLASS} or any(each.startswith(f"{one}.") for each in chosen):
                    self._go_through_again(name, one, chosen, saved, fresh=one in anew)
        for name, one in self._resources.items():
            fields = {each.partition(".")[2] for each in chosen if each.startswith(f"{name}.")} - {CLASS}
            if fields and not isinstance(one, torch.optim.Optimizer) and name not in gone_through:
                state = one.state_dict()
                one.load_state_dict({**state, **{field: self._fresh[name][field] for field in fields}})

    def _go_through_again(
        self, optimizer_name: str, name: str, chosen: set[str], saved: Values, *, fresh: bool
    ) -> None:
        scheduler, optimizer = self._resources[name], self._resources[optimizer_name]
        steps = 0 if fresh else _steps(scheduler.state_dict()) - _steps(self._fresh[name])
        if _steps(self._fresh[name]) > 0:
            raise UsageError(
                f"`{name}` was stepped before this Trainer was made: its settings cannot be told from its state",
                "make a new scheduler, and a new Trainer with it",
            )
        loaded = scheduler.state_dict()
        kept = {one.field for one in self.differences(saved) if one.resource == name and one.name not in chosen}
        state = copy.deepcopy(self._fresh[name])
        state.update({field: loaded[field] for field in kept if field in loaded})
        groups = zip(optimizer.param_groups, self._fresh[optimizer_name]["param_groups"], strict=True)
        takes_rate = bool({f"{optimizer_name}.lr", f"{optimizer_name}.{CLASS}"} & chosen)
        for number, (group, made) in enumerate(groups):
            ratio = 1.0
            if not takes_rate and (kept_rate := _rate_of(saved.get(optimizer_name, {}).get("lr"), number)) is not None:
                ratio = kept_rate / float(made["initial_lr"]) if float(made["initial_lr"]) else 1.0
            for field in _moved_by_schedules(made):
                scaled = field in ("lr", "initial_lr") and ratio != 1.0
                _set_rate(group, field, made[field] * ratio if scaled else made[field])
        _load_schedule(scheduler, state, [float(group["initial_lr"]) for group in optimizer.param_groups])
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # it takes a step of the scheduler before any of the optimizer for a mistake
            for _ in range(steps):
                scheduler.step()

    def _optimizers(self) -> Iterator[tuple[str, torch.optim.Optimizer]]:
        for name, one in self._resources.items():
            if isinstance(one, torch.optim.Optimizer):
                yield name, one

    def _schedulers(self) -> Iterator[tuple[str, LRScheduler]]:
        for name, one in self._resources.items():
            if isinstance(one, LRScheduler):
                yield name, one


def difference_error(undecided: list[Difference]) -> UsageError:
    """What to say where a person has to decide."""
    lines = "\n".join(f"    {one}" for one in undecided)
    names = ",".join(one.resource if one.field == CLASS else one.name for one in undecided)
    return UsageError(
        f"what is set up now differs from what the run was set up with:\n{lines}",
        f"--from-setup {names} takes the new values, --from-saved keeps the old ones; "
        f'in Python: run(from_setup="{names}") or run(from_saved=True)',
    )


def _state(resource: Any) -> Any:
    """The state of an optimizer without its buffers, which a copy would double; of others, all."""
    if isinstance(resource, torch.optim.Optimizer):
        return {"param_groups": [{k: v for k, v in one.items() if k != "params"} for one in resource.param_groups]}
    return resource.state_dict()


def _hyper_parameters(resource: Any) -> dict[str, Any]:
    kind = {CLASS: type(resource).__name__}
    if isinstance(resource, torch.optim.Optimizer):
        groups = [
            {**one, "lr": one.get("initial_lr", one.get("lr"))}  # a schedule with a warm-up has moved the rate already
            for one in resource.param_groups
        ]
        fields = dict.fromkeys(field for one in groups for field in one if field not in _NOT_HYPER)
        return kind | {field: _collapsed([_plain(one.get(field)) for one in groups]) for field in fields}
    state = resource.state_dict()
    return kind | {
        field: _plain(value)
        for field, value in (state.items() if isinstance(state, Mapping) else ())
        if field not in _MOVING
    }


def _collapsed(values: list[Any]) -> Any:
    """One value where all groups agree, else the list."""
    return values[0] if all(one == values[0] for one in values) else values


def _plain(value: Any) -> Any:
    """A value that a manifest can hold and that compares as what it means."""
    match value:
        case None | bool() | str() | float():
            return value
        case int():
            return value if abs(value) < 2**63 else str(value)
        case torch.Tensor():
            return _plain(value.tolist()) if value.numel() <= 64 else f"a tensor of shape {tuple(value.shape)}"
        case Mapping():
            return {str(key): _plain(one) for key, one in value.items() if key not in _MOVING}
        case list() | tuple() | set() | frozenset():
            return [_plain(one) for one in value]
    return f"a {type(value).__name__}"


def _steps(state: Any) -> int:
    """How often a scheduler has been stepped."""
    if "last_epoch" in state:
        return int(state["last_epoch"])
    inner = state.get("_schedulers") or [{}]
    return int(inner[0].get("last_epoch", 0))


def _moved_by_schedules(group: Mapping[str, Any]) -> list[str]:
    """The fields of a group that schedules write; those of cyclic ones move the momentum too."""
    moved = [one for one in ("lr", "initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum") if one in group]
    return moved + [one for one in ("momentum", "betas") if one in group and "base_momentum" in group]


def _set_rate(group: dict[str, Any], field: str, value: Any) -> None:
    """A rate that is a tensor keeps its identity: a captured graph or a compiled step may hold it."""
    if isinstance(group.get(field), torch.Tensor):
        group[field].fill_(float(value))
    else:
        group[field] = copy.deepcopy(value)


def _rate_of(saved: Any, group: int) -> float | None:
    rate = saved[group] if isinstance(saved, list) else saved
    return float(rate) if isinstance(rate, int | float) and math.isfinite(rate) else None


def _load_schedule(scheduler: Any, state: dict[str, Any], rates: list[float]) -> None:
    if "base_lrs" in state:
        state["base_lrs"] = rates
    for inner in state.get("_schedulers", ()):
        if "base_lrs" in inner:
            inner["base_lrs"] = rates
    scheduler.load_state_dict(state)
