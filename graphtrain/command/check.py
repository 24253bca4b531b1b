"""`graphtrain check`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from graphtrain.checks import check_graph
from graphtrain.command.output import notify
from graphtrain.command.script import import_script
from graphtrain.command.script_graph import is_script, named_graph, with_overlays
from graphtrain.graph import Graph
from graphtrain.graph.read_toml import Draft, read_graph
from graphtrain.graph.registry import find_graph
from graphtrain.printable import printable
from graphtrain.storage.saved_graph import holds_a_graph, saved_graph


def check_command(
    source: str,
    script: str | None,
    overlays: Sequence[str] = (),
    *,
    as_json: bool,
    strict: bool,
    ranks: bool = False,
    contained: bool,
) -> int:
    """Print every problem of a graph; returns the exit code."""
    if script is not None:
        import_script(Path(script.partition(":")[0]))
    named = named_graph(source, contained=contained)
    if isinstance(named, str | Path) and holds_a_graph(Path(named)) and find_graph(str(named)) is None:
        named = saved_graph(named, notify, contained=contained)
    draft = Draft(named, []) if isinstance(named, Graph) else read_graph(Graph, named, contained=contained)
    with_added = with_overlays(draft.graph, overlays, contained=contained)
    draft = Draft(with_added.graph, [*draft.problems, *with_added.problems])
    # If the text could not be read completely, checking the rest would only report consequences of that.
    all_kinds_known = script is not None or is_script(source)
    problems = draft.problems or check_graph(draft.graph, all_kinds_known=all_kinds_known, ranks=ranks)
    errors = sum(problem.severity == "error" for problem in problems)
    warnings = len(problems) - errors
    if as_json:
        typer.echo(json.dumps([problem.as_plain() for problem in problems], indent=2))
    else:
        for problem in problems:
            typer.echo(printable(str(problem)))
        nodes = len(draft.graph.nodes)
        counts = f"{_count(errors, 'error')}, {_count(warnings, 'warning')}" if problems else "no problems"
        typer.echo(printable(f"{source}: {counts} ({nodes} nodes)"))
    return 2 if errors or (strict and problems) else 0


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
