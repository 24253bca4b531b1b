"""What a node can do: the contract of kinds.

A kind is a function or a class marked `@node`. Its signature is its declaration: positional parameters of the call are
the slots it reads, keyword-only ones (or the annotated attributes of a class) are its parameters, attributes set to
`progress(...)` are its saved state. Checker, compiler and checkpoint need nothing else.
"""

from __future__ import annotations

import copy
import enum
import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from graphtrain.kind.fields import ON_GRADIENTS, Action, EpochFields, Field, action_of
from graphtrain.kind.parameter import REQUIRED, Mode, Parameter, is_trigger
from graphtrain.kind.signatures import descriptions_of

Family = Literal["data", "compute", "gradient", "update", "choice", "bookkeeping", "saving", "ranks", "other"]
FAMILIES: tuple[str, ...] = get_args(Family)

# The parameter of every node with `every`: the amount before which it is not due.
FROM = "from"
_FROM_DESCRIPTION = "the node is not due before this amount. Default: it may be due from the start."

# The resource that only a run of several ranks has: in one process, a kind with it as optional is bypassed.
RANKS = "ranks"

# The values of a parameter that is left out: None, and a bound without effect.
_LEFT_OUT = (None, math.inf)


class Batches:
    """Annotation of a slot that holds data whose iteration gives batches; iteration of a mapping gives its keys.

    The Trainer refuses such a mapping when it is made.
    """

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError


@dataclass(frozen=True)
class WrittenBatches:
    """Data written by nodes of the graph, passed to a `setup` with a slot of ``Batches | WrittenBatches``.

    Attributes:
        now: returns what the slot holds; None before it is written.
    """

    now: Callable[[], Any]


class Loaders:
    """Annotation of a slot that may also hold a mapping of loaders: ``Batches | Loaders``."""


class StepFunction:
    """Annotation of a slot that holds a user's function of ``(model, batch)``.

    Such a function may take, by parameter name, further slots, for `step`, and for the `step_inputs` of the kind that
    counts batches (`epoch`, `batch_index`); the compiler binds those, so the kind calls it with the model and the batch
    alone. `step` and `epoch` are those of the training, in an evaluation too.
    """

    def __call__(self, model: Any, batch: Any) -> Any:
        raise NotImplementedError


class Repeated:
    """Annotation of a slot with a step function that a visit may call several times: ``StepFunction | Repeated``.

    Its results cannot go to slots: each call would read those of the call before.
    """


@dataclass(frozen=True)
class CopyOf:
    """A copy of the resource in a slot that the kind reads."""

    source: str


def copy_of(source: str) -> CopyOf:
    """A resource that is a copy of another one, for ``@node(makes=...)``: averaged weights, a target network.

    It is made once, when the run is set up and before anything is loaded: a deep copy, whose parameters need no
    gradients. A resource supplied under its name is used instead.

    Arguments:
        source: the slot with the resource that is copied; the kind reads it.

    >>> from graphtrain.kind import kind_of, node
    >>> @node(makes={"target": copy_of("model")})
    ... def follow(model, target):
    ...     '''Let `target` follow `model`.'''
    >>> kind_of(follow).makes["target"].source
    'model'
    """
    return CopyOf(source)


@dataclass(frozen=True)
class Read:
    """A slot that a kind reads: required, or with a default that stands for an absent resource."""

    name: str
    default: Any = REQUIRED
    is_step_function: bool = False
    is_batches: bool = False
    takes_written: bool = False
    takes_loaders: bool = False
    is_repeated: bool = False

    @property
    def required(self) -> bool:
        return self.default is REQUIRED


@dataclass(frozen=True)
class Roles:
    """The parameters of a kind that the engine knows, by their names or their types; empty for none.

    Attributes:
        records: the prefix of metrics: a parameter with the name of a slot that the kind writes.
        keeps: `keep` of a kind with a step function: slots it returns that an epoch does not clear.
        monitor, mode: the name of a recorded metric, and whether small or large values are good.
    """

    records: str = ""
    keeps: str = ""
    monitor: str = ""
    mode: str = ""


