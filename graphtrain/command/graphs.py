"""`graphtrain check`, `render`, `show`, `copy`, `graphs` and `nodes`: a graph without a run. Needs no torch."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from graphtrain.command.adapted import adapter_options, script_or_class
from graphtrain.command.cli import command, output_option, overlay_option, settings_argument
from graphtrain.command.output import console, escaped, notify, plural, table
from graphtrain.command.script import import_script, load_graph, named_graph, split_script
from graphtrain.command.settings import split_settings
from graphtrain.errors import UsageError
from graphtrain.graph.graph import write_new
from graphtrain.graph.hooks import hooks_of
from graphtrain.graph.read_toml import read_graph, read_overlays
from graphtrain.graph.registry import (
    find_graph,
    find_kind,
    find_overlay,
    known_graphs,
    known_kinds,
    known_overlays,
    summary,
)
from graphtrain.kind import Kind
from graphtrain.kind.parameter import REQUIRED, Parameter, plain_value, show_value
from graphtrain.lazy import imported
from graphtrain.names import suggestion
from graphtrain.printable import printable
from graphtrain.report.run import Run
from graphtrain.storage.named import newest_in
from graphtrain.storage.run_directory import STATUS_FILE
from graphtrain.trainer.graph import Graph


@command("graphtrain check my_fit.toml", "graphtrain check my_fit.toml --json")
@click.argument("graph")
@click.option("--script", help="A Python file that declares kinds of the graph; it is imported.")
@click.option("--json", "as_json", is_flag=True, help="Print the problems as JSON.")
@click.option("--ranks", is_flag=True, help="Also check the rules for several ranks (G7xx).")
@overlay_option
def check(graph: str, script: str | None, *, as_json: bool, ranks: bool, overlay: Sequence[str]) -> int:
    """Check a graph without running it: all problems at once.

    GRAPH is a shipped graph (fit), a TOML file, a script (which is imported), a run directory, or a checkpoint in one.

    Exit codes: 0 no errors, 2 errors.
    """
    from graphtrain.checks import check_graph  # takes longer than all that the help needs

    if script is not None:
        import_script(split_script(script)[0])
    named = named_graph(graph)
    read, unread = (named, []) if isinstance(named, Graph) else read_graph(Graph, named)
    checked, unfitting = read_overlays(read, overlay)
    # If the text could not be read completely, a check would only report consequences.
    problems = [*unread, *unfitting] or check_graph(checked, ranks=ranks)
    errors = sum(problem.severity == "error" for problem in problems)
    if as_json:
        click.echo(json.dumps([asdict(problem) for problem in problems], indent=2))
    else:
        for problem in problems:
            click.echo(printable(str(problem)))
        counts = f"{plural(errors, 'error')}, {plural(len(problems) - errors, 'warning')}"
        click.echo(printable(f"{graph}: {counts if problems else 'no problems'} ({len(checked.nodes)} nodes)"))
    return 2 if errors else 0


@command("graphtrain render fit -o fit.svg", "graphtrain render runs/first -o first.png")
@click.argument("graph")
@click.option("--output", "-o", required=True, type=Path, help="The picture: .svg, .png, .pdf, .dot or .mmd (Mermaid).")
@overlay_option
def render(graph: str, output: Path, overlay: Sequence[str]) -> None:
    """Draw a graph to a file.

    GRAPH is a shipped graph (fit), a TOML file, a script (which is imported), a run directory, or a checkpoint in one.
    The picture of a run shows how often each node ran, and which is next.
    """
    drawn = load_graph(graph, overlays=overlay)
    counts, position, bypassed = None, None, list[str]()
    if (Path(graph) / STATUS_FILE).is_file():
        from graphtrain.storage.checkpoint import read_checkpoint  # imports torch

        checkpoint = newest_in(Path(graph), read_checkpoint, notify)
        counts = {path: int(fields.get("runs", 0)) for path, fields in checkpoint.sections["progress"].items()}
        position = None if checkpoint.manifest.ended else checkpoint.manifest.position
        bypassed = [*map(str, Run(Path(graph)).status.get("bypassed") or ())]
    click.echo(f"wrote {imported('graphtrain.viz.render').render(drawn, output, counts, position, bypassed=bypassed)}")


@command(
    "graphtrain show fit",
    "graphtrain show --lightning train.py:Net max_epochs=5",
    "graphtrain show --lightning train.py:Net -o net.svg",
)
@click.argument("graph", default="", metavar="[GRAPH]")
@settings_argument
@adapter_options
@click.option("--hooks", is_flag=True, help="List only the places where `hook` can insert a node.")
@output_option
@overlay_option
def show(
    graph: str, settings: Sequence[str], *, hooks: bool, output: Path | None, overlay: Sequence[str], **adapted: Any
) -> None:
    """Print a graph: nodes and parameters, edges, guards and clock.

    GRAPH is a shipped graph (fit), a TOML file, a script (which is imported), a run directory, or a checkpoint in one.
    With --lightning, NAME=VALUE sets an argument of the class, or a flag.

    Exit codes: 0 printed, 2 there is no such graph, or it has errors.
    """
    source, settings = script_or_class(graph, settings, **adapted)
    if source.script and settings:
        raise click.UsageError(f"Got unexpected extra argument ({settings[0]})")
    named = graph if source.script else source.program().own_graph(split_settings(settings)[0])
    shown = load_graph(named, overlays=overlay)
    if output is not None:
        click.echo(f"wrote {imported('graphtrain.viz.render').render(shown, output)}")
        return
    if hooks:
        places = [[name, path, place.when] for name, path, place in hooks_of(shown)]
        console().print(table(["hook", "in", "when"], places) if places else f"{shown.name}: no places for hooks")
        return
    click.echo(str(shown))


@command("graphtrain copy fit my_fit.toml", "graphtrain copy ema my_ema.toml")
@click.argument("graph")
@click.argument("path", type=Path)
@overlay_option
def copy(graph: str, path: Path, overlay: Sequence[str]) -> None:
    """Copy a graph or an overlay to a new file that you can edit.

    The text of a shipped graph, of an overlay or of a file is copied with its comments; that of a script or a run, and
    of a graph with --overlay, is generated. PATH must not exist.

    GRAPH is a shipped graph (fit), a TOML file, a script (which is imported), a run directory, or a checkpoint in one.
    """
    if path.suffix != ".toml":
        raise UsageError(f"`{path}`: the name of a graph file must end in .toml", "as in my_fit.toml")
    is_overlay = find_graph(graph) is None and find_overlay(graph) is not None
    file = find_graph(graph) or find_overlay(graph) or Path(graph)
    # A graph without a file of its own is written as TOML.
    is_copied = not overlay and file.name.endswith(".toml") and file.is_file()
    write_new(path, file.read_bytes() if is_copied else load_graph(graph, overlays=overlay).to_toml().encode())
    use = "--overlay" if is_overlay else "--graph"
    click.echo(f"wrote {path}; run it with: graphtrain run SCRIPT {use} {shlex.quote(str(path))}")


@command("graphtrain graphs")
def graphs() -> None:
    """List the shipped and installed graphs, and the overlays."""
    printed = console()
    rows = [[name, str(len(Graph.load(name).nodes)), summary(find_graph(name))] for name in known_graphs()]
    printed.print(table(["graph", "nodes", "what it does"], rows))
    printed.print()
    rows = [[name, summary(find_overlay(name))] for name in known_overlays()]
    printed.print(table(["overlay", "what it does"], rows))


@command("graphtrain nodes", "graphtrain nodes clip")
@click.argument("kind", required=False)
def nodes(kind: str | None) -> None:
    """List the kinds of nodes, or describe one."""
    kinds = {name: known for name in known_kinds() if (known := find_kind(name)) is not None}
    if kind is None:
        lines = [[name, known.description.split("\n")[0].replace("``", "`")] for name, known in kinds.items()]
        console().print(table(["kind", "what it does"], lines))
    elif (described := find_kind(kind)) is not None:
        _describe(described)
    else:
        raise UsageError(f"there is no kind `{kind}`", suggestion(kind, kinds))


def _describe(kind: Kind) -> None:
    rows: dict[str, Sequence[Any]] = {
        "parameters": ["\n".join(_parameter_line(parameter, kind) for parameter in kind.parameters.values())],
        "reads": [read.name + " (optional)" * (not read.required) for read in kind.reads],
        "set up with": [read.name + " (optional)" * (not read.required) for read in kind.setup_reads or ()],
        "writes": [*kind.writes, *(["what its step function returns"] if kind.may_return_slots else [])],
        "guard fields": [*kind.fields],
        "effects": [*kind.effects],
        "bypassed without": [*kind.optional, *kind.enabling_parameters],
        "of several ranks": ["they synchronise in it"] if kind.synchronises else [],
    }
    printed = console()
    printed.print(f"[bold]{escaped(kind.name)}[/bold]\n{escaped(kind.description)}\n", soft_wrap=True)
    printed.print(table(["", ""], [[heading, ", ".join(items)] for heading, items in rows.items() if any(items)]))


def _parameter_line(parameter: Parameter, kind: Kind) -> str:
    default = parameter.default
    text = "optional" if default is None else f"default {show_value(plain_value(default))}"
    default_text = "required" if default is REQUIRED else text
    varies = ", or an expression in `reads`" if parameter.name in kind.varying else ""
    return f"{parameter.name}: {parameter.type_name}, {default_text}{varies}"


@command("graphtrain new train.py")
@click.argument("path", type=Path, default=Path("train.py"), metavar="[FILE]")
def new(path: Path) -> None:
    """Write a small training script to start with. FILE is train.py by default.

    Exit codes: 0 written, 2 the file exists, or cannot be written.
    """
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise UsageError(f"`{path}` is not the name of a script", "use letters, digits and underscores, and .py")
    write_new(path, files(__package__).joinpath("new_script.txt").read_bytes())
    click.echo(f"wrote {path}; train with: python {shlex.quote(str(path))}")
