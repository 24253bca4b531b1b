"""What a trainer and a run on disk share: metrics as a table and as curves, and a page in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from html import escape
from typing import TYPE_CHECKING, Literal

from graphtrain.errors import UsageError
from graphtrain.graph import EditableGraph
from graphtrain.lazy import imported
from graphtrain.names import suggestion
from graphtrain.report.numbers import metric
from graphtrain.report.snapshot import Snapshot
from graphtrain.report.values import not_finite_since

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

_MOST_METRICS = 12


def joined(rows: Iterable[Mapping[str, float]], clocks: Sequence[str] = ()) -> list[dict[str, float]]:
    """Rows in which those of one step are joined, with all of its metrics.

    Arguments:
        rows: such as those of `Trainer.metrics`.
        clocks: the columns for graphs around the training, such as ``("fold",)``. Default: none.

    >>> joined([{"step": 4, "epoch": 1.0, "epoch/loss": 0.5}, {"step": 4, "epoch": 1.0, "val/loss": 0.25}])
    [{'step': 4, 'epoch': 1.0, 'epoch/loss': 0.5, 'val/loss': 0.25}]
    """
    position = {"step", "epoch", *clocks}
    whole: list[dict[str, float]] = []
    for row in rows:
        last = whole[-1] if whole else {}
        is_same = last and all(last.get(name) == row.get(name) for name in position)
        if is_same and not last.keys() & row.keys() - position:
            last.update(row)
        else:  # of another step, or a metric that this step has twice
            whole.append(dict(row))
    return whole


_joined = joined  # which an argument below hides


class Recorded(ABC):
    """A run with rows of metrics: a `Trainer`, or a `Run` on the disk."""

    @property
    @abstractmethod
    def metrics(self) -> list[dict[str, float]]:
        """The rows recorded so far, oldest first."""

    @property
    @abstractmethod
    def graph(self) -> EditableGraph:
        """The procedure."""

    @property
    @abstractmethod
    def _runs(self) -> Mapping[str, int] | None:
        """How often each node ran, by its path, for the picture of the graph; None where it was not counted."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The state and progress of the run."""

    def frame(self, joined: bool = True) -> pandas.DataFrame:
        """The metrics as a DataFrame of pandas, with a column for each metric.

        Arguments:
            joined: True for one row per step, with all of its metrics, as `graphtrain.joined` makes them. False for the
                rows as they were recorded: `epoch/loss` and `val/loss` of a step are two. Default: True.

        Raises:
            UsageError: pandas is not installed.
        """
        rows = _joined(self.metrics, [*self.snapshot().clocks]) if joined else self.metrics
        frame: pandas.DataFrame = imported("pandas").DataFrame(rows)
        return frame

    def plot(self, names: str | Iterable[str] | None = None, x: Literal["step", "epoch"] = "step") -> Figure:
        """The metrics as curves, with one axis for all losses, one for all accuracies, and so on.

        Arguments:
            names: the metrics to draw, such as ``["loss", "val/loss"]``. Default: all.
            x: the axis across. Default: the step.

        Returns:
            A figure of matplotlib, which a notebook shows; ``figure.savefig("loss.png")`` writes it.

        Raises:
            UsageError: matplotlib is not installed, there are no such metrics, or none yet.
        """
        imported("matplotlib")
        from graphtrain.report.figure import figure_of

        if x not in ("step", "epoch"):
            raise UsageError(f'plot: x: expected "step" or "epoch"; got {x!r}')
        rows, clocks = self.metrics, [*self.snapshot().clocks]
        known = {name for row in rows for name in row} - {"step", "epoch", *clocks}
        wanted = known if names is None else {names} if isinstance(names, str) else {*names}
        for name in sorted(wanted - known):
            raise UsageError(f"there is no metric `{name}`", suggestion(name, known))
        if not wanted:
            raise UsageError("there are no metrics to plot yet", "`log.every` and the end of an epoch record them")
        drawn = ({name: value for name, value in row.items() if name in {"step", *wanted}} for row in rows)
        return figure_of(rows, wanted, x, clocks, not_finite_since(drawn))

    def _repr_html_(self) -> str:
        """A small page: its state, latest metrics, and its graph, folded."""
        snapshot = self.snapshot()
        shown = [f"{name} {metric(value)}" for name, value in snapshot.measured.items()]
        more = f", +{len(shown) - _MOST_METRICS} more" if len(shown) > _MOST_METRICS else ""
        is_over = snapshot.position in ("end", "?") or snapshot.state == "finished"
        place = "" if is_over else f"; next node {snapshot.position}"
        pieces = [
            f"<div><b>{escape(repr(self)[1:-1])}</b>{escape(place)}</div>",
            f"<div>{escape(', '.join(shown[:_MOST_METRICS]) + more)}</div>",
        ]
        # A picture can fail in many ways, as without a layout program; the page is shown without it.
        with suppress(Exception):
            from graphtrain.viz.render import svg

            picture = svg(self.graph, self._runs, None if is_over else snapshot.position)
            picture = picture.replace("<svg ", '<svg style="max-width: 100%; height: auto" ', 1)  # may be narrow
            pieces.append(f"<details><summary>graph {escape(snapshot.graph)}</summary>{picture}</details>")
        return "".join(pieces)
