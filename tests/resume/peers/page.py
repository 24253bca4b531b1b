"""The table of `docs/state-compared.md`, from runs.

    python -m tests.resume.peers.page [all | ROW ...]

Trains the rows that are named, by default those that the page lacks, by every means that is installed, and writes their
results into the page.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.resume.peers.compare import MEANS, OF_ALL, PEERS
from tests.resume.setups import ROWS

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "state-compared.md"
LIBRARIES = {
    "Lightning": ["lightning"],
    "Lightning, stateful loader": ["lightning", "torchdata"],
    "Transformers": ["transformers", "accelerate"],
}
HEADINGS = {
    "graphtrain": "graphtrain",
    "by hand": "plain PyTorch loop",
    "Lightning": "Lightning",
    "Lightning, stateful loader": "Lightning, stateful loader",
    "Transformers": "Transformers",
}

Cells = dict[str, dict[str, str]]
"""Means -> row -> what the table says."""

_LINE = re.compile(r"^\| (?P<row>[^|]+) \| (?P<cells>.+) \|$", re.MULTILINE)


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


def parsed(page: str) -> Cells:
    """What the tables of a page say."""
    cells: Cells = {means: {} for means in MEANS}
    for match in _LINE.finditer(page):
        row = match["row"].replace(" ", "_")
        values = match["cells"].split(" | ")
        if row in ROWS:
            for means, value in zip(MEANS, values, strict=False):
                cells[means][row] = value
    return cells


def written(page: str, cells: Cells) -> str:
    """A page with other tables and counts; rows stand in the order of the set-ups."""
    page = _between(page, "counts", counts(cells))
    page = _between(page, "rows of all", _table(list(MEANS), OF_ALL, cells))
    groups: dict[str, list[str]] = {}
    for name, row in ROWS.items():
        if name in cells["by hand"] and name not in OF_ALL:
            groups.setdefault(row.make.__module__, []).append(name)
    tables = [
        f"### {(importlib.import_module(module).__doc__ or module).splitlines()[0].rstrip('.')}\n\n"
        + _table(["graphtrain", "by hand"], names, cells)
        for module, names in groups.items()
    ]
    return _between(page, "other rows", "\n\n".join(tables))


def counts(cells: Cells) -> str:
    """How often what is exact, in words."""
    ours, hand = list(cells["graphtrain"].values()), list(cells["by hand"].values())
    lines = [
        f"Of {len(ours)} set-ups, cut in the middle of the second epoch and resumed in a new process:",
        "",
        f"* graphtrain is exact in {ours.count('exact')}, and reports in the other {ours.count('reported')} that the "
        f"resume is not exact, or refuses it; {_number(_silent(ours))} differs without a report;",
        f"* a plain PyTorch loop is exact in {hand.count('exact')} and differs in {_silent(hand)}"
        + (f"; {_errors(hand)} cannot be resumed, with an error" if _errors(hand) else "")
        + (f"; {hand.count('not expressible')} cannot be expressed" if "not expressible" in hand else "")
        + ".",
        "",
        f"Of the {len(OF_ALL)} that all can express, these are exact: "
        + ", ".join(f"{HEADINGS[means]} {sum(cells[means].get(row) == 'exact' for row in OF_ALL)}" for means in MEANS)
        + ".",
    ]
    return "\n".join(lines)


def _number(count: int) -> str:
    return str(count) if count else "none"


def _silent(values: Iterable[str]) -> int:
    return sum(value.startswith("differs") for value in values)


def _errors(values: Iterable[str]) -> int:
    return sum(value.startswith("error") for value in values)


def _table(means: list[str], rows: Iterable[str], cells: Cells) -> str:
    lines = ["| set-up | " + " | ".join(HEADINGS[each] for each in means) + " |", "| --- |" + " --- |" * len(means)]
    for row in rows:
        values = [cells[each].get(row, "") for each in means]
        lines.append(f"| {row.replace('_', ' ')} | {' | '.join(values)} |")
    return "\n".join(lines)


def _between(page: str, name: str, text: str) -> str:
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, rest = page.split(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"


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
    """Train, and write the page."""
    page = PAGE.read_text(encoding="utf-8")
    cells = parsed(page)
    for means in MEANS:
        cells[means] = {name: value for name, value in cells[means].items() if name in ROWS}
        lacking = [name for name in ROWS if name not in cells[means]]
        rows = {(): lacking, ("all",): list(ROWS)}.get(names, list(names))
        cells[means].update(run(means, rows) or {})
    PAGE.write_text(written(page, cells), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
