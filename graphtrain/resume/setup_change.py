"""What `setup` made when a run began, compared with what it makes for a resume: a hash of each path.

It covers what a checkpoint does not restore. Data is compared elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from graphtrain.state.content import content_hash
from graphtrain.state.kinds import KINDS, is_value
from graphtrain.state.reachable import OF_THE_COMPILER, REMEDY, contents_of, is_within, place_of
from graphtrain.state.snapshot import StateSnapshot

_MOST = 3


def setup_hashes(snapshot: StateSnapshot, *, now: bool = False) -> dict[str, str]:
    """Path -> a short hash of what was set up, equal for equal set-ups.

    Arguments:
        now: True for what the same objects hold now.
    """
    hashes: dict[str, str] = {}
    for entry in snapshot.entries():
        if entry.is_covered and entry.category != "module":
            continue
        kind = KINDS.get(entry.category)
        keys, parts = contents_of(entry) if now and kind is not None else (entry.keys, entry.parts)
        content = [entry.value if entry.category in ("function", "class") else entry.code, entry.length]
        if entry.category == "partial":
            content.append(_comparable(entry.value.func, snapshot))
        elif entry.category == "function" and entry.value.__name__ == "<lambda>":  # all lambdas have one name
            content.append(entry.value.__code__.co_code)
        if kind is not None and kind.is_named:
            for name, part in zip(keys, parts, strict=True):
                place = place_of(entry, name)
                is_saved = name in entry.ignored | entry.covered or name.startswith(OF_THE_COMPILER)
                if not (is_saved or snapshot.is_left_out(place)):
                    hashes[place] = content_hash(_comparable(part, snapshot))[:8]
        elif not entry.is_data:
            held = [[_comparable(part, snapshot) for part in each] for each in (keys, parts)]
            content += [entry.stamp, *(map(set, held) if entry.category == "set" else held)]
        hashes[entry.path] = content_hash(content)[:8]
    return hashes


def setup_changes(
    saved: Mapping[str, str], hashes: Mapping[str, str], snapshot: StateSnapshot, reported: Collection[str] = ()
) -> list[str]:
    """The paths that differ from what `setup` made for the saved run, and were not restored.

    Arguments:
        saved: path -> hash; empty if unknown.
        hashes: of this process, before anything was restored.
        snapshot: of this process, after the restore.
        reported: names of data that is reported already.
    """
    paths = [path for path, value in hashes.items() if saved.get(path, value) != value]
    now = setup_hashes(snapshot, now=True) if paths else {}
    return [path for path in paths if now.get(path) == hashes[path] and not is_within(path, reported)]


def unexplained(paths: Collection[str]) -> list[str]:
    """A line for each path that differs although nobody changed anything.

    >>> unexplained(["model.noise"])
    ['model.noise differs from what `setup` made: seed it, or give what holds it a `state_dict`']
    """
    lines = [f"{path} differs from what `setup` made: seed it, or {REMEDY}" for path in paths]
    return [*lines[:_MOST], f"and {len(lines) - _MOST} more"] if len(lines) > _MOST else lines


def _comparable(value: Any, snapshot: StateSnapshot) -> Any:
    """What stands for a value, the same in every process with the same set-up: without addresses."""
    listed = snapshot.reachable.by_id.get(value if type(value) is int else id(value))
    if listed is not None:  # or the identity of something, as a `GradScaler` has it as a key
        return listed.path.rpartition(":")[2]  # without the name of the script
    return "" if is_value(value) and " at 0x" in repr(value) else content_hash(value)
