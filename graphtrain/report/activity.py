"""What a run did, row by row: how often its nodes and edges ran, and what they took, as `nodes.jsonl` has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final, overload

from graphtrain.storage.run_directory import NODES_FILE, MetricsFile

_EVENTS = ("begun", "resumed", "rewired")
_WAITS = ("data", "saves")
_MOST = 1 << 62
_MOST_COUNTERS = 1 << 20


@final
class RunActivity(Sequence[dict[str, Any]]):
    """The totals of a run at each line of its `nodes.jsonl`, oldest first; the file is read each time.

    Each is a dictionary: ``time`` in Unix seconds; ``rows``, how many rows of metrics there were; ``runs``, how often
    each node had run, by its path; ``taken``, how often each edge was taken, by ``"accumulate -> decide"``, which is
    the path of a node and an `Edge` that leaves it; ``seconds`` of nodes that were timed, estimated; and ``waits``,
    the seconds for data and for saves. Totals never fall, and go on where a run was resumed or rewired. Those of nodes
    in a body are over all times that it ran.

    It is empty where nothing was counted. One pass over a million lines takes some ten seconds.

    Arguments:
        run_dir: the run directory.

    Raises:
        UsageError: the file cannot be read, or a line is not one that a run has written; where it is read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "nodes.jsonl").write_text(
    ...         '{"event":"begun","time":1.0,"rows":0,"nodes":{"a":[0,1]},"edges":{"a -> a if x":[0],"a -> b":[1]}}\\n'
    ...         '{"time":1.5,"rows":1,"counts":[0,2],"milliseconds":[0,40],"data":5}\\n'
    ...     )
    ...     activity = RunActivity(Path(folder))
    ...     len(activity), activity[-1]["runs"], activity[-1]["taken"], activity[-1]["seconds"]
    (1, {'a': 2}, {'a -> a if x': 2, 'a -> b': 0}, {'a': 0.04})
    """

    def __init__(self, run_dir: Path) -> None:
        self._file = MetricsFile(run_dir / NODES_FILE, holds="counts")

    def __len__(self) -> int:
        return sum(1 for line in self._file.each_row(_checked) if "counts" in line)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for totals in self._totals():
            yield totals.plain()

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        numbers = range(len(self))[index]
        if isinstance(numbers, int):
            return self._chosen([numbers])[0]
        chosen = dict(zip(sorted(numbers), self._chosen(sorted(numbers)), strict=True))
        return [chosen[number] for number in numbers]

    @property
    def starts(self) -> list[dict[str, Any]]:
        """Where the run was started: ``time``, ``rows``, and ``event``, which is begun, resumed or rewired."""
        keys = ("time", "rows", "event")
        return [{key: line[key] for key in keys} for line in self._file.each_row(_checked, b'{"event"')]

    def at(self, row: int) -> dict[str, Any] | None:
        """The totals when a row of metrics was recorded; None where nothing was counted until then.

        Arguments:
            row: its number in `Run.metrics`; -1 is the last.
        """
        chosen: int | None = None
        for number, totals in enumerate(self._totals()):
            if 0 <= row < totals.rows - 1:
                break
            chosen = number
            if totals.rows == row + 1:
                break
        return self[chosen] if chosen is not None else None

    def thinned(self, most: int) -> list[dict[str, Any]]:
        """At most so many of them, about evenly apart, the last among them.

        Arguments:
            most: at least 1.
        """
        kept: list[dict[str, Any]] = []
        stride, last = 1, None
        for number, totals in enumerate(self._totals(), 1):
            last = totals
            if number % stride == 0:
                kept.append(totals.plain())
            if len(kept) > 2 * most:  # one in two: the file is read once, and its length is known at the end
                kept, stride = kept[1::2], 2 * stride
        if last is not None and (not kept or kept[-1] != last.plain()):
            kept.append(last.plain())
        count = len(kept)
        return [kept[count * (number + 1) // most - 1] for number in range(most)] if count > most else kept

    def _chosen(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Those with these numbers, which rise."""
        chosen: list[dict[str, Any]] = []
        for number, totals in enumerate(self._totals()):
            if len(chosen) == len(numbers):
                break
            if number == numbers[len(chosen)]:
                chosen.append(totals.plain())
        return chosen

    def _totals(self) -> Iterator[_Totals]:
        """The totals after each line: one object, which changes."""
        totals = _Totals()
        for line in self._file.each_row(totals.add):
            if "counts" in line:
                yield totals


