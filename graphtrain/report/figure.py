"""Curves of metrics as a figure of matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

from matplotlib.figure import Figure

_COLOURS = ("#2f83c5", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#7f7f7f")
"""After Okabe and Ito (2008), safe for every common colour blindness; legible on white and on black."""
_MOST_COLUMNS = 3
_FEW = 40  # values, of which each has a dot


@dataclass(frozen=True)
class Curve:
    """The values of a metric; in nested graphs, those of one round of the graphs around the training.

    Attributes:
        name: of the metric.
        points: step or epoch, and value.
    """

    name: str
    points: list[tuple[float, float]] = field(default_factory=list)

    @property
    def group(self) -> str:
        """What is measured, the same for training and validation: ``"loss"`` for ``"val/loss"``."""
        return self.name.rpartition("/")[2]

    @property
    def split(self) -> str:
        """Where it is measured: ``"val"`` for ``"val/loss"``; empty for ``"loss"``."""
        return self.name.rpartition("/")[0]


def curves_of(rows: Iterable[Mapping[str, float]], clocks: Sequence[str] = (), x: str = "step") -> list[Curve]:
    """The curves of all metrics, losses first and rates last.

    Arguments:
        clocks: the columns for graphs around the training, such as ``("fold",)``. Default: none.
        x: the column of the first coordinate.

    >>> curves_of([{"step": 1, "epoch": 0.5, "lr": 0.1, "loss": 2.0}, {"step": 2, "epoch": 1.0, "loss": 1.0}])
    [Curve(name='loss', points=[(1, 2.0), (2, 1.0)]), Curve(name='lr', points=[(1, 0.1)])]
    """
    curves: dict[tuple[float | str | None, ...], Curve] = {}
    for row in rows:
        rounds = [row.get(name) for name in clocks]
        for name, value in row.items():
            if name not in ("step", "epoch", *clocks):
                curves.setdefault((name, *rounds), Curve(name)).points.append((row[x], value))
    order = {"loss": 0, "lr": 2}
    return sorted(curves.values(), key=lambda curve: order.get(curve.group, 1))


@final
class CurvesFigure(Figure):
    """A figure that a notebook shows, also without pyplot."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def figure_of(curves: Sequence[Curve], x: str, title: str = "") -> Figure:
    """A figure with one axis for each group of metrics: all losses, all accuracies.

    The rounds of graphs around the training have one colour. Values that are not finite are gaps.

    Arguments:
        x: the name of the first coordinate.
        title: a line above. Default: none.

    >>> figure_of([Curve("loss", [(1, 2.0), (2, 1.0)]), Curve("val/loss", [(2, 1.5)]), Curve("lr", [(1, 0.1)])], "step")
    <CurvesFigure size 900x320 with 2 Axes>
    """
    groups = list(dict.fromkeys(curve.group for curve in curves))
    columns = min(len(groups), _MOST_COLUMNS)
    lines = math.ceil(len(groups) / columns)
    figure = CurvesFigure(figsize=(4.5 * columns + 1.5 * (columns == 1), 3.2 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    splits = list(dict.fromkeys(curve.split for curve in curves))
    colours = {split: _COLOURS[number % len(_COLOURS)] for number, split in enumerate(splits)}
    for group, axis in zip(groups, axes, strict=False):
        named = set[str]()
        for curve in curves:
            if curve.group == group:
                marker = "." if len(curve.points) <= _FEW else ""
                label = "_" if curve.name in named else _plain(curve.name.lstrip("_"))
                axis.plot(*zip(*curve.points, strict=True), marker=marker, color=colours[curve.split], label=label)
                named.add(curve.name)
        axis.set_title(_plain(group), fontsize="medium")
        axis.set_xlabel(x)
        axis.grid(alpha=0.3)
        if len(named) > 1:
            axis.legend(fontsize="small", frameon=False)
    for axis in axes[len(groups) :]:
        axis.remove()
    figure.suptitle(_plain(title))
    return figure


def _plain(text: str) -> str:
    """A text that matplotlib does not read as a formula."""
    return text.replace("$", r"\$")
