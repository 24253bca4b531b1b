"""A run on the disk, as a value. `ls`, `status`, `explain`, pages and notebooks print it, so that all say the same."""

from __future__ import annotations

import os
import re
import shlex
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, final

from graphtrain.errors import GraphtrainError, UsageError
from graphtrain.graph import EditableGraph
from graphtrain.graph.elements import END
from graphtrain.names import in_natural_order
from graphtrain.printable import error_lines, one_line, shown
from graphtrain.ranks.alive import is_alive
from graphtrain.report.activity import RunActivity
from graphtrain.report.numbers import duration
from graphtrain.report.recorded import Recorded
from graphtrain.report.snapshot import Snapshot
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
)


def run_directories(folder: Path, depth: int = 4) -> Iterator[Path]:
    """The run directories at a folder and at most four levels below it, not below another, by name; no links."""
    if _is_run(folder):
        yield folder
    elif depth and os.access(folder, os.R_OK | os.X_OK):
        inner = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink() and path.name[0] != "."]
        for path in sorted(sorted(inner), key=lambda path: in_natural_order(path.name)):
            yield from run_directories(path, depth - 1)


def _is_run(path: Path) -> bool:
    """True for a folder that a run has written to; a file with the name of a status may be anybody's."""
    try:
        if (path / STATUS_FILE).is_file() and not (path / CHECKPOINTS_FOLDER).is_dir():
            return {"state", "position"} <= read_status(path).keys()
        return (path / STATUS_FILE).is_file() or bool(checkpoint_paths(path / CHECKPOINTS_FOLDER))
    except (OSError, UsageError):
        return False


