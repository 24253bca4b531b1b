"""The mark `@node`: it makes a function or a class a kind."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, overload

from graphtrain.kind.copies import CopyOf
from graphtrain.kind.declaration import FAMILIES, Family, Kind, drawn_family, roles_of
from graphtrain.kind.fields import action_of
from graphtrain.kind.parameter import Parameter, is_trigger
from graphtrain.kind.signature import signature_of, takes_nothing

Implementation = TypeVar("Implementation", bound=Callable[..., Any])

# Kinds declared outside graphtrain: scripts and notebook cells. A later definition of a name replaces the earlier one.
DECLARED: dict[str, Kind] = {}


@overload
def node(implementation: Implementation, /) -> Implementation: ...
@overload
def node(
    *,
    writes: str | tuple[str, ...] = (),
    effects: str | tuple[str, ...] = (),
    optional: str | tuple[str, ...] = (),
    varying: str | tuple[str, ...] | None = None,
    transient: str | tuple[str, ...] = (),
    makes: Mapping[str, CopyOf] = MappingProxyType({}),
    step_inputs: Mapping[str, str] = MappingProxyType({}),
    synchronises: bool = False,
    also_due: Mapping[str, str] = MappingProxyType({}),
    observer: bool = False,
    family: Family | None = None,
    name: str | None = None,
) -> Callable[[Implementation], Implementation]: ...
def node(
    implementation: Callable[..., Any] | None = None,
    /,
    *,
    writes: str | tuple[str, ...] = (),
    effects: str | tuple[str, ...] = (),
    optional: str | tuple[str, ...] = (),
    varying: str | tuple[str, ...] | None = None,
    transient: str | tuple[str, ...] = (),
    makes: Mapping[str, CopyOf] = MappingProxyType({}),
    step_inputs: Mapping[str, str] = MappingProxyType({}),
    synchronises: bool = False,
    also_due: Mapping[str, str] = MappingProxyType({}),
    observer: bool = False,
    family: str | None = None,
    name: str | None = None,
) -> Any:
    """Mark a function or a class as a kind of node.

    Arguments:
        writes: the slots its return value goes to; several take a tuple of as many values. Default: none.
        effects: what a visit does to the gradients of the slot `optimizer`, to the mode of the slot `model`, or to what
            step functions have written to slots, in order: `backward`, `exchange` (among processes), `scale` (or
            `unscale`), `divide`, `clip`, `use`, `step`, `zero_grad`, `eval`, `train`, `forget`. Another slot is named
            behind the effect: ``"use inner_optimizer"``. With ``"backward?"`` a visit returns one value more than it
            writes, last: whether it ran backward. Default: nothing.
        optional: the resources, and the parameters, without which a visit would do nothing; where one is missing, or a
            parameter is None or a bound of infinity, the node is bypassed. Default: none.
        varying: the parameters that it reads at every visit, so that a graph may give them an expression in place of a
            value. Default: of a class none, of a function all but its trigger, which are passed at every call.
        transient: written slots that cannot be saved (an iterator, an open graph); no save point while one is alive.
            Default: none.
        makes: resources that it makes of others, as in ``{"average": copy_of("model")}``, once, before anything is
            loaded; it reads both. They are saved as any resource, and other nodes read them by name. Default: none.
        step_inputs: of a kind that counts batches: what a user's step function may ask for by name, and the field that
            holds it, as in ``{"epoch": "epoch"}``. Default: nothing.
        synchronises: True if ranks synchronise at every visit, so that it can pass values between them by the resource
            `ranks`. Among several ranks all of them come to it, also one that has no batch in the round; its progress,
            and what it writes unless that is a batch, is the same on all. Default: False.
        also_due: of a kind with a trigger: the guard fields that make it due too, and for each of them the parameter
            without which it never does, as in ``{"improved": "best"}``. Default: the trigger alone makes it due.
        observer: True if the training does not depend on its progress; it is then outside `Trainer.digest`. Default:
            False.
        family: how it is drawn: `data`, whose host time is counted apart, `compute`, `gradient`, `update`, `choice`,
            `bookkeeping`, `saving`, `ranks` or `other`. Default: by `effects` and `observer`.
        name: the name graphs use. Default: the function's name, or the class's in snake case.

    Raises:
        TypeError: the signature is no declaration (``*args``, an unknown effect, two triggers, ...).

    >>> @node(writes="noise")
    ... def noise_level(*, scale: float = 1.0):
    ...     return scale
    >>> kind_of(noise_level).parameters["scale"].default
    1.0
    """
    declared = {
        "writes": _names(writes),
        "effects": _names(effects),
        "without": _names(optional),
        "transient": _names(transient),
        "makes": MappingProxyType(dict(makes)),
        "step_inputs": MappingProxyType(dict(step_inputs)),
        "synchronises": synchronises,
        "also_due": MappingProxyType(dict(also_due)),
        "observer": observer,
        "family": drawn_family(effects, observer, family),
    }

    def mark(target: Implementation) -> Implementation:
        if not _is_function_or_class(target):
            raise TypeError(f"@node marks a function or a class; got {target!r}")
        kind = _declare(target, name or _snake_case(target.__name__), declared, varying)
        try:
            target.__kind__ = kind  # type: ignore[attr-defined]
        except (AttributeError, TypeError):
            raise TypeError(f"{kind.name}: {target!r} cannot be marked; write a function that calls it") from None
        # The shipped kinds are found by their folder, so that importing one cannot undo a user's own of that name.
        # What was made by `exec` may be of no module.
        if not (target.__module__ or "").startswith("graphtrain."):
            DECLARED[kind.name] = kind
        return target

    return mark if implementation is None else mark(implementation)


def kind_of(target: Callable[..., Any]) -> Kind:
    """The kind that a marked function or class declares; an unmarked one is declared as it stands.

    >>> kind_of(lambda model: None).reads
    Traceback (most recent call last):
        ...
    TypeError: a kind needs a name: give `node(name=...)` to a lambda
    """
    declared = vars(target).get("__kind__") if hasattr(target, "__dict__") else None
    if isinstance(declared, Kind):
        return declared
    if not _is_function_or_class(target):
        raise TypeError(f"a kind is a function or a class; got {target!r}")
    if target.__name__ == "<lambda>":
        raise TypeError("a kind needs a name: give `node(name=...)` to a lambda")
    kind: Kind = vars(node(target))["__kind__"]
    return kind


def _is_function_or_class(target: Any) -> bool:
    return inspect.isclass(target) or inspect.isroutine(target)


def _declare(
    target: Callable[..., Any], name: str, declared: Mapping[str, Any], varying: str | tuple[str, ...] | None
) -> Kind:
    if not name.isidentifier():
        hint = ": give `node(name=...)` to a lambda" if name == "<lambda>" else ""
        raise TypeError(f"the name of a kind must be an identifier; got {name!r}{hint}")
    reads, setup_reads, parameters, fields = signature_of(target, name)
    declared = dict(declared)
    without = declared.pop("without")
    kind = Kind(
        name=name,
        implementation=target,
        reads=reads,
        setup_reads=setup_reads,
        parameters=MappingProxyType(parameters),
        fields=MappingProxyType(fields),
        optional=tuple(each for each in without if each not in parameters),
        idle_without=tuple(each for each in without if each in parameters),
        roles=roles_of(parameters, reads, setup_reads or (), declared["writes"]),
        varying=_names(varying) if varying is not None else _passed_at_calls(target, parameters, declared),
        description=inspect.cleandoc(target.__doc__ or ""),
        keeps_state=callable(getattr(target, "state_dict", None))
        and callable(getattr(target, "load_state_dict", None)),
        acts_at_end=callable(getattr(target, "at_end", None)),
        acts_at_body_end=callable(getattr(target, "at_body_end", None)),
        reads_at_end=any(
            not takes_nothing(method)
            for method in (getattr(target, name, None) for name in ("at_end", "at_body_end"))
            if callable(method)
        ),
        releases=callable(getattr(target, "release", None)),
        hears_rows=inspect.isclass(target) and callable(getattr(target, "hear_row", None)),
        **declared,
    )
    _check(kind)
    return kind


def _passed_at_calls(
    target: Callable[..., Any], parameters: Mapping[str, Parameter], declared: Mapping[str, Any]
) -> tuple[str, ...]:
    """The parameters of a function that may vary."""
    if inspect.isclass(target):
        return ()
    return tuple(name for name in parameters if name not in _fixed(parameters, declared))


def _fixed(parameters: Mapping[str, Parameter], declared: Mapping[str, Any]) -> set[str]:
    """The parameters that are read before the node runs: its trigger, and what it records, renews or is due by."""
    triggers = {name for name, parameter in parameters.items() if is_trigger(parameter.annotation)}
    by_name = {name for name in declared["writes"] if name in parameters}  # under which metrics are recorded
    return {*triggers, *by_name, *declared["also_due"].values()}


def _check(kind: Kind) -> None:
    """Raise if an argument of `@node` does not fit the signature or the others."""
    for slot in (*kind.writes, *kind.optional):
        if not (isinstance(slot, str) and slot.isidentifier()):
            raise TypeError(f"{kind.name}: the name of a slot must be an identifier; got {slot!r}")
    if len(set(kind.writes)) < len(kind.writes):
        raise TypeError(f"{kind.name}: it writes one slot twice: {', '.join(kind.writes)}")
    for effect in kind.effects:
        try:
            action_of(effect)
        except ValueError as error:
            raise TypeError(f"{kind.name}: {error}") from None
    if sum(action.is_reported for action in kind.actions) > 1:
        raise TypeError(f"{kind.name}: a visit returns once whether it ran backward; declare `backward?` once")
    for slot in kind.transient:
        if slot not in kind.writes:
            raise TypeError(f"{kind.name}: transient slot {slot!r} is not among what it writes")
    read = {read.name for read in (*kind.reads, *(kind.setup_reads or ()))}
    for name, copied in kind.makes.items():
        if not isinstance(copied, CopyOf):
            raise TypeError(f'{kind.name}: it makes `{name}` of {copied!r}; write copy_of("model")')
        for slot in (name, copied.source):
            if slot not in read:
                raise TypeError(f"{kind.name}: it makes `{name}` as a copy of `{copied.source}`, but reads no `{slot}`")
    for parameter in kind.varying:
        _expect_parameter(kind, f"varying {parameter!r}", parameter)
        if parameter in _fixed(kind.parameters, vars(kind)):
            raise TypeError(f"{kind.name}: {parameter!r} cannot be varying: it is read before the node runs")
    for name, field in kind.step_inputs.items():
        if field not in kind.fields:
            raise TypeError(
                f"{kind.name}: step input {name!r} is {field!r}, which is no field; known: {', '.join(kind.fields)}"
            )
    for field, parameter in kind.also_due.items():
        _check_also_due(kind, field, parameter)
    if kind.family not in FAMILIES:
        raise TypeError(f"{kind.name}: unknown family {kind.family!r}; known: {', '.join(FAMILIES)}")


def _check_also_due(kind: Kind, field: str, parameter: str) -> None:
    if kind.trigger is None:
        raise TypeError(f"{kind.name}: also due by {field!r}, but it has no trigger: without one it is always due")
    if field not in kind.fields or kind.fields[field].type not in (bool, Any):
        known = ", ".join(name for name, known in kind.fields.items() if known.type is bool and name != "due")
        raise TypeError(f"{kind.name}: also due by {field!r}, which is no field that is a bool; known: {known}")
    _expect_parameter(kind, f"never due by {field!r} without {parameter!r}", parameter)


def _expect_parameter(kind: Kind, what: str, parameter: str) -> None:
    if parameter not in kind.parameters:
        known = ", ".join(kind.parameters) or "none"
        raise TypeError(f"{kind.name}: {what}, which is no parameter; known: {known}")


def _names(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
