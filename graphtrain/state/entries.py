"""The entry of an object that is reachable: what it held, and its parts by path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from graphtrain.state.content import content_hash
from graphtrain.state.kinds import KINDS, MOST_COMPARED, OF_A_RUN, Category, Contents, is_constant, is_users, is_value
from graphtrain.storage.encoding import LEAST_ADDRESS, is_saveable

# Of larger tensors, arrays and buffers of data only a sample counts in a stamp; data is hashed whole after a save.
_MOST_BYTES = {"tensor": 64 * 2**10, "array": 2 * 2**20, "buffer": 2 * 2**20}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
IN_CONTAINERS = frozenset({"list", "tuple", "deque", "set", "mapping"})

Child = tuple[str, Any, bool]
"""Path, object, and whether a `state_dict` covers it."""


@dataclass(eq=False, slots=True)
class Entry:
    """An object, with its contents when it was listed. What is covered is listed only to be referred to."""

    path: str
    value: Any
    category: Category
    is_covered: bool = False  # something else saves it, such as a `state_dict`
    is_data: bool = False  # of data, or of objects that belong to it
    code: Any = None  # of a function; of a tensor the operation that made it; of anything else its class
    ignored: frozenset[str] = frozenset()  # attributes that are not state
    covered: frozenset[str] = frozenset()  # attributes with the name of an entry in its `state_dict`
    is_entered: bool = True  # False for a container too large to be examined
    length: int = 0  # of a container
    stamp: Any = None  # what tells whether it has changed beside its contents, if something does
    keys: tuple[Any, ...] = ()  # its contents; of a very large container nothing
    parts: tuple[Any, ...] = ()


def contents_of(entry: Entry) -> Contents:
    """The present contents of an object of a kind with contents; of a very large container nothing."""
    if entry.category in IN_CONTAINERS and len(entry.value) > MOST_COMPARED:
        return (), ()
    return KINDS[entry.category].contents(entry.value)


def stamp_of(entry: Entry) -> Any:
    """What tells whether an object has changed: a hash, a position, other modules; None for all others."""
    value, category = entry.value, entry.category
    match category:
        case "module":  # of its tensors `ModuleForm` knows, but for data
            tensors = (*value._parameters, None, *value._buffers) if entry.is_data else ()
            hooks = [hook for name in HOOKS for hook in getattr(value, name).values() if _is_of_users(hook)]
            return tuple(map(id, value._modules.values())), tuple(map(id, hooks)), tensors
        case "file":
            try:
                return value.tell() if not value.closed and value.readable() else ""
            except OSError:  # within a loop over the lines of a text; or no file on a disk
                return "read"
        case "run":
            return str(getattr(value, OF_A_RUN)()[1])
        case "watched":
            return content_hash(value)
        case "tensor" | "array" | "buffer" if not entry.is_covered:
            is_read_only = category == "array" and not value.flags.writeable
            if is_read_only or not (entry.is_data or category == "buffer" or not is_saveable(value)):
                return None  # it is never saved, or always
            try:
                return content_hash(value, most_bytes=_MOST_BYTES[category])
            except (RuntimeError, NotImplementedError):  # of a class whose memory is not torch's
                return f"{value.shape} {value._version}"
    return None


def _is_of_users(hook: Any) -> bool:
    """False for what a library registers, as it does in another process too."""
    return is_users(getattr(getattr(hook, "func", hook), "__module__", None))


def parts_of(entry: Entry) -> Iterator[Child]:
    """A part of an object with contents, by attribute, number or key."""
    path, is_covered = entry.path, entry.is_covered
    match entry.category:
        case "module" | "optimizer" | "object" | "class" | "function" | "globals":
            is_covered = is_covered and entry.category != "module"
            for name, part in zip(entry.keys, entry.parts, strict=True):
                if name not in entry.ignored:
                    yield place_of(entry, name), part, is_covered or name in entry.covered
        case "list" | "tuple" | "deque":
            yield from ((f"{path}[{number}]", part, is_covered) for number, part in enumerate(entry.parts))
        case "mapping":
            for number, (key, part) in enumerate(zip(entry.keys, entry.parts, strict=True)):
                shown = f"#{number}" if type(key) is int and key >= LEAST_ADDRESS else _shown_key(key)
                yield f"{path}[{shown}]", part, is_covered
                if not is_constant(key):
                    yield f"{path}.keys()[{number}]", key, is_covered
            yield f"{path}.default_factory", getattr(entry.value, "default_factory", None), is_covered
        case "cell":
            yield from ((f"{path}.cell_contents", part, False) for part in entry.parts)


def place_of(entry: Entry, name: str) -> str:
    """The path of an attribute, or of a global."""
    return f"{entry.path}{'' if entry.category == 'globals' else '.'}{name}"


def _shown_key(key: Any) -> str:
    if is_value(key):
        return repr(key)
    return f"({', '.join(map(_shown_key, key))})" if isinstance(key, tuple) else f"a {type(key).__name__}"
