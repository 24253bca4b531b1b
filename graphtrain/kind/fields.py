"""Fields of a kind: what guards, clocks and reads may name as ``node.field``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

OnGradients = Literal["backward", "clip", "divide", "exchange", "read", "scale", "unscale", "use", "step", "zero_grad"]
ON_GRADIENTS: tuple[str, ...] = get_args(OnGradients)
EFFECTS: tuple[str, ...] = (*ON_GRADIENTS, "eval", "train", "forget")


# `restarts` of a field that belongs to the gradients of the node's optimizer, and is cleared with them.
GRADIENTS = "gradients"
# The field of a node that hands a batch, or a part of one, to each rank: how many ranks got one at its last visit.
ROUND = "round_batches"
# The field of a node that may leave ranks out: true on a rank that got nothing.
IDLE = "idle"


class Action(NamedTuple):
    """One effect of a kind, as `effects` of `@node` declares it."""

    effect: str  # what a visit does; `scale` for `unscale` too
    slot: str = "optimizer"  # the optimizer on whose gradients it acts


def action_of(text: str) -> Action:
    """The effect that a text declares; raises a TypeError if it declares none.

    >>> action_of("use inner_optimizer")
    Action(effect='use', slot='inner_optimizer')
    """
    effect, _, slot = text.strip().partition(" ")
    if effect not in EFFECTS:
        raise TypeError(f"unknown effect {text!r}; known: {', '.join(EFFECTS)}")
    if slot and (effect not in ON_GRADIENTS or not slot.strip().isidentifier()):
        raise TypeError(f"{text!r}: an effect on gradients is followed by the slot of its optimizer: 'use optimizer'")
    return Action("scale" if effect == "unscale" else effect, slot.strip() or "optimizer")


# The fields of a kind that fetches batches, as `next_batch` does: the checks count them without data.
EPOCH_FIELDS = frozenset((
    *("epoch", "epoch_batches", "batches", "samples", "last", "exhausted", "empty", "opened"),  # progress
    *("epochs", "epoch_length", "batch_index"),
))  # fmt: skip


@dataclass(frozen=True)
class Field:
    """A field that guards, clocks and reads may name as ``node.field``; the arguments of `progress` have its names.

    Arguments:
        type: the Python type of its value.
        stored: True for progress (saved in every checkpoint), False for a value computed from it.
        last: for a counter of a window, the field that holds the size of the last one.
        window: for a counter of a window, the field in which the engine keeps the `target` from when it opened.
        full: for a counter of a window, the field that is true once it has reached that.
        with_gradients: True if it belongs to the gradients of the node's optimizer, and is cleared with them.
    """

    name: str
    type: Any
    stored: bool
    default: Any = None
    counts: str | None = None
    restarts: str | None = None
    target: str | None = None
    last: str | None = None
    window: str | None = None
    full: str | None = None
    adds: int | None = None
    with_gradients: bool = False
    in_digest: bool = True
    stays: bool = False


def progress(
    default: Any,
    *,
    counts: OnGradients | None = None,
    restarts: str | None = None,
    target: str | None = None,
    adds: int | None = None,
    in_digest: bool = True,
    stays: bool = False,
) -> Any:
    """Declare an attribute of a class kind as progress: saved in every checkpoint, readable in guards.

    Arguments:
        default: the value when the graph is entered; copied, so a list or dict is safe.
        counts: ``"backward"``: the engine counts the backward passes since the gradients of the node's optimizer were
            last cleared. A kind with such a counter may have fields that the engine keeps, by their names: `window`,
            progress, is the value of `target` when the window opened, so that the window keeps its size; the property
            `full` is true once the counter has reached that; and `last_` with the name of the counter holds the size of
            the last window that was stepped. Default: the kind changes the value itself.
        restarts: for a counter that starts again at 0 (batches within an epoch): the attribute that changes when it
            does. ``"gradients"``: for a sum that belongs to the gradients of the node's optimizer, and that another
            node or a guard reads: the engine resets it to its default when they are cleared. Among several ranks each
            has its own, as with gradients before they are exchanged, and it is summed with them when the number of
            ranks changes. Default: it only grows.
        target: for a counter that starts again at 0: the parameter or attribute with its final value, such as the
            length of a window or of an epoch; 0 if unknown. Default: none.
        adds: the amount that each visit adds to it, where that is constant: the checks count it. Default:
            not known.
        in_digest: False leaves it out of `Trainer.digest`. Default: True.
        stays: True keeps the value when a nested graph is entered again. Default: False, it is reset.

    >>> from graphtrain.kind import kind_of, node
    >>> @node
    ... class Count:
    ...     '''Count its own visits by two.'''
    ...     twice: int = progress(0)
    ...     def __call__(self):
    ...         self.twice += 2
    >>> kind_of(Count).fields["twice"].default
    0
    """
    return Field("", Any, True, default, counts, restarts, target, adds=adds, in_digest=in_digest, stays=stays)


class derived_clock(property):  # noqa: N801 - used as a decorator
    """A property that a clock may count by: an exact fraction that grows with an integer counter.

    Arguments:
        counter: the attribute that holds the integer counter.
        restarts: the attribute whose change invalidates what was computed from the counter.
        reach: the method that returns, for a value of this clock, the first value of the counter that may reach it; it
            raises if no value can, such as a fraction of an epoch of data without a length.

    They let a trigger compare two integers a batch instead of two fractions (0.1 us against 2 us).
    """

    def __init__(self, *, counter: str, restarts: str, reach: str) -> None:
        self.counter, self.restarts, self.reach = counter, restarts, reach

    def __call__(self, function: Callable[[Any], Any]) -> derived_clock:
        super().__init__(function)
        return self
