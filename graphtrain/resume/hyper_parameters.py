"""The hyper-parameters that a run was set up with, compared with those of a resume: nothing is ignored silently.

A resume loads the state of optimizers and schedulers, and with it their old hyper-parameters, over the new ones that
the script has set. So they are kept as they were set up, before any step, and a difference is decided by a person.
SavedCheckpoint are two things: what was set up last, and what is in force since a person decided.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from graphtrain.errors import UsageError
from graphtrain.kind.parameter import show_value
from graphtrain.names import suggestion
from graphtrain.resume.resource_hyper_parameters import (
    CLASS,
    LAMBDAS,
    OF_SCHEDULES,
    ResourceHyperParameters,
    first_setting,
    is_default,
    known_setting,
    same,
    with_new_schedule,
)
from graphtrain.resume.schedules import Schedule, replay_schedules, set_rate

Values = dict[str, dict[str, Any]]

_ABSENT = {CLASS: "absent"}


@dataclass(frozen=True)
class Difference:
    """One hyper-parameter that is not what it was.

    Attributes:
        name: ``"optimizer.lr"``.
        saved: the value in force when the run was saved; None if there was none.
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
        if self.field == CLASS and _ABSENT[CLASS] in (self.saved, self.now):
            new = self.saved == _ABSENT[CLASS]
            return f"{self.resource}: " + ("new, begins as it is set up now" if new else "is there no more")
        shown = ["absent" if one is None else show_value(one).strip('"') for one in (self.saved, self.now)]
        return "".join(one if one.isprintable() else "?" for one in f"{self.name}: {shown[0]} -> {shown[1]}")


@final
class HyperParameters:
    """The optimizers, schedulers and other resources with a `state_dict`, as they were before any step.

    Objects that an earlier HyperParameters has seen were set up then, however much they were trained since.

    Arguments:
        stateful: by name; of modules only that they are there, for their state is what is trained.
        former: what is in force for those that are not new. Default: all are.

    Attributes:
        made: what was set up, by resource and field.
        values: what is in force: the same, until a resume keeps saved ones.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    >>> HyperParameters({"optimizer": optimizer}).values["optimizer"]["lr"]
    0.5
    """

    def __init__(self, stateful: Mapping[str, Any], former: HyperParameters | None = None) -> None:
        self._resources = {name: one for name, one in stateful.items() if not isinstance(one, torch.nn.Module)}
        known = former._resources if former is not None else {}
        scheduled_anew = {
            id(one.optimizer)
            for one in self._resources.values()
            if isinstance(one, LRScheduler) and known_setting(one) is None
        }
        self._settings: dict[str, ResourceHyperParameters] = {}
        self.made: Values = {name: {} for name in stateful}
        self.values: Values = {name: {} for name in stateful}
        for name, one in self._resources.items():
            if isinstance(one, torch.optim.Optimizer) and id(one) in scheduled_anew and known_setting(one) is not None:
                self._settings[name] = with_new_schedule(one)
            elif former is not None and known.get(name) is one:
                self._settings[name] = former._settings[name]
            else:
                self._settings[name] = first_setting(one)
            self.made[name] = self._settings[name].values
            in_force = former.values[name] if former is not None and known.get(name) is one else {}
            self.values[name] = {**self.made[name], **in_force}

    def differences(self, saved: Any, in_force: Any = None) -> list[Difference]:
        """What equals neither what was set up when a checkpoint was saved nor what was in force, by name.

        Arguments:
            saved: what was set up then. Of what a manifest does not tell in a readable way, nothing differs.
            in_force: what was in force then. Default: the same.

        >>> def made(rate):
        ...     return HyperParameters({"optimizer": torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=rate)})
        >>> [str(one) for one in made(0.1).differences(made(0.5).values)]
        ['optimizer.lr: 0.5 -> 0.1']
        """
        found: list[Difference] = []
        if not isinstance(saved, Mapping):
            return found
        for name in sorted({*map(str, saved), *self.made}):
            before, now = saved.get(name, _ABSENT), self.made.get(name, _ABSENT)
            if not isinstance(before, Mapping):
                continue
            if before.get(CLASS) != now.get(CLASS):  # the names of other fields say nothing any more
                found.append(Difference(f"{name}.{CLASS}", before.get(CLASS, "there"), now.get(CLASS, "there")))
                continue
            kept = {**before, **_fields(in_force, name)}
            for field in dict.fromkeys([*map(str, before), *now]):
                one = Difference(f"{name}.{field}", kept.get(field), now.get(field))
                if name in self._settings and field in self._settings[name].others:
                    continue
                if same(before.get(field), one.now) or same(one.saved, one.now):
                    continue
                only = before if field not in now else now if field not in before else None
                if only is None or not is_default(self._resources.get(name), field, only[field]):
                    found.append(one)
        return found

    def chosen(self, names: Iterable[str], saved: Any, in_force: Any = None) -> set[str]:
        """The fields that a person's choice covers: ``"optimizer"`` means all that differ, ``"optimizer.lr"`` itself.

        Raises:
            UsageError: a name means nothing here.
        """
        names = [one.strip() for one in names]
        resources = {*map(str, saved if isinstance(saved, Mapping) else ()), *self.made}
        known = {name: {*map(str, _fields(saved, name)), *self.made.get(name, {})} - {CLASS} for name in resources}
        for name in names:
            resource, dot, field = name.partition(".")
            if resource not in known or (dot and field not in known[resource]):
                everything = [*known, *(f"{one}.{field}" for one, fields in known.items() for field in fields)]
                raise UsageError(f"from_setup: there is no `{name}`", suggestion(name, everything))
        differing = {one.name: one for one in [*self.differences(saved, in_force), *self.differences(in_force)]}
        whole = {one.name for one in differing.values() if one.resource in names}
        return whole | {one for one in names if "." in one and f"{one.partition('.')[0]}.{CLASS}" not in differing}

    def reinitialised(self, chosen: Iterable[str]) -> set[str]:
        """The resources whose saved state is not loaded, because they are of another class than before."""
        return {name.partition(".")[0] for name in chosen if name.endswith(f".{CLASS}")}

    def cannot_keep(self, difference: Difference) -> bool:
        """True where there is nothing to keep: an object of another class, or functions that no checkpoint holds."""
        if difference.field in (LAMBDAS, "_schedulers"):
            before, now = ({difference.field: one} for one in (difference.saved, difference.now))
            functions = _functions(self._resources.get(difference.resource))
            return not same(_points(before), _points(now)) and any(
                isinstance(one, types.FunctionType | partial) for one in functions
            )
        return difference.field == CLASS

    def apply(self, chosen: set[str], in_force: Any = None) -> list[str]:
        """Put the chosen hyper-parameters, as set up now, in place of the loaded ones.

        The schedules of an optimizer with a chosen field, or with a chosen rate, are gone through again from their
        beginning, by as many steps as they have behind them: the rate is what it would be now, had it always been so.

        Returns:
            What a person should know of it, in words.

        Raises:
            UsageError: a scheduler was not fresh when it was first seen.
        """
        notes = []
        for name, optimizer in self._optimizers():
            notes += self._apply_to_optimizer(name, optimizer, chosen, _fields(in_force, name).get("lr"))
        for name, one in self._resources.items():
            fields = _chosen_of(name, chosen) - {CLASS}
            if fields and not isinstance(one, torch.optim.Optimizer) and not _is_schedule(one):
                made = self._settings[name].state
                state = {key: value for key, value in one.state_dict().items() if key not in fields or key in made}
                taken = {field: _merged(state.get(field), made[field]) for field in fields if field in made}
                one.load_state_dict({**state, **taken})
        anew = self.reinitialised(chosen)
        for name, made in self.made.items():
            fields = {CLASS, LAMBDAS, *(made if name in anew else _chosen_of(name, chosen))}
            kept = {key: value for key, value in _fields(in_force, name).items() if key not in fields}
            self.values[name] = {**made, **({} if name in anew else kept)}
        return notes

    def _apply_to_optimizer(
        self, name: str, optimizer: torch.optim.Optimizer, chosen: set[str], rate_in_force: Any
    ) -> list[str]:
        fields, made = _chosen_of(name, chosen), self._settings[name].state["param_groups"]
        for group, fresh in zip(optimizer.param_groups, made, strict=True):
            for field in fields - {"lr", "params", CLASS}:
                if field in fresh:
                    set_rate(group, field, fresh[field])
                else:
                    group.pop(field, None)
        anew = self.reinitialised(chosen)
        schedules = [
            Schedule(one, scheduler, self._settings[one].state, _chosen_of(one, chosen), one in anew)
            for one, scheduler in self._resources.items()
            if _is_schedule(scheduler) and scheduler.optimizer is optimizer
        ]
        moved = bool(fields & {"lr", CLASS, *OF_SCHEDULES})
        if schedules and (moved or any(one.chosen for one in schedules)):
            replay_schedules(optimizer, made, schedules, fields, rate_in_force)
        elif "lr" in fields:
            for group, fresh in zip(optimizer.param_groups, made, strict=True):
                for field in ("lr", "initial_lr"):
                    if field in group:
                        set_rate(group, field, fresh.get("initial_lr", fresh["lr"]))
        return [
            f"`{one}` sets the rate from its next step on"
            for one, other in self._resources.items()
            if not isinstance(other, LRScheduler) and getattr(other, "optimizer", None) is optimizer
            if "lr" in fields or _chosen_of(one, chosen)
        ]

    def _optimizers(self) -> Iterator[tuple[str, torch.optim.Optimizer]]:
        for name, one in self._resources.items():
            if isinstance(one, torch.optim.Optimizer):
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


