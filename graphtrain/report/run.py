"""A run on the disk, as a value: what its run directory tells."""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from graphtrain.alive import is_alive
from graphtrain.errors import GraphtrainError, UsageError
from graphtrain.graph import EditableGraph
from graphtrain.graph.elements import END
from graphtrain.plain import of_text
from graphtrain.printable import error_lines, one_line, shown
from graphtrain.report.activity import RunActivity
from graphtrain.report.recorded import Recorded, html_of
from graphtrain.report.snapshot import Snapshot
from graphtrain.storage.files import readable_failure
from graphtrain.storage.manifest import Manifest, checkpoint_paths, read_manifest
from graphtrain.storage.named import graph_of
from graphtrain.storage.run_directory import (
    ACTIVE,
    CHECKPOINTS_FOLDER,
    METRICS_FILE,
    STATUS_FILE,
    RowsFile,
    best_in,
    read_starts,
    read_status,
    tables_in,
)

_MOST_BYTES_OF_LAST_ROWS = 256 << 10
_VERSIONS = ("graphtrain", "python", "torch", "numpy")


@final
class Run(Recorded):
    """A run that is over, or is running in another process: its files are read each time, and nothing is written.

    Arguments:
        run_dir: its run directory.

    Raises:
        UsageError: there is no run; and where a file is read that cannot be.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "status.json").write_text('{"state": "finished", "place": "step 2", "position": "end"}')
    ...     _ = Path(folder, "metrics.jsonl").write_text('{"step": 2, "epoch": 1.0, "loss": 0.5}\\n')
    ...     run = Run(folder)
    ...     run, run.status["state"], run.metrics
    (<Run ...: finished, step 2>, 'finished', [{'step': 2, 'epoch': 1.0, 'loss': 0.5}])
    """

    def __init__(self, run_dir: str | Path) -> None:
        self.path = Path(run_dir)
        if not (self.path / STATUS_FILE).exists() and not checkpoint_paths(self.path / CHECKPOINTS_FOLDER):
            read_status(self.path)

    def __getattr__(self, name: str) -> Any:
        hint = f': write trainer.load("{self.path}/best"), which loads its weights into the model' * (name == "best")
        raise AttributeError(f"`Run` has no `{name}`{hint}", name=name, obj=self)

    @property
    def status(self) -> dict[str, Any]:
        """The last status, as ``graphtrain status --json`` prints it.

        A run that is running in a process that is gone is `interrupted`.
        """
        return as_of_now(read_status(self.path))

    @property
    def was_killed(self) -> bool:
        """True if its process is gone and has not stopped it."""
        status = read_status(self.path)
        return status.get("state") in ACTIVE and _is_alive_here(status) is False

    @property
    def notices(self) -> list[tuple[float, str]]:
        """What the run has reported last: times in Unix seconds, and lines."""
        return [(at, line) for at, line in self.status.get("notices") or ()]

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The rows recorded so far, oldest first."""
        return RowsFile(self.path / METRICS_FILE).numbers()

    def last_rows(self) -> list[dict[str, Any]]:
        """The last rows of metrics: those in the last 256 KiB, which are read at once, however long the run is.

        NaN and infinities are strings. Rows that cannot be read are left out.
        """
        try:
            with open(self.path / METRICS_FILE, "rb") as file:
                start = max(os.fstat(file.fileno()).st_size - _MOST_BYTES_OF_LAST_ROWS, 0)
                file.seek(start)
                lines = file.read().split(b"\n")
        except OSError:
            return []
        return tables_in(lines[1 if start else 0 :])

    @property
    def activity(self) -> RunActivity:
        """What nodes and edges ran and took, at each row and every ten seconds; empty where it was not counted."""
        return RunActivity(self.path)

    def counts_at(self, row: int = -1) -> dict[str, Any] | None:
        """The totals of nodes and edges when a row of `metrics` was recorded, as `RunActivity` describes them.

        Arguments:
            row: its number; -1 is the last. Default: the last.

        Returns:
            None where nothing was counted until then.
        """
        rows = len(self.metrics)
        if not -rows <= row < rows:
            raise UsageError(f"`{self.path}` has no row {row} of metrics: it has {rows}")
        return self.activity.at(row % rows)

    @property
    def starts(self) -> list[dict[str, Any]]:
        """When the run was begun and resumed, oldest first.

        Each has its ``time`` in Unix seconds, the ``checkpoint`` that it was resumed from or None, and what else the
        start has noted: ``about`` (command and arguments), ``environment`` (versions), ``origin`` (code), ``data``.
        """
        starts = [start for start in read_starts(self.path) if {"run", "checkpoint"} <= start.keys()]
        return [{**start, "time": start.get("started_at_unix_seconds")} for start in starts]

    @property
    def versions(self) -> dict[str, str]:
        """The versions at the last start: of graphtrain, Python, torch and NumPy."""
        environment = self._last("environment")
        return {name: str(environment[name]) for name in _VERSIONS if name in environment}

    @property
    def revision(self) -> str:
        """The git revision of the code at the last start; empty if it is not known."""
        return str(self._last("origin").get("revision") or "")

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """What tells runs apart: ``arguments`` of `setup`, ``parameters`` of the graph, ``hyper_parameters``."""
        parameters = self.status.get("parameters")
        checkpoints = checkpoint_paths(self.path / CHECKPOINTS_FOLDER)
        fields = read_manifest(checkpoints[-1]).hyper_parameters if checkpoints else {}
        return {
            "arguments": self.arguments,
            "parameters": dict(parameters) if isinstance(parameters, dict) else {},
            "hyper_parameters": {f"{name}.{key}": value for name, own in fields.items() for key, value in own.items()},
        }

    @property
    def checkpoints(self) -> list[dict[str, Any]]:
        """The checkpoints that are there, oldest first: ``name``, ``step``, ``epoch``, ``rows`` of metrics before it,
        ``metrics`` at that time, and the names under which it is the ``best``, such as "best"; empty for any other.

        Raises:
            CheckpointError: one of them cannot be read.
        """
        best, listed, rows = best_in(self.status), [], self._metrics_text()
        for path in checkpoint_paths(self.path / CHECKPOINTS_FOLDER):
            manifest = read_manifest(path)
            listed.append(
                {
                    "name": path.name,
                    "step": manifest.step,
                    "epoch": manifest.epoch,
                    "rows": rows.count(b"\n", 0, manifest.metrics_bytes),
                    "metrics": dict(manifest.metrics),
                    "best": ", ".join(name for name in best if best[name].get("checkpoint") == path.name),
                }
            )
        return listed

    def _metrics_text(self) -> bytes:
        file = self.path / METRICS_FILE
        if not file.exists():
            return b""
        with readable_failure(file):
            return file.read_bytes()

    def _last(self, key: str) -> dict[str, Any]:
        """What the last start has noted under a key; empty if that is no table."""
        starts = read_starts(self.path)
        noted = starts[-1].get(key) if starts else None
        return noted if isinstance(noted, dict) else {}

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `setup` at the last start; empty where no command has started it."""
        arguments = self._last("about").get("arguments")
        return {name: of_text(value) for name, value in arguments.items()} if isinstance(arguments, dict) else {}

    @property
    def graph(self) -> EditableGraph:
        """The procedure, as in the newest checkpoint.

        Raises:
            CheckpointError, UsageError: there is none, or it cannot be read.
        """
        newest = checkpoint_paths(self.path / CHECKPOINTS_FOLDER)[-1:]
        if not newest:
            raise UsageError(f"`{self.path}` has no checkpoint yet, which would have the graph")
        return graph_of(newest[0], read_manifest(newest[0]))

    @property
    def _clocks(self) -> Sequence[str]:
        return tuple(self.snapshot().clocks)

    def snapshot(self) -> Snapshot:
        """The status as a value: what can be read of it."""
        return Snapshot.from_plain(self.status)

    def __repr__(self) -> str:
        try:
            status = self.status
        except UsageError as error:  # it was removed since
            return f"<Run {self.path}: {error.message}>"
        place = one_line(str(status.get("place") or ""))
        return f"<Run {self.path}: {', '.join(filter(None, [one_line(str(status.get('state'))), place]))}>"

    def _repr_html_(self) -> str:
        try:
            totals = self.counts_at()
        except UsageError:  # a damaged file
            totals = None
        return html_of(self, totals["runs"] if totals is not None else None)


