"""The options of `graphtrain run`, and the command line that says the same."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunOptions:
    """The options of the command, as typed."""

    graph: str
    run_dir: Path | None
    resume: str
    fork: Path | None
    until: str | None
    seed: int
    device: str
    deterministic: bool
    quiet: bool


def command_line(script: str, settings: list[str], options: RunOptions) -> str:
    """The command that runs a script with these options, as a shell reads it.

    >>> options = RunOptions("fit", Path("runs/a"), "auto", None, None, 0, "auto", False, False)
    >>> command_line("train.py", ["finish.after=2 epochs"], options)
    "graphtrain run train.py 'finish.after=2 epochs' --run-dir runs/a"
    """
    words = ["graphtrain", "run", script, *settings]
    if options.graph != "fit":
        words += ["--graph", options.graph]
    if options.run_dir is not None:
        words += ["--run-dir", str(options.run_dir)]
    if options.resume != "auto":
        words += ["--resume", options.resume]
    if options.fork is not None:
        words += ["--fork", str(options.fork)]
    if options.until is not None:
        words += ["--until", options.until]
    if options.seed != 0:
        words += ["--seed", str(options.seed)]
    if options.device != "auto":
        words += ["--device", options.device]
    if options.deterministic:
        words.append("--deterministic")
    if options.quiet:
        words.append("--quiet")
    return shlex.join(words)
