"""Curves of metrics as a figure of matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, final

from matplotlib.figure import Figure

_COLOURS = ("#2f83c5", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#7f7f7f")
"""After Okabe and Ito (2008), safe for every common colour blindness; legible on white and on black."""
_MOST_COLUMNS = 3
_FEW = 40  # values, of which each has a dot
_ORDER = {"loss": 0, "lr": 2}


@final
class CurvesFigure(Figure):
    """A figure that a notebook shows, also without pyplot."""

    def _repr_png_(self) -> bytes:
        content = io.BytesIO()
        self.savefig(content, format="png")
        return content.getvalue()


def figure_of(
    rows: Iterable[Mapping[str, float]], names: Collection[str], x: str, clocks: Sequence[str] = (), title: str = ""
) -> Figure:
    """A figure with one axis for each group of metrics: all losses first, all accuracies, rates last.

    The rounds of graphs around the training, whose columns are the clocks, have one colour. Values that are not finite
    are gaps. `x` is the column of the first coordinate.

    >>> figure_of([{"step": 1, "lr": 0.1, "loss": 2.0}, {"step": 2, "loss": 1.0}], ["loss", "lr"], "step")
    <CurvesFigure size 900x320 with 2 Axes>
    """
    curves: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for row in rows:
        for name in filter(names.__contains__, row):
            curves.setdefault((name, *map(row.get, clocks)), []).append((row[x], row[name]))
    # Where it is measured, and what: "val", "loss"; of a learning rate, its group of parameters.
    parts = {name: name.rpartition("/")[:: -2 if name.startswith("lr/") else 2] for name, *_ in curves}
    groups = sorted(dict.fromkeys(group for _, group in parts.values()), key=lambda group: _ORDER.get(group, 1))
    splits = [*dict.fromkeys(split for split, _ in parts.values())]
    columns = min(len(groups), _MOST_COLUMNS)
    lines = math.ceil(len(groups) / columns)
    figure = CurvesFigure(figsize=(4.5 * columns + 1.5 * (columns == 1), 3.2 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for group, axis in zip(groups, axes, strict=False):
        named = set[str]()
        for (name, *_), points in curves.items():
            if parts[name][1] == group:
                colour = _COLOURS[splits.index(parts[name][0]) % len(_COLOURS)]
                label = "_" if name in named else _plain(name.lstrip("_"))
                axis.plot(*zip(*points, strict=True), marker="." * (len(points) <= _FEW), color=colour, label=label)
                named.add(name)
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
