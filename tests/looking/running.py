"""The command as a user runs it: in this process (fast), in one of its own (as good as fast), or in a new one.

The second sort finds torch and graphtrain imported: it is forked from one that has imported them, and done nothing
else. Each has its own arguments, folder, environment, output, `__main__`, and imports of the user's code. Only the
start of the interpreter and these imports are shared, which are two seconds of work each time.
"""

from __future__ import annotations

import atexit
import functools
import gc
import hashlib
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

# Every step takes a while, so that a signal arrives while the run is under way; none once there is `fast`.
SLOW = TINY.replace("import torch\n", "import os\nimport time\nimport torch\n").replace(
    "    return model(batch)", '    os.path.exists("fast") or time.sleep(0.2)\n    return model(batch)'
)


# ---- processes that are forked

ROOT = Path(__file__).parents[2]
IMPORTED = (
    *("torch", "torch._dynamo", "torch.utils.data", "torch.profiler", "networkx", "transitions", "safetensors.torch"),
    *("click", "rich.console", "rich.progress_bar", "rich.table", "msgpack"),
    *("graphtrain.command.cli", "graphtrain.command.training", "graphtrain.checks", "graphtrain.report.display.choose"),
    *(f"graphtrain.nodes.{path.stem}" for path in sorted((ROOT / "nodes").glob("[!_]*.py"))),
    *(
        f"graphtrain.graphs.gallery.{path.parent.name}.{path.stem}"
        for path in sorted((ROOT / "graphs" / "gallery").glob("*/[!_]*.py"))
    ),
)


class Nursery:
    """The process that others are forked from; every warning is an error in it and in them."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(env),
            start_new_session=True,
        )
        atexit.register(self.end)

    def run(
        self, words: Sequence[str], cwd: Path, env: Mapping[str, str], timeout_seconds: float
    ) -> tuple[int, str, str]:
        """Do what ``python WORDS`` does, in a process of its own; the exit code, and what it printed on both streams.

        Raises:
            subprocess.TimeoutExpired: it took longer, and was killed.
        """
        started = self.start(words, cwd, env)
        try:
            started.returncode = int(self.ask("wait", started.pid, timeout_seconds=timeout_seconds))
        except subprocess.TimeoutExpired:
            raise subprocess.TimeoutExpired([*words], timeout_seconds) from None
        return started.returncode, *started.communicate()

    def start(self, words: Sequence[str], cwd: Path, env: Mapping[str, str]) -> Started:
        """Do what ``python WORDS`` does, in a process of its own that is left running."""
        folder = Path(tempfile.mkdtemp())
        streams = [str(folder / name) for name in ("out", "err")]
        return Started(int(self.ask("start", [*words], str(cwd), {**env}, *streams)), self, folder)

    def ask(self, *request: Any, timeout_seconds: float = 300) -> str:
        """The answer to a request, as below."""
        sent, received = self._process.stdin, self._process.stdout
        assert sent is not None and received is not None
        print(json.dumps(request), file=sent, flush=True)
        if not select.select([received], [], [], timeout_seconds)[0]:
            self.end()
            raise subprocess.TimeoutExpired(str(request), timeout_seconds)
        return received.readline().strip()

    def end(self) -> None:
        """Kill it, and the process that it waits for."""
        nursery.cache_clear()
        if os.getpid() == self._owner and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()


class Started:
    """A process that was left running, with what there is to a `subprocess.Popen`."""

    def __init__(self, pid: int, nursery: Nursery, folder: Path) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery
        self._folder = folder
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self.returncode is None and (code := self._nursery.ask("poll", self.pid)):
            self.returncode = int(code)
        return self.returncode

    def wait(self, timeout: float = 300) -> int:
        """The exit code, when it has ended."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return code

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """What it has printed on both streams, when it has ended."""
        self.wait(timeout)
        return (self._folder / "out").read_text(), (self._folder / "err").read_text()

    def said(self) -> str:
        """What it has printed on standard error so far."""
        return (self._folder / "err").read_text()

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self.send_signal(signal.SIGKILL)


@functools.cache
def nursery() -> Nursery:
    """The one of this process, which begins when it is first asked for."""
    return Nursery({**os.environ, "OMP_NUM_THREADS": "1"})


def _become(words: list[str], cwd: str, env: dict[str, str], out: str, err: str) -> None:
    """Be what ``python WORDS`` is."""
    for descriptor, path in enumerate((os.devnull, out, err)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    further = [one for one in env.get("PYTHONPATH", "").split(os.pathsep) if one and one not in sys.path]
    if words[0] == "-m":
        sys.path[:1] = [cwd, *further]
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[:1] = [str(Path(words[0]).resolve().parent), *further]
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def _serve() -> None:
    """Answer each line: with the number of a process that is forked, or the exit code of one, empty while it runs."""
    sys.path.insert(0, str(ROOT))
    for name in IMPORTED:
        importlib.import_module(name)
    del sys.path[0]
    gc.freeze()  # else each process looks through all of torch when it ends, which takes a second
    for line in sys.stdin:
        request: list[Any] = json.loads(line)
        match request:
            case ["start", *about]:
                process = os.fork()
                if process == 0:
                    _become(*about)
                    return
                print(process, flush=True)
            case ["wait" | "poll" as how, process]:
                ended, status = os.waitpid(process, os.WNOHANG if how == "poll" else 0)
                print(os.waitstatus_to_exitcode(status) if ended else "", flush=True)


# ---- the command in one of them, or in a new one


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


def launched(words: Sequence[str]) -> int:
    """In the place of what starts the process of `verify`: it finds torch imported, in the current folder."""
    done = python(*words, cwd=Path.cwd())
    print(done.err + done.out, end="", file=sys.stderr)
    return done.code


def start(words: Sequence[str], cwd: Path) -> Started:
    """Start the command in a process of its own that finds torch imported, and leave it running."""
    return nursery().start(("-m", "graphtrain", *words), cwd, environment())


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


def gone() -> int:
    """The number of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def forget(module: str) -> None:
    """What a script keeps in global variables is gone, as in a new process."""
    del sys.modules[module]


if __name__ == "__main__":
    _serve()
