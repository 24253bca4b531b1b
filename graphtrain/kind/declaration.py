"""What a node can do: the contract of kinds.

A kind is a function or a class marked `@node`. Its signature is its declaration: positional parameters of the call are
the slots it reads, keyword-only ones (or the annotated attributes of a class) are its parameters, attributes set to
`progress(...)` are what it must not forget. Checker, compiler and checkpoint need nothing else.
"""

from __future__ import annotations

import copy
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args, overload

from graphtrain.kind.hints import hints_of
from graphtrain.kind.parameter import REQUIRED, Parameter, is_trigger

Effect = Literal["backward", "clip", "unscale", "use", "step", "zero_grad", "eval", "train"]
EFFECTS: tuple[str, ...] = get_args(Effect)

RESERVED = frozenset({"use", "graph", "reads", "writes", "runs", "due", "fired"})

Implementation = TypeVar("Implementation", bound=Callable[..., Any])


class StepFunction:
    """Annotation of a slot that holds a user's function of ``(model, batch)``.

    Such a function may ask by parameter name for further slots and for `step`, `epoch` and `batch_index`; the compiler
    binds those, so the kind calls it with the model and the batch alone.
    """

    def __call__(self, model: Any, batch: Any) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Read:
    """A slot that a kind reads: required, or with a default that stands for an absent resource."""

    name: str
    default: Any = REQUIRED
    is_step_function: bool = False

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


@dataclass(frozen=True)
class Field:
    """A field that guards, clocks and reads may name as ``node.field``.

    Arguments:
        type: the Python type of its value.
        stored: True for progress (saved in every checkpoint), False for what is computed from it.
        default: the value when the node's graph is entered.
        counts: the effect whose visits the engine counts here, per open window of the node's optimizer.
        restarts: for a counter that starts again at 0, the field that changes when it does.
        in_digest: False for what no continuation depends on, such as a reading of the wall clock.
    """

    name: str
    type: Any
    stored: bool
    default: Any = None
    counts: str | None = None
    restarts: str | None = None
    in_digest: bool = True


def progress(default: Any, *, counts: Effect | None = None, restarts: str | None = None, in_digest: bool = True) -> Any:
    """Declare an attribute of a class kind as progress: saved in every checkpoint, readable in guards.

    Arguments:
        default: the value when the graph is entered; copied, so a list or dict is safe.
        counts: ``"backward"``: the engine counts the backward passes since the gradients of the node's optimizer were
            last cleared. Default: the kind changes the value itself.
        restarts: for a counter that starts again at 0 (batches within an epoch): the attribute whose change says so.
        in_digest: False leaves it out of `Trainer.digest`.

    >>> @node
    ... class Count:
    ...     '''Count its own visits by two.'''
    ...     twice: int = progress(0)
    ...     def __call__(self):
    ...         self.twice += 2
    >>> kind_of(Count).fields["twice"].default
    0
    """
    return _Progress(default, counts, restarts, in_digest)


@dataclass(frozen=True)
class _Progress:
    default: Any
    counts: str | None
    restarts: str | None
    in_digest: bool


class derived_clock(property):  # noqa: N801 - used as a decorator, like property
    """A property that a clock may count by: an exact fraction that grows with an integer counter.

    Arguments:
        counter: the attribute that holds the integer counter.
        restarts: the attribute whose change voids what was computed from the counter.
        reach: the method that answers, for a value of this clock, from which value of the counter on it may be reached.

    With them a trigger compares two integers a batch instead of two fractions (0.1 us against 2 us).
    """

    counter: str
    restarts: str
    reach: str

    @classmethod
    def of(cls, *, counter: str, restarts: str, reach: str) -> Callable[[Callable[[Any], Any]], Any]:
        def decorate(function: Callable[[Any], Any]) -> derived_clock:
            made = cls(function)
            made.counter, made.restarts, made.reach = counter, restarts, reach
            return made

        return decorate


@dataclass(frozen=True)
class Kind:
    """The declaration of a kind, read off its signature; `implementation` is what does the work."""

    name: str
    implementation: Callable[..., Any]
    reads: tuple[Read, ...]
    setup_reads: tuple[Read, ...] | None
    writes: tuple[str, ...]
    parameters: Mapping[str, Parameter]
    fields: Mapping[str, Field]
    effects: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    transient: tuple[str, ...] = ()
    observer: bool = False
    activity: str = ""
    description: str = ""
    keeps_state: bool = field(default=False)

    @property
    def trigger(self) -> Literal["every", "after"] | None:
        """The name of its trigger parameter, if it has one."""
        names: tuple[Literal["every", "after"], ...] = ("every", "after")
        for name in names:
            if name in self.parameters and is_trigger(self.parameters[name].annotation):
                return name
        return None

    @property
    def slots(self) -> tuple[str, ...]:
        """Every slot name that `reads` of a node may rename."""
        names = [read.name for read in (*self.reads, *(self.setup_reads or ()))]
        if self.effects and not {"eval", "train"}.issuperset(self.effects):
            names.append("optimizer")
        names += [one for one in self.optional if one not in names]
        if any(one.counts for one in self.fields.values()):
            names.append("optimizer")
        return tuple(dict.fromkeys(names))

    def new_instance(self) -> Any:
        """A fresh object of a class kind with its progress at the defaults; for a function, an empty record."""
        instance = self.implementation() if inspect.isclass(self.implementation) else FunctionRecord()
        self.reset(instance)
        return instance

    def reset(self, instance: Any) -> None:
        """Set the progress of `instance` back to the defaults."""
        for one in self.fields.values():
            if one.stored:
                setattr(instance, one.name, copy.deepcopy(one.default))