def _fields(values: Any, name: str) -> Mapping[str, Any]:
    """The fields of a resource, where a manifest tells them in a readable way."""
    fields = values.get(name) if isinstance(values, Mapping) else None
    return fields if isinstance(fields, Mapping) else {}


def _chosen_of(resource: str, chosen: set[str]) -> set[str]:
    return {one.partition(".")[2] for one in chosen if one.partition(".")[0] == resource}


def _functions(scheduler: Any) -> list[Any]:
    """The functions of a scheduler and of those within it."""
    inner = getattr(scheduler, "_schedulers", None) or ()
    return [*(getattr(scheduler, LAMBDAS, None) or ()), *(each for one in inner for each in _functions(one))]


def _points(values: Any) -> list[Any]:
    """What is kept of the functions of a scheduler and of those within it."""
    if not isinstance(values, Mapping):
        return []
    inner = values.get("_schedulers")
    own = [values[LAMBDAS]] if LAMBDAS in values else []
    return own + [each for one in (inner if isinstance(inner, list) else ()) for each in _points(one)]


def _is_schedule(resource: Any) -> bool:
    """True for what can be gone through again; a plateau's steps need the metrics of then."""
    return isinstance(resource, LRScheduler) and not isinstance(resource, ReduceLROnPlateau)


def _merged(loaded: Any, made: Any) -> Any:
    """Only what is plain was kept of what was made; the rest stays as loaded."""
    if isinstance(loaded, Mapping) and isinstance(made, Mapping):
        return {**loaded, **{key: _merged(loaded.get(key), one) for key, one in made.items()}}
    return copy.deepcopy(made)
