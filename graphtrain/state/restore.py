"""Putting back what was reachable: what a checkpoint does not list becomes what it was when the run began."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy
import torch

from graphtrain.errors import CheckpointError
from graphtrain.printable import shown_path
from graphtrain.state.codec import MALFORMED, StateReader, StateWriter
from graphtrain.state.content import is_identical
from graphtrain.state.generators import generator_of
from graphtrain.state.kinds import KINDS, LEFT_ALONE
from graphtrain.state.optimizers import put_gradient
from graphtrain.state.reachable import Entry, place_of, stamp_of
from graphtrain.state.snapshot import States, StateSnapshot
from graphtrain.storage.encoding import UnsaveableError
from graphtrain.storage.strides import without_repeats


def restore(
    snapshot: StateSnapshot,
    section: Mapping[str, Any],
    data: str | None = None,
    reader: StateReader | None = None,
) -> None:
    """Restore what nothing else saves: what has changed as it was changed, all else as it was in the snapshot.

    Arguments:
        section: that of `StateChanges`.
        data: the name to which the changes were restricted.
        reader: finds or makes the objects of the section. Default: a new one.

    Raises:
        CheckpointError: something that had changed no longer exists, or cannot be made.
    """
    with _naming("the state outside the resources"):
        section, reader = dict(section), reader or StateReader(snapshot, section)
    states: States = {}
    for entry in snapshot.entries(data):
        _put_contents(snapshot, entry, states)
    for path, change in section.items():
        if snapshot.is_excluded(path):
            continue
        with _naming(f"the state of `{shown_path(path)}`"):
            if path not in snapshot.reachable.by_path:
                hint = f'make it again in `setup`; or leave it out, if nothing depends on it: not_state=["{path}"]'
                raise CheckpointError("it does not exist now", hint)
            _apply(snapshot, snapshot.reachable.by_path[path], change, reader)
    if data is None:  # loading may have written into memory that data views
        for entry in snapshot.entries():
            if entry.is_data and entry.path not in section:
                entry.stamp = stamp_of(entry)


def _put_contents(snapshot: StateSnapshot, entry: Entry, states: States) -> None:
    """Put back what an object held: the very same objects.

    Attributes of data that cannot be encoded, such as an iterator over itself, stay where drawing has left them.
    """
    kind = KINDS.get(entry.category)
    is_constant = isinstance(entry.value, tuple | frozenset)
    if kind is None or is_constant or not entry.is_entered or (entry.is_covered and entry.category != "module"):
        return
    keys, parts = kind.contents(entry.value)
    if is_identical(keys, entry.keys) and is_identical(parts, entry.parts):
        return
    if not kind.is_named:
        kind.put(entry.value, [*zip(entry.keys, entry.parts, strict=True)] if entry.keys else entry.parts, ())
        return
    before = dict(zip(entry.keys, entry.parts, strict=True))
    now, ignored = dict(zip(keys, parts, strict=True)), snapshot.ignored(entry, states)
    if entry.is_data:
        ignored |= {name for name, part in now.items() if not _is_encodable(snapshot, part)}
    changed = {name: part for name, part in before.items() if name not in ignored and now.get(name, kind) is not part}
    removed = [name for name in sorted(now.keys() - before.keys() - ignored) if not isinstance(now[name], LEFT_ALONE)]
    kind.put(entry.value, changed, removed)


def _is_encodable(snapshot: StateSnapshot, value: Any) -> bool:
    try:
        StateWriter(snapshot).pack(value, "")
    except UnsaveableError:
        return False
    return True


def _apply(snapshot: StateSnapshot, entry: Entry, change: Mapping[str, Any], reader: StateReader) -> None:
    """Apply one change to an object."""
    value, category = entry.value, entry.category
    kind = KINDS.get(category)
    match change:
        case {"state": state} if category == "generator":
            generator_of(value).set_state(state)
        case {"tensor": torch.Tensor() as saved} if category == "tensor":
            _put_tensor(value, saved, change)
        case {"array": numpy.ndarray() as saved} if category == "array":
            numpy.copyto(value, saved.reshape(value.shape), casting="no")
        case {"set": {**encoded}} if kind is not None and kind.is_named:
            removed = change.get("removed", ())
            names = {name for name in (*encoded, *removed) if not snapshot.is_excluded(place_of(entry, name))}
            for name in names:
                if not isinstance(name, str) or name in entry.ignored | {"__class__", "__dict__"}:
                    raise CheckpointError(f"`{name}` is not part of its state")
            parts = {name: reader.unpack(part) for name, part in encoded.items() if name in names}
            kind.put(value, parts, [name for name in removed if name in names])
        case {"items": items} if kind is not None and not kind.is_named and category != "tuple":
            kind.put(value, reader.unpack(items), ())
        case _:
            raise CheckpointError("it is of another type now")


def _put_tensor(tensor: torch.Tensor, saved: torch.Tensor, change: Mapping[str, Any]) -> None:
    """Put values and gradient, in place where the shape is the same: others may share the memory."""
    with torch.no_grad():
        if (tensor.shape, tensor.dtype, tensor.layout) != (saved.shape, saved.dtype, saved.layout):
            tensor.data = saved
        elif tensor.layout is torch.strided:
            target = without_repeats(tensor.detach())
            values = saved[tuple(map(slice, target.shape))]
            try:
                target.copy_(values)
            except RuntimeError:  # several elements are one, as in windows that overlap: NumPy takes that
                numpy.copyto(target.numpy(), values.numpy())
        else:
            tensor.copy_(saved)
    if "requires_grad" in change and tensor.is_leaf:
        tensor.requires_grad_(change["requires_grad"])
        put_gradient(tensor, change.get("grad"))


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """A context in which any failure is an error that names what is restored."""
    try:
        yield
    except (CheckpointError, *MALFORMED) as error:
        message, hint = getattr(error, "message", error), getattr(error, "hint", "")
        raise CheckpointError(f"{what} cannot be restored: {message}", hint) from None
