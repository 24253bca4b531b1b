"""`graphtrain run` on the slow disk: in a process of its own, looked at from outside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgpack

from graphtrain.storage.checkpoint import MANIFEST_FILE, read_checkpoint
from graphtrain.storage.run_directory import METRICS_FILE, read_status
from tests.command.forked import Started, nursery
from tests.command.running import arguments, environment, python

ROOT = Path(__file__).parent.parent.parent
SLOW_DISK = ROOT / "tests" / "resume" / "slow_disk.py"
GRAPH = ("accumulate.every=4", "clip.max_norm=1.0", "validate.every=0.4 epochs", "log.every=1 steps")


@dataclass
class Run:
    """One run directory, and the command that starts and resumes it.

    Attributes:
        settings: edits of the graph and arguments of `setup`, beyond those that all runs share.
        about: what `slow_disk` reads from its environment.
    """

    folder: Path
    settings: tuple[str, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shutil.copy(SLOW_DISK, self.folder / SLOW_DISK.name)

    @property
    def directory(self) -> Path:
        return self.folder / "run"

    @property
    def checkpoints(self) -> list[Path]:
        """Oldest first; those that are still being written, or removed, are not among them."""
        folder = self.directory / "checkpoints"
        return sorted(one for one in folder.iterdir() if not one.name.startswith(".")) if folder.is_dir() else []

    def start(self, *words: str, **about: str) -> Started:
        """Start the command in a process that finds torch imported, and leave it running."""
        command = ("-m", "graphtrain", *self._words(*words))
        return nursery().start(command, self.folder, self._environment(about))

    def start_new(self, *words: str, before: Sequence[str] = (), **about: str) -> subprocess.Popen[str]:
        """Start the command in a process that begins with nothing, and leave it running.

        Arguments:
            before: another command that gets this one as its further words. Default: none.
        """
        return subprocess.Popen(
            [*before, *arguments(*self._words(*words))],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment(about),
        )

    def finish(self, *words: str, timeout_seconds: float = 300, **about: str) -> tuple[int, str]:
        """Run the command to its end, in a process that finds torch imported: the exit code, and its output."""
        command = ("-m", "graphtrain", *self._words(*words))
        done = python(*command, cwd=self.folder, env=self._environment(about), timeout_seconds=timeout_seconds)
        return done.code, done.out + done.err

    def _words(self, *words: str) -> list[str]:
        return ["run", SLOW_DISK.name, "--run-dir", "run", *GRAPH, *self.settings, *words]

    def _environment(self, about: Mapping[str, str]) -> dict[str, str]:
        return {**environment(), "PYTHONPATH": str(ROOT), **self.about, **about}

    @property
    def result(self) -> tuple[str, bytes]:
        """The digest, and the metrics to the last byte."""
        return read_status(self.directory)["digest"], (self.directory / METRICS_FILE).read_bytes()

    def expect_sound(self) -> None:
        """Every checkpoint that is in its place is whole."""
        for path in self.checkpoints:
            read_checkpoint(path)

    def unaccounted(self) -> set[str]:
        """What is in the run directory beyond what its pages name."""
        starts = [json.loads(line) for line in (self.directory / "starts.jsonl").read_text().splitlines()]
        named = {".lock", METRICS_FILE, "nodes.jsonl", "status.json", "starts.jsonl", "checkpoints"}
        named |= {start["origin"]["difference"] for start in starts}  # of the source, which is in no repository
        found = {one.name for one in self.directory.iterdir()} - named
        for path in (self.directory / "checkpoints").iterdir():
            if path not in self.checkpoints:
                found.add(f"checkpoints/{path.name}")
                continue
            outer = msgpack.unpackb((path / MANIFEST_FILE).read_bytes())
            files = {MANIFEST_FILE, *msgpack.unpackb(outer["manifest"])["files"]}
            found |= {f"checkpoints/{path.name}/{name}" for name in set(os.listdir(path)) ^ files}
        return found
