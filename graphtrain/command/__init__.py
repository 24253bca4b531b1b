"""The command `graphtrain`."""

from __future__ import annotations

import contextlib
import sys


def main() -> None:
    """Run the command with the arguments of this process, and exit with its code."""
    from graphtrain.command.failure import stoppable

    with stoppable(["graphtrain", *sys.argv[1:]]) if sys.argv[1:2] == ["run"] else contextlib.nullcontext():
        from graphtrain.command.cli import app

        app(prog_name="graphtrain")
