"""`graphtrain diff`: how two graphs or two saved runs differ. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click

from graphtrain.command.cli import command
from graphtrain.command.graphs import ON_GRAPHS
from graphtrain.command.output import console, counted, escaped, notify, shown, table
from graphtrain.command.script import load_graph
from graphtrain.command.settings import renamings
from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.graph.difference import Change, Difference
from graphtrain.graph.registry import find_graph
from graphtrain.graph.renaming import Renaming
from graphtrain.lazy import part
from graphtrain.plain import is_equal
from graphtrain.report.numbers import metric
from graphtrain.report.run import Run
from graphtrain.resume.provenance import code_changes
from graphtrain.storage.manifest import Manifest
from graphtrain.storage.named import graph_of, holds_a_graph, saved_manifest

_STYLES = {"added": "green", "removed": "red", "changed": "yellow"}
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_MOST_CHARACTERS = 60


@command(
    "graphtrain diff fit my_fit.toml",
    "graphtrain diff runs/first runs/second",
    "graphtrain diff runs/first my_fit.toml -o difference.svg",
    "graphtrain diff fit fit --overlay ema",
    "graphtrain diff runs/first/checkpoints/000001-step-60 runs/second",
    shared=ON_GRAPHS,
)
def diff(
    before: str,
    after: str,
    *,
    output: Path | None = None,
    rename: Sequence[str] = (),
    exit_code: bool = False,
    overlay: Sequence[str] = (),
    contained: bool = False,
) -> int:
    """Show how two graphs, or two runs, differ.

    Of graphs: nodes, edges and their order, guards, parameters, clock. Of two run directories or checkpoints also:
    arguments of setup, hyper-parameters, code, data, versions and flags, and the last metrics; an overlay that only one
    of them has is one row. A + was added, a - removed, a ~ changed from A to B.

    Exit codes: 0 shown, different or not; 1 different, with --exit-code; 2 there is no such graph.

    Arguments:
        before (A): A shipped graph, a TOML file, a script (which is imported), a run directory (its newest checkpoint),
            or a checkpoint.
        after (B): What to compare it with, likewise.

    Options:
        output (FILE): Draw both in one picture: .svg, .png, .pdf, .dot or .mmd (mermaid).
        rename (OLD=NEW): The node OLD of A is the node NEW of B.
        exit_code: Exit with 1 if anything that is compared differs.
    """
    (graph, run), (other, other_run) = _read(before, contained), _read(after, contained)
    if overlay:
        other = load_graph(other, overlays=overlay, contained=contained)
    difference = Renaming(renamings(rename), graph, other).graph(graph).diff(other)
    of_runs = sections(run, other_run) if run is not None and other_run is not None else {}
    overlays = _overlays(difference) if of_runs else {}
    changes = [change for change in difference.changes if change.overlay not in overlays]
    count = len(overlays) + len(changes) + sum(map(len, of_runs.values()))
    summary = counted(count, "difference") if count else "no difference"
    if difference and not difference.matters and count == len(overlays) + len(changes):
        summary += ", none of which changes what the graph does"
    printed = console()
    printed.print(f"[bold]{escaped(before)} -> {escaped(after)}[/bold]: {summary}", soft_wrap=True)
    if difference:
        if of_runs:
            printed.print("\n[bold]graph[/bold]")
        _print_changes(changes, overlays)
    for title, values in of_runs.items():
        if values:
            printed.print(f"\n[bold]{title}[/bold]")
            _print_table(["", "what", "before", "after"], [value.how for value in values], values)
    same = [title for title, rows in {"graph": difference.changes, **of_runs}.items() if not rows]
    if of_runs and count and same:
        printed.print(f"\nthe same: {', '.join(same)}", soft_wrap=True)
    if output is not None:
        click.echo(f"wrote {part('viz').render(difference, output)}")
    return int(exit_code and bool(count))


def _read(source: str, contained: bool) -> tuple[Graph, SavedRun | None]:
    """The graph of a name, a file, a script, a run directory or a checkpoint; and the run, of the latter two.

    Checkpoints that are skipped are reported.
    """
    if find_graph(source) is None and holds_a_graph(Path(source)):
        checkpoint, manifest = saved_manifest(source, notify, contained=contained)
        return graph_of(checkpoint, manifest), SavedRun.of(checkpoint, manifest)
    return load_graph(source, contained=contained), None


def _overlays(difference: Difference) -> dict[str, str]:
    """The overlays that only one of two graphs has, and whether they were added or removed."""
    names = dict.fromkeys(change.overlay for change in difference.changes if change.overlay)
    added = difference.after.layers.names
    return {name: "added" if name.partition(", ")[0] in added else "removed" for name in names}


def _print_changes(changes: Sequence[Change], overlays: Mapping[str, str]) -> None:
    width = 6 if any(change.overlay for change in changes) else 5
    rows = [("overlay", name, "", "", "")[: width - 1] for name in overlays]
    rows += [(change.what, _where(change), *change.values, change.overlay)[: width - 1] for change in changes]
    columns = ["", "what", "where", "before", "after", "overlay"][:width]
    _print_table(columns, [*overlays.values(), *(change.how for change in changes)], rows)


def _print_table(columns: Sequence[str], hows: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    signed = [(_SIGNS[how], *row) for how, row in zip(hows, rows, strict=True)]
    console().print(table(columns, signed, styles=[_STYLES[how] for how in hows]))


def _where(change: Change) -> str:
    return change.path if change.what not in ("start", "outputs", "optional", "allow", "name") else change.inside


# ---- runs


class ChangedValue(NamedTuple):
    """One thing that differs, as text; empty where one of the runs does not have it."""

    name: str
    before: str
    after: str

    @property
    def how(self) -> str:
        """Whether it was added, removed or changed."""
        return "changed" if self.before and self.after else "removed" if self.before else "added"


@dataclass(frozen=True)
class SavedRun:
    """A checkpoint of a run, as it is compared.

    Attributes:
        manifest: of the checkpoint.
        metrics: the last values, with their step and epoch.
    """

    manifest: Manifest
    metrics: Mapping[str, Any]

    @classmethod
    def of(cls, checkpoint: Path, manifest: Manifest) -> SavedRun:
        """The run that made a checkpoint, with the metrics that it had recorded by then."""
        try:
            rows = Run(checkpoint.parent.parent).last_rows(manifest.metrics_bytes)
        except UsageError:  # a checkpoint that was copied elsewhere
            rows = []
        latest = {name: value for row in rows for name, value in row.items()}
        return cls(manifest, latest or manifest.metrics)


def sections(before: SavedRun, after: SavedRun) -> dict[str, list[ChangedValue]]:
    """What differs, by section; one without differences is empty.

    >>> runs = [Manifest(about={"arguments": {"lr": rate}}) for rate in ("0.1", "0.2")]
    >>> sections(SavedRun(runs[0], {"loss": 0.51}), SavedRun(runs[1], {"loss": 0.25}))["arguments of setup"]
    [ChangedValue(name='lr', before='0.1', after='0.2')]
    """
    old, new = before.manifest, after.manifest
    common = old.environment.keys() & new.environment.keys()
    flags = [{name: value for name, value in run.environment.items() if name in common} for run in (old, new)]
    return {
        "arguments of setup": list(_rows(old.about.get("arguments", {}), new.about.get("arguments", {}))),
        "hyper-parameters": list(_rows(_hyper_parameters(old), _hyper_parameters(new))),
        "code": list(_code(old.origin, new.origin)),
        "data": list(_data(old.data, new.data)),
        "versions and flags": list(_rows(*flags)),
        "last metrics": list(_metrics(before.metrics, after.metrics)),
    }


def _rows(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ChangedValue]:
    """The entries of two tables that differ, in the order of the first."""
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after or not is_equal(before[name], after[name]):
            texts = (shown(run[name], _MOST_CHARACTERS) if name in run else "" for run in (before, after))
            yield ChangedValue(name, *texts)


def _hyper_parameters(manifest: Manifest) -> dict[str, Any]:
    return {
        f"{name}.{field}": value
        for name, fields in (manifest.in_force or {}).items()
        for field, value in fields.items()
    }


def _code(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ChangedValue]:
    """The files that differ, with the beginning of the hash of each."""
    for name in code_changes(before, after) or ():
        scripts = before.get("script", ""), after.get("script", "")
        if name == " -> ".join(scripts):
            yield ChangedValue("program", *scripts)
        else:
            yield ChangedValue(name, *(origin["code"].get(name, "")[:8] for origin in (before, after)))


def _data(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ChangedValue]:
    """Lengths; and if these are equal, the hashes of the samples that were inspected."""
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            yield ChangedValue(name, *("supplied" if name in run else "" for run in (before, after)))
            continue
        old, new = before[name], after[name]
        sizes = [size for size in ("length", "samples") if old.get(size) != new.get(size)]
        for size in sizes:
            yield ChangedValue(f"{name}.{size}", *(shown(run.get(size), _MOST_CHARACTERS) for run in (old, new)))
        hashes = old.get("hash"), new.get("hash")
        if not sizes and all(hashes) and hashes[0] != hashes[1]:
            yield ChangedValue(f"{name} (its samples)", *(str(value)[:8] for value in hashes))


def _metrics(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ChangedValue]:
    for row in _rows(before, after):
        numbers = [value for run in (before, after) if isinstance(value := run.get(row.name), int | float)]
        texts = [metric(number) for number in numbers]
        # If four digits do not distinguish two values, all digits are shown.
        yield ChangedValue(row.name, *texts) if len(set(texts)) == 2 else row
