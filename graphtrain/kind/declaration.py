"""What a node can do: the contract of kinds.

A kind is a function or a class marked `@node`. Its signature is its declaration: positional parameters of the call are
the slots it reads, keyword-only ones (or the annotated attributes of a class) are its parameters, attributes set to
`progress(...)` are its saved state. Checker, compiler and checkpoint need nothing else.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import inspect
import math
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, get_args

from graphtrain.kind.fields import EPOCH_FIELDS, ON_GRADIENTS, Field, action_of
from graphtrain.kind.parameter import REQUIRED, Metric, Mode, Parameter
from graphtrain.kind.signatures import descriptions_of, hints_of
from graphtrain.kind.trigger import Trigger

Family = Literal["data", "compute", "gradient", "update", "choice", "bookkeeping", "saving", "ranks", "other"]
FAMILIES: tuple[str, ...] = get_args(Family)

FROM = "from"  # the parameter of every node with `every`: the amount before which it is not due

# The resource that only a run of several ranks has: in one process, a kind with it as optional is bypassed.
RANKS = "ranks"

LEFT_OUT = (None, math.inf)  # the values of a parameter that is left out: None, and a bound without effect

# The family in which a kind with an effect is drawn; of several, the first.
_FAMILY_OF_EFFECT: Mapping[str, Family] = {
    "step": "update",
    "backward": "compute",
    "exchange": "ranks",
    **dict.fromkeys(("clip", "divide", "read", "scale", "use", "zero_grad"), "gradient"),
}

ENDINGS = ("at_end", "at_body_end")  # the methods called at the end of the run, and of the body that a node is in


Holds = Literal["a step function", "a repeated step function", "batches", "written batches"]


class Slot:
    """What a slot holds, in its annotation: ``Annotated[Any, Slot("batches")]``.

    Arguments:
        holds: "a step function", called with a model and a batch; "batches", data whose iteration gives them, or a
            mapping of several such; "written batches": data that nodes write may come as a `WrittenBatches`.
    """

    def __init__(self, *holds: Holds) -> None:
        self.holds = frozenset(holds)


@dataclass(frozen=True)
class WrittenBatches:
    """Data written by nodes of the graph, passed to a `setup` whose slot takes "written batches".

    Attributes:
        now: returns what the slot holds; None before it is written.
    """

    now: Callable[[], Any]


StepFunction = Annotated[Callable[..., Any], Slot("a step function")]
"""Annotation of a slot that holds a user's function of ``(model, batch)``.

Such a function may take, by parameter name, further slots, `step`, and the `step_inputs` of the kind that counts
batches (`epoch`, `batch_index`); the compiler binds those, so the kind calls it with the model and the batch alone.
`step` and `epoch` are those of the training, in an evaluation too.
"""

Repeated = Annotated[Callable[..., Any], Slot("a repeated step function")]
"""Annotation of a slot with a step function that a visit may call several times: ``StepFunction | Repeated``.

