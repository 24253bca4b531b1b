"""What the sweep has proved is printed at its end."""

from __future__ import annotations

from typing import Any

import pytest


def report(terminalreporter: Any) -> None:
    """A line for each kind of data: how many cuts there were, and whether all were equal; one for each run killed."""
    reports = [one for name in ("passed", "failed") for one in terminalreporter.stats.get(name, [])]
    found: dict[str, list[tuple[list[Any], pytest.TestReport]]] = {"sweep": [], "kills": []}
    for report in reports:
        for name, value in report.user_properties:
            if name in found and report.when == "call":
                found[name].append((value, report))
    if found["sweep"]:
        terminalreporter.section("cuts, each resumed in a separate process")
        rows = sorted(
            (kind, workers, cuts, "all equal" if report.passed else "DIFFERENT")
            for (kind, workers, cuts), report in found["sweep"]
        )
        for kind, workers, cuts, verdict in rows:
            terminalreporter.write_line(f"{kind:<20} {workers + ' workers':<18} {cuts:>5} cuts   {verdict}")
        terminalreporter.write_line(f"{'together':<39} {sum(row[2] for row in rows):>5} cuts")
    for value, report in found["kills"]:
        terminalreporter.section("kills")
        terminalreporter.write_line(f"{value}; {'equal' if report.passed else 'DIFFERENT'}")
