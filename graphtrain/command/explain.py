"""`graphtrain explain`: why a run ended, and what to do next, from its run directory alone."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from graphtrain.command.cli import command
from graphtrain.command.listing import age
from graphtrain.command.output import shown, shown_number
from graphtrain.command.run import resume_command
from graphtrain.errors import GraphtrainError
from graphtrain.graph.elements import END
from graphtrain.names import quoted
from graphtrain.report.snapshot import Snapshot
from graphtrain.storage.manifest import Manifest, checkpoint_paths, read_manifest
from graphtrain.storage.named import graph_of
from graphtrain.storage.run_directory import (
    ACTIVE,
    CHECKPOINTS_FOLDER,
    METRICS_FILE,
    last_rows,
    noted,
    present_status,
    read_starts,
    read_status,
)

_MOST_STARTS = 6
_MOST_ROWS = 3


@command("graphtrain explain runs/first")
def explain(run_dir: Path) -> None:
    """Say why a run ended, stopped or failed, what led there, and what to do next.

    All of it is read from the run directory; the script is not needed, and nothing is written.

    Exit codes: 0 explained, 2 there is no run.

    Arguments:
        run_dir: The directory of a run.
    """
    status = present_status(run_dir)
    past = _Past(run_dir, status, Snapshot.from_plain(status), read_starts(run_dir))
    sections = {
        "": [past.headline(), *(f"  {line}" for line in past.why())],
        "starts": past.begun(),
        "reported": [f"{_moment(at)}  {shown(line, 300)}" for at, line in noted(status)],
        "last rows of metrics": past.rows(),
        "checkpoints": past.checkpoints(),
        "next": past.following(),
    }
    for title, lines in sections.items():
        found = [*lines]
        for line in [f"\n{title}:"] * bool(title and found) + [f"  {line}" if title else line for line in found]:
            click.echo(line)


@dataclass(frozen=True)
class _Past:
    """What a run has left in its directory."""

    path: Path
    status: Mapping[str, Any]
    snapshot: Snapshot
    starts: Sequence[Mapping[str, Any]]

    def headline(self) -> str:
        """Its state and place."""
        place = f", {shown(self.status['place'])}" if self.status.get("place") else ""
        return f"{self.path}: {self.snapshot.state}{place}, {age(self.status)}"

    # ---- why

    def why(self) -> Iterator[str]:
        """Why it is in this state, a sentence a line."""
        state, position = self.snapshot.state, f"node `{self.snapshot.position}`"
        error, reason = shown(self.status.get("error") or "", 400), shown(self.status.get("reason") or "a request")
        process = shown(self.status.get("process"))
        if state == "failed":
            yield f"it failed {f'in {position}' if self.snapshot.position else 'before it began'}: {error or '?'}"
        elif state == "finished":
            yield from self._why_finished()
        elif state == "stopped":
            why = f"at {reason}" if reason.startswith("--") else f"by {error or reason}"
            yield f"it was stopped {why}; next is {position}"
        elif state in ACTIVE:
            yield f"process {process} is running it; next is {position}"
        elif read_status(self.path).get("state") in ACTIVE:
            yield f"process {process} is gone and has not stopped it: killed, out of memory, or the machine went down"
            yield f"it was last seen before {position}"
        else:
            yield f"it was interrupted immediately in {position}, for example by a second Ctrl-C"
        if not_finite := self.status.get("not_finite"):
            yield shown(not_finite)

    def _why_finished(self) -> Iterator[str]:
        snapshot, manifest = self.snapshot, self._newest
        ends = " or ".join(map(shown, snapshot.end))
        if ends:
            reached = snapshot.done is not None and snapshot.done >= 1
            yield f"it reached its end, {ends}" if reached else f"it ended before {ends}"
        if manifest is None or not manifest.ended:
            return
        try:
            graph = graph_of(self.path, manifest)
        except GraphtrainError:  # of a kind of graph that this version does not read
            return
        for edge in graph.edges.get(manifest.position, ()):
            if edge.target == END:
                expression = f', where {edge.when} = "{shown(graph.guards.get(edge.when, ""))}"' if edge.when else ""
                yield f"by the edge {manifest.position} -> {edge}{expression}"

    # ---- what led there

    def begun(self) -> Iterator[str]:
        """Its starts, the first and the last ones."""
        starts = [*self.starts]
        left_out = starts[1:-_MOST_STARTS]
        for start in [*starts[:1], *starts[1:][-_MOST_STARTS:]]:
            if left_out and start is starts[-_MOST_STARTS]:
                yield f"... {len(left_out)} more"
            checkpoint = start.get("checkpoint")
            how = f"resumed from {shown(checkpoint)}" if checkpoint else "begun"
            where = f"on {shown(start.get('host'))} by process {shown(start.get('process'))}"
            yield f"{_moment(start.get('started_at_unix_seconds'))}  {how} {where}"

    def rows(self) -> list[str]:
        """The last rows of metrics."""
        file = self.path / METRICS_FILE
        rows = last_rows(self.path, file.stat().st_size) if file.is_file() else []
        shown_rows = (
            [f"{shown(name)} {shown_number(value)}" for name, value in row.items()] for row in rows[-_MOST_ROWS:]
        )
        return [*map("  ".join, shown_rows)]

    def checkpoints(self) -> Iterator[str]:
        """The newest and the best one, and how often the run went back to one."""
        if (paths := checkpoint_paths(self.path / CHECKPOINTS_FOLDER)) and (manifest := self._newest) is not None:
            yield f"newest {paths[-1].name}, step {manifest.step}"
            if manifest.not_finite:
                yield f"`{shown(manifest.not_finite)}` in it is not finite"
            if manifest.returns:
                savers = quoted(manifest.saved_by) or "a checkpoint"
                yield f"the run went back to a checkpoint {manifest.returns} times (to those of {savers})"
        elif paths:
            yield f"newest {paths[-1].name}, which cannot be read"
        if isinstance(best := self.status.get("best"), Mapping):
            yield f"best {shown(best.get('checkpoint'))}, {shown(best.get('metric'))} {shown_number(best.get('value'))}"

    @cached_property
    def _newest(self) -> Manifest | None:
        paths = checkpoint_paths(self.path / CHECKPOINTS_FOLDER)
        try:
            return read_manifest(paths[-1]) if paths else None
        except GraphtrainError:
            return None

    # ---- what next

    def following(self) -> Iterator[str]:
        """What to do, with the commands to paste."""
        state, command = self.snapshot.state, self._command()
        resume = resume_command(command, self.path, is_reached=str(self.status.get("reason")).startswith("--"))
        resume = resume if command else "run the program again, with this run directory"
        replay = self.status.get("replay")
        if state == "failed" and isinstance(replay, list) and replay:
            script = next((word for word in command if word.partition(":")[0].endswith(".py")), "SCRIPT")
            words = ["graphtrain", "replay", script, "--run-dir", str(self.path), *map(str, replay)]
            yield f"{shown(shlex.join(words), 500)}"
            yield "    repeats it up to the node that failed; --pdb opens a debugger there"
        if state in ACTIVE:
            yield f"graphtrain status {shlex.quote(str(self.path))}"
        elif state == "finished":
            yield "nothing; a later end, such as a larger finish.after, trains it further"
        else:
            has_checkpoint = bool(checkpoint_paths(self.path / CHECKPOINTS_FOLDER))
            what = "resumes it" if has_checkpoint else "starts it from the beginning: there is no checkpoint"
            yield shown(resume, 1000)
            yield f"    {what}{'; remove the cause of the error first' if state == 'failed' else ''}"
        if self.status.get("not_finite"):
            yield "--overlay check_finite, in a new run, names the batch with which the loss diverges"

    def _command(self) -> list[str]:
        """The words by which the run was last started; empty if they are not known."""
        abouts = [start.get("about") for start in self.starts[-1:]] + [self.status]
        for about in abouts:
            if isinstance(about, Mapping) and isinstance(text := about.get("command"), str):
                try:
                    return shlex.split(text)
                except ValueError:  # not as a run writes it
                    return []
        return []


def _moment(at: Any) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (TypeError, ValueError, OverflowError, OSError):
        return "at an unknown time"
