"""`graphtrain from-lightning`: what the `Trainer(...)` of a script of Lightning means, as edits of `fit`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from graphtrain.adapters.lightning_flags import CALLBACKS, ELSEWHERE, FLAGS, SHOWN, edits_of
from graphtrain.command.cli import command
from graphtrain.errors import UsageError
from graphtrain.names import suggestion
from graphtrain.printable import printable

# The arguments of callbacks that may be given without their names.
_POSITIONAL = {
    "EarlyStopping": ("monitor", "min_delta", "patience"),
    "GradientAccumulationScheduler": ("scheduling",),
    "ModelCheckpoint": ("dirpath", "filename", "monitor"),
    "StochasticWeightAveraging": ("swa_lrs", "swa_epoch_start"),
    "Timer": ("duration",),
}


@command("graphtrain from-lightning train.py")
def from_lightning(script: Path) -> int:
    """Print what each Trainer(...) of a script for Lightning means, flag by flag, as edits of the graph fit.

    The script is read, not run: a flag whose value only the run knows is named.

    Exit codes: 0 printed, 2 there is no such script, or no Trainer in it.

    Arguments:
        script: A Python file that makes a Trainer of Lightning.
    """
    try:
        tree = ast.parse(script.read_bytes(), str(script))
    except OSError as error:
        raise UsageError(f"cannot read `{script}`: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"`{script}` is not Python: {error}") from None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name_of(node) == "Trainer"]
    if not calls:
        raise UsageError(f"`{script}` makes no Trainer", "the table of flags is in docs/coming-from-lightning.md")
    for call in calls:
        for line in lines_of(call):
            click.echo(printable(line))
    return 0


def lines_of(call: ast.Call) -> Iterator[str]:
    """The lines that say what a call of `Trainer` means.

    >>> call = ast.parse("Trainer(max_epochs=3, precision='bf16', devices=2, max_time=limit)").body[0].value
    >>> print(*lines_of(call), sep=chr(10))
    graph = (  # line 1: Trainer
        Graph.load("fit")
        .set("finish", after="3 epochs")  # max_epochs=3
        .set("train_batch", precision="bf16-mixed")  # precision='bf16'
        # devices=2: where a run is: `Trainer(..., device=...)`, `--device`; several processes by `--processes`
        # max_time=limit: its value is known only when the script runs
    )
    """
    given, notes = _values(call)
    yield f"graph = (  # line {call.lineno}: Trainer"
    yield '    Graph.load("fit")'
    texts = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    for name, edits in edits_of(given).items():
        shown = f"{name}={texts[name]}" if name != "callbacks" else name
        if isinstance(edits, str):
            yield f"    # {shown}: {edits}"
        for edit in edits if isinstance(edits, list) else ():
            yield f"    {edit}  # {shown}"
    for note in notes:
        yield f"    # {note}"
    yield ")"


def _values(call: ast.Call) -> tuple[dict[str, Any], list[str]]:
    """The arguments that are written out, and a note on each of the others."""
    given: dict[str, Any] = {}
    notes = [f"{ast.unparse(argument)}: give it by name" for argument in call.args]
    for keyword in call.keywords:
        shown = f"{keyword.arg or '**'}={ast.unparse(keyword.value)}"
        if keyword.arg is None:
            notes.append(f"{shown}: its arguments are known only when the script runs")
        elif keyword.arg not in FLAGS:
            hint = suggestion(keyword.arg, FLAGS)
            notes.append(f"{shown}: Lightning's Trainer has no such argument" + (f"; {hint}" if hint else ""))
        elif keyword.arg == "callbacks":
            given["callbacks"], more = _callbacks(keyword.value)
            notes += more
        else:
            try:
                given[keyword.arg] = ast.literal_eval(keyword.value)
            except ValueError:
                if keyword.arg in ELSEWHERE:
                    given[keyword.arg] = None  # whatever its value
                else:
                    notes.append(f"{shown}: its value is known only when the script runs")
    return given, notes


def _callbacks(value: ast.expr) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """The callbacks that are edits, with their arguments, and a note on each of the others."""
    pairs, notes = [], []
    for each in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
        text, name = ast.unparse(each), _name_of(each) if isinstance(each, ast.Call) else ""
        if name in CALLBACKS and isinstance(each, ast.Call):
            try:
                named = [*zip(_POSITIONAL.get(name, ()), each.args, strict=False)]
                named += [(keyword.arg or "", keyword.value) for keyword in each.keywords]
                arguments = {parameter: ast.literal_eval(value) for parameter, value in named}
                pairs.append((name, arguments))
            except ValueError:
                notes.append(f"callbacks: {text}: its arguments are known only when the script runs")
        elif name in SHOWN:
            notes.append(f"callbacks: {text}: it only shows something")
        else:
            notes.append(f"callbacks: {text}: the adapter runs it as nodes, with --lightning; see `graph.hook`")
    return pairs, notes


def _name_of(call: ast.Call) -> str:
    """``"Trainer"`` for ``pl.Trainer(...)``."""
    return ast.unparse(call.func).rpartition(".")[2]