class FunctionRecord:
    """Where the progress of a function kind lives: its runs, and the last firing of its trigger."""

    runs: int


# Kinds declared outside graphtrain: scripts and notebook cells. A later definition of a name replaces the earlier one.
DECLARED: dict[str, Kind] = {}


@overload
def node(implementation: Implementation, /) -> Implementation: ...
@overload
def node(
    *,
    writes: str | tuple[str, ...] = (),
    effects: Effect | tuple[Effect, ...] = (),
    optional: str | tuple[str, ...] = (),
    transient: str | tuple[str, ...] = (),
    observer: bool = False,
    activity: str = "",
    name: str | None = None,
) -> Callable[[Implementation], Implementation]: ...
def node(
    implementation: Callable[..., Any] | None = None,
    /,
    *,
    writes: str | tuple[str, ...] = (),
    effects: str | tuple[str, ...] = (),
    optional: str | tuple[str, ...] = (),
    transient: str | tuple[str, ...] = (),
    observer: bool = False,
    activity: str = "",
    name: str | None = None,
) -> Any:
    """Mark a function or a class as a kind of node.

    Arguments:
        writes: the slots its return value goes to; several take a tuple of as many values. Default: none.
        effects: what a visit does to the gradients of the slot `optimizer`, or to the mode of the model, in order:
            `backward`, `clip`, `unscale`, `use`, `step`, `zero_grad`, `eval`, `train`. Default: nothing.
        optional: resources without which a visit would do nothing; the node is then bypassed. Default: none.
        transient: written slots that cannot be saved (an iterator, an open graph); no save point while one is alive.
        observer: True if the training does not depend on its progress; it is then outside `Trainer.digest`.
        activity: what its host time is counted under, beside `train`, such as ``"data"``. Default: as training.
        name: the name graphs use. Default: the function's name, or the class's in snake case.

    Raises:
        TypeError: the signature is no declaration (``*args``, an unknown effect, two triggers, ...).

    >>> @node(writes="noise")
    ... def noise_level(*, scale: float = 1.0):
    ...     return scale
    >>> kind_of(noise_level).parameters["scale"].default
    1.0
    """

    def mark(target: Implementation) -> Implementation:
        if not _is_function_or_class(target):
            raise TypeError(f"@node marks a function or a class; got {target!r}")
        kind = _declare(
            target,
            name or _snake_case(target.__name__),
            writes=_names(writes),
            effects=_names(effects),
            optional=_names(optional),
            transient=_names(transient),
            observer=observer,
            activity=activity,
        )
        try:
            target.__kind__ = kind  # type: ignore[attr-defined]
        except (AttributeError, TypeError):
            raise TypeError(f"{kind.name}: {target!r} cannot be marked; write a function that calls it") from None
        # The shipped kinds are found by entry points, so that importing one cannot undo a user's own of that name.
        if not target.__module__.startswith("graphtrain."):
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
    made: Kind = vars(node(target))["__kind__"]
    return made


def _is_function_or_class(target: Any) -> bool:
    return inspect.isclass(target) or inspect.isroutine(target)


