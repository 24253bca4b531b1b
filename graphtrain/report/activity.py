"""What a run did, row by row: how often its nodes and edges ran, and what they took, as `nodes.jsonl` has it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from graphtrain.storage.run_directory import NODES_FILE, RowsFile


@final
class RunActivity:
    """The totals of a run at each line of its `nodes.jsonl`, oldest first; the file is read each time.

    Each is a dictionary: ``time`` in Unix seconds; ``rows``, how many rows of metrics there were; ``runs``, how often
    each node had run, by its path; ``taken``, how often each edge was taken, by ``"accumulate -> decide"``, which is
    the path of a node and an `Edge` that leaves it; and ``seconds`` of nodes that were timed, estimated. Totals
    continue where a run was resumed or rewired, and never fall; a renamed node begins at zero under its new name. Those
    of nodes in a body are over all times that it ran.

    It is empty where nothing was counted. One pass over a million lines takes some ten seconds.

    Arguments:
        run_dir: the run directory.

    Raises:
        UsageError: the file cannot be read, or a line is not one that a run has written; where it is read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "nodes.jsonl").write_text(
    ...         '{"event":"begun","time":1.0,"rows":0,"nodes":{"a":[0,1]},"edges":{"a -> a if x":[0],"a -> b":[1]}}\\n'
    ...         '{"time":1.5,"rows":1,"counts":[0,2],"milliseconds":[0,40]}\\n'
    ...     )
    ...     last = RunActivity(Path(folder)).at(-1)
    ...     last["runs"], last["taken"], last["seconds"]
    ({'a': 2}, {'a -> a if x': 2, 'a -> b': 0}, {'a': 0.04})
    """

    def __init__(self, run_dir: Path) -> None:
        self._file = RowsFile(run_dir / NODES_FILE)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for totals in self._totals():
            yield totals.plain()

    @property
    def starts(self) -> list[dict[str, Any]]:
        """Where the run was started: ``time``, ``rows``, and ``event``, which is begun, resumed or rewired."""
        rows = self._file.rows(
            read=lambda line: {key: line[key] for key in ("time", "rows", "event") if "event" in line}
        )
        return [start for start in rows if start]

    def at(self, row: int) -> dict[str, Any] | None:
        """The totals when a row of metrics was recorded; None where nothing was counted until then.

        Arguments:
            row: its number in `Run.metrics`; -1 is the last.
        """
        last = None
        for totals in self:
            if 0 <= row < totals["rows"] - 1:
                break
            last = totals
            if row >= 0 and totals["rows"] == row + 1:
                break
        return last

    def overview(self, most: int) -> list[dict[str, Any]]:
        """At most so many of the totals, about evenly apart, the last among them."""
        count = sum(1 for _ in self._totals())
        parts = min(count, most)
        wanted = {count * (number + 1) // parts for number in range(parts)}
        return [totals.plain() for number, totals in enumerate(self._totals(), 1) if number in wanted]

    def _totals(self) -> Iterator[_Totals]:
        """The totals after each line that counts: one object, which changes."""
        totals = _Totals()
        for line in self._file.rows(read=totals.add):
            if "counts" in line:
                yield totals


class _Totals:
    """What the lines so far add up to."""

    def __init__(self) -> None:
        self.time, self.rows = 0.0, 0
        self._runs: dict[str, int] = {}
        self._taken: dict[str, int] = {}
        self._milliseconds: dict[str, float] = defaultdict(float)
        self._nodes: list[str] = []
        self._counted: dict[int, list[tuple[dict[str, int], str]]] = {}  # the totals to which each counter adds

    def add(self, line: dict[str, Any]) -> dict[str, Any]:
        """Add a line; returns it.

        Raises:
            ValueError, LookupError, TypeError: it is not one that a run has written.
        """
        self.time, self.rows = float(line["time"]), int(line["rows"])
        if "event" in line:
            self._nodes, self._counted = [*line["nodes"]], {}
            for totals, table in ((self._runs, line["nodes"]), (self._taken, line["edges"])):
                for name, counters in table.items():
                    totals.setdefault(name, 0)
                    for counter in counters:
                        self._counted.setdefault(counter, []).append((totals, name))
            return line
        counts, times = line["counts"], line.get("milliseconds", ())
        for counter, more in zip(counts[::2], counts[1::2], strict=True):
            for totals, name in self._counted[counter]:
                totals[name] += int(more)
        for number, took in zip(times[::2], times[1::2], strict=True):
            self._milliseconds[self._nodes[number]] += float(took)
        return line

    def plain(self) -> dict[str, Any]:
        """As plain data, which does not change."""
        return {
            "time": self.time,
            "rows": self.rows,
            "runs": self._runs.copy(),
            "taken": self._taken.copy(),
            "seconds": {name: took / 1000 for name, took in self._milliseconds.items()},
        }
