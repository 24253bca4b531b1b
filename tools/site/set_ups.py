"""The tables of docs/comparison.md on resumes, from the stored results of runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[2] / "tests" / "resume" / "peers" / "results.json"
FRAMEWORKS = ("graphtrain", "plain PyTorch loop", "Lightning", "Lightning, stateful loader", "Transformers")
VERDICTS = ("exact", "reported", "differs", "error", "not expressible")

Groups = dict[str, dict[str, list[str]]]
"""Heading -> set-up -> its results with `FRAMEWORKS`, or with the first two of them."""


def stored() -> Groups:
    """The results in the repository; the first group has the set-ups that all frameworks can express."""
    groups: Groups = json.loads(RESULTS.read_text(encoding="utf-8"))
    return groups


def set_ups() -> str:
    """A table for each group of set-ups.

    >>> set_ups().splitlines()[0]
    '### Set-ups that all can express'
    """
    return "\n\n".join(f"### {heading}\n\n{_table_of(rows)}" for heading, rows in stored().items())


def counts() -> str:
    """A table of how often each framework gives each result.

    >>> counts().splitlines()[0]
    '| | set-ups | exact | reported | differs | error | not expressible |'
    """
    groups = stored()
    every = [results for rows in groups.values() for results in rows.values()]
    lines = [_line("", ("set-ups", *VERDICTS)), _rule(len(VERDICTS) + 1)]
    for results in ([*groups[next(iter(groups))].values()], every):
        for framework, column in zip(FRAMEWORKS, zip(*results, strict=False), strict=False):
            verdicts = [cell.partition(":")[0].partition(",")[0] for cell in column]
            lines.append(_line(framework, map(str, [len(column), *map(verdicts.count, VERDICTS)])))
    return "\n".join(lines)


def _table_of(rows: dict[str, list[str]]) -> str:
    columns = FRAMEWORKS[: len(next(iter(rows.values())))]
    lines = [_line(name.replace("_", " "), results) for name, results in rows.items()]
    return "\n".join([_line("set-up", columns), _rule(len(columns)), *lines])


def _line(first: str, cells: Iterable[str]) -> str:
    return f"| {' | '.join([first, *cells])} |".replace("|  |", "| |")


def _rule(columns: int) -> str:
    return "|" + " --- |" * (columns + 1)
