"""What a run did, row by row: how often its nodes and edges ran, and how long they took, as in `nodes.jsonl`."""

from __future__ import annotations

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

    It is empty where nothing was counted.

    Raises:
        UsageError: the file cannot be read, or a line is not one that a run has written; where it is read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "nodes.jsonl").write_text(
    ...         '{"event":"started","time":1,"rows":0,"nodes":{"a":[0,1]},"edges":{"a -> a if x":[0],"a -> b":[1]}}\\n'
    ...         '{"time":1.5,"rows":1,"counts":[0,2],"milliseconds":[0,40]}\\n'
    ...     )
    ...     last = RunActivity(Path(folder)).at(-1)
    ...     last["runs"], last["taken"], last["seconds"]
    ({'a': 2}, {'a -> a if x': 2, 'a -> b': 0}, {'a': 0.04})
    """

    def __init__(self, run_dir: Path) -> None:
        self._file = RowsFile(run_dir / NODES_FILE)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        totals: dict[str, Any] = {"runs": {}, "taken": {}, "seconds": {}}
        nodes: list[str] = []
        destinations: dict[int, list[tuple[dict[str, int], str]]] = {}  # the totals to which each counter adds

        def add(line: dict[str, Any]) -> dict[str, Any]:
            """The totals after a line, {} for one without counts; a line that no run has written raises."""
            place = {"time": float(line["time"]), "rows": int(line["rows"])}
            if "event" in line:
                nodes[:] = line["nodes"]
                destinations.clear()
                for key, table in (("runs", line["nodes"]), ("taken", line["edges"])):
                    for name, counters in table.items():
                        totals[key].setdefault(name, 0)
                        for counter in counters:
                            destinations.setdefault(counter, []).append((totals[key], name))
                return {}
            counts, times, seconds = line["counts"], line.get("milliseconds", ()), totals["seconds"]
            for counter, more in zip(counts[::2], counts[1::2], strict=True):
                for table, name in destinations[counter]:
                    table[name] += int(more)
            for number, took in zip(times[::2], times[1::2], strict=True):
                seconds[nodes[number]] = seconds.get(nodes[number], 0.0) + float(took) / 1000
            return {**place, **{key: table.copy() for key, table in totals.items()}}

        return filter(None, self._file.rows(read=add))

    @property
    def starts(self) -> list[dict[str, Any]]:
        """Where the run was started: ``time``, ``rows``, ``event``, which is started, resumed or rewired, and more."""
        return [line for line in self._file.rows() if "event" in line]

    def at(self, row: int) -> dict[str, Any] | None:
        """The totals when a row of metrics was recorded; None where nothing was counted until then.

        Arguments:
            row: its number in `Run.metrics`; -1 for the last totals.
        """
        last = None
        for totals in self:
            if 0 <= row < totals["rows"] - 1:
                break
            last = totals
            if 0 <= row == totals["rows"] - 1:
                break
        return last

    def overview(self, most: int) -> list[dict[str, Any]]:
        """At most so many of the totals, about evenly apart, the last among them."""
        count = sum(1 for line in self._file.rows() if "counts" in line)
        parts = min(count, most)
        wanted = {count * (number + 1) // parts for number in range(parts)}
        return [totals for number, totals in enumerate(self, 1) if number in wanted]
