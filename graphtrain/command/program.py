"""`graphtrain.main`: a script that is its own command."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphtrain.command.script import IS_IMPORTING, Script, graph_of_module
from graphtrain.errors import UsageError


def main(setup: Callable[..., Any]) -> None:
    """Turn the script that calls this into the command ``graphtrain run``, with `setup` as its function.

    ``python train.py lr=1e-3 accumulate.every=4 --run-dir r`` trains, ``python train.py --help`` lists what can be set.
    Exits the process with the exit code of the command. Does nothing if the script is only imported, by a loader worker
    or by ``graphtrain run``.

    Arguments:
        setup: returns the resources as a mapping; Python, NumPy and torch are seeded before it is called. Its arguments
            are set on the command line and checked against its signature.

    The graph is the variable `graph` at the top level of the script, or else `fit`, for every command that is given the
    script; ``--graph`` overrides it.

    >>> def setup(lr: float = 1e-3):
    ...     ...
    >>> if __name__ == "__main__":
    ...     main(setup)
    """
    if IS_IMPORTING.get() or _in_a_worker(setup):
        return
    if not callable(setup):
        raise UsageError(
            f"main takes the function that returns the resources, got a {type(setup).__name__}",
            "write main(setup), without parentheses after setup",
        )
    from graphtrain.command.run import program_command

    program, name = sys.modules["__main__"], getattr(setup, "__name__", "setup")
    file, spec = getattr(program, "__file__", None), getattr(program, "__spec__", None)
    module = spec.name.removesuffix(".__main__") if spec is not None and spec.name not in (None, "__main__") else ""
    words = ["python", *(["-m", module] if module else [sys.argv[0]])]
    source = [] if file is None or module else [words[1] + (f":{name}" if name != "setup" else "")]
    path = Path(file) if file else None
    script = Script(setup, name, path, words, source, lambda given: graph_of_module(program))
    program_command(script)(prog_name=" ".join(words))


def _in_a_worker(setup: Callable[..., Any]) -> bool:
    """True in a child process that only imports the script; a child that runs it as its program trains."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        return True  # the child still imports its main module
    return multiprocessing.parent_process() is not None and getattr(setup, "__module__", "") != "__main__"
