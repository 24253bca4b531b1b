"""What `setup` made when a run began, compared with what it makes for a resume.

Only plain values are compared here, and data as a whole elsewhere; anything else is either saved, or reported when it
changes. What a resume restores is not a difference.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

from graphtrain.state.baseline import Baseline
from graphtrain.state.category import is_value
from graphtrain.state.content import content_hash
from graphtrain.state.contents import sample_of
from graphtrain.state.reachable import OF_THE_COMPILER, Reached, is_within, parts_of

_MOST = 3

# A reading of the clock can only be recognized by its value: `setup` runs before our code, may read the clock in C, and
# keeps a plain number. So Unix seconds from an hour before this import, which a launcher may have passed on, until now
# count as a time. Hardly any other number lies there. What this misses: a seed drawn from the clock counts as a time
# too, and milliseconds or an earlier hour do not.
_EARLIEST_TIME = time.time() - 3600
_OF_A_PROCESS = "p"  # after the hash of a number that equals the process id, as a number of layers may by chance
_ATTRIBUTES = ("module", "optimizer", "object", "function", "class")
_CONTAINERS = ("list", "tuple", "deque", "set", "mapping", "cell")

Owner = Literal["module", "data", "object", "program"]
_REMEDIES: Mapping[Owner, str] = {
    "module": "seed `setup`, or register it as a buffer",
    "data": "seed `setup`",
    "object": "seed `setup`, or give {owner} a state_dict",
    "program": "seed what makes it",
}


@final
@dataclass
class SetupHashes:
    """A short hash of each plain value and container that is reachable: equal for equal set-ups.

    Attributes:
        by_path: path -> hash.
        owners: path -> the type and the path of its owner.
    """

    by_path: dict[str, str] = field(default_factory=dict)
    owners: dict[str, tuple[Owner, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, baseline: Baseline, *, now: bool = False) -> SetupHashes:
        """The hashes of what was set up; with `now`, of what the same objects hold now."""
        hashes = cls()
        for entry in baseline.listed():
            if entry.is_covered and entry.category != "module":
                continue
            if entry.category in (*_ATTRIBUTES, *_CONTAINERS):
                if now:
                    keys, parts = sample_of(entry.value, entry.category)
                    entry = replace(entry, keys=keys, parts=parts)
                hashes._add(entry, baseline)
        for module, name, before, after in baseline.globals_in_use():
            if is_value(before):
                hashes._put(f"{module}:{name}", _text(after if now else before, baseline), "program", module)
        return hashes

    def _add(self, entry: Reached, baseline: Baseline) -> None:
        owners: Mapping[str, Owner] = {"module": "module", "object": "object"}
        owner = "data" if entry.is_data else owners.get(entry.category, "program")
        if entry.category in _ATTRIBUTES:
            for place, part, is_covered in parts_of(entry):
                name = place.rpartition(".")[2]
                if name.startswith(OF_THE_COMPILER):
                    continue
                if is_value(part) and not (is_covered and name in entry.covered) and not baseline.is_left_out(place):
                    self._put(place, _text(part, baseline), owner, entry.path)
                    if type(part) is int and part == os.getpid():
                        self.by_path[place] += _OF_A_PROCESS
        elif entry.is_entered:
            keys = [_text(key, baseline) for key in entry.keys]
            parts = [_text(part, baseline) for part in entry.parts]
            order = sorted if entry.category == "set" else list
            self._put(entry.path, (len(parts), keys, order(parts)), owner, entry.path)
        else:
            self._put(entry.path, entry.length, owner, entry.path)

    def _put(self, path: str, content: Any, owner: Owner, owner_path: str) -> None:
        self.by_path[path] = content_hash(content)[:8]
        self.owners[path] = owner, owner_path


def setup_changes(
    saved: Mapping[str, str],
    hashes: SetupHashes,
    baseline: Baseline,
    drift: Mapping[str, Any],
    reported: Collection[str] = (),
) -> dict[str, str]:
    """What differs from what `setup` made for the saved run, and was not restored: path -> what to do.

    Arguments:
        saved: path -> hash; empty if unknown.
        hashes: of this process, before anything was restored.
        baseline: of this process, after the restore.
        drift: what was restored of the reachable state.
        reported: names of data that is reported already.
    """
    differing = [path for path, value in hashes.by_path.items() if not _is_same(saved.get(path, value), value)]
    if not differing:
        return {}
    now, restored = SetupHashes.of(baseline, now=True).by_path, {*drift}
    for path, change in drift.items():
        separator = "" if path.endswith(":") else "."
        restored |= {f"{path}{separator}{name}" for name in change.get("set", ())}
    changes = {}
    for path in differing:
        owner, owner_path = hashes.owners[path]
        is_restored = path in restored or now.get(path) != hashes.by_path[path]
        if not is_restored and not is_within(path, reported):
            changes[path] = _REMEDIES[owner].format(owner=owner_path)
    return changes


def factory_changes(name: str, saved: Mapping[str, str], hashes: Mapping[str, str]) -> list[str]:
    """A line for each path at which a resource made again differs from what its `Factory` made for the saved run."""
    differing = [path for path, value in hashes.items() if not _is_same(saved.get(path, value), value)]
    return [f"{path} differs from what the Factory of `{name}` made: seed it" for path in differing[:_MOST]]


def unexplained(changes: Mapping[str, str]) -> list[str]:
    """A line for each path that differs although nobody changed anything.

    >>> unexplained({"model.noise": "seed `setup`"})
    ['model.noise differs from what `setup` made: seed `setup`']
    """
    lines = [f"{path} differs from what `setup` made: {remedy}" for path, remedy in changes.items()]
    more = len(lines) - _MOST
    return lines if more <= 0 else [*lines[:_MOST], f"{more} more such {'difference' if more == 1 else 'differences'}"]


def _is_same(saved: str, now: str) -> bool:
    return saved == now or (saved.endswith(_OF_A_PROCESS) and now.endswith(_OF_A_PROCESS))


def _text(value: Any, baseline: Baseline) -> str:
    """A value as text that is the same in every process with the same set-up: without process ids, places and times."""
    if not is_value(value):
        return ""
    if type(value) in (int, float):
        if _EARLIEST_TIME < value <= time.time():
            return "a time"
        if type(value) is int and value in baseline.reachable.by_id:
            return f"the identity of {baseline.reachable.by_id[value].path}"
    if isinstance(value, str) and tempfile.gettempdir() in value:
        return "a temporary file"
    text = repr(value)
    return text if " at 0x" not in text else ""