@final
class Run(Recorded):
    """A run that is over, or is running in another process, by its files; nothing is written.

    The status is read once, at the start, and everything else on access; a new `Run` reads a newer status.

    Arguments:
        run_dir: its run directory.

    Attributes:
        path: the run directory.
        status: the last status, as ``graphtrain status --json`` prints it.
        state: running, stopping, stopped, finished, failed or interrupted, as a run is whose process is gone.
        condition: the state, and the row by which a loss is not finite: ``"running, not finite by step 40"``.
        place: where it is: ``"step 40, epoch 2.50, batch 5/10"``, and a checkpoint saved after its status was written.
        is_behind: True if its status is older than its newest checkpoint, as after a kill.
        was_killed: True if its process is gone without having stopped the run.
        newest: the name of the newest checkpoint; empty if there is none.
        resumable: whether there is a checkpoint to resume from; empty for a run that is running, or done.
        best: the best checkpoint of each ranking: ``checkpoint``, ``metric`` and ``value``, by names such as "best".
        arguments: the arguments of `setup` at the last start; empty where no command has started it.
        error: the exception that has ended it, and a hint if there is one; empty if none has.
        age, age_seconds: how long ago its status was written, in words, and in seconds; None if that is not known.
        activity: how often nodes and edges ran, and seconds of nodes, at each row and every ten seconds.

    Raises:
        UsageError: there is no run; and where a file is read that cannot be.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "status.json").write_text('{"state": "finished", "place": "step 2", "position": "end"}')
    ...     _ = Path(folder, "metrics.jsonl").write_text('{"step": 2, "epoch": 1.0, "loss": 0.5}\\n')
    ...     run = Run(folder)
    ...     run, run.state, run.metrics
    (<Run ...: finished, step 2>, 'finished', [{'step': 2, 'epoch': 1.0, 'loss': 0.5}])
    """

    def __init__(self, run_dir: str | Path) -> None:
        self.path = Path(run_dir)
        self._checkpoints = checkpoint_paths(self.path / CHECKPOINTS_FOLDER)
        self.newest = self._checkpoints[-1].name if self._checkpoints else ""
        is_young = self.newest and not (self.path / STATUS_FILE).exists()
        written = {"state": "running"} if is_young else read_status(self.path)
        self.status = status = as_of_now(written)
        self.was_killed = status.get("state") != written.get("state")
        self.is_behind = status.get("state") == "interrupted" and self.newest > str(written.get("checkpoint") or "")
        if self.is_behind:
            place = f"{written.get('place', '?')}; then saved {self.newest}"
            status |= {"checkpoint": self.newest, "digest": None, "place": place}
        self.state = self.snapshot().state
        steps = re.findall(r" (\d{1,15})(?:,|$)", str(status.get("not_finite") or ""))
        self.condition = self.state + (f", not finite by step {min(map(int, steps))}" if steps else "")
        self.place = one_line(str(status.get("place") or ""))
        self.resumable = "" if self.state in (*ACTIVE, "finished") else "yes" if self.newest else "no checkpoint"
        self.best = best_in(status)
        self.arguments = {**arguments} if isinstance(arguments := status.get("arguments"), Mapping) else {}
        self.error = error_lines(status["error"], 400) if status.get("error") else []
        written_at = status.get("written_at_unix_seconds")
        self.age_seconds = time.time() - written_at if isinstance(written_at, int | float) else None
        self.age = "at an unknown time" if self.age_seconds is None else f"{duration(self.age_seconds)} ago"
        self.activity = RunActivity(self.path)

    def snapshot(self) -> Snapshot:
        """The status as a value: what can be read of it."""
        return Snapshot.from_plain(self.status)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The rows recorded so far, oldest first."""
        return RowsFile(self.path / METRICS_FILE).numbers()

    @cached_property
    def starts(self) -> list[dict[str, Any]]:
        """When the run was started and resumed, oldest first.

        Each has its time, ``started_at_unix_seconds``; the ``checkpoint`` that it resumed from (a name, or the path of
        one of another run) or None; ``about`` (command and arguments), ``environment`` (versions), ``origin`` (code)
        and ``data``.
        """
        return [start for start in read_starts(self.path) if {"run", "checkpoint"} <= start.keys()]

    @property
    def command(self) -> list[str]:
        """The words of the command by which it was last started; empty if they are not known."""
        about = self.starts[-1].get("about") if self.starts else None
        return shlex.split(str(about.get("command") or "")) if isinstance(about, Mapping) else []

    @property
    def script(self) -> str:
        """The script that its command names; `SCRIPT` if it names none."""
        return next((word for word in self.command if word.partition(":")[0].endswith(".py")), "SCRIPT")

    @property
    def settings(self) -> dict[str, Any]:
        """What distinguishes runs: arguments of `setup`, parameters of the graph, hyper-parameters."""
        parameters = self.status.get("parameters")
        fields = self.manifest.hyper_parameters if self.manifest is not None else {}
        hyper_parameters = {f"{name}.{key}": value for name, each in fields.items() for key, value in each.items()}
        return {**self.arguments, **(parameters if isinstance(parameters, Mapping) else {}), **hyper_parameters}

    @cached_property
    def manifest(self) -> Manifest | None:
        """That of the newest checkpoint; None if there is none, or it cannot be read."""
        with suppress(GraphtrainError):
            return read_manifest(self._checkpoints[-1]) if self._checkpoints else None
        return None

    @property
    def newest_finite(self) -> Path | None:
        """The newest checkpoint with finite weights; None if there is none."""
        for path in reversed(self._checkpoints):
            with suppress(GraphtrainError):  # damaged
                if not read_manifest(path).not_finite:
                    return path
        return None

    @property
    def checkpoints(self) -> list[dict[str, Any]]:
        """The checkpoints that are there, oldest first: ``name``, ``step``, ``epoch``, ``rows`` of metrics before it,
        ``metrics`` at that time, and the names under which it is the ``best``, such as "best"; empty for any other.

        Raises:
            CheckpointError: one of them cannot be read.
        """
        file = self.path / METRICS_FILE
        rows = file.read_bytes() if file.exists() else b""
        return [
            {
                "name": path.name,
                "step": manifest.step,
                "epoch": manifest.epoch,
                "rows": rows.count(b"\n", 0, manifest.metrics_bytes),
                "metrics": dict(manifest.metrics),
                "best": ", ".join(name for name, best in self.best.items() if best.get("checkpoint") == path.name),
            }
            for path, manifest in ((path, read_manifest(path)) for path in self._checkpoints)
        ]

    @property
    def graph(self) -> EditableGraph:
        """The procedure, as in the newest checkpoint.

        Raises:
            CheckpointError, UsageError: there is none, or it cannot be read.
        """
        if not self._checkpoints:
            raise UsageError(f"`{self.path}` has no checkpoint yet, which would have the graph")
        return graph_of(self._checkpoints[-1], read_manifest(self._checkpoints[-1]))

    @property
    def _runs(self) -> Mapping[str, int] | None:
        return (self.activity.at(-1) or {}).get("runs")

    def why(self) -> Iterator[str]:
        """Why it is in its state, one sentence a line; the first reads no checkpoint if the run reached its end."""
        position = f"node `{one_line(self.snapshot().position)}`"
        error, *hint = self.error or [""]
        reason, number = shown(self.status.get("reason") or "a request"), self.status.get("process")
        process = f"process {shown(number)}" if number is not None else "its process"
        if self.state == "failed":
            yield f"it failed in {position}: {error or '?'}"
        elif self.state == "finished":
            yield from self._why_finished()
        elif self.state == "stopped":
            how = f"at {reason}" if reason.startswith("--") else f"by {error or reason}"
            yield f"it was stopped {how}; next is {position}"
        elif self.state in ACTIVE:
            yield f"{process} is running it; next is {position}"
        elif self.was_killed:
            yield f"{process} is gone: killed, out of memory, its disk was full, or the machine went down"
            yield f"it was last seen before {position}"
        else:
            yield f"it was interrupted immediately in {position}, for example by a second Ctrl-C"
        yield from hint
        if (not_finite := self.status.get("not_finite")) and " at batch " not in error:  # which is more exact
            yield shown(not_finite)

    def _why_finished(self) -> Iterator[str]:
        """By which amount, node and edge it ended."""
        ends = " or ".join(map(shown, self.snapshot().end)) if self.snapshot().done is not None else ""  # of a body
        how = "reached its end," if self.snapshot().is_at_its_end else "ended before"
        if line := ": ".join(filter(None, [ends and f"it {how} {ends}", self.ending_notice])):
            yield line
        if (graph := self._ended_graph) is None or self.ending_notice or self.manifest is None:
            return
        for edge in graph.edges.get(self.manifest.position, ()):
            if edge.target == END:
                guard = f', where {edge.when} = "{shown(graph.guards.get(edge.when, ""))}"' if edge.when else ""
                yield f"by the edge {self.manifest.position} -> {edge}{guard}"

    @cached_property
    def _ended_graph(self) -> EditableGraph | None:
        with suppress(GraphtrainError):  # of a kind of graph that this version does not read
            return self.graph if self.manifest is not None and self.manifest.ended else None
        return None

    @property
    def ending_notice(self) -> str:
        """What a node reported when it ended the run before its amount: ``"early_stop: val/loss is nan"``, or empty."""
        graph = None if self.snapshot().is_at_its_end else self._ended_graph
        nodes = graph.nodes if graph is not None else ()
        lines = [line for _, line in self.status.get("notices") or () if line.partition(": ")[0] in nodes]
        return shown(lines[-1], 300) if lines else ""

    def __repr__(self) -> str:
        return f"<Run {self.path}: {', '.join(filter(None, [one_line(self.state), self.place]))}>"


def as_of_now(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status with the state of its run now: `interrupted` if its process, on this host, is gone."""
    process, host = status.get("process"), status.get("host")
    is_gone = (
        status.get("state") in ACTIVE
        and host in (None, socket.gethostname())
        and not (type(process) is int and is_alive(process))
    )
    return {**status, "state": "interrupted"} if is_gone else {**status}
