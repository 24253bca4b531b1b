"""Sharing between values in transit and other saved state: a batch is an item of a list, a row a view of a tensor.

Values in transit are saved with their contents, and also the places in them that hold shared objects or shared memory,
so that a change in place still reaches all holders after a resume. Sharing that cannot be restored is reported.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

from graphtrain.errors import CheckpointError
from graphtrain.printable import shorten
from graphtrain.state.category import category_of
from graphtrain.state.codec import (
    CHANGED_IN_PLACE,
    MALFORMED,
    StateReader,
    StateWriter,
    is_plain_key,
    shown_path,
)
from graphtrain.state.content import content_hash
from graphtrain.state.contents import MOST_COMPARED, at, replaced
from graphtrain.state.memory import Lie, Spans, lie_of, overlapping, view_beside, view_within

Reference = Any
"""The form in a manifest: ["at", path], ["new", part, number], ["place", place], ["item", path, keys], or
["memory", one of these, the view of it].
"""

_MOST_SHOWN = 100
_UNKNOWN = "{} shares memory with {}, which a resume cannot restore: clone it"
_MALFORMED = "what values in transit share is described as {}, which no checkpoint has"
# Levels within an item of a large container at which a value in transit may be.
_MOST_LEVELS = 3

Place = tuple[str, tuple[Any, ...]]
"""The name of a value, and the keys that lead to a part of it."""


@dataclass
class Aliases:
    """The sharing of values in transit.

    Attributes:
        places: by the name of a value: keys and reference of each shared part in nested containers.
        unknown: a line for each part whose sharing of memory a resume cannot restore.
    """

    places: dict[str, list[list[Any]]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Part:
    """A tensor or an array in a value in transit."""

    place: Place
    value: Any
    lie: Lie


def aliases_of(
    values: Mapping[str, Any], writer: StateWriter, others: Iterable[tuple[str, Any]] = (), quiet: Collection[str] = ()
) -> Aliases:
    """The sharing of values in transit with other saved state, and memory that they share with each other.

    The inside of a shared part is not examined.

    Arguments:
        values: the values in transit, by name.
        writer: has encoded what is reachable and has changed.
        others: path and value of state saved separately, to whose parts nothing can refer. Default: none.
        quiet: the names of values that are not reported. Default: none.
    """
    references: dict[int, Reference] = {}
    places: dict[int, list[Place]] = {}
    met: dict[int, Any] = {}
    for name, value in values.items():

        def note(part: Any, keys: tuple[Any, ...], name: str = name) -> Any:
            if category_of(type(part)) not in CHANGED_IN_PLACE:
                return part
            is_again = id(part) in places
            places.setdefault(id(part), []).append((name, keys))
            met[id(part)] = part
            if not is_again and (reference := writer.identity(part)) is not None:
                references[id(part)] = reference
            return None if is_again or id(part) in references else part  # None is not examined

        replaced(value, note)
    for identity, reference in _found_elsewhere(writer, {key: met[key] for key in met.keys() - references.keys()}):
        references.setdefault(identity, reference)
    parts = [
        _Part(places[key][0], part, lie)
        for key, part in met.items()
        if key not in references
        and isinstance(part, torch.Tensor | numpy.ndarray)
        and (lie := lie_of(part)) is not None
    ]
    aliases = Aliases()
    for part, reference in _sharing_memory(parts, writer, list(others), quiet, aliases.unknown):
        references[id(part.value)] = reference
    for identity, reference in references.items():
        for name, keys in places[identity]:
            aliases.places.setdefault(name, []).append([_plain_keys(values[name], keys), reference])
    return aliases


def _found_elsewhere(writer: StateWriter, wanted: Mapping[int, Any]) -> Iterator[tuple[int, Reference]]:
    """The contents of large containers of data, and of containers in objects with a `state_dict`."""
    if wanted:
        for reached in writer.large():
            if len(reached.value) <= MOST_COMPARED:
                for keys, part in _parts_among(reached.value, wanted):
                    yield id(part), ["item", reached.path, list(keys)]
        containers = {key for key, part in wanted.items() if not isinstance(part, torch.Tensor | numpy.ndarray)}
        for place, part in writer.containers() if containers else ():
            if id(part) in containers:
                yield id(part), ["place", list(place)]


def _parts_among(value: Any, wanted: Mapping[int, Any], keys: tuple[Any, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """The wanted parts of nested containers, with the keys that lead to each."""
    for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
        if id(part) in wanted and is_plain_key(key):
            yield (*keys, key), part
        elif type(part) in (tuple, list, dict) and len(keys) < _MOST_LEVELS and is_plain_key(key):
            yield from _parts_among(part, wanted, (*keys, key))


def _sharing_memory(
    parts: Sequence[_Part],
    writer: StateWriter,
    others: Sequence[tuple[str, Any]],
    quiet: Collection[str],
    unknown: list[str],
) -> Iterator[tuple[_Part, Reference]]:
    if not parts:
        return
    spans = Spans(part.value for part in parts)
    owners = [(owner, lie) for owner in writer.owners(spans) if (lie := lie_of(owner.value)) is not None]
    met = spans.met_by([value for _, value in others])
    further = [(others[number][0], lie) for number in met if (lie := lie_of(others[number][1])) is not None]
    alone = []
    for part in parts:
        near = [owner for owner, lie in owners if lie.overlaps(part.lie)]
        if (same := next((owner for owner in near if owner.value is part.value), None)) is not None:
            yield part, same.reference  # the object itself, as a gradient
            continue
        views = ((each, view_within(part.value, each.value, beyond=each.is_as_set_up)) for each in near)
        owner, view = next(((owner, view) for owner, view in views if view is not None), (None, None))
        if owner is not None:
            yield part, ["memory", owner.reference, view]
        elif paths := [*(owner.path for owner in near), *(path for path, lie in further if lie.overlaps(part.lie))]:
            if part.place[0] not in quiet:
                unknown.append(_UNKNOWN.format(_shown(part.place), shown_path(paths[0])))
        else:
            alone.append(part)
    for first, *rest in overlapping(dict(enumerate(part.lie for part in alone))):
        unknown += [
            _UNKNOWN.format(_shown(alone[number].place), _shown(alone[first].place))
            for number in rest
            if alone[number].place[0] not in quiet
        ]


def _plain_keys(value: Any, keys: tuple[Any, ...]) -> list[Any]:
    """Keys in the form of a manifest: a key that it cannot hold is replaced by its number."""
    plain: list[Any] = []
    for key in keys:
        plain.append(key if is_plain_key(key) else ["nth", next(n for n, other in enumerate(value) if other is key)])
        value = value[key]
    return plain


def _keys_in(value: Any, plain: Any) -> tuple[Any, ...]:
    """The keys of which `_plain_keys` made these; unchanged if there is no such place."""
    keys: list[Any] = []
    for key in plain:
        match key:
            case ["nth", int(number)] if isinstance(value, Mapping) and 0 <= number < len(value):
                keys.append(list(value)[number])
            case _:
                keys.append(key)
        value = at(value, (keys[-1],))
    return tuple(keys)


def _shown(place: Place) -> str:
    name, keys = place
    what = name if "." in name else f"slot {name}"  # else the field of a node
    return what + "".join(f"[{shorten(repr(key), _MOST_SHOWN)}]" for key in keys)


def share(values: dict[str, Any], aliases: Any, reader: StateReader, name_now: Callable[[str], str] = str) -> list[str]:
    """Restore the sharing of values in transit.

    A part stays unshared if its object no longer exists, or has another form.

    Arguments:
        values: by name; they are changed.
        aliases: by the name of a value, from `aliases_of`.
        name_now: returns the present name of a value. Default: the same.

    Returns:
        A line for each part that stays unshared.

    Raises:
        CheckpointError: they do not have the form of `aliases_of`.
    """
    if not isinstance(aliases, Mapping):
        raise CheckpointError(_MALFORMED.format(shorten(repr(aliases), _MOST_SHOWN)))
    checked: dict[str, list[tuple[list[Any], Reference]]] = {}
    for name, places in aliases.items():
        for place in places if isinstance(places, list) else [places]:
            match place:
                case [list(keys), str() | list() as reference]:
                    checked.setdefault(name_now(str(name)), []).append((keys, reference))
                case _:
                    raise CheckpointError(_MALFORMED.format(shorten(repr(place), _MOST_SHOWN)))
    reader.look_again()
    return [line for name, places in checked.items() if name in values for line in _share(values, name, places, reader)]


def _share(
    values: dict[str, Any], name: str, aliases: Iterable[tuple[list[Any], Reference]], reader: StateReader
) -> list[str]:
    """Restore the sharing of one value; returns a line for each part that stays unshared."""
    value, stay = values[name], []
    places: dict[tuple[Any, ...], Any] = {}
    for plain, reference in aliases:
        keys = _keys_in(value, plain)
        part = at(value, keys)
        try:
            other = _find(reference, part, reader)
            is_found = type(part) is type(other) and content_hash(part) == content_hash(other)
        except (CheckpointError, *MALFORMED):
            is_found = False
        if is_found:
            places[keys] = other
        else:
            stay.append(f"{_shown((name, keys))} no longer shares what it shared when it was saved")
    # Containers keep their identity, since nodes may hold them; a tuple cannot. Looked up before anything is replaced:
    # an untrusted file must not lead into what is found.
    holders = {keys: at(value, keys[:-1]) for keys in places if keys}
    for keys, holder in holders.items():
        if isinstance(holder, list | dict | collections.deque):
            holder[keys[-1]] = places.pop(keys)
    if places:
        values[name] = replaced(value, lambda part, keys: places.get(keys, part))
    return stay


def _find(reference: Reference, part: Any, reader: StateReader) -> Any:
    match reference:
        case ["at", str(path)]:
            return reader.at(path)
        case ["new", str(path), int(number)]:
            return reader.met(path, number)
        case ["place", list(place)]:
            return reader.in_state(tuple(place))
        case ["item", str(path), list(keys)]:
            return at(reader.at(path), tuple(keys))
        case ["memory", list(owner), list(view)]:
            return view_beside(_find(owner, None, reader), view, part)
    raise CheckpointError(f"what is shared is referred to as {shorten(str(reference), _MOST_SHOWN)}")