@dataclass(frozen=True)
class Kind:
    """The declaration of a kind, read off its signature; `implementation` is what does the work.

    The arguments of `@node` have the same names here; `idle_without` has the parameters among `optional`.
    """

    name: str
    implementation: Callable[..., Any]
    reads: tuple[Read, ...]
    setup_reads: tuple[Read, ...] | None
    writes: tuple[str, ...]
    parameters: Mapping[str, Parameter]
    fields: Mapping[str, Field]
    effects: tuple[str, ...]
    optional: tuple[str, ...]
    idle_without: tuple[str, ...]
    varying: tuple[str, ...]
    transient: tuple[str, ...]
    makes: Mapping[str, CopyOf]
    step_inputs: Mapping[str, str]
    synchronises: bool
    extra_due_fields: Mapping[str, str]
    observer: bool
    family: str
    description: str
    keeps_state: bool
    acts_at_end: bool
    acts_at_body_end: bool
    reads_at_end: bool
    releases: bool
    refuses_settings: bool
    has_on_metrics: bool

    @property
    def activity(self) -> str:
        """The category of its host time; empty for training."""
        return "data" if self.family == "data" else ""

    @functools.cached_property
    def epoch_fields(self) -> EpochFields | None:
        """The fields about its epochs, of a kind that fetches batches; None for others."""
        names = EpochFields()
        return names if {*names.stored, *names.computed} <= self.fields.keys() else None

    @functools.cached_property
    def trigger(self) -> Literal["every", "after"] | None:
        """The name of its trigger parameter, if it has one."""
        names: tuple[Literal["every", "after"], ...] = ("every", "after")
        for name in names:
            if name in self.parameters and is_trigger(self.parameters[name].annotation):
                return name
        return None

    @functools.cached_property
    def roles(self) -> Roles:
        """Which of its parameters the engine knows."""
        monitor = next((name for name, each in self.parameters.items() if each.metric is not None), "")
        modes = [
            name for name, each in self.parameters.items() if Mode in (each.annotation, *get_args(each.annotation))
        ]
        return Roles(
            records=next((name for name in self.writes if name in self.parameters), ""),
            keeps="keep" if self.may_return_slots and "keep" in self.parameters else "",
            monitor=monitor,
            mode=modes[0] if monitor and modes else "",
        )

    @property
    def descriptions(self) -> dict[str, str]:
        """The description of each parameter that its docstring describes."""
        everywhere = {FROM: _FROM_DESCRIPTION} if FROM in self.parameters else {}
        return {**everywhere, **descriptions_of(self.implementation)}

    def passed(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters that a function is called with: all but `from`, which is for its trigger alone."""
        return {name: value for name, value in parameters.items() if name != FROM}

    @functools.cached_property
    def actions(self) -> tuple[Action, ...]:
        """Its effects, parsed, in order."""
        return tuple(map(action_of, self.effects))

    def has_effect(self, effect: str) -> bool:
        """True if a visit may have an effect, whatever the optimizer."""
        return any(action.effect == effect for action in self.actions)

    @property
    def may_return_slots(self) -> bool:
        """True if it is given a user's step function that may return values for further slots."""
        return any(read.is_step_function for read in self.reads) and not self.repeats_step

    @property
    def repeats_step(self) -> bool:
        """True if a visit may call its step function several times."""
        return any(read.is_repeated for read in self.reads)

    @property
    def may_record_rows(self) -> bool:
        """True if it reads the recorder of metrics; a kind with `on_metrics` records no rows itself."""
        reads = (*self.reads, *(self.setup_reads or ()))
        return not self.has_on_metrics and any(read.name == "recorder" for read in reads)

    @functools.cached_property
    def slots(self) -> tuple[str, ...]:
        """Every slot name that `reads` of a node may rename."""
        names = [read.name for read in (*self.reads, *(self.setup_reads or ()))]
        names += [action.slot for action in self.actions if action.effect in ON_GRADIENTS]
        names += self.optional
        if any(field.counts for field in self.fields.values()):
            names.append("optimizer")
        return tuple(dict.fromkeys(names))

    def is_idle(self, parameters: Mapping[str, Any], varying: Collection[str] = ()) -> bool:
        """True if the parameters without which there is nothing to do are all left out: None, or a bound of infinity.

        Arguments:
            varying: the parameters whose values are not known before the visit. Default: none.
        """
        return bool(self.left_out(parameters, varying))

    def left_out(self, parameters: Mapping[str, Any], varying: Collection[str] = ()) -> list[str]:
        """The parameters without which there is nothing to do, if all are left out; arguments as of `is_idle`."""
        left_out = [name for name in self.idle_without if name not in varying and parameters[name] in _LEFT_OUT]
        return left_out if len(left_out) == len(self.idle_without) else []

    def due_fields(self, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """The fields that make it due in addition to its trigger, with these parameters."""
        return tuple(field for field, name in self.extra_due_fields.items() if parameters[name] not in _LEFT_OUT)

    def counter(self, name: str) -> Field | None:
        """The counter of a window to which a field belongs: the counter itself, its size, or whether it is full."""
        return self._counters.get(name)

    @functools.cached_property
    def _counters(self) -> Mapping[str, Field]:
        counters = [field for field in self.fields.values() if field.counts is not None]
        return {name: field for field in reversed(counters) for name in (field.name, field.window, field.full) if name}

    def new_instance(self) -> Any:
        """A fresh object of a class kind with its progress at the defaults; for a function, an empty record."""
        instance = self.implementation() if inspect.isclass(self.implementation) else FunctionRecord()
        self.reset(instance, whole=True)
        return instance

    def reset(self, instance: Any, *, whole: bool = False) -> None:
        """Reset the progress of `instance` to the defaults; if `whole`, also fields declared with `stays`."""
        for field in self.fields.values():
            if field.stored and (whole or not field.stays):
                setattr(instance, field.name, copy.deepcopy(field.default))


class FunctionRecord:
    """The progress of a function kind: its runs, and the last firing of its trigger."""

    runs: int


def drawn_family(effects: str | Collection[str] = (), observer: bool = False, family: str | None = None) -> str:
    """The family in which a kind is drawn, from the arguments of `@node`: by effects unless `family` is given.

    >>> drawn_family("backward"), drawn_family(("zero_grad", "backward", "step")), drawn_family()
    ('compute', 'update', 'other')
    """
    texts = [effects] if isinstance(effects, str) else effects
    names = {text.partition(" ")[0].removesuffix("?") for text in texts}  # whether they exist is checked elsewhere
    if family is not None:
        return family
    if "step" in names:
        return "update"
    if "backward" in names:
        return "compute"
    if "exchange" in names:
        return "ranks"
    if names & {"clip", "divide", "read", "scale", "unscale", "use", "zero_grad"}:
        return "gradient"
    return "bookkeeping" if names or observer else "other"


class Ask(enum.Enum):
    """A request that a step function returns as the second of two values: ``return loss, graphtrain.STOP``.

    >>> Ask.STOP, str(Ask.END_EPOCH)
    (STOP, 'the end of the epoch')
    """

    STOP = "the end of the run"
    END_EPOCH = "the end of the epoch"

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.value


STOP = Ask.STOP
"""The run ends as at its `finish.after`: the open window is closed first."""

END_EPOCH = Ask.END_EPOCH
"""The epoch ends as if its data had no further batch; in an evaluation, that of the evaluation does."""
