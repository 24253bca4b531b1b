"""`graphtrain graphs`, `nodes` and `copy`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from graphtrain.command.script_graph import load_graph, named_graph
from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.graph.registry import (
    find_graph,
    find_kind,
    find_overlay,
    known_graphs,
    known_kinds,
    known_overlays,
    summary,
)
from graphtrain.kind import Kind, Read
from graphtrain.kind.parameter import REQUIRED, Parameter
from graphtrain.kind.trigger import Trigger
from graphtrain.names import suggestion


def graphs_command() -> None:
    """Print every graph and every overlay that can be used by its name."""
    console = Console(highlight=False)
    graphs = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("graph", "nodes", "what it does"):
        graphs.add_column(column, overflow="fold")
    for name in known_graphs():
        graphs.add_row(name, str(len(Graph.load(name).nodes)), escape(summary(find_graph(name))))
    overlays = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("overlay", "what it does"):
        overlays.add_column(column, overflow="fold")
    for name in known_overlays():
        overlays.add_row(name, escape(summary(find_overlay(name))))
    console.print(graphs)
    console.print()
    console.print(overlays)


def nodes_command(name: str | None) -> None:
    """Print every kind, or a detailed description of one."""
    if name is None:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("kind")
        table.add_column("what it does", overflow="fold")
        for known in known_kinds():
            kind = find_kind(known)
            table.add_row(known, escape(kind.description.split("\n")[0] if kind is not None else ""))
        Console(highlight=False).print(table)
        return
    kind = find_kind(name)
    if kind is None:
        raise UsageError(f"there is no kind `{name}`", suggestion(name, known_kinds()))
    console = Console(highlight=False)
    console.print(f"[bold]{escape(kind.name)}[/bold]\n{escape(kind.description)}\n")
    rows = [
        ("parameters", [_parameter_line(parameter, kind) for parameter in kind.parameters.values()]),
        ("reads", [_slot(read) for read in kind.reads]),
        ("set up with", [_slot(read) for read in kind.setup_reads or ()]),
        ("writes", [*kind.writes, *(["what its step function returns"] if kind.may_return_slots else [])]),
        ("guard fields", list(kind.fields)),
        ("effects", list(kind.effects)),
        ("bypassed without", [*kind.optional, *kind.idle_without]),
        ("step inputs", list(kind.step_inputs)),
        ("records under", [kind.roles.records] if kind.roles.records else []),
        ("renews", [kind.roles.renews] if kind.roles.renews else []),
        ("of several ranks", ["they synchronise in it"] if kind.synchronises else []),
        ("also due by", [f"{field} (with {parameter})" for field, parameter in kind.also_due.items()]),
        ("drawn as", [kind.family]),
    ]
    table = Table(box=None, pad_edge=False, show_header=False)
    for heading, items in rows:
        if items:
            table.add_row(
                f"[dim]{heading}[/dim]", escape("\n".join(items) if heading == "parameters" else ", ".join(items))
            )
    console.print(table)


def _slot(read: Read) -> str:
    return read.name if read.required else f"{read.name} (optional)"


def _parameter_line(parameter: Parameter, kind: Kind) -> str:
    default = parameter.default
    text = str(default) if isinstance(default, Trigger) else repr(default)
    given = "required" if default is REQUIRED else f"default {text}"
    varies = ", or an expression in `reads`" if parameter.name in kind.varying else ""
    return f"{parameter.name}: {parameter.type_name}, {given}{varies}"


def copy_command(source: str, path: Path, overlays: Sequence[str] = ()) -> None:
    """Copy the text of a graph, or of an overlay, to a new file."""
    if path.suffix != ".toml":
        raise UsageError(f"`{path}`: the name of a graph file must end in .toml", "as in my_fit.toml")
    overlay = find_overlay(source) if find_graph(source) is None else None
    use = "--overlay" if overlay is not None else "--graph"
    if overlay is not None:
        if overlays:
            raise UsageError(f"`{source}` is an overlay, and --overlay adds one to a graph", "name a graph")
        text = overlay.read_bytes()
    else:
        named = named_graph(source)
        graph = load_graph(named, overlays=overlays)
        file = find_graph(str(named)) or Path(str(named))
        # A graph that has no text of its own, that of a script or of a run, is written as one.
        is_text = not overlays and not isinstance(named, Graph) and file.is_file()
        text = file.read_bytes() if is_text else graph.to_toml().encode()
    try:
        with path.open("xb") as copied:
            copied.write(text)
    except FileExistsError:
        raise UsageError(f"`{path}` exists; a file is never overwritten", "choose another name") from None
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {error.strerror}") from None
    typer.echo(f"wrote {path}; run it with: graphtrain run SCRIPT {use} {path}")
