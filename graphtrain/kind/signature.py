"""Reading a declaration off a function or a class: slots, parameters and fields."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any, get_args

from graphtrain.kind.declaration import FROM, Batches, Indices, Loaders, Read, Repeated, StepFunction, WrittenBatches
from graphtrain.kind.fields import EFFECTS, Field, Progress
from graphtrain.kind.hints import hints_of
from graphtrain.kind.parameter import REQUIRED, Parameter, is_trigger
from graphtrain.kind.trigger import Trigger

RESERVED = frozenset({"use", "graph", "reads", "writes", "runs", "due", "fired"})

# What annotations of slots say, in the order of the attributes of `Read`.
_MARKS = (StepFunction, Batches, WrittenBatches, Indices, Loaders, Repeated)

Signature = tuple[tuple[Read, ...], tuple[Read, ...] | None, dict[str, Parameter], dict[str, Field]]


def signature_of(target: Callable[..., Any], name: str) -> Signature:
    """What a kind reads when it is called and when it is set up, its parameters, and its fields.

    Raises:
        TypeError: the signature is no declaration.
    """
    call = target.__call__ if inspect.isclass(target) else target
    if inspect.isclass(target):
        reads, setup_reads, parameters, fields = _of_class(target, name)
    else:
        reads, parameters = _read(target, name, method=False)
        setup_reads, fields = None, {}
    if inspect.iscoroutinefunction(call) or inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise TypeError(f"{name}: a kind is called and returns; it cannot be `async` or a generator")
    _check_defaults(parameters, name)
    if taken := sorted(RESERVED & {*parameters, *fields}):
        raise TypeError(f"{name}: `{taken[0]}` means something else in every node; choose another name")
    fields |= _fields_of_every_node(parameters, name)
    if "fired" in fields:
        parameters[FROM] = Parameter(FROM, Trigger | None, None)
    return reads, setup_reads, parameters, fields


def _of_class(target: type, name: str) -> Signature:
    if not callable(getattr(target, "__call__", None)) or "__call__" not in dir(target):  # noqa: B004
        raise TypeError(f"{name}: a class kind needs a method __call__")
    _check_constructor(target, name)
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
    for ending in ("at_end", "at_body_end"):
        method = getattr(target, ending, None)
        if method is not None and _read(method, name, method=True) not in ((reads, {}), ((), {})):
            names = ", ".join(read.name for read in reads) or "nothing"
            raise TypeError(
                f"{name}.{ending}: it reads what __call__ reads, with the same defaults: {names}; or it takes nothing"
            )
    if (release := getattr(target, "release", None)) is not None and _read(release, name, method=True) != ((), {}):
        raise TypeError(f"{name}.release: it takes nothing, and ends what the node can begin again, such as processes")
    return reads, setup_reads, parameters, fields


def takes_nothing(method: Callable[..., Any]) -> bool:
    """True for a method of a kind that has no argument beside the instance."""
    return len(inspect.signature(method).parameters) == 1


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
        if isinstance(value, Progress):
            fields[attribute] = value.field(attribute, annotation, {*hints, *properties})
        else:
            parameters[attribute] = Parameter(attribute, annotation, value)
    for attribute, value in inspect.getmembers_static(target):
        if isinstance(value, property) and not attribute.startswith("_"):
            returned = hints_of(value.fget).get("return", Any)
            fields[attribute] = Field(attribute, returned, stored=False)
        elif isinstance(value, Progress) and attribute not in fields:
            raise TypeError(f"{name}.{attribute}: progress needs a type, as in `{attribute}: int = progress(0)`")
    for field in fields.values():
        _check_field(field, name, parameters, fields)
    return parameters, fields


def _check_field(field: Field, name: str, parameters: Mapping[str, Parameter], fields: Mapping[str, Field]) -> None:
    if field.counts is not None and field.counts not in EFFECTS:
        raise TypeError(f"{name}.{field.name}: unknown effect {field.counts!r} to count; known: {', '.join(EFFECTS)}")
    if field.restarts is not None and field.restarts not in fields:
        raise TypeError(
            f"{name}.{field.name}: `{field.restarts}`, which it restarts with, is no field; known: {', '.join(fields)}"
        )
    if field.target is not None and field.target not in {*parameters, *fields}:
        known = ", ".join([*parameters, *fields])
        raise TypeError(
            f"{name}.{field.name}: its target `{field.target}` is no parameter and no field; known: {known}"
        )
    if field.window is not None and not (field.target and fields[field.window].stored):
        raise TypeError(
            f"{name}.{field.name}: `{field.window}` can be its window only if it has a target, and `{field.window}` is "
            "progress"
        )


def _check_constructor(target: type, name: str) -> None:
    try:
        inspect.signature(target).bind()
    except TypeError as error:
        raise TypeError(
            f"{name}: a class kind is made without arguments ({error}); parameters are annotated attributes"
        ) from None
    except ValueError:  # a class written in C shows no signature
        return


def _check_defaults(parameters: Mapping[str, Parameter], name: str) -> None:
    for parameter in parameters.values():
        if parameter.default is REQUIRED or parameter.default is None:
            continue
        try:
            parameter.coerce(parameter.default)
        except ValueError as error:
            raise TypeError(f"{name}.{parameter.name}: the default is of another type than declared: {error}") from None


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
