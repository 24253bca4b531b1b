"""How two saved runs differ beside their graphs: what they were set up with, and what they came to. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from graphtrain.display.numbers import metric
from graphtrain.plain import is_equal
from graphtrain.printable import one_line, shorten
from graphtrain.resume.provenance import code_changes
from graphtrain.storage.run_directory import last_rows

_MOST_CHARACTERS = 60


class ChangedValue(NamedTuple):
    """One thing that differs, as text; empty where one of the runs does not have it."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class SavedRun:
    """A checkpoint of a run, as `diff` compares it.

    Attributes:
        manifest: of the checkpoint.
        metrics: the last values, with their step and epoch.
    """

    manifest: Mapping[str, Any]
    metrics: Mapping[str, Any]

    @classmethod
    def of(cls, checkpoint: Path, manifest: Mapping[str, Any]) -> SavedRun:
        """The run that made a checkpoint; its metrics are the rows beside it, as far as they were recorded by then."""
        rows = last_rows(checkpoint.parent.parent, manifest["metrics_bytes"])
        latest = {name: value for row in rows for name, value in row.items()}
        return cls(manifest, latest or manifest["metrics"])


def sections(before: SavedRun, after: SavedRun) -> dict[str, list[ChangedValue]]:
    """What differs, by section; one without differences is empty.

    >>> fields = {"about": {"arguments": {"lr": "0.1"}}, "origin": {}, "data": {}, "environment": {"threads": 1}}
    >>> other = {**fields, "about": {"arguments": {"lr": "0.2"}}}
    >>> sections(SavedRun(fields, {"loss": 0.51}), SavedRun(other, {"loss": 0.25}))["arguments of setup"]
    [ChangedValue(name='lr', before='0.1', after='0.2')]
    """
    one, two = before.manifest, after.manifest
    return {
        "arguments of setup": list(_arguments(one["about"], two["about"])),
        "hyper-parameters": list(_rows(_hyper_parameters(one), _hyper_parameters(two))),
        "code": list(_code(one["origin"], two["origin"])),
        "data": list(_data(one["data"], two["data"])),
        "versions and flags": list(_rows(one["environment"], two["environment"], only_common=True)),
        "last metrics": list(_metrics(before.metrics, after.metrics)),
    }


def _rows(before: Mapping[str, Any], after: Mapping[str, Any], *, only_common: bool = False) -> Iterator[ChangedValue]:
    """The entries of two tables that differ, in the order of the first."""
    for name in dict.fromkeys([*before, *after]):
        if only_common and not (name in before and name in after):
            continue  # what only another version of graphtrain keeps
        if name not in before or name not in after or not is_equal(before[name], after[name]):
            yield ChangedValue(name, *(_text(table[name]) if name in table else "" for table in (before, after)))


def _arguments(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ChangedValue]:
    yield from _rows(before.get("arguments", {}), after.get("arguments", {}))


def _hyper_parameters(manifest: Mapping[str, Any]) -> dict[str, Any]:
    in_force = manifest.get("hyper_parameters_in_force", manifest.get("hyper_parameters", {}))
    return {f"{name}.{field}": value for name, fields in in_force.items() for field, value in fields.items()}


def _code(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ChangedValue]:
    """The files that differ, with the beginning of the hash of each."""
    for name in code_changes(before, after) or ():
        scripts = before.get("script", ""), after.get("script", "")
        if name == " -> ".join(scripts):
            yield ChangedValue("program", *scripts)
        else:
            yield ChangedValue(name, *(origin["code"].get(name, "")[:8] for origin in (before, after)))


def _data(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ChangedValue]:
    """Lengths; and where these are equal, the samples that were looked at, by their hash."""
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            yield ChangedValue(name, *("supplied" if name in table else "" for table in (before, after)))
            continue
        one, two = before[name], after[name]
        sizes = [size for size in ("length", "samples") if one.get(size) != two.get(size)]
        hashes = one.get("hash"), two.get("hash")
        for size in sizes:
            yield ChangedValue(f"{name}.{size}", _text(one.get(size)), _text(two.get(size)))
        if not sizes and all(hashes) and hashes[0] != hashes[1]:
            yield ChangedValue(f"{name} (its samples)", *(str(value)[:8] for value in hashes))


def _metrics(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[ChangedValue]:
    for row in _rows(before, after):
        numbers = [value for table in (before, after) if isinstance(value := table.get(row.name), int | float)]
        texts = [metric(number) for number in numbers]
        # Where four digits do not tell two values apart, all of them are shown.
        yield ChangedValue(row.name, *texts) if len(set(texts)) == 2 else row


def _text(value: Any) -> str:
    """A value of a file of others, on a line."""
    return shorten(one_line(str(value)), _MOST_CHARACTERS)
