"""The mark `@node`: it makes a function or a class a kind."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, get_args, overload

from graphtrain.kind.declaration import (
    FAMILIES,
    FROM,
    Batches,
    CopyOf,
    Family,
    Kind,
    Loaders,
    Read,
    Repeated,
    StepFunction,
    WrittenBatches,
    drawn_family,
)
from graphtrain.kind.fields import EFFECTS, Field, action_of
from graphtrain.kind.parameter import REQUIRED, Parameter, is_trigger
from graphtrain.kind.signatures import hints_of
from graphtrain.kind.trigger import Trigger

Implementation = TypeVar("Implementation", bound=Callable[..., Any])
Signature = tuple[tuple[Read, ...], tuple[Read, ...] | None, dict[str, Parameter], dict[str, Field]]

# Kinds declared outside graphtrain: scripts and notebook cells. A later definition of a name replaces the earlier one.
DECLARED: dict[str, Kind] = {}
# Kinds of adapters whose library was imported: a graph that is read from a checkpoint names them.
OF_ADAPTERS: dict[str, Kind] = {}

_ENDINGS = ("at_end", "at_body_end")
_RESERVED = frozenset({"use", "graph", "reads", "writes", "runs", "due", "fired"})

# What annotations of slots say, in the order of the attributes of `Read`.
_MARKS = (StepFunction, Batches, WrittenBatches, Loaders, Repeated)


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
    extra_due_fields: Mapping[str, str] = MappingProxyType({}),
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
    extra_due_fields: Mapping[str, str] = MappingProxyType({}),
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
            after the effect: ``"use inner_optimizer"``. Default: nothing.
        optional: the resources, and the parameters, without which a visit would do nothing; if a resource is
            missing, or all the parameters are None or a bound of infinity, the node is bypassed. Default: none.
        varying: the parameters that it reads at every visit, so that a graph may give them an expression instead of a
            value. Default: none of a class; all but the trigger of a function, which gets them at every call.
        transient: written slots that cannot be saved (an iterator, an open graph); no save point while one is alive.
            Default: none.
        makes: resources that it makes from others, as in ``{"average": copy_of("model")}``, once, before anything is
            loaded; it reads both. They are saved as any resource, and other nodes read them by name. Default: none.
        step_inputs: of a kind that counts batches: the names that a user's step function may take, each with its field,
            as in ``{"epoch": "epoch"}``. Default: nothing.
        synchronises: True if ranks synchronise at every visit, so that it can pass values between them by the resource
            `ranks`. Every rank visits it, also one without a batch in the round; its progress, and all that it writes
            but batches, is the same on all ranks. Default: False.
        extra_due_fields: of a kind with a trigger: the guard fields that also make it due, each with the parameter
            without which it never does, as in ``{"improved": "best"}``. Default: the trigger alone makes it due.
        observer: True if the training does not depend on its progress; it is then outside `Trainer.digest`. Default:
            False.
        family: how it is drawn: `data`, whose host time is counted apart, `compute`, `gradient`, `update`, `choice`,
            `bookkeeping`, `saving`, `ranks` or `other`. Default: by `effects` and `observer`.
        name: the name graphs use. Default: the function's name, or the class's in snake case.

    Raises:
        TypeError: the signature is not a valid declaration (``*args``, an unknown effect, two triggers, ...).

    >>> @node(writes="noise")
    ... def noise_level(*, scale: float = 1.0):
    ...     return scale
    >>> kind_of(noise_level).parameters["scale"].default
    1.0
    """
    declared = {
        "writes": _names(writes),
        "effects": _names(effects),
        "transient": _names(transient),
        "makes": MappingProxyType(dict(makes)),
        "step_inputs": MappingProxyType(dict(step_inputs)),
        "synchronises": synchronises,
        "extra_due_fields": MappingProxyType(dict(extra_due_fields)),
        "observer": observer,
        "family": drawn_family(effects, observer, family),
    }

    def mark(target: Implementation) -> Implementation:
        if not _is_function_or_class(target):
            raise TypeError(f"@node marks a function or a class; got {target!r}")
        used_name = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", target.__name__).lower()
        kind = _declare(target, used_name, declared, varying, _names(optional))
        try:
            target.__kind__ = kind  # type: ignore[attr-defined]
        except (AttributeError, TypeError):
            raise TypeError(f"{kind.name}: {target!r} cannot be marked; write a function that calls it") from None
        # The shipped kinds are found by their folder, so importing one cannot replace a user's kind of that name.
        # Code made by `exec` may have no module.
        module = target.__module__ or ""
        if module.startswith("graphtrain.adapters."):
            OF_ADAPTERS[kind.name] = kind
        elif not module.startswith("graphtrain."):
            DECLARED[kind.name] = kind
        return target

    return mark if implementation is None else mark(implementation)


