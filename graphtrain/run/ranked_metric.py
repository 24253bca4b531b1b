"""The metric by which checkpoints are ranked: a name that nothing records is reported as soon as that is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

from graphtrain.errors import UnknownMetricError
from graphtrain.metrics.recorder import Recorder
from graphtrain.names import suggestion
from graphtrain.program.compiled_graph import CompiledGraph


@final
class RankedMetric:
    """Hears which metrics evaluations record, and looks whether the ranked one is among all that is recorded."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._evaluated: list[str] = []  # since an evaluation ended

    def hear_evaluation(self, row: Mapping[str, float]) -> None:
        """Note what an evaluation has recorded."""
        self._evaluated += self._recorder.metrics_in(row)

    def forget(self) -> None:
        """Drop what an evaluation has recorded that was cut short."""
        self._evaluated = []

    def expect_of_evaluation(self, name: str | None, compiled: CompiledGraph) -> None:
        """An evaluation has ended: raise if metrics are ranked by one that it should have given.

        Arguments:
            name: of the metric; None where there is none.

        Raises:
            UnknownMetricError: the evaluation gives metrics named like it, and nothing else records it as far as is
                known; or everything that may record it has run.
        """
        evaluated, self._evaluated = self._evaluated, []
        self.expect(name, compiled, evaluated)

    def expect(self, name: str | None, compiled: CompiledGraph, evaluated: Iterable[str] = ()) -> None:
        """The same where no evaluation has ended: then everything that may record it has to have run.

        Arguments:
            evaluated: what an evaluation that has ended recorded. Default: none has.
        """
        known = self._recorder.latest
        if name is None or name in known:
            return
        group, slash, _ = name.rpartition("/")
        given = list(dict.fromkeys(evaluated))
        of_group = [metric for metric in given if slash and metric.startswith(group + slash)]
        if given and not of_group:
            trained = self._recorder.gathered("train") | set(self._recorder.metrics_in(known)).difference(given)
            is_misspelt = name not in trained and _letters(name) in map(_letters, given)
            given = given if is_misspelt or not compiled.may_record(name, trained) else []
        if given := of_group or given:
            hint = suggestion(name, given)
            raise UnknownMetricError(
                f"the validation gives no metric `{name}`, by which checkpoint.best ranks checkpoints; "
                f"it gives {', '.join(given)}",
                hint if "did you mean" in hint else "set checkpoint.best to one of these, or return it too",
            )
        if not evaluated and compiled.has_recorded_all():
            hint = suggestion(name, self._recorder.metrics_in(known))
            raise UnknownMetricError(
                f"no row of metrics has `{name}`, by which checkpoint.best ranks checkpoints", hint
            )


def _letters(name: str) -> str:
    """What is left of the name of a metric without what people separate its parts by."""
    return "".join(filter(str.isalnum, name)).casefold()
