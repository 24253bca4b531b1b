"""Curves of metrics: the values that a figure and a notebook draw, and a small picture of them in SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from graphtrain.report.numbers import metric

COLOURS = ("#2f83c5", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#7f7f7f")
"""After Okabe and Ito (2008), safe for every common colour blindness; legible on white and on black."""

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 360, 100, 52, 16
_MOST_POINTS = 400  # of a curve in the small picture


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


def colours_of(curves: Iterable[Curve]) -> dict[str, str]:
    """A colour for each split, by its name."""
    splits = dict.fromkeys(curve.split for curve in curves)
    return {split: COLOURS[number % len(COLOURS)] for number, split in enumerate(splits)}


def small_svg(curves: Sequence[Curve]) -> str:
    """A small picture of curves over steps, in the colours of `colours_of`; empty without a finite value.

    Its text has the colour of the text around it.

    >>> small_svg([Curve("loss", [(1, 2.0), (2, math.nan), (3, 1.0)])])
    '<svg ...<path d="M52.0,6.0h0M356.0,84.0h0" stroke="#2f83c5"/></g>...</svg>'
    """
    finite = [point for curve in curves for point in curve.points if all(map(math.isfinite, point))]
    if not finite:
        return ""
    (left, right), (low, high) = ((min(values), max(values)) for values in zip(*finite, strict=True))
    colours = colours_of(curves)

    def place(point: tuple[float, float]) -> str:
        across = (point[0] - left) / (right - left) if right > left else 0.5
        up = (point[1] / 2 - low / 2) / (high / 2 - low / 2) if high / 2 > low / 2 else 0.5  # no difference overflows
        return f"{_LEFT + across * (_WIDTH - 4 - _LEFT):.1f},{_HEIGHT - _BOTTOM - up * (_HEIGHT - _BOTTOM - 6):.1f}"

    paths = []
    for curve in curves:
        points, path, is_open = curve.points, "", False
        stride = math.ceil(len(points) / _MOST_POINTS)
        for point in [*points[:-1:stride], points[-1]]:
            if all(map(math.isfinite, point)):
                path += f"L{place(point)}" if is_open else f"M{place(point)}h0"  # alone, a dot
            is_open = math.isfinite(point[1])
        paths.append(f'<path d="{path}" stroke="{colours[curve.split]}"/>')
    texts = [
        f'<text x="{x}" y="{y}" text-anchor="end">{text}</text>'
        for x, y, text in (
            (_LEFT - 6, 12, metric(high)),
            (_LEFT - 6, _HEIGHT - _BOTTOM, metric(low) if high > low else ""),
            (_WIDTH - 4, _HEIGHT - 3, f"step {metric(left)} to {metric(right)}"),
        )
    ]
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" style="max-width: 100%" role="img">'
        f'<g fill="none" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round">{"".join(paths)}</g>'
        f'<g fill="currentColor" opacity="0.65" font-size="10" font-family="sans-serif">{"".join(texts)}</g></svg>'
    )
