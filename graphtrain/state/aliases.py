"""What values in transit share with what is reachable and with each other: a batch is an item of a list of batches.

Each value in transit is saved by itself. So that what changes one in place changes the others as well after a resume,
the places in it that hold objects of others are saved beside it, and those whose memory is another's.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any

from graphtrain.errors import CheckpointError
from graphtrain.state.describer import Describer
from graphtrain.state.nested import at, replaced
from graphtrain.state.rebuilder import Rebuilder
from graphtrain.state.references import MALFORMED
from graphtrain.storage.encoding import UnsaveableError
from graphtrain.storage.state_files import state_digest

Reference = Any
"""As a manifest has it: ["at", path], ["new", number], ["in", name, keys] or ["view", reference, how it lies there]."""


def aliases_of(values: Mapping[str, Any], describer: Describer) -> dict[str, list[list[Any]]]:
    """By the name of a value: keys and reference of each part in nested containers that is another's as well.

    What is inside of such a part is not looked into.

    Arguments:
        values: those in transit, by name.
        describer: has described what is reachable and has changed.
    """
    aliases: dict[str, list[list[Any]]] = {}
    for name, value in values.items():
        found: list[list[Any]] = []

        def note(part: Any, keys: tuple[Any, ...], name: str = name, found: list[list[Any]] = found) -> Any:
            reference = describer.reference(part, ["in", name, list(keys)]) if all(map(_is_plain, keys)) else None
            if reference is None:
                return part
            found.append([list(keys), reference])
            return None  # not looked into

        replaced(value, note)
        if found:
            aliases[name] = found
    return aliases


def share(values: dict[str, Any], aliases: Mapping[str, Any], rebuilder: Rebuilder) -> None:
    """Put what values in transit share into its places in them again.

    A part stays where there is no such object any more, or one of another form.

    Arguments:
        values: by name; they are changed.
        aliases: by the name of a value, as `aliases_of` gave them.
    """

    def find(reference: Reference, part: Any) -> Any:
        match reference:
            case str(path):  # of an earlier version
                return rebuilder.rebuild(("at", path))
            case ["at" | "new", _]:
                return rebuilder.rebuild(tuple(reference))
            case ["in", str(name), list(keys)]:
                return at(values.get(name), tuple(keys))
            case ["view", list(owner), list(view)]:
                return rebuilder.view(find(owner, None), view, part)
        raise CheckpointError(f"what is shared is referred to as {str(reference)[:100]}")

    for name, places in aliases.items():
        if name in values:
            values[name] = _with_places(values[name], places, find)


def _with_places(value: Any, aliases: Any, find: Callable[[Reference, Any], Any]) -> Any:
    places: dict[tuple[Any, ...], Any] = {}
    for keys, reference in aliases:
        part = at(value, tuple(keys))
        try:
            other = find(reference, part)
        except (CheckpointError, *MALFORMED):
            continue
        if other is not None and _is_alike(part, other):
            places[tuple(keys)] = other
    # Containers stay the same ones, which nodes may have been set up with; a tuple cannot. Looked up before anything is
    # put there: what a stranger has written must not lead into what is found.
    holders = {keys: at(value, keys[:-1]) for keys in places if keys}
    for keys, holder in holders.items():
        if isinstance(holder, list | dict | collections.deque):
            holder[keys[-1]] = places.pop(keys)
    return replaced(value, lambda part, keys: places.get(keys, part)) if places else value


def _is_plain(key: Any) -> bool:
    """True for a key that a manifest can have."""
    return (type(key) is int and abs(key) < 2**63) or (type(key) is str and key.isprintable())


def _is_alike(part: Any, other: Any) -> bool:
    """True if one can take the place of another: it is of the same type, and equal to the last bit."""
    if type(part) is not type(other):
        return False
    try:
        return state_digest({"part": {"part": part}}) == state_digest({"part": {"part": other}})
    except UnsaveableError:
        return False
