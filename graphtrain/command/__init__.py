"""The command `graphtrain`."""

from __future__ import annotations


def main() -> None:
    """Run the command with the arguments of this process, and exit with its code."""
    from graphtrain.command.cli import app

    app(prog_name="graphtrain")
