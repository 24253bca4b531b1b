"""Detection of non-finite losses, gradients or weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from graphtrain.errors import NotFiniteError, UsageError
from graphtrain.kind import node, progress
from graphtrain.lazy import lazy_import
from graphtrain.nodes._optimizers import names_of, norms_of, optimizers_of, parameters_of
from graphtrain.report.values import as_numbers

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from graphtrain.plan.plan import PlanNode
    from graphtrain.program.agreement import Agreement
    from graphtrain.report.recorder import Recorder
else:
    torch = lazy_import("torch")


_WHAT = {"loss": "the loss", "gradients": "a gradient", "parameters": "a weight"}
_MOST_NAMES = 3
_LOOK = "look at the batch first, which graphtrain replay leads to"
_HINTS = {
    "loss": f'{_LOOK}; --overlay skip_not_finite leaves such batches out, and action = "drop" their windows',
    "gradients": f'{_LOOK}; action = "drop" leaves such windows out, and clipping does not mend them',
    "parameters": f"{_LOOK}; then resume from an earlier checkpoint, with a smaller learning rate or with clipping",
}
_MOST_WAITING = 1024  # values that stay on the device; a run that records no row stays small


@node(synchronises=True, family="bookkeeping")
class CheckFinite:
    """Check at every visit whether the loss, gradients or weights are finite; if not, stop the run or drop the window.

    With "report" and "stop", the results stay on the device until a row of metrics is recorded, for example by `log`;
    then they are read together, and the first batch with a non-finite value is reported.

    Reads:
        loss: the loss of the batch; None on a rank without a batch in the round.
        epoch, batch, seen: the position of the batch, for the message: its epoch, its index in the epoch, and the
            samples of the run up to and including it, or its round of batches of several ranks.
        step: the steps before it, for the message.
        samples: number of samples in the batch.

    Arguments:
        of: "loss", "gradients" of `optimizer`, or the "parameters" that it updates. Default: "loss".
        action: "report" prints a line, once, and continues training; "stop" ends the run with an error; "drop" sets
            `found`, which a guard on an edge to `discard` reads; "off" checks nothing. With "drop", each visit
            synchronizes with the device and with other ranks, and a batch with a non-finite loss is excluded from all
            means. Default: "stop".

    Guard fields:
        found: this visit found a non-finite value; always false except with "drop".
        dropped: how often this happened.

    Raises:
        NotFiniteError: a value is not finite, and the action is "stop".
        UsageError: the action is "drop" for weights, which dropping a window does not repair.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("check_finite").set("check_loss", action="drop")
    >>> graph.check()
    []
    """

    of_rank: ClassVar[tuple[str, ...]] = ("state",)  # each has losses of its own that were not read yet

    of: Literal["loss", "gradients", "parameters"] = "loss"
    action: Literal["off", "report", "stop", "drop"] = "stop"

    found: bool = progress(False)
    dropped: int = progress(0)
    reported: bool = progress(False)

    _optimizers: tuple[Any, ...]
    _notify: Callable[[str], None]
    _ranks: Agreement | None
    _model: Any
    _values: list[Tensor | float]
    _norms: list[Tensor | None]  # of each tensor that is checked; None for those of before a resume
    _places: list[tuple[int, ...]]
    _checked: list[Tensor]  # the parameters that `_norms` are of

    def __init__(self) -> None:
        self._checked = []
        self._values, self._norms, self._places = [], [], []

    @staticmethod
    def refuse_settings(node: PlanNode, *, ranks: bool) -> None:
        """Raise for settings with which a run could not start: the checks call it."""
        if node.parameters["action"] == "drop" and node.parameters["of"] == "parameters":
            raise UsageError(
                f'{node.path}: action = "drop" of "parameters": weights that are not finite stay, whatever is dropped',
                'use "stop"; or check "gradients" before the step',
            )

    def setup(
        self,
        optimizer: Any,
        notify: Callable[[str], None],
        recorder: Recorder,
        ranks: Agreement | None = None,
        model: Any = None,
    ) -> None:
        self._optimizers, self._notify, self._ranks, self._model = optimizers_of(optimizer), notify, ranks, model
        if self.action == "drop":
            recorder.means("train").only_finite = True

    def __call__(
        self, loss: Any = None, samples: Any = 0, epoch: int = 0, batch: int = 0, seen: int = 0, step: int = 0
    ) -> None:
        if self.action == "off":
            return
        value, norms = self._value(loss)
        samples = samples if self._ranks is None else 0  # of several ranks, `seen` is that of all their batches
        place = epoch, batch, seen, samples or 0, step
        if self.action == "drop":
            faults = self._faults([float(value) if value is not None else 0.0], [norms], [place])
            self.found = bool(faults)
            self.dropped += self.found
            if faults and not self.reported:
                self.reported = True
                self._notify(f"{faults[0]}; the window is dropped, and so are later ones like it")
        elif value is not None:
            self._values.append(value)
            self._norms.append(norms)
            self._places.append(place)
            if len(self._values) >= _MOST_WAITING and self._ranks is None:
                self._read()

    def on_metrics(self, row: Mapping[str, float], is_evaluation: bool) -> None:
        if self.action in ("report", "stop"):
            self._read()

    def at_end(self) -> None:
        if self.action in ("report", "stop"):
            self._read()

    def _value(self, loss: Any) -> tuple[Any, Tensor | None]:
        """One number that is finite if all that is checked is, and one of each tensor; still on the device."""
        if self.of == "loss":
            return loss, None
        parameters = [each for each in parameters_of(self._optimizers) if each.is_floating_point() and each.numel()]
        if self.of == "gradients":
            parameters = [each for each in parameters if each.grad is not None]
        self._checked = parameters
        tensors = [each.grad if self.of == "gradients" else each for each in parameters]
        norms = norms_of([each.detach() for each in tensors if each is not None], math.inf) if parameters else None
        return (norms.max() if norms is not None else None), norms

    def _read(self) -> None:
        """Read what is on the device: one transfer for all of it."""
        numbers = as_numbers(self._values)
        places = self._places
        count, faults = len(numbers), self._faults(numbers, self._norms, places)
        self._values, self._norms, self._places = [], [], []
        if not faults or (self.action == "report" and self.reported):
            return
        things = "batches" if self.of == "loss" else "steps"
        of_several = (
            f"; {len(faults)} of the {count} {things} since the last row are like it" if len(faults) > 1 else ""
        )
        message = f"{faults[0]}{of_several}"
        if self.action == "stop":
            raise NotFiniteError(
                message,
                _HINTS[self.of],
                samples=next(
                    (place[2] for number, place in zip(numbers, places, strict=True) if not math.isfinite(number)), 0
                ),
                check=self,
            )
        self.reported = True
        self._notify(message)

    def _faults(
        self, numbers: list[float], norms: Sequence[Tensor | None], places: Sequence[tuple[int, ...]]
    ) -> list[str]:
        """A line for each value that is not finite, in order; those of all ranks, on all of them."""
        rows = [row for row in zip(places, numbers, norms, strict=True) if not math.isfinite(row[1])]
        # The names of the first: `drop` has only one, and a row tells only of the first.
        faults = [
            [*place, number, self._names(norm) if not index else ""] for index, (place, number, norm) in enumerate(rows)
        ]
        if self._ranks is None:
            return [self._described(fault) for fault in faults]
        of_ranks = enumerate(self._ranks.gather(faults))
        together = sorted(((fault, rank) for rank, faults in of_ranks for fault in faults), key=lambda pair: pair[0][2])
        return [f"{self._described(fault)}, on rank {rank}" for fault, rank in together]

    def _described(self, fault: list[Any]) -> str:
        epoch, batch, seen, samples, step, number, names = fault
        samples_of_run = f", samples {seen - samples + 1} to {seen} of the run" if samples and seen else ""
        where = f"batch {batch + 1} of epoch {epoch + 1}, {'step' if self.of == 'parameters' else 'after step'} {step}"
        at = {"loss": "at", "gradients": "in the window that ends with", "parameters": "after"}[self.of]
        return f"{_WHAT[self.of]} is {number} {at} {where}{samples_of_run}{names}"

    def _names(self, norms: Tensor | None) -> str:
        """The parameters whose gradients, or that themselves, are not finite, in words; empty if that is not known."""
        if norms is None or len(self._checked) != len(norms):
            return ""
        pairs = zip(self._checked, norms.tolist(), strict=True)
        at_fault = [each for each, norm in pairs if not math.isfinite(norm)]
        names = names_of(at_fault, self._model, self._optimizers)
        more = ", ..." if len(names) > _MOST_NAMES else ""
        return f": {', '.join(names[:_MOST_NAMES])}{more} ({len(names)} of {len(self._checked)})"

    def state_dict(self) -> dict[str, Any]:
        """What was not read yet."""
        return {"values": as_numbers(self._values), "places": [list(place) for place in self._places]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load it."""
        self._values = list(state["values"])
        self._norms = [None for _ in self._values]
        self._places = [tuple(place) for place in state["places"]]