Its results cannot go to slots: each call would read those of the call before.
"""


@dataclass(frozen=True)
class Read:
    """A slot that a kind reads: required, or with a default that is used if nothing supplies it."""

    name: str
    default: Any = REQUIRED
    holds: frozenset[Holds] = frozenset()

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


class Declared(TypedDict, total=False):
    """The arguments of `@node`, which describes them."""

    writes: str | tuple[str, ...]
    effects: str | tuple[str, ...]
    optional: str | tuple[str, ...]
    varying: str | tuple[str, ...]
    transient: str | tuple[str, ...]
    copies: Mapping[str, str]
    step_inputs: Mapping[str, str]
    synchronises: bool
    extra_due_fields: Mapping[str, str]
    observer: bool
    family: Family
    name: str


@dataclass(eq=False)
class Kind:
    """The declaration of a kind, read off its signature; `implementation` is what does the work.

    The arguments of `@node` have the same names here; `enabling_parameters` has the parameters among `optional`.

    Attributes:
        trigger: the name of its trigger parameter, "every" or "after", if it has one.
        actions: its effects, parsed, in order.
        does: the names of these effects, whatever the optimizer.
        takes: what the slots hold that a visit reads, as `Slot` has it.
        slots: every slot name that `reads` of a node may rename.
        fetches: True if it fetches batches, and has the fields about epochs.
        reads_at_end: True if a method that is called at an end reads slots, which are those of a visit.
        may_record_rows: True if it reads the recorder of metrics; a kind with `on_metrics` records no rows itself.
        keeps_state: True if its instances have a `state_dict` besides progress.
        may_return_slots: True if a visit reads a step function, which may return values for further slots.
        opaque: the slot that it writes, if its return annotation is neither a number nor text: no expression reads it.
        records: the parameter with the prefix of its metrics, which has the name of a slot that it writes; or empty.
        keeps: the parameter with the slots, of those that its step function returns, that an epoch does not clear.
        monitor: the parameter that names a recorded metric; empty for none.
        mode: the parameter that says whether small or large values of `monitor` are good; empty for none.

    Raises:
        TypeError: an argument does not fit the signature, or the others.
    """

    name: str
    implementation: Callable[..., Any]
    reads: tuple[Read, ...]
    setup_reads: tuple[Read, ...] | None
    parameters: Mapping[str, Parameter]
    fields: Mapping[str, Field]
    writes: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    enabling_parameters: tuple[str, ...] = dataclasses.field(default=(), init=False)
    varying: tuple[str, ...] = ("",)  # not declared
    transient: tuple[str, ...] = ()
    copies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    step_inputs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    synchronises: bool = False
    extra_due_fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    observer: bool = False
    family: str = ""

    def __post_init__(self) -> None:
        for name in ("writes", "effects", "optional", "varying", "transient"):
            names = getattr(self, name)
            setattr(self, name, (names,) if isinstance(names, str) else tuple(names))
        self.enabling_parameters = tuple([each for each in self.optional if each in self.parameters])
        self.optional = tuple([each for each in self.optional if each not in self.parameters])
        self.trigger = self._typed(Trigger) or None
        self.actions = tuple(map(action_of, self.effects))
        self.does = frozenset([action.effect for action in self.actions])
        self.takes: frozenset[str] = frozenset().union(*[read.holds for read in self.reads])
        read = [read.name for read in (*self.reads, *(self.setup_reads or ()))]
        acted_on = [action.slot for action in self.actions if action.effect in ON_GRADIENTS]
        acted_on += ["optimizer" for field in self.fields.values() if field.counts]
        self.slots = tuple(dict.fromkeys([*read, *acted_on, *self.optional]))
        self.fetches = self.fields.keys() >= EPOCH_FIELDS
        self.keeps_state = self.has("state_dict") and self.has("load_state_dict")
        self.may_return_slots = "a step function" in self.takes and "a repeated step function" not in self.takes
        self.may_record_rows = "recorder" in read and not self.has("on_metrics")
        endings = [getattr(self.implementation, ending) for ending in ENDINGS if self.has(ending)]
        self.reads_at_end = bool([each for each in endings if len(inspect.signature(each).parameters) > 1])
        call = self.implementation.__call__ if inspect.isclass(self.implementation) else self.implementation
        returns = hints_of(call).get("return", Any)
        is_opaque = returns is not Any and isinstance(returns, type) and not issubclass(returns, int | float | str)
        self.opaque = self.writes if is_opaque and len(self.writes) == 1 else ()
        self.records = next((name for name in self.writes if name in self.parameters), "")
        self.keeps = "keep" if self.may_return_slots and "keep" in self.parameters else ""
        self.monitor = self._typed(Metric)
        self.mode = self._typed(Mode) if self.monitor else ""
        fixed = {self.trigger, FROM, *self.writes, *self.extra_due_fields.values()}  # read before the node runs
        if self.varying == ("",):
            is_class = inspect.isclass(self.implementation)
            self.varying = () if is_class else tuple([name for name in self.parameters if name not in fixed])
        drawn = [family for effect, family in _FAMILY_OF_EFFECT.items() if effect in self.does]
        self.family = self.family or [*drawn, "bookkeeping" if self.does or self.observer else "other"][0]
        unknown = f"{{!r}} is not a parameter; known: {', '.join(self.parameters) or 'none'}"
        flags = {name for name, each in self.fields.items() if self.trigger is not None and each.type in (bool, Any)}
        copies = {name for name, source in self.copies.items() if {name, source} <= {*read}}
        slots = {slot for slot in (*self.writes, *self.optional) if str(slot).isidentifier()}
        slots -= {slot for slot in self.writes if self.writes.count(slot) > 1}
        rules: tuple[tuple[Iterable[Any], Container[Any], str], ...] = (
            ((*self.writes, *self.optional), slots, "the names of slots are identifiers, each once; got {!r}"),
            (self.transient, self.writes, "transient: {!r} is not a slot that the kind writes"),
            (self.copies, copies, "copies: the kind must read both {!r} and the slot that it copies"),
            (self.extra_due_fields, flags, "extra_due_fields: {!r} is not a bool field of a kind with a trigger"),
            (self.extra_due_fields.values(), self.parameters, f"extra_due_fields: {unknown}"),
            (self.varying, self.parameters, f"varying: {unknown}"),
            (self.varying, self.parameters.keys() - fixed, "{!r} cannot be varying: it is read before the node runs"),
            (self.step_inputs.values(), self.fields, "step_inputs: {!r} is not a field"),
            ((self.family,), FAMILIES, f"unknown family {{!r}}; known: {', '.join(FAMILIES)}"),
        )
        for names, right, message in rules:
            if wrong := [name for name in names if name not in right]:
                raise TypeError(message.format(wrong[0]))

    def _typed(self, annotation: Any) -> str:
        """The first parameter of a type, or of a union with it; empty for none."""
        types = {name: (each.annotation, *get_args(each.annotation)) for name, each in self.parameters.items()}
        return next((name for name, members in types.items() if annotation in members), "")

    def has(self, method: str) -> bool:
        """True if the class defines a method that a kind may have, such as `at_end` or `on_metrics`."""
        return inspect.isclass(self.implementation) and callable(getattr(self.implementation, method, None))

    @property
    def description(self) -> str:
        """Its docstring."""
        return inspect.cleandoc(self.implementation.__doc__ or "")

    @property
    def descriptions(self) -> dict[str, str]:
        """The description of each parameter that its docstring describes."""
        start = "the node is not due before this amount. Default: it may be due from the start."
        return {**({FROM: start} if FROM in self.parameters else {}), **descriptions_of(self.implementation)}

    def is_idle(self, parameters: Mapping[str, Any], varying: Collection[str] = ()) -> bool:
        """True if all `enabling_parameters` are left out (None or infinity), so that a visit would do nothing.

        Arguments:
            varying: parameters whose values are not known before the visit. Default: none.
        """
        left_out = [name for name in self.enabling_parameters if name not in varying and parameters[name] in LEFT_OUT]
        return bool(left_out) and len(left_out) == len(self.enabling_parameters)

    def counter(self, name: str) -> Field | None:
        """The counter of a window to which a field belongs: the counter itself, its size, or whether it is full."""
        for field in self.fields.values():
            if field.counts is not None and name in (field.name, field.window, field.full):
                return field
        return None

    def reset(self, instance: Any, *, whole: bool = False) -> None:
        """Reset the progress of `instance` to the defaults; if `whole`, also fields declared with `stays`."""
        for field in self.fields.values():
            if field.stored and (whole or not field.stays):
                setattr(instance, field.name, copy.deepcopy(field.default))


class FunctionRecord:
    """The progress of a node whose kind is a function: the number of its runs."""

    runs: int


class StepRequest(enum.Enum):
    """A request that a step function returns as the second of two values: ``return loss, graphtrain.STOP``.

    >>> StepRequest.STOP, str(StepRequest.END_EPOCH)
    (STOP, 'the end of the epoch')
    """

    STOP = "the end of the run"
    END_EPOCH = "the end of the epoch"

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.value


STOP = StepRequest.STOP
"""The run ends as at its `finish.after`: the open window is closed first."""

END_EPOCH = StepRequest.END_EPOCH
"""The epoch ends as if its data had no further batch; in an evaluation, that of the evaluation does."""
