"""`graphtrain explain`: why a run ended, and what to do next, from its run directory alone."""

from __future__ import annotations

import contextlib
import itertools
import re
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
from graphtrain.command.options import OF_THE_END, OF_THE_START, resume_command, without
from graphtrain.command.output import shown, shown_number
from graphtrain.errors import GraphtrainError, UsageError
from graphtrain.report.remedies import lacks_a_check, replay_of_validation
from graphtrain.report.run import Run, command_of, newest_manifest, script_in, why
from graphtrain.report.snapshot import Snapshot
from graphtrain.storage.manifest import Manifest, checkpoint_paths, read_manifest
from graphtrain.storage.named import graph_of
from graphtrain.storage.run_directory import ACTIVE, CHECKPOINTS_FOLDER, best_in

_MOST_STARTS = 6
_MOST_ROWS = 3
_MOST_EDGES = 12


@command("graphtrain explain runs/first")
@click.argument("run_dir", type=Path)
def explain(run_dir: Path) -> None:
    """Say why a run ended, stopped or failed, what led there, and what to do next.

    All of it is read from the run directory; the script is not needed, and nothing is written.

    Exit codes: 0 explained, 2 there is no run.
    """
    run = Run(run_dir)
    past = _Past(run, run.status, run.snapshot(), run.starts)
    sections = {
        "": [past.headline(), *(f"  {line}" for line in why(run))],
        "starts": past.begun(),
        "reported": [f"{_moment(at)}  {shown(line, 300)}" for at, line in run.notices],
        "last rows of metrics": past.rows(),
        "last transitions": past.transitions(),
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

    run: Run
    status: Mapping[str, Any]
    snapshot: Snapshot
    starts: Sequence[Mapping[str, Any]]

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.run.path

    def headline(self) -> str:
        """Its state and place."""
        place = f", {shown(self.status['place'])}" if self.status.get("place") else ""
        return f"{self.path}: {self.snapshot.state}{place}, {age(self.status)}"

    # ---- what led there

    def begun(self) -> Iterator[str]:
        """Its last starts."""
        for start in self.starts[-_MOST_STARTS:]:
            checkpoint = start.get("checkpoint")
            how = f"resumed from {shown(checkpoint)}" if checkpoint else "begun"
            where = f"on {shown(start.get('host'))} by process {shown(start.get('process'))}"
            yield f"{_moment(start.get('started_at_unix_seconds'))}  {how} {where}"

    def rows(self) -> list[str]:
        """The last rows of metrics."""
        rows = self.run.last_rows()[-_MOST_ROWS:]
        shown_rows = ([f"{shown(name)} {shown_number(value)}" for name, value in row.items()] for row in rows)
        return [*map("  ".join, shown_rows)]

    def transitions(self) -> Iterator[str]:
        """What ran since the last row of metrics but one, and which edges were taken."""
        activity = self.run.activity
        try:
            last = activity.at(-1)
            earlier = activity.at(last["rows"] - 2) if last is not None and last["rows"] > 1 else None
        except UsageError:  # a damaged file, on which nothing else depends
            return
        if last is None:
            return
        before: dict[str, Any] = earlier or {"runs": {}, "taken": {}, "rows": 0}
        since = f"since row {before['rows']} of metrics" if before["rows"] else "since the beginning"
        for title, key in (("ran", "runs"), ("took", "taken")):
            more = {name: count - before[key].get(name, 0) for name, count in last[key].items()}
            listed = sorted((name for name in more if more[name]), key=lambda name: -more[name])
            words = [f"{shown(name)} ({more[name]})" for name in listed[:_MOST_EDGES]]
            words += [f"{len(listed) - _MOST_EDGES} others"] if len(listed) > _MOST_EDGES else []
            yield f"{since} {title}: {', '.join(words)}"

    def checkpoints(self) -> Iterator[str]:
        """The newest and the best one, and how often the run went back to one."""
        if (paths := checkpoint_paths(self.path / CHECKPOINTS_FOLDER)) and (manifest := self._newest) is not None:
            yield f"newest {paths[-1].name}, step {manifest.step}"
            if manifest.not_finite:
                yield f"`{shown(manifest.not_finite)}` in it is not finite"
                finite = self._newest_finite
                yield f"newest with finite weights {finite.name}" if finite is not None else "none has finite weights"
            if manifest.returns:
                yield f"the run went back to a checkpoint {manifest.returns} times"
        elif paths:
            yield f"newest {paths[-1].name}, which cannot be read"
        for name, best in best_in(self.status).items():
            number = shown_number(best.get("value"))
            yield f"{shown(name)} {shown(best.get('checkpoint'))}, {shown(best.get('metric'))} {number}"

    @cached_property
    def _newest(self) -> Manifest | None:
        return newest_manifest(self.run)

    @cached_property
    def _newest_finite(self) -> Path | None:
        """The newest checkpoint that a resume would not pass over for its weights."""
        for path in reversed(checkpoint_paths(self.path / CHECKPOINTS_FOLDER)):
            with contextlib.suppress(GraphtrainError):
                if not read_manifest(path).not_finite:
                    return path
        return None

    # ---- what next

    def following(self) -> Iterator[str]:
        """What to do, with the commands to paste."""
        state, command = self.snapshot.state, command_of(self.run)
        resume = resume_command(command, self.path, is_reached=str(self.status.get("reason")).startswith("--"))
        resume = resume if command else "run the program again, with this run directory"
        replay = self.status.get("replay")
        if state == "failed" and isinstance(replay, list) and replay:
            yield shown(shlex.join(self._replay(command, [*map(str, replay)])), 500)
            yield "    repeats it up to the node that failed; --pdb opens a debugger there"
        if state in ACTIVE:
            yield f"graphtrain status {shlex.quote(str(self.path))}"
        elif state == "finished":
            if not self.status.get("not_finite"):
                further = "such as a larger finish.after, trains it further"
                by_itself = "it ended by itself: what ended it has to be set otherwise to train it further"
                yield f"nothing; {f'a later end, {further}' if self.snapshot.is_at_its_end else by_itself}"
        else:
            has_checkpoint = bool(checkpoint_paths(self.path / CHECKPOINTS_FOLDER))
            what = "resumes it" if has_checkpoint else "starts it from the beginning: there is no checkpoint"
            yield shown(resume, 1000)
            yield f"    {what}{'; remove the cause of the error first' if state == 'failed' else ''}"
        if state not in ACTIVE:
            yield from self._after_divergence(command)

    def _after_divergence(self, command: Sequence[str]) -> Iterator[str]:
        """What leads to the batch with which a loss diverged."""
        losses = re.findall(r"`([^`]+)` is not finite since step (\d{1,15})", str(self.status.get("not_finite")))
        try:
            graph = graph_of(self.path, self._newest) if losses and self._newest is not None else None
        except GraphtrainError:  # of a kind of graph that this version does not read
            graph = None
        if graph is None:
            return
        name, step = min(losses, key=lambda loss: "/" in loss[0])  # of training first
        if replay := replay_of_validation(name, int(step), graph):
            yield shown(shlex.join(self._replay(command, replay)), 500)
            yield "    stops in the validation with that loss"
        elif lacks_a_check(graph) and command:
            free = next(path for number in itertools.count(2) if not (path := Path(f"{self.path}-{number}")).exists())
            finite = self._newest_finite
            fork = ["--fork", str(self.path / finite.name)] if finite is not None else []
            kept = without(command, [*OF_THE_START, *OF_THE_END, "--run-dir="])
            words = [*kept, *fork, "--overlay", "check_finite", "--run-dir", str(free)]
            yield shown(shlex.join(words), 1000)
            yield "    names the batch with which the loss diverges"

    def _replay(self, command: Sequence[str], options: Sequence[str]) -> list[str]:
        """The words of a replay of this run."""
        processes = ["--processes", str(self._newest.ranks)] if self._newest and self._newest.ranks > 1 else []
        return ["graphtrain", "replay", script_in(command), "--run-dir", str(self.path), *options, *processes]


def _moment(at: Any) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (TypeError, ValueError, OverflowError, OSError):
        return "at an unknown time"