# ---- the same in words, for every list and page


def as_of_now(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status that was read before, with the state of its run now, whose process may be gone since."""
    now = dict(status)
    if status.get("state") in ACTIVE and _is_alive_here(status) is False:
        now["state"] = "interrupted"
    return now


def state_in_words(status: Mapping[str, Any]) -> str:
    """The state, and since when a loss is not finite.

    >>> state_in_words({"state": "running", "not_finite": "`loss` is not finite since step 40"})
    'running, not finite since step 40'
    """
    steps = re.findall(r"since step (\d{1,15})", str(status.get("not_finite") or ""))
    since = f", not finite since step {min(map(int, steps))}" if steps else ""
    return f"{Snapshot.from_plain(status).state}{since}"


def why(run: Run) -> Iterator[str]:
    """Why a run is in its state, a sentence a line. Of one at its end, the first needs no checkpoint to be read."""
    status, snapshot = run.status, run.snapshot()
    state, position = snapshot.state, f"node `{snapshot.position}`"
    error, *hint = error_lines(status.get("error") or "", 400)
    reason = shown(status.get("reason") or "a request")
    process = shown(status.get("process"))
    if state == "failed":
        yield f"it failed {f'in {position}' if snapshot.position else 'before it began'}: {error or '?'}"
    elif state == "finished":
        yield from _why_finished(run, snapshot)
    elif state == "stopped":
        how = f"at {reason}" if reason.startswith("--") else f"by {error or reason}"
        yield f"it was stopped {how}; next is {position}"
    elif state in ACTIVE:
        yield f"process {process} is running it; next is {position}"
    elif run.was_killed:
        yield f"process {process} is gone and has not stopped it: killed, out of memory, or the machine went down"
        yield f"it was last seen before {position}"
    else:
        yield f"it was interrupted immediately in {position}, for example by a second Ctrl-C"
    yield from hint
    if not_finite := status.get("not_finite"):
        yield shown(not_finite)


def _why_finished(run: Run, snapshot: Snapshot) -> Iterator[str]:
    ends = " or ".join(map(shown, snapshot.end))
    if ends and snapshot.is_at_its_end:
        yield f"it reached its end, {ends}"
    manifest = newest_manifest(run)
    try:
        graph = graph_of(run.path, manifest) if manifest is not None and manifest.ended else None
    except GraphtrainError:  # of a kind of graph that this version does not read
        graph = None
    told = [line for _, line in run.notices if graph is not None and line.partition(": ")[0] in graph.nodes]
    if not snapshot.is_at_its_end:
        early = [f"it ended before {ends}"] if ends else []
        if early or told:
            yield ": ".join([*early, *(shown(line, 300) for line in told[-1:])])
    if manifest is None or graph is None or (told and not snapshot.is_at_its_end):
        return
    for edge in graph.edges.get(manifest.position, ()):
        if edge.target == END:
            expression = f', where {edge.when} = "{shown(graph.guards.get(edge.when, ""))}"' if edge.when else ""
            yield f"by the edge {manifest.position} -> {edge}{expression}"


def newest_manifest(run: Run) -> Manifest | None:
    """The manifest of the newest checkpoint; None if there is none, or it cannot be read."""
    paths = checkpoint_paths(run.path / CHECKPOINTS_FOLDER)
    try:
        return read_manifest(paths[-1]) if paths else None
    except GraphtrainError:
        return None


def command_of(run: Run) -> list[str]:
    """The words of the command by which a run was last started; empty if they are not known."""
    for about in (*(start.get("about") for start in run.starts[-1:]), run.status):
        if isinstance(about, Mapping) and isinstance(text := about.get("command"), str):
            try:
                return shlex.split(text)
            except ValueError:  # not as a run writes it
                return []
    return []


def script_in(command: Sequence[str]) -> str:
    """The script that a command names; `SCRIPT` if it names none."""
    return next((word for word in command if word.partition(":")[0].endswith(".py")), "SCRIPT")


def _is_alive_here(status: Mapping[str, Any]) -> bool | None:
    """True if the process that wrote the status is alive; None if it runs on another host."""
    if status.get("host") not in (None, socket.gethostname()):
        return None
    process = status.get("process")
    return isinstance(process, int) and not isinstance(process, bool) and is_alive(process)
