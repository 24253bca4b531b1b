"""The rows of metrics of a run, in little memory: a long run records many."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import overload

# Whole numbers up to here are floats too.
_WHOLE = 2**53

Row = dict[str, float]


class Rows(Sequence[Row]):
    """A growing list of rows, each of which comes back as it was.

    The numbers of all rows stand in one array, and the names once for all rows that have the same ones: 50 bytes a row
    of four numbers, where a dictionary takes 350.

    >>> rows = Rows([{"step": 1, "loss": 0.5}]); rows.append({"step": 2, "loss": 0.25})
    >>> rows[-1], len(rows)
    ({'step': 2, 'loss': 0.25}, 2)
    """

    def __init__(self, rows: Iterable[Mapping[str, float]] = ()) -> None:
        self._numbers = array("d")
        self._begins = array("q")
        self._forms = array("l")  # of each row, by number
        self._known: dict[tuple[tuple[str, type], ...], int] = {}
        self._names: list[tuple[tuple[str, type], ...]] = []
        self._odd: dict[int, Row] = {}  # those with a number that no float holds
        for row in rows:
            self.append(row)

    def append(self, row: Mapping[str, float]) -> None:
        """Add a row."""
        if not all(type(one) is float or (type(one) is int and -_WHOLE <= one <= _WHOLE) for one in row.values()):
            self._odd[len(self)] = dict(row)
            row = {}  # an empty one in its place, so that rows keep their numbers
        form = tuple((name, type(value)) for name, value in row.items())
        if form not in self._known:
            self._known[form] = len(self._names)
            self._names.append(form)
        self._forms.append(self._known[form])
        self._begins.append(len(self._numbers))
        self._numbers.extend(row.values())

    def __len__(self) -> int:
        return len(self._forms)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]  # raises what a list would
        if number in self._odd:
            return dict(self._odd[number])
        begin = self._begins[number]
        form = self._names[self._forms[number]]
        return {name: kind(self._numbers[begin + place]) for place, (name, kind) in enumerate(form)}
