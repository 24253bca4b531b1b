"""Curves of metrics as a figure of matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import final

from matplotlib.figure import Figure

from graphtrain.report.curves import Curve, colours_of

_MOST_COLUMNS = 3
_FEW = 40  # values, of which each has a dot


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
    colours = colours_of(curves)
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
