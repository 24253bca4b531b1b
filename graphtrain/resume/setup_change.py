"""Compare what `setup` creates for a resume with what it created when the run began: a hash of each path.

Only state that a checkpoint does not restore is compared, without data, which has other checks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from graphtrain.printable import shown_path
from graphtrain.state.classes import RULES, is_value
from graphtrain.state.content import ContentHash, content_hash
from graphtrain.state.reachable import OF_THE_COMPILER, REMEDY, contents_of, is_within, place_of
from graphtrain.state.snapshot import StateSnapshot

_MOST = 3


def setup_hashes(snapshot: StateSnapshot, *, now: bool = False) -> dict[str, str]:
    """Path -> a short hash of an object at set-up; with `now`, of what it holds now."""
    by_id = snapshot.reachable.by_id

    def place(value: Any) -> str | None:
        """The path of a listed object without the name of the script; empty for a value whose text has an address."""
        listed = by_id.get(id(value))
        if listed is None:
            return "" if is_value(value) and " at 0x" in repr(value) else None
        return listed.path.rpartition(":")[2]

    def hashed(*parts: Any) -> str:
        content = ContentHash(place)
        content.add(parts)
        return content.hexdigest()[:8]

    hashes: dict[str, str] = {}
    for entry in snapshot.entries():
        if entry.is_saved_elsewhere and entry.category != "module":
            continue
        rule = RULES.get(entry.category)
        contents = contents_of(entry) if now and rule is not None else (entry.keys, entry.parts)
        parts: list[Any] = [len(entry.parts)]
        if rule is not None and rule.is_named:
            parts = []
            for name, part in zip(*contents, strict=True):
                path, is_saved = place_of(entry, name), name in entry.ignored | entry.in_state_dict
                if not (is_saved or name.startswith(OF_THE_COMPILER) or snapshot.is_excluded(path)):
                    hashes[path] = hashed(part)
        elif not entry.is_data:
            keys = [by_id[key].path if type(key) is int and key in by_id else key for key in contents[0]]
            parts = [entry.stamp, keys, set(contents[1]) if entry.category == "set" else contents[1]]
            if entry.category == "array" and not entry.value.flags.writeable:  # it is not saved
                parts.append(content_hash(entry.value))
        definition = entry.value.func if entry.category == "partial" else entry.code
        if entry.category in ("function", "class"):
            definition = entry.value.__qualname__
            if definition.endswith("<lambda>"):  # lambdas have no names
                definition = entry.value.__code__.co_code
        hashes[entry.path] = hashed(definition, *parts)
    return hashes


def setup_changes(
    saved: Mapping[str, str], hashes: Mapping[str, str], snapshot: StateSnapshot, reported: Collection[str]
) -> list[str]:
    """The paths where `setup` has created something else than for the saved run, which the resume has not restored.

    `hashes` are those of this process before loading; `reported` are names of data that are already reported.
    """
    paths = [path for path, value in hashes.items() if saved.get(path, value) != value]
    now = setup_hashes(snapshot, now=True) if paths else {}
    return [path for path in paths if now.get(path) == hashes[path] and not is_within(path, reported)]


def unexplained(paths: Collection[str]) -> list[str]:
    """A notice for each path that differs although the user has changed nothing, up to a few."""
    lines = [f"{shown_path(path)} differs from what `setup` created before: seed it, or {REMEDY}" for path in paths]
    return [*lines[:_MOST], f"and {len(lines) - _MOST} more"] if len(lines) > _MOST else lines
