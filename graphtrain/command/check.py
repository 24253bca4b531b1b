"""`graphtrain check`."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from graphtrain.checks import check_graph
from graphtrain.command.script import import_script
from graphtrain.graph.read_toml import read_graph
from graphtrain.printable import printable


def check_command(source: str, script: str | None, *, as_json: bool, strict: bool) -> int:
    """Print every problem of a graph; returns the exit code."""
    if script is not None:
        import_script(Path(script.partition(":")[0]))
    draft = read_graph(source)
    # If the text could not be read completely, checking the rest would only report consequences of that.
    problems = draft.problems or check_graph(draft.graph, all_kinds_known=script is not None)
    errors = sum(problem.severity == "error" for problem in problems)
    warnings = len(problems) - errors
    if as_json:
        typer.echo(json.dumps([problem.as_plain() for problem in problems], indent=2))
    else:
        for problem in problems:
            typer.echo(printable(str(problem)))
        nodes = len(draft.graph.nodes)
        counts = f"{_count(errors, 'error')}, {_count(warnings, 'warning')}" if problems else "no problems"
        typer.echo(printable(f"{draft.graph.name}: {counts} ({nodes} nodes)"))
    return 2 if errors or (strict and problems) else 0


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
