"""The mark `@node`: it makes a function or a class a kind."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, Unpack, overload

from graphtrain.kind.declaration import ENDINGS, FROM, Declared, Kind, Read, Slot
from graphtrain.kind.fields import EFFECTS, GRADIENTS, Field
from graphtrain.kind.parameter import REQUIRED, Parameter, is_trigger
from graphtrain.kind.signatures import hints_of
from graphtrain.kind.trigger import Trigger

Implementation = TypeVar("Implementation", bound=Callable[..., Any])

# Kinds declared outside graphtrain: scripts and notebook cells. A later definition of a name replaces the earlier one.
DECLARED: dict[str, Kind] = {}
# Kinds of adapters whose library was imported: a graph that is read from a checkpoint names them.
OF_ADAPTERS: dict[str, Kind] = {}

_RESERVED = frozenset({"use", "graph", "reads", "writes", "runs", "due", "fired"})


@overload
def node(implementation: Implementation, /) -> Implementation: ...
@overload
def node(**declared: Unpack[Declared]) -> Callable[[Implementation], Implementation]: ...
def node(implementation: Callable[..., Any] | None = None, /, **declared: Unpack[Declared]) -> Any:
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
        copies: resources that are copies of others, as in ``{"average": "model"}``: averaged weights, a target network.
            Each is a deep copy, made once, when the run is set up and before anything is loaded, whose parameters need
            no gradients; a resource supplied under its name is used instead. The kind reads both. They are saved as any
            resource, and other nodes read them by name. Default: none.
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

    def mark(target: Implementation) -> Implementation:
        can_be_kind: bool = inspect.isclass(target) or inspect.isroutine(target)
        if not can_be_kind:
            raise TypeError(f"@node marks a function or a class; got {target!r}")
        name = declared.get("name") or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", target.__name__).lower()
        if not name.isidentifier():
            raise TypeError(f"the name of a kind must be an identifier; got {name!r}: use `node(name=...)`")
        try:
            kind = _declared(target, {**declared, "name": name})
            target.__kind__ = kind  # type: ignore[attr-defined]
        except AttributeError:
            raise TypeError(f"{name}: {target!r} cannot be marked; write a function that calls it") from None
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from None
        # The shipped kinds are found by their folder, so importing one cannot replace a user's kind of that name.
        module = target.__module__ or ""  # code made by `exec` may have none
        if module.startswith("graphtrain.adapters."):
            OF_ADAPTERS[name] = kind
        elif not module.startswith("graphtrain."):
            DECLARED[name] = kind
        return target

    return mark if implementation is None else mark(implementation)


def kind_of(target: Callable[..., Any]) -> Kind:
    """The kind that a marked function or class declares; an unmarked one as by `@node` without arguments."""
    declared = vars(target).get("__kind__") if hasattr(target, "__dict__") else None  # not that of a base class
    kind: Kind = declared if isinstance(declared, Kind) else vars(node(target))["__kind__"]
    return kind


def _declared(target: Callable[..., Any], arguments: dict[str, Any]) -> Kind:
    """The kind that a function or a class declares; raises a TypeError if it is not a valid declaration."""
    call, setup_reads, fields = target, None, dict[str, Field]()
    if isinstance(target, type):
        call, parameters, fields = target.__call__, *_attributes(target)
        reads, setup_reads = _of_class(target)
    else:
        reads, parameters = _read(target)
    if inspect.iscoroutinefunction(call) or inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise TypeError("a kind is called and returns; it cannot be `async` or a generator")
    for parameter in parameters.values():
        if parameter.default is not REQUIRED and parameter.default is not None:
            try:
                parameter.coerce(parameter.default)
            except ValueError as error:
                raise TypeError(f"{parameter.name}: the default does not have the declared type: {error}") from None
    if reserved := sorted(_RESERVED & {*parameters, *fields}):
        raise TypeError(f"`{reserved[0]}` is reserved in every node; choose another name")
    triggers = [parameter.name for parameter in parameters.values() if is_trigger(parameter.annotation)]
    if len(triggers) > 1 or not {"every", "after"}.issuperset(triggers):
        raise TypeError(f"a kind has at most one Trigger, named `every` or `after`; got {', '.join(triggers)}")
    fields["runs"] = Field("runs", int, stored=True, default=0)
    if triggers:
        fields["due"] = Field("due", bool, stored=False)
    if triggers == ["after"]:
        fields["stopped"] = Field("stopped", str, stored=True, default="", in_digest=False)
    if triggers == ["every"]:
        fields["fired"] = Field("fired", dict, stored=True, default={})
        parameters[FROM] = Parameter(FROM, Trigger | None, None)
    return Kind(
        implementation=target, reads=reads, setup_reads=setup_reads, parameters=parameters, fields=fields, **arguments
    )


def _of_class(target: type) -> tuple[tuple[Read, ...], tuple[Read, ...] | None]:
    """The slots that a class reads when it is called, and when it is set up."""
    if "__call__" not in dir(target):
        raise TypeError("a class kind needs a method __call__")
    try:
        inspect.signature(target).bind()
    except (TypeError, ValueError) as error:
        message = f"`__init__` of a kind takes no arguments ({error}); parameters are annotated attributes"
        raise TypeError(message) from None
    read = {
        method: _read(getattr(target, method), first=1)
        for method in ("__call__", "setup", *ENDINGS, "release")
        if callable(getattr(target, method, None))
    }
    for method, (_, parameters) in read.items():
        if parameters:
            keyword = next(iter(parameters))
            raise TypeError(f"{method}: parameters are annotated attributes, slots are positional; not `{keyword}`")
    reads = read["__call__"][0]
    for method in ENDINGS:
        if method in read and read[method][0] not in (reads, ()):
            names = ", ".join(each.name for each in reads) or "nothing"
            raise TypeError(f"{method} reads nothing, or what __call__ reads, with the same defaults: {names}")
    if "release" in read and read["release"][0]:
        raise TypeError("release takes no arguments: it ends what the node can start again, such as processes")
    return reads, read["setup"][0] if "setup" in read else None


def _attributes(target: type) -> tuple[dict[str, Parameter], dict[str, Field]]:
    parameters: dict[str, Parameter] = {}
    fields: dict[str, Field] = {}
    members = {name: value for name, value in inspect.getmembers_static(target) if not name.startswith("_")}
    hints = {name: each for name, each in hints_of(target).items() if not name.startswith("_")}
    computed = {name: value for name, value in members.items() if isinstance(value, property)}
    for name, annotation in hints.items():
        value = members.get(name, REQUIRED)
        if isinstance(value, Field):
            is_sum = value.restarts == GRADIENTS
            restarts = None if is_sum else value.restarts
            field = replace(value, name=name, type=annotation, restarts=restarts, with_gradients=is_sum)
            if field.counts is not None:  # the engine keeps these, where the kind has them
                last, window, full = (
                    each if each in {*hints, *computed} else None for each in (f"last_{name}", "window", "full")
                )
                field = replace(field, last=last, window=window, full=full if window else None)
            fields[name] = field
        elif typing.get_origin(annotation) is not typing.ClassVar:
            parameters[name] = Parameter(name, annotation, value)
    for name, value in members.items():
        if isinstance(value, Field) and name not in hints:
            raise TypeError(f"{name}: progress needs a type, as in `{name}: int = progress(0)`")
    fields |= {
        name: Field(name, hints_of(value.fget).get("return", Any), stored=False) for name, value in computed.items()
    }
    known = {*parameters, *fields}
    for field in fields.values():
        if field.counts is not None and field.counts not in EFFECTS:
            raise TypeError(f"{field.name}: unknown effect {field.counts!r} to count")
        if unknown := {field.restarts, field.target, field.window} - known - {None}:
            raise TypeError(f"{field.name}: `{unknown.pop()}` is neither a parameter nor a field")
    return parameters, fields


def _read(function: Callable[..., Any], first: int = 0) -> tuple[tuple[Read, ...], dict[str, Parameter]]:
    """The slots and the parameters that a function takes; `first` is 1 for a method."""
    hints = hints_of(function)
    reads: list[Read] = []
    parameters: dict[str, Parameter] = {}
    for argument in list(inspect.signature(function).parameters.values())[first:]:
        annotation = hints.get(argument.name, Any)
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD):
            raise TypeError(f"`{argument}` hides which slots are read; name each of them")
        if argument.kind is argument.KEYWORD_ONLY:
            parameters[argument.name] = Parameter(argument.name, annotation, argument.default)
        else:
            members = (annotation, *typing.get_args(annotation))  # of a union
            marks = [mark for member in members for mark in typing.get_args(member)]
            holds = [mark.holds for mark in marks if isinstance(mark, Slot)]
            reads.append(Read(argument.name, argument.default, frozenset().union(*holds)))
    return tuple(reads), parameters
