"""Saving checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from graphtrain.kind import node, progress
from graphtrain.kind.parameter import Above, Metric, Mode, known_mode
from graphtrain.kind.trigger import Trigger
from graphtrain.program.requests import SavePolicy
from graphtrain.storage.retention import Retention

if TYPE_CHECKING:
    from graphtrain.program.requests import Requests
    from graphtrain.report.recorder import Recorder


@node(observer=True, family="saving", extra_due_fields={"improved": "best"})
class Checkpoint:
    """Save a checkpoint, which holds the state after this node.

    With `best`, the node is also due when the value of a validation is among the best, whatever `every` says. If the
    newest checkpoint has the same state except for that value, the new one replaces it.

    Several such nodes may rank by different metrics: a checkpoint is kept if one of them keeps it. ``RUN/best`` is the
    best of the first node that has a `best`, ``RUN/best:NODE`` that of another.

    Arguments:
        every: when to save. Default: after every epoch.
        keep: number of newest checkpoints to keep. Default: 2.
        mode: "async" copies the state and writes it while training continues, which waits where the last one is still
            being written; "sync" waits until it is written. Default: "async".
        if_failed: what to do if a checkpoint cannot be written, for example on a full disk: "stop" the run, or
            "continue". Earlier checkpoints are kept in either case. Default: "stop".
        best: a metric by which older checkpoints are kept as well, such as "val/loss". Its value belongs to a
            checkpoint saved at the step at which it was recorded. Default: none.
        best_mode: "min" if small values are best, "max" if large ones are. Default: by the name of the metric, as in
            `early_stop`; required for other names.
        keep_best: number of best checkpoints to keep. Default: 1.

    Guard fields:
        improved: a validation at this step recorded a value of `best` that is among the best and not saved yet.

    Raises:
        UnknownMetricError: the first validation does not record the metric `best`, or nothing records it.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("checkpoint", every="1 epochs", best="val/loss")
    >>> graph.check()
    []
    """

    every: Trigger = Trigger("1 epochs")
    keep: Annotated[int, Above(0)] = 2
    mode: Literal["async", "sync"] = "async"
    if_failed: Literal["stop", "continue"] = "stop"
    best: Metric | None = None
    best_mode: Mode | None = None
    keep_best: Annotated[int, Above(0)] = 1

    # The last value of `best` that no visit has seen: the `step` (the place of its row, as the recorder has it), the
    # `value`, and whether that makes the node `due`.
    recorded: dict[str, Any] = progress({})
    # Mode and metric, such as "min val/loss" -> place and value of each save among the best, in order of saving.
    ranked: dict[str, Any] = progress({})

    _requests: Requests
    _recorder: Recorder
    _policy: SavePolicy
    _failures: int  # of saves, when one was ranked last

    def setup(self, checkpoints: Requests, recorder: Recorder) -> None:
        self._requests, self._recorder = checkpoints, recorder
        self._failures = checkpoints.failures
        self._policy = checkpoints.policy = SavePolicy(self.mode, self.if_failed)

    def retention(self) -> Retention:
        return Retention(self.keep, self.best, self._best_mode, self.keep_best)

    @property
    def _best_mode(self) -> Mode:
        return self.best_mode or (known_mode(self.best) if self.best else None) or "min"

    @property
    def improved(self) -> bool:
        return bool(self.recorded) and self.recorded["due"] and self.recorded["step"] == self._recorder.place

    def on_metrics(self, row: Mapping[str, float], is_evaluation: bool) -> None:
        value = row.get(self.best or "")
        if value is not None and math.isfinite(value):
            is_among_best = self.retention().is_among_best(value, [other for _, other in self._best_saves()])
            place = self._recorder.place_of(row)
            self.recorded = {"step": place, "value": value, "due": is_evaluation and is_among_best}

    def _best_saves(self) -> list[list[Any]]:
        """Place and value of the best saves of this run; a fork does not have those from before the fork."""
        rows = self._recorder.rows
        ranked = self.ranked.get(f"{self._best_mode} {self.best}", []) if rows else []
        first = self._recorder.place_of(rows[0]) if rows else 0
        saves = [save for save in ranked if save[0] >= first]
        # If a save has failed since, it may be the last one of these: one checkpoint too many is better than none.
        return saves if self._requests.failures == self._failures else saves[:-1]

    def __call__(self) -> None:
        recorded, self.recorded = self.recorded, {}
        value = recorded["value"] if recorded and recorded["step"] == self._recorder.place else None
        self._requests.save(self._policy, {self.best: value} if self.best is not None else {})
        if value is not None:
            saves = [*self._best_saves(), [recorded["step"], value]]
            best = self.retention().ranked({number: other for number, (_, other) in enumerate(saves)})[: self.keep_best]
            self.ranked = {**self.ranked, f"{self._best_mode} {self.best}": [saves[number] for number in sorted(best)]}
            self._failures = self._requests.failures
