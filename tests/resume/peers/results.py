"""The results in `results.json`, from runs.

    python -m tests.resume.peers.results [all | ROW ...]

Trains the rows that are named, by default those that have no result, with every framework that is installed, and stores
their results. `tools/site/set_ups.py` makes the tables of `docs/comparison.md` from them.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.resume.peers.compare import MEANS, OF_ALL, PEERS
from tests.resume.setups import ROWS
from tools.site.set_ups import RESULTS, Groups, stored

ROOT = Path(__file__).parents[3]
OF_ALL_HEADING = "Set-ups that all can express"
LIBRARIES = {
    "Lightning": ["lightning"],
    "Lightning, stateful loader": ["lightning", "torchdata"],
    "Transformers": ["transformers", "accelerate"],
}

Cells = dict[str, dict[str, str]]
"""Means -> row -> what the table says."""


def cell(result: str) -> str:
    """What the table says of a result.

    >>> cell("differs (warned): losses, weights, optimizer"), cell("differs: losses"), cell("reported: x is a cycle")
    ('differs, warned', 'differs: losses', 'reported')
    """
    verdict, _, detail = result.partition(": ")
    match verdict:
        case "differs" | "differs (warned)" if detail != "losses, weights, optimizer":
            return result.replace(" (warned)", ", warned")
        case "differs (warned)":
            return "differs, warned"
        case "error":
            return f"error: `{detail.partition(':')[0]}`"
        case "-":
            return "not expressible"
    return verdict


def cells_of(groups: Groups) -> Cells:
    """The results by means and row."""
    results = {row: values for rows in groups.values() for row, values in rows.items()}
    return {
        means: {row: values[column] for row, values in results.items() if column < len(values)}
        for column, means in enumerate(MEANS)
    }


def groups_of(cells: Cells) -> Groups:
    """The results by heading and row; rows stand in the order of the set-ups."""
    groups: Groups = {OF_ALL_HEADING: {row: [cells[means][row] for means in MEANS] for row in OF_ALL}}
    for name, row in ROWS.items():
        if name in cells["by hand"] and name not in OF_ALL:
            module = importlib.import_module(row.make.__module__)
            heading = (module.__doc__ or module.__name__).splitlines()[0].rstrip(".")
            groups.setdefault(heading, {})[name] = [cells["graphtrain"][name], cells["by hand"][name]]
    return groups


def text_of(groups: Groups) -> str:
    """The text of the file: JSON with one row on a line."""
    sections = []
    for heading, rows in groups.items():
        lines = ",\n".join(f"    {json.dumps(row)}: {json.dumps(values)}" for row, values in rows.items())
        sections.append(f"  {json.dumps(heading)}: {{\n{lines}\n  }}")
    return "{\n" + ",\n".join(sections) + "\n}\n"


def python_for(means: str) -> str | None:
    """An interpreter that has the libraries, this one or that of `make .venv-peers/.installed`; None if neither."""
    libraries = LIBRARIES.get(means, [])
    if all(find_spec(library) is not None for library in libraries):
        return sys.executable
    peers = ROOT / ".venv-peers" / "bin" / "python"
    program = "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))"
    if not peers.exists() or subprocess.run([peers, "-c", program, *libraries], check=False).returncode:
        return None
    return str(peers)


def run(means: str, rows: Iterable[str]) -> dict[str, str] | None:
    """Row -> what the table must say; None if the libraries are not installed."""
    python = python_for(means)
    names = [name for name in rows if means not in PEERS or name in OF_ALL]
    if python is None or not names:
        return None
    with tempfile.TemporaryDirectory() as folder:
        answers = Path(folder) / "answers.json"
        subprocess.run(
            [python, "-m", "tests.resume.peers.compare", means, str(answers), *names],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            check=True,
        )
        results: dict[str, Any] = json.loads(answers.read_text(encoding="utf-8"))
    return {name: cell(result) for name, result in results.items()}


def main(*names: str) -> None:
    """Train, and store the results."""
    cells = cells_of(stored())
    for means in MEANS:
        cells[means] = {name: value for name, value in cells[means].items() if name in ROWS}
        lacking = [name for name in ROWS if name not in cells[means]]
        rows = {(): lacking, ("all",): list(ROWS)}.get(names, list(names))
        cells[means].update(run(means, rows) or {})
    RESULTS.write_text(text_of(groups_of(cells)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
