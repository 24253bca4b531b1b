"""How a run starts: from the beginning, from a checkpoint of its own or of another run, or with weights of a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from graphtrain.command.options import RunOptions
from graphtrain.command.set_up import checkpoint_of, weights_named
from graphtrain.errors import UsageError
from graphtrain.storage.named import checkpoint_folder, saved_graph
from graphtrain.storage.run_directory import STARTS_FILE
from graphtrain.trainer.graph import Graph


@dataclass(frozen=True)
class Start:
    """How a run starts.

    Attributes:
        resume: as of `Trainer.run`.
        saved: the run directory or the checkpoint with the graph ``saved``; None if nothing is resumed.
        init: the files of weights that it begins with, by the names of their models.
    """

    resume: str
    saved: Path | None
    init: Mapping[str, Path]

    @classmethod
    def decide(cls, options: RunOptions, notify: Callable[[str], None]) -> Start:
        """What the options ask for. A fork that has begun, because the same command was run before, is resumed.

        Raises:
            UsageError: there is no such checkpoint, or the options exclude each other.
        """
        resume, run_dir, fork = options.resume, options.run_dir, options.fork
        if fork is not None and resume != "auto":
            raise UsageError("--fork and --resume are mutually exclusive", "--fork begins with the newest checkpoint")
        if fork is not None and run_dir is not None and run_dir.resolve() == fork.resolve():
            raise UsageError("--fork: the run directory is the one to fork from", "name a new directory with --run-dir")
        if fork is not None and (run_dir is None or not (run_dir / STARTS_FILE).exists()):
            resume = str(checkpoint_folder(checkpoint_of(fork), hint="--fork takes a run directory, or RUN/best"))
        hint, saved = "name a checkpoint, or the directory of a run; --resume also takes auto, never", run_dir
        if resume not in ("auto", "never"):
            saved = checkpoint_folder(resume, run_dir, notify, hint=hint)
        return cls(resume, None if resume == "never" else saved, weights_named(options.init))

    def graph(self, notify: Callable[[str], None]) -> Graph:
        """The graph that the run was saved with.

        Raises:
            UsageError: nothing is resumed.
            CheckpointError: the named checkpoint is damaged.
        """
        if self.saved is None:
            raise UsageError("--graph saved: no run is resumed", "name the directory of a run with --run-dir")
        return Graph.of(saved_graph(self.saved, notify))
