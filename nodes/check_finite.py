"""Detection of non-finite losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from graphtrain.errors import NotFiniteError
from graphtrain.kind import node, progress
from graphtrain.report.values import as_numbers

if TYPE_CHECKING:
    from torch import Tensor

    from graphtrain.program.agreement import Agreement
    from graphtrain.report.recorder import Recorder

_HINT = 'look at the batch first: graphtrain replay goes to it from a checkpoint; action = "drop" drops such windows'
_MOST_WAITING = 1024  # values that stay on the device, for a run that records no row


@node(synchronises=True, family="bookkeeping")
class CheckFinite:
    """Check at every visit whether the loss is finite; if not, stop the run or drop the window.

    With "stop", the results stay on the device until a row of metrics is recorded, for example by `log`; then they are
    read together, and the first batch with a non-finite value is named.

    Reads:
        loss: the loss of the batch; None on a rank without a batch in the round.
        epoch, batch, seen, step: for the message: the epoch of the batch, its index in the epoch, the samples of the
            run up to and including it, and the steps before it.

    Arguments:
        action: "stop" ends the run with an error; "drop" sets `not_finite`, which a guard on an edge to `discard`
            reads. With "drop", each visit synchronizes with the device and with other ranks, and a batch with a
            non-finite loss is excluded from all means. Default: "stop".

    Guard fields:
        not_finite: this visit found a non-finite value; always false except with "drop".
        dropped: how often this happened.

    Raises:
        NotFiniteError: a value is not finite, and the action is "stop".

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("check_finite").set("check_loss", action="drop")
    >>> graph.check()
    []
    """

    of_rank: ClassVar[tuple[str, ...]] = ("state",)  # each rank has its own losses that were not read yet

    action: Literal["stop", "drop"] = "stop"

    not_finite: bool = progress(False)
    dropped: int = progress(0)

    _notify: Callable[[str], None]
    _ranks: Agreement | None
    _values: list[Tensor | float]
    _places: list[tuple[int, ...]]

    def __init__(self) -> None:
        self._values, self._places = [], []

    def setup(self, notify: Callable[[str], None], recorder: Recorder, ranks: Agreement | None = None) -> None:
        self._notify, self._ranks = notify, ranks
        if self.action == "drop":
            recorder.means("train").only_finite = True

    def __call__(self, loss: Any = None, epoch: int = 0, batch: int = 0, seen: int = 0, step: int = 0) -> None:
        place = epoch, batch, seen, step
        if self.action == "drop":
            fault, _ = self._first_fault([0.0 if loss is None else loss], [place])
            self.not_finite = bool(fault)
            if fault and not self.dropped:
                self._notify(f"{fault}; the window is dropped, and so are later ones like it")
            self.dropped += self.not_finite
        elif loss is not None:
            self._values.append(loss)
            self._places.append(place)
            if len(self._values) >= _MOST_WAITING and self._ranks is None:
                self._read()

    def on_metrics(self, row: Mapping[str, float], is_evaluation: bool) -> None:
        self._read()

    def at_end(self) -> None:
        self._read()

    def _read(self) -> None:
        """Read the values that are on the device, in one transfer."""
        fault, samples = self._first_fault(self._values, self._places)
        self._values, self._places = [], []
        if fault:
            raise NotFiniteError(fault, _HINT, samples=samples, check=self)

    def _first_fault(self, values: Sequence[Any], places: Sequence[tuple[int, ...]]) -> tuple[str, int]:
        """A message about the first non-finite value on all ranks, and the samples up to it; empty if there is none."""
        pairs = zip(places, as_numbers(values), strict=True)
        faults = [(*place, number) for place, number in pairs if not math.isfinite(number)][:1]
        of_ranks = [faults] if self._ranks is None else self._ranks.gather(faults)
        located = [(fault, rank) for rank, faults in enumerate(of_ranks) for fault in faults]
        if not located:
            return "", 0
        (epoch, batch, seen, step, number), rank = min(located, key=lambda pair: pair[0][2])
        where = f"batch {batch + 1} of epoch {epoch + 1}, after step {step}"
        return f"the loss is {number} at {where}{f', on rank {rank}' if self._ranks else ''}", seen

    def state_dict(self) -> dict[str, Any]:
        """The values that were not read yet, and their places."""
        return {"values": as_numbers(self._values), "places": [list(place) for place in self._places]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._values = list(state["values"])
        self._places = [tuple(place) for place in state["places"]]
