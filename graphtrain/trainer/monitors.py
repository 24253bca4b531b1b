"""The metrics that nodes name, such as `early_stop.monitor`: one that is never recorded is an error, for all alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from graphtrain.errors import UnknownMetricError
from graphtrain.names import suggestion
from graphtrain.resume.session import Session
from graphtrain.trainer.watchers import Watcher


@final
class Monitors(Watcher):
    """Gives rows to the nodes that wait for them, and looks whether the metrics that nodes name are recorded at all.

    A kind marks the parameter that holds the name by `Metric`.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._evaluated: list[str] = []  # since an evaluation ended

    def row(self, row: Mapping[str, float], step: int) -> None:
        session = self._session
        session.compiled.hear_row(row, session.position)
        if session.compiled.activity(session.position) is not None:
            self._evaluated += session.recorder.metrics_in(row)
        session.requests.post("recorded")

    def forget(self) -> None:
        """Drop what an evaluation has recorded that was cut short."""
        self._evaluated = []

    def expect(self) -> None:
        """A row was recorded, and no evaluation is under way: raise if it should have had a metric that a node names.

        Nodes of other bodies than the one that runs do not hear of its rows.

        Raises:
            UnknownMetricError: an evaluation that has just ended gives metrics named like it, and nothing else records
                it as far as is known; or everything that may record it has run.
        """
        compiled, recorder = self._session.compiled, self._session.recorder
        evaluated, self._evaluated = list(dict.fromkeys(self._evaluated)), []
        for parameter, name, scope in compiled.monitors(self._session.position):
            if name not in recorder.latest:
                group, slash, _ = name.rpartition("/")
                of_group = [metric for metric in evaluated if slash and metric.startswith(group + slash)]
                recorded = recorder.metrics_in(recorder.latest)
                trained = recorder.gathered("train") | set(recorded).difference(evaluated)
                is_misspelt = name not in trained and _letters(name) in map(_letters, evaluated)
                may_come = compiled.may_record(name, trained, scope) and not is_misspelt
                if of_group or (evaluated and not may_come):
                    given, otherwise = of_group or evaluated, "return it too"
                    message = f"the validation gives no metric `{name}`, which {parameter} names; it gives "
                elif evaluated or (may_come and not compiled.has_recorded_all(scope)):
                    continue
                else:
                    given, otherwise = recorded, "supply the data of the evaluation that records it"
                    message = f"no row of metrics has `{name}`, which {parameter} names; recorded are "
                hint = suggestion(name, given)
                raise UnknownMetricError(
                    message + ", ".join(given),
                    hint if "did you mean" in hint else f"set {parameter} to one of these, or {otherwise}",
                )


def _letters(name: str) -> str:
    """What is left of the name of a metric without what people separate its parts by."""
    return "".join(filter(str.isalnum, name)).casefold()