def kind_of(target: Callable[..., Any]) -> Kind:
    """The kind that a marked function or class declares; an unmarked one as by `@node` without arguments.

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
    target: Callable[..., Any],
    name: str,
    declared: Mapping[str, Any],
    varying: str | tuple[str, ...] | None,
    optional: tuple[str, ...],
) -> Kind:
    if not name.isidentifier():
        hint = ": give `node(name=...)` to a lambda" if name == "<lambda>" else ""
        raise TypeError(f"the name of a kind must be an identifier; got {name!r}{hint}")
    reads, setup_reads, parameters, fields = _signature_of(target, name)
    if varying is None:
        fixed = {*parameters} if inspect.isclass(target) else _fixed(parameters, declared)
        varying = tuple(each for each in parameters if each not in fixed)

    def has(method: str) -> bool:
        return callable(getattr(target, method, None))

    endings = [getattr(target, ending) for ending in _ENDINGS if has(ending)]
    kind = Kind(
        name=name,
        implementation=target,
        reads=reads,
        setup_reads=setup_reads,
        parameters=MappingProxyType(parameters),
        fields=MappingProxyType(fields),
        optional=tuple(each for each in optional if each not in parameters),
        idle_without=tuple(each for each in optional if each in parameters),
        varying=_names(varying),
        description=inspect.cleandoc(target.__doc__ or ""),
        keeps_state=has("state_dict") and has("load_state_dict"),
        acts_at_end=has("at_end"),
        acts_at_body_end=has("at_body_end"),
        reads_at_end=any(len(inspect.signature(method).parameters) > 1 for method in endings),
        releases=has("release"),
        refuses_settings=has("refuse_settings"),
        has_on_metrics=inspect.isclass(target) and has("on_metrics"),
        **declared,
    )
    _check(kind)
    return kind


def _fixed(parameters: Mapping[str, Parameter], declared: Mapping[str, Any]) -> set[str]:
    """The parameters that are read before the node runs: its trigger, and what it records or is due by."""
    triggers = {name for name, parameter in parameters.items() if is_trigger(parameter.annotation)}
    by_name = {name for name in declared["writes"] if name in parameters}  # under which metrics are recorded
    return {*triggers, *by_name, *declared["extra_due_fields"].values()}


def _check(kind: Kind) -> None:
    """Raise if an argument of `@node` does not fit the signature or the others."""
    for slot in (*kind.writes, *kind.optional):
        if not (isinstance(slot, str) and slot.isidentifier()) or kind.writes.count(slot) > 1:
            raise TypeError(f"{kind.name}: the names of slots are identifiers, each once; got {slot!r}")
    for effect in kind.effects:
        try:
            action_of(effect)
        except ValueError as error:
            raise TypeError(f"{kind.name}: {error}") from None
    for slot in kind.transient:
        if slot not in kind.writes:
            raise TypeError(f"{kind.name}: transient slot {slot!r} is not among what it writes")
    read = {read.name for read in (*kind.reads, *(kind.setup_reads or ()))}
    for name, copied in kind.makes.items():
        if not isinstance(copied, CopyOf) or not {name, copied.source} <= read:
            raise TypeError(f"{kind.name}: it makes `{name}` as {copied!r}; write copy_of(SLOT), and read both")
    for parameter in kind.varying:
        _expect_parameter(kind, f"varying {parameter!r}", parameter)
        if parameter in _fixed(kind.parameters, vars(kind)):
            raise TypeError(f"{kind.name}: {parameter!r} cannot be varying: it is read before the node runs")
    for name, field in kind.step_inputs.items():
        if field not in kind.fields:
            raise TypeError(f"{kind.name}: step input {name!r} is {field!r}, which is not a field")
    for field, parameter in kind.extra_due_fields.items():
        if kind.trigger is None or field not in kind.fields or kind.fields[field].type not in (bool, Any):
            raise TypeError(f"{kind.name}: also due by {field!r}, which is not a bool field of a kind with a trigger")
        _expect_parameter(kind, f"never due by {field!r} without {parameter!r}", parameter)
    if kind.family not in FAMILIES:
        raise TypeError(f"{kind.name}: unknown family {kind.family!r}; known: {', '.join(FAMILIES)}")


def _expect_parameter(kind: Kind, what: str, parameter: str) -> None:
    if parameter not in kind.parameters:
        known = ", ".join(kind.parameters) or "none"
        raise TypeError(f"{kind.name}: {what}, which is not a parameter; known: {known}")


def _names(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


# ---- reading a declaration off a function or a class: slots, parameters and fields


def _signature_of(target: Callable[..., Any], name: str) -> Signature:
    """The slots a kind reads when called and when set up, its parameters, and its fields.

    Raises:
        TypeError: the signature is not a valid declaration.
    """
    call = target.__call__ if inspect.isclass(target) else target
    if inspect.isclass(target):
        reads, setup_reads, parameters, fields = _of_class(target, name)
    else:
        reads, parameters = _read(target, name, method=False)
        setup_reads, fields = None, {}
    if inspect.iscoroutinefunction(call) or inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise TypeError(f"{name}: a kind is called and returns; it cannot be `async` or a generator")
    for parameter in parameters.values():
        if parameter.default is not REQUIRED and parameter.default is not None:
            try:
                parameter.coerce(parameter.default)
            except ValueError as error:
                message = f"{name}.{parameter.name}: the default does not have the declared type: {error}"
                raise TypeError(message) from None
    if taken := sorted(_RESERVED & {*parameters, *fields}):
        raise TypeError(f"{name}: `{taken[0]}` is reserved in every node; choose another name")
    fields |= _fields_of_every_node(parameters, name)
    if "fired" in fields:
        parameters[FROM] = Parameter(FROM, Trigger | None, None)
    return reads, setup_reads, parameters, fields


def _of_class(target: type, name: str) -> Signature:
    if not callable(getattr(target, "__call__", None)) or "__call__" not in dir(target):  # noqa: B004
        raise TypeError(f"{name}: a class kind needs a method __call__")
    try:
        inspect.signature(target).bind()
    except TypeError as error:
        raise TypeError(
            f"{name}: a class kind is made without arguments ({error}); parameters are annotated attributes"
        ) from None
    except ValueError:  # a class written in C has no signature
        pass
    parameters, fields = _attributes(target, name)
    reads, keyword_only = _read(target.__call__, name, method=True)
    if keyword_only:
        raise TypeError(
            f"{name}.__call__: a class takes parameters as annotated attributes, not `{next(iter(keyword_only))}`"
        )
    setup = getattr(target, "setup", None)
    setup_reads, keyword_only = _read(setup, name, method=True) if setup is not None else (None, {})
    if keyword_only:
        raise TypeError(f"{name}.setup: it reads slots by position, not by keyword as `{next(iter(keyword_only))}`")
    for ending in _ENDINGS:
        method = getattr(target, ending, None)
        if method is not None and _read(method, name, method=True) not in ((reads, {}), ((), {})):
            names = ", ".join(read.name for read in reads) or "nothing"
            raise TypeError(
                f"{name}.{ending}: it reads what __call__ reads, with the same defaults: {names}; or nothing"
            )
    if (release := getattr(target, "release", None)) is not None and _read(release, name, method=True) != ((), {}):
        raise TypeError(
            f"{name}.release: it takes no arguments, and ends what the node can start again, such as processes"
        )
    return reads, setup_reads, parameters, fields


def _fields_of_every_node(parameters: Mapping[str, Parameter], name: str) -> dict[str, Field]:
    fields = {"runs": Field("runs", int, stored=True, default=0)}
    triggers = [parameter.name for parameter in parameters.values() if is_trigger(parameter.annotation)]
    if len(triggers) > 1 or any(trigger not in ("every", "after") for trigger in triggers):
        raise TypeError(f"{name}: a kind has at most one Trigger, named `every` or `after`; got {', '.join(triggers)}")
    if triggers:
        fields["due"] = Field("due", bool, stored=False)
    if triggers == ["after"]:
        fields["stopped"] = Field("stopped", str, stored=True, default="", in_digest=False)
    if triggers == ["every"]:
        fields["fired"] = Field("fired", dict, stored=True, default={})
    return fields


def _attributes(target: type, name: str) -> tuple[dict[str, Parameter], dict[str, Field]]:
    parameters: dict[str, Parameter] = {}
    fields: dict[str, Field] = {}
    hints = hints_of(target)
    properties = {name for name, value in inspect.getmembers_static(target) if isinstance(value, property)}
    for attribute, annotation in hints.items():
        value = inspect.getattr_static(target, attribute, REQUIRED)
        if attribute.startswith("_") or typing.get_origin(annotation) is typing.ClassVar:
            continue
        if isinstance(value, Field):
            fields[attribute] = value.declared(attribute, annotation, {*hints, *properties})
        else:
            parameters[attribute] = Parameter(attribute, annotation, value)
    for attribute, value in inspect.getmembers_static(target):
        if isinstance(value, property) and not attribute.startswith("_"):
            returned = hints_of(value.fget).get("return", Any)
            fields[attribute] = Field(attribute, returned, stored=False)
        elif isinstance(value, Field) and attribute not in fields:
            raise TypeError(f"{name}.{attribute}: progress needs a type, as in `{attribute}: int = progress(0)`")
    known = {*parameters, *fields}
    for field in fields.values():
        if field.counts is not None and field.counts not in EFFECTS:
            raise TypeError(f"{name}.{field.name}: unknown effect {field.counts!r} to count")
        if unknown := {field.restarts, field.target, field.window} - known - {None}:
            raise TypeError(f"{name}.{field.name}: `{unknown.pop()}` is neither a parameter nor a field")
    return parameters, fields


def _read(function: Callable[..., Any], name: str, *, method: bool) -> tuple[tuple[Read, ...], dict[str, Parameter]]:
    hints = hints_of(function)
    reads: list[Read] = []
    parameters: dict[str, Parameter] = {}
    arguments = list(inspect.signature(function).parameters.values())
    for argument in arguments[1:] if method else arguments:
        annotation = hints.get(argument.name, Any)
        default = REQUIRED if argument.default is argument.empty else argument.default
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            raise TypeError(f"{name}: `{argument}` hides which slots are read; name each of them")
        if argument.kind is argument.KEYWORD_ONLY:
            parameters[argument.name] = Parameter(argument.name, annotation, default)
        else:
            annotations = (annotation, *get_args(annotation))
            reads.append(Read(argument.name, default, *(mark in annotations for mark in _MARKS)))
    return tuple(reads), parameters