class _Totals:
    """What the lines so far add up to."""

    def __init__(self) -> None:
        self.time, self.rows = 0.0, 0
        self._runs: dict[str, int] = {}
        self._taken: dict[str, int] = {}
        self._milliseconds: dict[str, int] = {}
        self._waits = dict.fromkeys(_WAITS, 0)
        self._nodes: list[str] = []
        self._adds_to: list[list[tuple[dict[str, int], str]]] = []  # counter -> totals, and the names in these

    def add(self, line: dict[str, Any]) -> dict[str, Any]:
        """Add a line; returns it.

        Raises:
            ValueError: it is not one that a run has written.
        """
        _checked(line)
        self.time, self.rows = line["time"], line["rows"]
        if "event" in line:
            self._begin(line["nodes"], line["edges"])
            return line
        counts, times = line["counts"], line.get("milliseconds", [])
        if max(counts[::2], default=-1) >= len(self._adds_to):
            raise ValueError("a counter that the header before does not have")
        if max(times[::2], default=-1) >= len(self._nodes):
            raise ValueError("a node that the header before does not have")
        for counter, more in zip(counts[::2], counts[1::2], strict=True):
            for totals, name in self._adds_to[counter]:
                totals[name] += more
        for node, more in zip(times[::2], times[1::2], strict=True):
            name = self._nodes[node]
            self._milliseconds[name] = self._milliseconds.get(name, 0) + more
        for name in _WAITS:
            self._waits[name] += line.get(name, 0)
        return line

    def _begin(self, nodes: Mapping[str, list[int]], edges: Mapping[str, list[int]]) -> None:
        self._nodes = [*nodes]
        counters = 1 + max(
            (counter for table in (nodes, edges) for own in table.values() for counter in own), default=-1
        )
        if counters > _MOST_COUNTERS:
            raise ValueError(f"more than {_MOST_COUNTERS} counters")
        self._adds_to = [[] for _ in range(counters)]
        for totals, table in ((self._runs, nodes), (self._taken, edges)):
            for name, own in table.items():
                totals.setdefault(name, 0)
                for counter in own:
                    self._adds_to[counter].append((totals, name))

    def plain(self) -> dict[str, Any]:
        """As plain data, which does not change."""
        return {
            "time": self.time,
            "rows": self.rows,
            "runs": dict(self._runs),
            "taken": dict(self._taken),
            "seconds": {name: took / 1000 for name, took in self._milliseconds.items()},
            "waits": {name: took / 1000 for name, took in self._waits.items()},
        }


def _checked(line: dict[str, Any]) -> dict[str, Any]:
    """A line that has the form of a header or of counts.

    Raises:
        ValueError: it has not.
    """
    time, rows = line.get("time"), line.get("rows")
    if type(time) not in (int, float) or type(rows) is not int or not 0 <= rows <= _MOST:
        raise ValueError("it has no time, or no number of rows")
    if "event" in line:
        tables = [line.get("nodes"), line.get("edges")]
        if line["event"] not in _EVENTS or not all(
            isinstance(table, dict) and all(map(_are_counts, table.values())) for table in tables
        ):
            raise ValueError("it is no header")
        return line
    counts, took = line.get("counts"), line.get("milliseconds", [])
    if not isinstance(counts, list) or not isinstance(took, list) or len(counts) % 2 or len(took) % 2:
        raise ValueError("it has no counts")
    if not _are_counts([*counts, *took, *(line.get(name, 0) for name in _WAITS)]):
        raise ValueError("it has no counts")
    return line


def _are_counts(numbers: Any) -> bool:
    if not isinstance(numbers, list) or not numbers:
        return isinstance(numbers, list)
    return {*map(type, numbers)} == {int} and min(numbers) >= 0 and max(numbers) <= _MOST
