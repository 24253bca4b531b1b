"""The command as a user runs it: in this process (fast), in one of its own (as good as fast), or in a new one."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.command.forked import Started, nursery

TINY = '''\
"""A model of three weights and a list of batches."""

import torch

def training_step(model, batch):
    return model(batch).square().mean()

def setup(lr: float = 0.1, batches: int = 4, name: str = "tiny"):
    model = torch.nn.Linear(2, 1)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=lr),
        "train_data": [torch.randn(2, 2) for _ in range(batches)],
        "training_step": training_step,
    }
'''

# Every step takes some milliseconds, so that a signal arrives while the run is under way; none once there is `fast`.
SLOW = TINY.replace("import torch\n", "import os\nimport time\nimport torch\n").replace(
    "    return model(batch)", '    os.path.exists("fast") or time.sleep(0.02)\n    return model(batch)'
)


@dataclass(frozen=True)
class Result:
    """What one call of the command left behind."""

    code: int
    out: str
    err: str


def arguments(*words: str) -> list[str]:
    """A command line of a new process; every warning is an error in it."""
    return [sys.executable, "-W", "error", "-m", "graphtrain", *words]


def python(*words: str, cwd: Path, env: Mapping[str, str] | None = None, timeout_seconds: float = 300) -> Result:
    """Do what ``python WORDS`` does, in a process of its own that finds torch imported; warnings are errors.

    Arguments:
        env: Default: `environment`.
    """
    return Result(*nursery().run(words, cwd, environment() if env is None else env, timeout_seconds))


def in_a_process(*words: str, cwd: Path, timeout_seconds: float = 300) -> Result:
    """Run the command in a process of its own, as `python` above."""
    return python("-m", "graphtrain", *words, cwd=cwd, timeout_seconds=timeout_seconds)


def in_a_new_process(*words: str, cwd: Path, timeout_seconds: float = 300) -> Result:
    """Run the command in a process that begins with nothing, as a shell does."""
    done = subprocess.run(
        arguments(*words), cwd=cwd, capture_output=True, text=True, timeout=timeout_seconds, env=environment()
    )
    return Result(done.returncode, done.stdout, done.stderr)


def launched(words: Sequence[str], env: Mapping[str, str], log: Path) -> Any:
    """In the place of `verify_cuts.launch`: a process that finds torch imported, in the current folder."""
    from graphtrain.command.verify_cuts import Ended

    done = python(*words, cwd=Path.cwd(), env={**environment(), **env, "OMP_NUM_THREADS": "1"})
    return Ended(done.code, done.err + done.out)


def start(words: Sequence[str], cwd: Path) -> Started:
    """Start the command in a process of its own that finds torch imported, and leave it running."""
    return nursery().start(("-m", "graphtrain", *words), cwd, environment())


def start_new(words: Sequence[str], cwd: Path) -> subprocess.Popen[str]:
    """Start the command in a process that begins with nothing, and leave it running."""
    return subprocess.Popen(
        arguments(*words), cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )


def environment() -> dict[str, str]:
    """The environment of a process: one thread, wide tables, no colours."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


def contents(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Every file and folder with its content, mode and time of change."""
    return {
        str(one.relative_to(folder)): (
            hashlib.sha256(one.read_bytes()).hexdigest() if one.is_file() else "",
            one.stat().st_mode,
            one.stat().st_mtime_ns,
        )
        for one in [folder, *folder.rglob("*")]
    }


def written(run_dir: Path) -> dict[str, tuple[str, int, int]]:
    """The contents of a run directory but its lock, which every process touches."""
    return {name: content for name, content in contents(run_dir).items() if name not in (".", ".lock")}


def forget(module: str) -> None:
    """What a script keeps in global variables is gone, as in a new process."""
    del sys.modules[module]
