"""Processes that find torch and graphtrain imported: forked from one that has imported them, and done nothing else.

Each has its own arguments, folder, environment, output, `__main__`, and imports of the user's code. Only the start of
the interpreter and these imports are shared, which are two seconds of work each time.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
IMPORTED = (
    *("torch", "torch._dynamo", "torch.utils.data", "torch.profiler", "networkx", "transitions", "safetensors.torch"),
    *("typer.core", "typer._adapters", "rich.console", "rich.progress_bar", "rich.table", "msgpack"),
    *(
        "graphtrain.command.app",
        "graphtrain.command.run",
        "graphtrain.checks",
        "graphtrain.resume.code_hashes",
        "graphtrain.display.choose",
    ),
    *(f"graphtrain.nodes.{path.stem}" for path in sorted((ROOT / "nodes").glob("[!_]*.py"))),
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
        sent, received = self._process.stdin, self._process.stdout
        assert sent is not None and received is not None
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            print(json.dumps([[*words], str(cwd), {**env}, str(out), str(err)]), file=sent, flush=True)
            if not select.select([received], [], [], timeout_seconds)[0]:
                self.end()
                raise subprocess.TimeoutExpired([*words], timeout_seconds)
            code = received.readline()
            return int(code), out.read_text(), err.read_text()

    def end(self) -> None:
        """Kill it, and the process that it waits for."""
        nursery.cache_clear()
        if os.getpid() == self._owner and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()


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
    """Fork a process for each line, one after the other, and answer with its exit code."""
    sys.path.insert(0, str(ROOT))
    for name in IMPORTED:
        importlib.import_module(name)
    del sys.path[0]
    gc.freeze()  # else each process looks through all of torch when it ends, which takes a second
    for line in sys.stdin:
        asked: list[Any] = json.loads(line)
        process = os.fork()
        if process == 0:
            _become(*asked)
            return
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    _serve()
