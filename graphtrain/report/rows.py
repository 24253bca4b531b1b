"""The rows of metrics of a run, stored compactly: a long run records many."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import overload

# Integers up to this are exact as floats.
_WHOLE = 2**53

Row = dict[str, float]


class Rows(Sequence[Row]):
    """A list of rows that can be appended to; a row that is read equals the row appended, types included.

    The numbers of all rows are in one array, and the names are stored once for all rows that share them: 50 bytes for a
    row of four numbers, where a dictionary takes 350.

    >>> rows = Rows([{"step": 1, "loss": 0.5}]); rows.append({"step": 2, "loss": 0.25})
    >>> rows[-1], len(rows)
    ({'step': 2, 'loss': 0.25}, 2)
    """

    def __init__(self, rows: Iterable[Mapping[str, float]] = ()) -> None:
        self._numbers = array("d")
        self._starts = array("q")  # row -> index of its first number
        self._row_schemas = array("l")  # row -> index of its schema
        self._schemas: list[tuple[tuple[str, type], ...]] = []  # names and types
        self._schema_indices: dict[tuple[tuple[str, type], ...], int] = {}
        self._inexact: dict[int, Row] = {}  # rows with a number that no float represents
        for row in rows:
            self.append(row)

    def append(self, row: Mapping[str, float]) -> None:
        """Append a row."""
        # An array of floats gives these numbers back.
        is_exact = [type(value) is float or (type(value) is int and abs(value) <= _WHOLE) for value in row.values()]
        if not all(is_exact):
            self._inexact[len(self)] = dict(row)
            row = {}  # an empty row in its place, so that the indices of rows stay
        schema = tuple((name, type(value)) for name, value in row.items())
        if schema not in self._schema_indices:
            self._schema_indices[schema] = len(self._schemas)
            self._schemas.append(schema)
        self._row_schemas.append(self._schema_indices[schema])
        self._starts.append(len(self._numbers))
        self._numbers.extend(row.values())

    def __len__(self) -> int:
        return len(self._row_schemas)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = range(len(self))[index]  # raises what a list would
        if row in self._inexact:
            return dict(self._inexact[row])
        schema = self._schemas[self._row_schemas[row]]
        return {name: kind(self._numbers[at]) for at, (name, kind) in enumerate(schema, self._starts[row])}


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
        last = whole[-1] if whole else None
        is_same = last is not None and all(last.get(name) == row.get(name) for name in position)
        if last is not None and is_same and not last.keys() & row.keys() - position:
            last.update(row)
        else:  # of another step, or a metric that this step has twice
            whole.append(dict(row))
    return whole
