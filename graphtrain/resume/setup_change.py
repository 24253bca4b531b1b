"""What `setup` made when a run began, compared with what it makes for a resume: a hash of each path.

It covers what a checkpoint does not restore: plain values, the types of objects and the names of functions, and the
contents of tensors, arrays and others that are saved only if they change, or not at all. Data is compared elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from graphtrain.state.baseline import Baseline
from graphtrain.state.category import is_value
from graphtrain.state.codec import is_plain_array, is_saveable
from graphtrain.state.content import content_hash
from graphtrain.state.contents import FORMS, compared_contents
from graphtrain.state.initial import mark_of
from graphtrain.state.reachable import OF_THE_COMPILER, REMEDY, Reached, is_within, parts_of

_MOST = 3

_ATTRIBUTES = ("module", "optimizer", "object", "function", "class")


def setup_hashes(baseline: Baseline, *, now: bool = False) -> dict[str, str]:
    """Path -> a short hash of what was set up, equal for equal set-ups.

    Arguments:
        now: True for what the same objects hold now.
    """
    hashes: dict[str, str] = {}

    def put(path: str, content: Any) -> None:
        hashes[path] = content_hash(content)[:8]

    for entry in baseline.listed():
        if entry.is_covered and entry.category != "module":
            continue
        if now and entry.category in FORMS:
            keys, parts = compared_contents(entry.value, entry.category)
            entry = replace(entry, keys=keys, parts=parts)
        put(entry.path, _content(entry, baseline))
        for place, part, is_covered in parts_of(entry) if entry.category in _ATTRIBUTES else ():
            name = place.rpartition(".")[2]
            is_listed = not is_value(part) and baseline.reachable.path_of(part) == place
            is_saved = is_covered and name in entry.covered
            if not (is_listed or is_saved or name.startswith(OF_THE_COMPILER) or baseline.is_left_out(place)):
                put(place, _text(part, baseline))
    for module, name, before, after in baseline.globals_in_use():
        put(f"{module}:{name}", _text(after if now else before, baseline))
    return hashes


def _content(entry: Reached, baseline: Baseline) -> Any:
    """What of an object a checkpoint does not restore, apart from its attributes."""
    value, kind = entry.value, type(entry.value).__qualname__
    match entry.category:
        case "function" | "class":
            code = value.__code__.co_code if value.__qualname__.endswith("<lambda>") else b""
            return value.__qualname__, code
        case "method" | "partial":
            return kind, _text(value.__func__ if entry.category == "method" else value.func, baseline)
        case "watched" | "file":
            return kind, entry.position
        case "tensor" | "array" if not (entry.is_data or _is_saved(value)):
            return kind, mark_of(entry)[-1]
        case "list" | "tuple" | "deque" | "set" | "mapping" | "cell" if entry.is_entered:
            keys, parts = ([_text(part, baseline) for part in each] for each in (entry.keys, entry.parts))
            return kind, keys, sorted(parts) if entry.category == "set" else parts
        case "list" | "tuple" | "deque" | "set" | "mapping":
            held = () if entry.is_data else (*entry.keys, *entry.parts)
            texts = [_text(part, baseline) for part in held if is_value(part)]
            return kind, entry.length, content_hash(sorted(texts) if entry.category == "set" else texts)
    return kind


def _is_saved(value: Any) -> bool:
    """True for a tensor or an array that every checkpoint has."""
    return is_saveable(value) if isinstance(value, torch.Tensor) else is_plain_array(value) and value.flags.writeable


def setup_changes(
    saved: Mapping[str, str],
    hashes: Mapping[str, str],
    baseline: Baseline,
    drift: Mapping[str, Any],
    reported: Collection[str] = (),
) -> list[str]:
    """The paths that differ from what `setup` made for the saved run, and were not restored.

    Arguments:
        saved: path -> hash; empty if unknown.
        hashes: of this process, before anything was restored.
        baseline: of this process, after the restore.
        drift: what was restored of the reachable state.
        reported: names of data that is reported already.
    """
    if not (paths := [path for path, value in hashes.items() if saved.get(path, value) != value]):
        return []
    now = setup_hashes(baseline, now=True)
    replaced = [
        f"{path}{'' if path.endswith(':') else '.'}{name}"
        for path, change in drift.items()
        for name in change.get("set", ())
    ]
    return [path for path in paths if now.get(path) == hashes[path] and not is_within(path, [*replaced, *reported])]


def unexplained(paths: Collection[str]) -> list[str]:
    """A line for each path that differs although nobody changed anything.

    >>> unexplained(["model.noise"])
    ['model.noise differs from what `setup` made: seed it, or give what holds it a `state_dict`']
    """
    lines = [f"{path} differs from what `setup` made: seed it, or {REMEDY}" for path in paths]
    return [*lines[:_MOST], f"and {len(lines) - _MOST} more"] if len(lines) > _MOST else lines


def _text(value: Any, baseline: Baseline) -> str:
    """A value as text that is the same in every process with the same set-up: without addresses."""
    if not is_value(value):
        path = baseline.reachable.path_of(value)
        return content_hash(value) if path is None else path.rpartition(":")[2]  # without the name of the script
    if type(value) is int and value in baseline.reachable.by_id:  # a key of GradScaler, or of a compiler
        return f"the identity of {baseline.reachable.by_id[value].path}"
    text = repr(value)
    return text if " at 0x" not in text else ""
