"""What values in transit share with what is saved beside them, and with each other: a batch is an item of a list.

Each value in transit is saved by itself. So that what changes one in place changes the others as well after a resume,
the places in it that hold objects of others are saved beside it, and those whose memory is another's. What is shared
and cannot be put back is reported.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

from graphtrain.errors import CheckpointError
from graphtrain.printable import shorten
from graphtrain.state.category import category_of
from graphtrain.state.describer import MOST_BYTES, Describer, Owner, is_plain_key
from graphtrain.state.nested import at, replaced
from graphtrain.state.rebuilder import Rebuilder
from graphtrain.state.references import CHANGED_IN_PLACE, MALFORMED, shown_path
from graphtrain.state.shared_memory import Lie, Spans, lie_of, put, view_beside, view_in, view_of, view_within
from graphtrain.storage.encoding import UnsaveableError
from graphtrain.storage.state_files import state_digest

Reference = Any
"""As a manifest has it: ["at", path], ["new", number], ["place", place], ["item", path, keys], ["in", name, keys], or
["memory", one of these or ["span", number], how it lies there].
"""

_MOST_SHOWN = 100
_UNKNOWN = "{} shares memory with {}, which a resume cannot restore"
# What values in transit share with each other alone may lie apart.
_MOST_SPREAD = 4
_MOST_SPREAD_BYTES = 64 * 2**10


@dataclass
class Aliases:
    """What values in transit share.

    Attributes:
        places: by the name of a value: keys and reference of each part in nested containers that is another's as well.
        unknown: a line for each part that shares memory which a resume cannot let it share again.
    """

    places: dict[str, list[list[Any]]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Part:
    """A tensor or an array in a value in transit."""

    name: str
    keys: tuple[Any, ...]
    value: Any
    lie: Lie

    @property
    def shown(self) -> str:
        """For a message."""
        return _shown(self.name, self.keys)


def aliases_of(
    values: Mapping[str, Any], describer: Describer, others: Iterable[tuple[str, Any]] = (), quiet: Iterable[str] = ()
) -> Aliases:
    """What values in transit share with what is saved beside them, and with each other.

    What is inside of a part that is another's is not looked into.

    Arguments:
        values: those in transit, by name.
        describer: has described what is reachable and has changed.
        others: path and value of what is saved in a way of its own, and in which nothing can be found again. Default:
            there is none.
        quiet: the names of values of which nothing is reported. Default: none.
    """
    aliases = _Noted(describer)
    parts: list[_Part] = []
    containers: list[Any] = []
    for name, value in values.items():

        def note(part: Any, keys: tuple[Any, ...], name: str = name) -> Any:
            category = category_of(type(part))
            if category not in CHANGED_IN_PLACE:
                return part
            if aliases.is_met(part, name, keys):
                return None  # not looked into
            if category in ("tensor", "array"):
                if (lie := lie_of(part)) is not None:
                    parts.append(_Part(name, keys, part, lie))
            else:
                containers.append(part)
            return part

        replaced(value, note)
    return aliases.settled(values, parts, containers, others, frozenset(quiet))


class _Noted:
    """What is found while values are looked through."""

    def __init__(self, describer: Describer) -> None:
        self._describer = describer
        self._met: dict[int, tuple[str, tuple[Any, ...]]] = {}
        self._references: list[tuple[str, tuple[Any, ...], Reference]] = []
        self._again: list[tuple[str, tuple[Any, ...], int]] = []  # met once more

    def is_met(self, part: Any, name: str, keys: tuple[Any, ...]) -> bool:
        """Note where a part is; True for one that is found elsewhere too."""
        if (reference := self._describer.identity(part)) is not None:
            self._references.append((name, keys, reference))
            return True
        if id(part) in self._met:
            self._again.append((name, keys, id(part)))
            return True
        self._met[id(part)] = name, keys
        return False

    def settled(
        self,
        values: Mapping[str, Any],
        parts: Sequence[_Part],
        containers: Sequence[Any],
        others: Iterable[tuple[str, Any]],
        quiet: frozenset[str],
    ) -> Aliases:
        """Everything that they share."""
        aliases = Aliases()
        items = self._describer.items_of_large(self._met.keys()) if parts or containers else {}
        for identity, reference in items.items():
            self._references.append((*self._met[identity], reference))
        self._share_memory([part for part in parts if id(part.value) not in items], others, quiet, aliases)
        for name, keys, identity in self._again:
            first, first_keys = self._met[identity]
            self._references.append((name, keys, ["in", first, _plain_keys(values[first], first_keys)]))
        for name, keys, reference in self._references:
            aliases.places.setdefault(name, []).append([_plain_keys(values[name], keys), reference])
        return aliases

    def _share_memory(
        self, parts: Sequence[_Part], others: Iterable[tuple[str, Any]], quiet: frozenset[str], aliases: Aliases
    ) -> None:
        if not parts:
            return
        spans = Spans(part.value for part in parts)
        owners = [(owner, lie) for owner in self._describer.owners(spans) if (lie := lie_of(owner.value)) is not None]
        further = _in_spans(others, spans)
        alone = []
        for part in parts:
            near = [owner for owner, lie in owners if lie.overlaps(part.lie)]
            reference = next(filter(None, (_in_memory(part, owner) for owner in near)), None)
            if reference is not None:
                self._references.append((part.name, part.keys, reference))
                continue
            paths = [owner.path for owner in near] + [path for path, lie in further if lie.overlaps(part.lie)]
            if not paths:
                alone.append(part)
            elif part.name not in quiet:
                aliases.unknown.append(_UNKNOWN.format(part.shown, shown_path(paths[0])))
        for number, group in enumerate(_overlapping(alone)):
            self._share_span(number, group, quiet, aliases)

    def _share_span(self, number: int, parts: Sequence[_Part], quiet: frozenset[str], aliases: Aliases) -> None:
        """Parts that only they themselves overlap with are parts of one new memory."""
        leads = [view[3] if (view := view_in(part.value, 0)) is not None else None for part in parts]
        if None not in leads:
            start = min(part.lie.start - (lead or 0) for part, lead in zip(parts, leads, strict=True))
            if max(part.lie.end for part in parts) - start <= _most_bytes(part.value for part in parts):
                for part in parts:
                    reference = ["memory", ["span", number], view_in(part.value, start)]
                    self._references.append((part.name, part.keys, reference))
                return
        first, *rest = parts
        for part in rest:
            if part.name not in quiet:
                aliases.unknown.append(_UNKNOWN.format(part.shown, first.shown))


def _in_memory(part: _Part, owner: Owner) -> Reference | None:
    """How a part lies in the memory of another; None where that cannot be said."""
    view = view_within(part.value, owner.value, beyond=owner.is_as_set_up)
    return ["memory", owner.reference, view] if view is not None else None


def _in_spans(others: Iterable[tuple[str, Any]], spans: Spans) -> list[tuple[str, Lie]]:
    listed = list(others)
    numbers = spans.met_by([value for _, value in listed])
    return [(listed[number][0], lie) for number in numbers if (lie := lie_of(listed[number][1])) is not None]


def _overlapping(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Those that overlap with others, together."""
    groups: list[list[_Part]] = []
    end = 0
    for part in sorted(parts, key=lambda part: (part.lie.device, part.lie.start)):
        if groups and part.lie.device == groups[-1][0].lie.device and part.lie.start < end:
            groups[-1].append(part)
            end = max(end, part.lie.end)
        else:
            groups.append([part])
            end = part.lie.end
    return [group for group in groups if len(group) > 1]


