"""Resources made by a function, once when the run is set up and again when a node renews them, or as a copy."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch.nn.parameter import is_lazy

from graphtrain.errors import CheckpointError, UsageError
from graphtrain.graph import Graph
from graphtrain.names import nearest, suggestion
from graphtrain.plan.preparation import copies_of
from graphtrain.program.agreement import Agreement
from graphtrain.program.requests import Requests
from graphtrain.state.baseline import Baseline
from graphtrain.state.random import (
    RandomAside,
    capture_random,
    global_generators,
    restore_random,
    seed_everything,
)
from graphtrain.state.reachable import keeps_state


@final
class Factory:
    """A resource made by a function: once at the start, and again when a node of the kind `renew` runs.

    At the start it is as if `setup` had called the function. The resource needs a `state_dict`, by which it is saved.

    Arguments:
        function: called without arguments, or with other resources by the names of its parameters: an optimizer takes
            its model, and is renewed with it. A parameter with a default may be absent.

    Raises:
        UsageError: it cannot be called, or takes ``*args``.

    >>> def make_optimizer(model):
    ...     return torch.optim.SGD(model.parameters(), lr=0.1)
    >>> Factory(make_optimizer)
    Factory(make_optimizer)
    >>> Factory(torch.nn.Linear(2, 1).weight)
    Traceback (most recent call last):
        ...
    graphtrain.errors.UsageError: a Factory takes a function that makes a resource; got a Parameter
      hint: as in Factory(make_model), or Factory(lambda: Net(8))
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise UsageError(
                f"a Factory takes a function that makes a resource; got a {type(function).__name__}",
                "as in Factory(make_model), or Factory(lambda: Net(8))",
            )
        self.function = function
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):  # a function of C has no signature
            parameters = []
        for parameter in parameters:
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
                raise UsageError(
                    f"{self!r} takes `{parameter}`, and is given resources by name",
                    "name the resources that it needs, as in `def make_optimizer(model)`",
                )
        named = [parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
        self.needs = {parameter.name: parameter.default is parameter.empty for parameter in named}
        self._made: list[Any] = []

    def __repr__(self) -> str:
        return f"Factory({getattr(self.function, '__name__', None) or repr(self.function)})"

    def make(self, name: str, resources: Mapping[str, Any]) -> Any:
        """Make the resource of a name.

        Raises:
            UsageError: a resource it needs is missing, or its result has no `state_dict`.
        """
        present = {need: resources[need] for need in self.needs if resources.get(need) is not None}
        if missing := [need for need, required in self.needs.items() if required and need not in present]:
            raise UsageError(
                f"{self!r}, which makes `{name}`, needs `{missing[0]}`, and nothing supplies it",
                suggestion(missing[0], [other for other in resources if other != name]),
            )
        value = self.function(**present)
        if not keeps_state(value):
            described = "nothing" if value is None else f"an object of type {type(value).__name__}"
            raise UsageError(
                f"{self!r} makes `{name}`, and returned {described}: that has no `state_dict` and `load_state_dict`, "
                "by which it could be saved",
                f"let `setup` return `{name}` itself; of data, write what changes to a slot",
            )
        return value

    def first(self, name: str, resources: Mapping[str, Any]) -> Any:
        """Make the resource for the start, once until `take`."""
        if not self._made:
            self._made = [self.make(name, resources)]
        return self._made[0]

    def take(self) -> None:
        """Note that the resource belongs to a run now: another run gets another object."""
        self._made = []


def with_made(resources: Mapping[str, Any]) -> dict[str, Any]:
    """The resources, with factories replaced by what they make at the start.

    Raises:
        UsageError: a resource that a factory needs is missing, or two need each other.
    """
    made = dict(resources)
    for name in _in_order({name: value for name, value in resources.items() if isinstance(value, Factory)}):
        made[name] = resources[name].first(name, made)
    return made


def _in_order(factories: Mapping[str, Factory]) -> list[str]:
    """The names of factories, each after those that it needs.

    Raises:
        UsageError: two need each other.
    """
    ordered: list[str] = []

    def visit(name: str, around: tuple[str, ...]) -> None:
        if name in around:
            circle = [*around[around.index(name) :], name]
            raise UsageError(
                f"factories need each other: {' needs '.join(f'`{each}`' for each in circle)}",
                "let one function make what both need, or let `setup` return one of them itself",
            )
        if name not in ordered:
            for need in factories[name].needs:
                if need in factories:
                    visit(need, (*around, name))
            ordered.append(name)

    for name in factories:
        visit(name, ())
    return ordered


def factory_needs(resources: Mapping[str, Any]) -> set[str]:
    """The names of the resources that factories need, supplied directly or by what renews them."""
    renewals = resources.get("renewals")
    factories = [value for value in resources.values() if isinstance(value, Factory)]
    factories += renewals.factories.values() if isinstance(renewals, Renewals) else ()
    return {name for factory in factories for name in factory.needs}


@dataclass
class Renewed:
    """A resource that was made again during the run.

    Attributes:
        random: the state of the random generators before; empty for a copy of another resource.
        value: the object.
        baseline: what was reachable from it when it was made.
        setup: a hash of what it was set up with, by path.
    """

    random: Mapping[str, Any]
    value: Any
    baseline: Baseline | None = None
    setup: Mapping[str, str] = field(default_factory=dict)

    @property
    def listed(self) -> Baseline:
        """The baseline, once the run has noted it."""
        assert self.baseline is not None, "set once the run has noted it"
        return self.baseline


@final
class Renewals:
    """The factories of a run, and requests by nodes to renew resources.

    Arguments:
        resources: as supplied, including factories.
        requests: notified when a resource was made again; the trainer replaces it between two nodes.
        agreement: that with the other ranks, which make the same. Default: there is one process.

    Attributes:
        factories: by name.
        current: the present resources, with those made by factories.
    """

    def __init__(self, resources: Mapping[str, Any], requests: Requests, agreement: Agreement | None = None) -> None:
        self._agreement = agreement
        self.factories = {name: value for name, value in resources.items() if isinstance(value, Factory)}
        self._order = _in_order(self.factories)
        self._requests = requests
        self.current: Mapping[str, Any] = with_made(resources)
        self._pending: dict[str, Renewed] = {}
        for factory in self.factories.values():
            factory.take()

    def renewed_with(self, names: Iterable[str]) -> list[str]:
        """The resources that are renewed together: these, and those made of them, in this order."""
        renewed = set(names)
        for name in self._order:
            if renewed.intersection(self.factories[name].needs):
                renewed.add(name)
        return [name for name in self._order if name in renewed]

    def refuse(self, path: str, name: str, supplied: Mapping[str, Any]) -> None:
        """Raise if a node cannot renew a resource.

        Raises:
            UsageError: it is not a `Factory`, or an optimizer or scheduler that is not one was made of it.
        """
        if name not in self.factories:
            value = supplied.get(name)
            what = "which nothing supplies" if value is None else f"a {type(value).__name__}, not a Factory"
            close = nearest(name, self.factories) if value is None else None
            misspelt = f"did you mean `{close}`?" if close else ""
            raise UsageError(
                f"`{path}` renews `{name}`, {what}: nothing is known that could make it again",
                misspelt
                or f"let `setup` return a function that makes it: "
                f'"{name}": Factory(make_{name}), or Trainer(..., {name}=Factory(make_{name}))',
            )
        renewed = self.renewed_with([name])
        values = [supplied[each] for each in renewed]
        owned = {id(tensor) for value in values if isinstance(value, torch.nn.Module) for tensor in value.parameters()}
        for other, value in supplied.items():
            groups = value.param_groups if isinstance(value, torch.optim.Optimizer) else ()
            is_of_model = any(id(tensor) in owned for group in groups for tensor in group["params"])
            is_of_optimizer = any(getattr(value, "optimizer", None) is each for each in values)
            if other not in renewed and keeps_state(value) and (is_of_model or is_of_optimizer):
                source = next(each for each in renewed if is_of_model or supplied[each] is value.optimizer)
                raise UsageError(
                    f"`{path}` renews `{source}`, of which `{other}` was made, and `{other}` is not a Factory: it "
                    f"would keep the former `{source}`",
                    f"let `setup` return a function that makes it: "
                    f'"{other}": Factory(make_{other}), with `def make_{other}({source})`',
                )

    def renew(self, name: str) -> None:
        """Make a resource and those made of it again, with the random numbers of the run."""
        resources, self._pending = {**self.current}, {}
        with ExitStack() as kept:
            if self._agreement is not None:
                seed = self._agreement.seed()
                kept.enter_context(RandomAside(global_generators()))
                seed_everything(seed)
            for each in self.renewed_with([name]):
                random = capture_random()
                resources[each] = self.factories[each].make(each, resources)
                self._pending[each] = Renewed(random, resources[each])
        self._requests.post("renewed")

    def take(self) -> dict[str, Renewed]:
        """The resources made again since the last call."""
        pending, self._pending = self._pending, {}
        return pending

    def make_as(self, name: str, random: Mapping[str, Any], resources: Mapping[str, Any]) -> Renewed:
        """Make a resource again as in a saved run, from the random numbers of then.

        Raises:
            CheckpointError: it is not a `Factory` now.
        """
        if name not in self.factories:
            raise CheckpointError(
                f"the run has made `{name}` again since it began, and `{name}` is not a Factory now",
                f'let `setup` return "{name}": Factory(make_{name}), as it did',
            )
        restore_random(dict(random))
        return Renewed(random, self.factories[name].make(name, resources))

    def with_others(self, others: Mapping[str, Any], resources: Mapping[str, Any]) -> Renewals:
        """The same with some resources replaced, including factories; itself if there are none."""
        if not others:  # nodes that read it stay as they are
            return self
        renewals = Renewals({**resources, **others}, self._requests, self._agreement)
        kept = {name: factory for name, factory in self.factories.items() if name not in others}
        renewals.factories = kept | renewals.factories
        renewals._order = _in_order(renewals.factories)
        return renewals


# ---- copies, which are ordinary resources from then on


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
