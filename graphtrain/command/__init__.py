"""The command `graphtrain`."""

from __future__ import annotations


def main() -> None:
    """Run the command with the arguments of this process, and exit with its code."""
    from graphtrain.command.app import app
    from graphtrain.command.failure import exit_on_failure

    with exit_on_failure():
        app(prog_name="graphtrain")