def _most_bytes(values: Iterable[Any]) -> int:
    return min(max(_MOST_SPREAD * sum(int(value.nbytes) for value in values), _MOST_SPREAD_BYTES), MOST_BYTES)


def _plain_keys(value: Any, keys: tuple[Any, ...]) -> list[Any]:
    """Keys as a manifest can have them: instead of one that it cannot, its number."""
    plain: list[Any] = []
    for key in keys:
        plain.append(key if is_plain_key(key) else ["nth", next(n for n, other in enumerate(value) if other is key)])
        value = value[key]
    return plain


def _keys_in(value: Any, plain: Any) -> tuple[Any, ...]:
    """The keys that `_plain_keys` gave for a value; as they are where there is no such place."""
    keys: list[Any] = []
    for key in plain:
        match key:
            case ["nth", int(number)] if isinstance(value, Mapping) and 0 <= number < len(value):
                keys.append(list(value)[number])
            case _:
                keys.append(key)
        value = at(value, (keys[-1],))
    return tuple(keys)


def share(
    values: dict[str, Any], aliases: Any, rebuilder: Rebuilder, name_now: Callable[[str], str] = str
) -> list[str]:
    """Put what values in transit share into its places in them again.

    A part stays where there is no such object any more, or one of another form.

    Arguments:
        values: by name; they are changed.
        aliases: by the name of a value, as `aliases_of` gave them.
        name_now: gives the name of a value now. Default: they have the same names.

    Returns:
        A line for each part that stays.

    Raises:
        CheckpointError: they are not of the form that `aliases_of` gives them.
    """
    checked = {name_now(name): places for name, places in _checked(aliases).items()}
    return _Sharing(values, checked, rebuilder, name_now).shared()


def _checked(aliases: Any) -> Mapping[str, list[tuple[list[Any], Reference]]]:
    """What a manifest has, which may come from a stranger."""
    checked: dict[str, list[tuple[list[Any], Reference]]] = {}
    for name, places in aliases.items() if isinstance(aliases, Mapping) else [("", aliases)]:
        match places:
            case list() if isinstance(aliases, Mapping):
                for place in places:
                    match place:
                        case [list(keys), str() | list() as reference]:
                            checked.setdefault(str(name), []).append((keys, reference))
                        case _:
                            raise CheckpointError(_MALFORMED.format(shorten(repr(place), _MOST_SHOWN)))
            case _:
                raise CheckpointError(_MALFORMED.format(shorten(repr(places), _MOST_SHOWN)))
    return checked