def _declare(
    target: Callable[..., Any],
    name: str,
    *,
    writes: tuple[str, ...],
    effects: tuple[str, ...],
    optional: tuple[str, ...],
    transient: tuple[str, ...],
    observer: bool,
    activity: str,
) -> Kind:
    if not name.isidentifier():
        hint = ": give `node(name=...)` to a lambda" if name == "<lambda>" else ""
        raise TypeError(f"the name of a kind must be an identifier; got {name!r}{hint}")
    if odd := [slot for slot in (*writes, *optional) if not (isinstance(slot, str) and slot.isidentifier())]:
        raise TypeError(f"{name}: the name of a slot must be an identifier; got {odd[0]!r}")
    if len(set(writes)) < len(writes):
        raise TypeError(f"{name}: it writes one slot twice: {', '.join(writes)}")
    unknown = [effect for effect in effects if effect not in EFFECTS]
    if unknown:
        raise TypeError(f"{name}: unknown effect {unknown[0]!r}; known: {', '.join(EFFECTS)}")
    if missing := [slot for slot in transient if slot not in writes]:
        raise TypeError(f"{name}: transient slot {missing[0]!r} is not among what it writes")
    if inspect.isclass(target):
        if not callable(getattr(target, "__call__", None)) or "__call__" not in dir(target):  # noqa: B004
            raise TypeError(f"{name}: a class kind needs a method __call__")
        _check_constructor(target, name)
        parameters, fields = _attributes(target, name)
        reads, keyword_only = _signature(target.__call__, name, method=True)
        if keyword_only:
            raise TypeError(
                f"{name}.__call__: a class takes parameters as annotated attributes, not `{next(iter(keyword_only))}`"
            )
        setup = getattr(target, "setup", None)
        setup_reads, keyword_only = _signature(setup, name, method=True) if setup is not None else (None, {})
        if keyword_only:
            raise TypeError(f"{name}.setup: it reads slots by position, not by keyword as `{next(iter(keyword_only))}`")
    else:
        reads, parameters = _signature(target, name, method=False)
        setup_reads, fields = None, {}
    call = target.__call__ if inspect.isclass(target) else target
    if inspect.iscoroutinefunction(call) or inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise TypeError(f"{name}: a kind is called and returns; it cannot be `async` or a generator")
    _check_defaults(parameters, name)
    if taken := sorted(RESERVED & {*parameters, *fields}):
        raise TypeError(f"{name}: `{taken[0]}` means something else in every node; choose another name")
    fields["runs"] = Field("runs", int, stored=True, default=0)
    triggers = [one.name for one in parameters.values() if is_trigger(one.annotation)]
    if len(triggers) > 1 or any(one not in ("every", "after") for one in triggers):
        raise TypeError(f"{name}: a kind has at most one Trigger, named `every` or `after`; got {', '.join(triggers)}")
    if triggers:
        fields["due"] = Field("due", bool, stored=False)
    if triggers == ["every"]:
        fields["fired"] = Field("fired", dict, stored=True, default={})
    return Kind(
        name=name,
        implementation=target,
        reads=reads,
        setup_reads=setup_reads,
        writes=writes,
        parameters=MappingProxyType(parameters),
        fields=MappingProxyType(fields),
        effects=effects,
        optional=optional,
        transient=transient,
        observer=observer,
        activity=activity,
        description=inspect.cleandoc(target.__doc__ or ""),
        keeps_state=callable(getattr(target, "state_dict", None))
        and callable(getattr(target, "load_state_dict", None)),
    )


def _attributes(target: type, name: str) -> tuple[dict[str, Parameter], dict[str, Field]]:
    parameters: dict[str, Parameter] = {}
    fields: dict[str, Field] = {}
    for attribute, annotation in hints_of(target).items():
        value = inspect.getattr_static(target, attribute, REQUIRED)
        if attribute.startswith("_") or typing.get_origin(annotation) is typing.ClassVar:
            continue
        if isinstance(value, _Progress):
            fields[attribute] = Field(
                attribute, annotation, True, value.default, value.counts, value.restarts, value.in_digest
            )
        else:
            parameters[attribute] = Parameter(attribute, annotation, value)
    for attribute, value in inspect.getmembers_static(target):
        if isinstance(value, property) and not attribute.startswith("_"):
            returned = hints_of(value.fget).get("return", Any)
            fields[attribute] = Field(attribute, returned, stored=False)
        elif isinstance(value, _Progress) and attribute not in fields:
            raise TypeError(f"{name}.{attribute}: progress needs a type, as in `{attribute}: int = progress(0)`")
    for one in fields.values():
        if one.counts is not None and one.counts not in EFFECTS:
            raise TypeError(f"{name}.{one.name}: unknown effect {one.counts!r} to count; known: {', '.join(EFFECTS)}")
        if one.restarts is not None and one.restarts not in fields:
            raise TypeError(
                f"{name}.{one.name}: `{one.restarts}`, which it restarts with, is no field; known: {', '.join(fields)}"
            )
    return parameters, fields


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
    for one in parameters.values():
        if one.default is REQUIRED or one.default is None:
            continue
        try:
            one.coerce(one.default)
        except ValueError as error:
            raise TypeError(f"{name}.{one.name}: the default is of another type than declared: {error}") from None


def _signature(
    function: Callable[..., Any], name: str, *, method: bool
) -> tuple[tuple[Read, ...], dict[str, Parameter]]:
    hints = hints_of(function)
    reads: list[Read] = []
    parameters: dict[str, Parameter] = {}
    members = list(inspect.signature(function).parameters.values())
    for one in members[1:] if method else members:
        annotation = hints.get(one.name, Any)
        default = REQUIRED if one.default is inspect.Parameter.empty else one.default
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            raise TypeError(f"{name}: `{one}` hides which slots are read; name each of them")
        if one.kind is one.KEYWORD_ONLY:
            parameters[one.name] = Parameter(one.name, annotation, default)
        else:
            is_step_function = StepFunction in (annotation, *get_args(annotation))
            reads.append(Read(one.name, default, is_step_function))
    return tuple(reads), parameters


def _names(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