def _shown(name: str, keys: tuple[Any, ...]) -> str:
    what = name if "." in name else f"slot {name}"  # else the field of a node
    return what + "".join(f"[{shorten(repr(key), _MOST_SHOWN)}]" for key in keys)


_MALFORMED = "what values in transit share is described as {}, which no checkpoint has"


class _Sharing:
    """Puts objects into values, once."""

    def __init__(
        self,
        values: dict[str, Any],
        aliases: Mapping[str, list[tuple[list[Any], Reference]]],
        rebuilder: Rebuilder,
        name_now: Callable[[str], str],
    ) -> None:
        self._values, self._aliases, self._rebuilder, self._name_now = values, aliases, rebuilder, name_now
        self._spans: dict[int, torch.Tensor] = {}
        self._stay: list[str] = []

    def shared(self) -> list[str]:
        self._rebuilder.look_again()
        # First what is found elsewhere, then what is met once more in the values themselves.
        for is_again in (False, True):
            for name, places in self._aliases.items():
                if name in self._values:
                    chosen = [place for place in places if (place[1][:1] == ["in"]) is is_again]
                    self._values[name] = self._with_places(name, chosen)
        return self._stay

    def _find(self, reference: Reference, part: Any) -> Any:
        match reference:
            case ["at" | "new", _]:
                return self._rebuilder.rebuild(tuple(reference))
            case ["in", str(name), list(keys)]:
                value = self._values.get(self._name_now(name))
                return at(value, _keys_in(value, keys))
            case ["place", list(place)]:
                return self._rebuilder.rebuild(("in", *place))
            case ["item", str(path), list(keys)]:
                return at(self._rebuilder.at(path), tuple(keys))
            case ["memory", ["span", int(number)], list(view)]:
                return view_of(self._span(number, part), view, part)
            case ["memory", list(owner), list(view)]:
                return view_beside(self._find(owner, None), view, part)
        raise CheckpointError(f"what is shared is referred to as {shorten(str(reference), _MOST_SHOWN)}")

    def _span(self, number: int, part: Any) -> torch.Tensor:
        """The memory of parts that share it with each other alone, with their values."""
        if number not in self._spans:
            places = [
                (at(self._values.get(name), _keys_in(self._values.get(name), keys)), reference[2])
                for name, listed in self._aliases.items()
                for keys, reference in listed
                if isinstance(reference, list) and reference[:2] == ["memory", ["span", number]]
            ]
            members = [(value, view) for value, view in places if isinstance(value, torch.Tensor | numpy.ndarray)]
            size = max(_end_of(value, view) for value, view in members)
            if not 0 < size <= _most_bytes(value for value, _ in members):
                raise CheckpointError(f"what is shared takes {size} bytes")
            device = part.device if isinstance(part, torch.Tensor) else None
            whole = torch.zeros(size, dtype=torch.uint8, device=device)
            for value, view in members:
                put(view_of(whole, view, value), value)
            self._spans[number] = whole
        return self._spans[number]

    def _with_places(self, name: str, aliases: Sequence[tuple[list[Any], Reference]]) -> Any:
        value = self._values[name]
        places: dict[tuple[Any, ...], Any] = {}
        for plain, reference in aliases:
            if reference[:1] == ["in"] and self._name_now(str(reference[1])) not in self._values:
                continue  # which another graph does not have
            keys = _keys_in(value, plain)
            part = at(value, keys)
            try:
                other = self._find(reference, part)
                is_found = other is not None and _is_alike(part, other)
            except (CheckpointError, *MALFORMED):
                is_found = False
            if is_found:
                places[keys] = other
            else:
                self._stay.append(f"{_shown(name, keys)} does not share any more what it shared when it was saved")
        # Containers stay the same ones, which nodes may have been set up with; a tuple cannot. Looked up before
        # anything is put there: what a stranger has written must not lead into what is found.
        holders = {keys: at(value, keys[:-1]) for keys in places if keys}
        for keys, holder in holders.items():
            if isinstance(holder, list | dict | collections.deque):
                holder[keys[-1]] = places.pop(keys)
        return replaced(value, lambda part, keys: places.get(keys, part)) if places else value


def _end_of(value: Any, view: list[Any]) -> int:
    shape, strides, offset, *_ = view
    steps = ((length - 1) * step for length, step in zip(shape, strides, strict=True))
    return int(offset) + sum(int(step) for step in steps if step > 0) + int(value.itemsize)


def _is_alike(part: Any, other: Any) -> bool:
    """True if one can take the place of another: it is of the same type, and equal to the last bit."""
    if type(part) is not type(other):
        return False
    try:
        return state_digest({"part": {"part": part}}) == state_digest({"part": {"part": other}})
    except UnsaveableError:
        return False
