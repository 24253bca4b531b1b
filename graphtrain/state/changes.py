"""What has changed since a snapshot: saved, or reported where it cannot be; and restored.

The common case costs one comparison by identity per object: it still holds the same objects. An object that holds other
objects is encoded, unless they are equal values. Tensors, arrays and generators are always encoded if nothing else
saves them; those of data only if a hash has changed. A restore resets what a checkpoint does not list to the snapshot.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import numpy
import torch
from torch.nn.modules.lazy import LazyModuleMixin

from graphtrain.errors import CheckpointError
from graphtrain.printable import shown_path
from graphtrain.state.classes import LEFT_ALONE, MOST_COMPARED, RULES, category_of, is_reopened, is_users, is_value
from graphtrain.state.codec import MALFORMED, StateReader, StateWriter
from graphtrain.state.content import is_equal, is_identical
from graphtrain.state.generators import generator_of
from graphtrain.state.optimizers import put_gradient
from graphtrain.state.reachable import OF_THE_COMPILER, REMEDY, Entry, contents_of, place_of, stamp_of
from graphtrain.state.snapshot import StateSnapshot
from graphtrain.storage.encoding import UnsaveableError, is_saveable
from graphtrain.storage.strides import without_repeats

OTHER_SUBMODULES = "has other submodules than it was set up with"
# The remedies for objects that have changed and cannot be saved, by category.
_REMEDIES = {
    "file": "open it when it is read",
    "run": "nest its graph in the graph of this run, or create it within the step",
    "watched": REMEDY,
    "iterator": REMEDY,
}


class StateChanges(NamedTuple):
    """What has changed since a snapshot.

    Attributes:
        section: path -> change, as a checkpoint holds it.
        unknown: a notice for everything that has changed, or may have, and cannot be saved.
        writer: the writer that encoded it; None if nothing was examined.
    """

    section: Mapping[str, Any]
    unknown: list[str]
    writer: StateWriter | None = None


NO_CHANGES = StateChanges({}, [])


def changes_since(
    snapshot: StateSnapshot, data: str | None = None, states: Mapping[str, Any] | None = None
) -> StateChanges:
    """What has changed since a snapshot.

    Arguments:
        data: the name of data, to restrict this to what is reachable from it. Default: everything.
        states: path -> the present `state_dict` of an object, if already read. Default: read where needed.
    """
    finder = _Finder(snapshot, {path: state for path, state in (states or {}).items() if isinstance(state, Mapping)})
    section = {each.path: change for each in snapshot.entries(data) if (change := finder.change(each)) is not None}
    if data is None:
        finder.writer.note_states()
    unknown = [*finder.unknown, *finder.writer.lost]
    if data is None:
        unknown += _lines_about_modules(snapshot.imported)
    unknown += [f"{shown_path(path)} {limit}" for path, limit in snapshot.reachable.unexamined.items()]
    return StateChanges(section, unknown, finder.writer)


@final
class _Finder:
    """Compares objects with the snapshot, and encodes what they hold now."""

    def __init__(self, snapshot: StateSnapshot, states: Mapping[str, Any]) -> None:
        self._snapshot, self._states = snapshot, states
        self.writer = StateWriter(snapshot)
        self.unknown: list[str] = []

    def change(self, entry: Entry) -> dict[str, Any] | None:
        """The change of an object; None if there is none, or if it cannot be saved, which is reported."""
        value, category = entry.value, entry.category
        if category == "tensor" and entry.is_saved_elsewhere and not value.__dict__:
            return None  # as most are
        if category in RULES and category != "function" and type(value) is entry.code:
            keys, parts = contents_of(entry)
            is_same = is_identical(parts, entry.parts) and is_identical(keys, entry.keys)
            if is_same and (category != "module" or stamp_of(entry) == entry.stamp):
                return None
        try:  # no context, which takes a microsecond for each of thousands of objects
            return self._changed(entry)
        except UnsaveableError as error:
            self.unknown.append(error.message)
        return None

    def _changed(self, entry: Entry) -> dict[str, Any] | None:
        value, path, category = entry.value, entry.path, entry.category
        if category == "array" and not value.flags.writeable:
            return None
        if category == "module":
            stamps = zip(("submodules", "hooks", "parameters or buffers"), entry.stamp, stamp_of(entry), strict=True)
            changed = [part for part, before, now in stamps if before != now]
            self.unknown += [f"{path} has other {part} than it was set up with" for part in changed]
        elif entry.stamp is not None and stamp_of(entry) == entry.stamp:
            return None
        if category in _REMEDIES:
            name = f"{type(value).__module__}.{type(value).__qualname__}"
            has = "has" if entry.stamp is not None else "may have"  # an iterator, or a trainer
            raise UnsaveableError(path, f"it is a {name} that {has} changed: {_REMEDIES[category]}")
        if category == "generator":
            return {"state": generator_of(value).get_state()}
        if category in ("tensor", "array"):
            return self._changed_value(entry)
        code = value.__code__ if category == "function" else type(value)
        is_lazy = category == "module" and issubclass(entry.code, LazyModuleMixin)  # until its first batch
        if code is not entry.code and not is_lazy:
            self.unknown.append(f"{shown_path(path)} has another class or other code now, which is not saved")
        rule = RULES.get(category)
        if rule is None or category == "tuple" or (entry.is_saved_elsewhere and category != "module"):
            return None
        keys, parts = contents_of(entry)
        if is_equal(keys, entry.keys) and is_equal(parts, entry.parts):
            return None
        return self._changed_names(entry, dict(zip(keys, parts, strict=True))) if rule.is_named else self._items(entry)

    def _changed_names(self, entry: Entry, now: Mapping[str, Any]) -> dict[str, Any] | None:
        before, ignored = dict(zip(entry.keys, entry.parts, strict=True)), self._snapshot.ignored(entry, self._states)
        encoded = {}
        for name in sorted(set(now) - ignored):
            path, part = place_of(entry, name), now[name]
            is_same = name in before and is_equal(before[name], part)
            if is_same or self._snapshot.is_excluded(path) or isinstance(part, LEFT_ALONE):
                continue
            if entry.is_data and is_value(before.get(name)) and is_reopened(part):
                continue
            # Hooks of weight_norm, spectral_norm and prune recompute it before each use: its graph is not needed.
            sources = entry.value._parameters.keys() if entry.category == "module" else ()
            is_computed = f"{name}_v" in sources or f"{name}_orig" in sources
            try:
                encoded[name] = self.writer.pack(part.detach() if is_computed else part, path)
            except UnsaveableError as error:
                if id(entry.value) not in self._snapshot.redrawn:
                    self.unknown.append(error.message)
        removed = sorted(set(before) - set(now) - ignored)
        return {"set": encoded} | ({"removed": removed} if removed else {}) if encoded or removed else None

    def _items(self, entry: Entry) -> dict[str, Any]:
        value, path, rule = entry.value, entry.path, RULES[entry.category]
        keys, parts = rule.contents(value)
        if len(parts) > MOST_COMPARED:
            raise UnsaveableError(path, f"it has {len(parts):,} items and has changed")
        kept: Any = list(parts)
        if entry.category == "mapping":
            kept = [pair for pair in zip(keys, parts, strict=True) if not (entry.is_data and is_reopened(pair[1]))]
        elif entry.category == "set":
            kept = set(parts)
            if all(type(part) is int for part in parts):  # does restoring it give the same order?
                rule.put(trial := set(entry.parts), parts, ())
                if tuple(trial) != parts:
                    self.unknown.append(f"{shown_path(path)} is a set in an order that is not saved: use a list")
        return {"items": self.writer.pack(kept, path, f"{path}[:]")}

    def _changed_value(self, entry: Entry) -> dict[str, Any] | None:
        """The change of a tensor or an array."""
        value, path = entry.value, entry.path
        attributes = value.__dict__ if entry.category == "tensor" else {}
        names = [name for name in attributes if not name.startswith(OF_THE_COMPILER)]
        if names and self._snapshot.reachable.find(attributes) is None:  # attributes of set-up are listed
            raise UnsaveableError(path, f"training added attributes to it: {', '.join(names)}; set them in `setup`")
        if entry.is_saved_elsewhere:
            return None
        if not is_saveable(value):
            raise UnsaveableError(path, f"it is a {type(value).__qualname__} that has changed")
        if entry.category == "array":
            self.writer.count(value.nbytes, path)
            if (value.shape, value.dtype) != entry.keys:
                raise UnsaveableError(path, "its shape or dtype has changed in place: assign a new array instead")
            return {"array": numpy.asarray(value)}
        self.writer.count(value.numel() * value.element_size(), path)
        if value.grad_fn is not entry.code:  # else `setup` creates it again
            self.writer.note_graph(value, path)
        change: dict[str, Any] = {"tensor": value.detach()}
        if value.is_leaf:
            change["requires_grad"] = value.requires_grad
            if value.grad is not None:
                change["grad"] = value.grad
        return change


def _lines_about_modules(known: Collection[str]) -> Iterator[str]:
    """A notice for each module of the user that was first imported during the run: its variables are not listed."""
    # Code generated by a compiler, as into a module of torch, is in separate files.
    late = [each for each in sorted(sys.modules.keys() - known) if is_users(each) and is_users(each.split(".")[0])]
    for name in late:
        named = {each: part for each, part in vars(sys.modules[name]).items() if not each.startswith("__")}
        code = ("function", "class", "skipped", "opaque")
        if variables := [each for each in named if category_of(type(named[each])) not in code]:
            consequence = f"so its variables ({', '.join(variables)}) are not saved: import it before the run begins"
            yield f"the module {name} was imported during the run, {consequence}"


# ---- restoring


def restore_changes(
    snapshot: StateSnapshot, section: Mapping[str, Any], data: str | None = None, reader: StateReader | None = None
) -> None:
    """Apply saved changes to the objects of a snapshot, and reset everything else to it.

    Arguments:
        section: as in `StateChanges`; restricted to data of the name `data`, if given.
        reader: decodes the section. Default: a new one.

    Raises:
        CheckpointError: an object that had changed no longer exists, or a new one cannot be created.
    """
    with _naming("the state outside the resources"):
        section, reader = dict(section), reader or StateReader(snapshot, section)
    for entry in snapshot.entries(data):
        _put_contents(snapshot, entry)
    for path, change in section.items():
        if snapshot.is_excluded(path):
            continue
        with _naming(f"the state of `{shown_path(path)}`"):
            if path not in snapshot.reachable.by_path:
                hint = f'create it in `setup`; or exclude it, if nothing depends on it: not_state=["{path}"]'
                raise CheckpointError("it does not exist now", hint)
            _apply(snapshot, snapshot.reachable.by_path[path], change, reader)


def _put_contents(snapshot: StateSnapshot, entry: Entry) -> None:
    """Let an object hold the same objects as in the snapshot."""
    rule = RULES.get(entry.category)
    is_constant = isinstance(entry.value, tuple | frozenset)
    if rule is None or is_constant or not entry.is_entered or (entry.is_saved_elsewhere and entry.category != "module"):
        return
    keys, parts = rule.contents(entry.value)
    if is_identical(keys, entry.keys) and is_identical(parts, entry.parts):
        return
    if not rule.is_named:
        rule.put(entry.value, [*zip(entry.keys, entry.parts, strict=True)] if entry.keys else entry.parts, ())
        return
    before = dict(zip(entry.keys, entry.parts, strict=True))
    now, ignored = dict(zip(keys, parts, strict=True)), snapshot.ignored(entry, {})
    if entry.is_data:  # what cannot be encoded, such as an iterator over the data, stays as drawing has left it
        ignored |= {name for name, part in now.items() if not _is_encodable(snapshot, part)}
    changed = {name: part for name, part in before.items() if name not in ignored and now.get(name, rule) is not part}
    removed = [name for name in sorted(now.keys() - before.keys() - ignored) if not isinstance(now[name], LEFT_ALONE)]
    rule.put(entry.value, changed, removed)


def _is_encodable(snapshot: StateSnapshot, value: Any) -> bool:
    try:
        StateWriter(snapshot).pack(value, "")
    except UnsaveableError:
        return False
    return True


def _apply(snapshot: StateSnapshot, entry: Entry, change: Mapping[str, Any], reader: StateReader) -> None:
    """Apply one change to an object."""
    value, category = entry.value, entry.category
    rule = RULES.get(category)
    match change:
        case {"state": state} if category == "generator":
            generator_of(value).set_state(state)
        case {"tensor": torch.Tensor() as saved} if category == "tensor":
            _put_tensor(value, saved, change)
        case {"array": numpy.ndarray() as saved} if category == "array":
            numpy.copyto(value, saved.reshape(value.shape), casting="no")
        case {"set": {**encoded}} if rule is not None and rule.is_named:
            removed = change.get("removed", ())
            names = {name for name in (*encoded, *removed) if not snapshot.is_excluded(place_of(entry, name))}
            for name in names:
                if not isinstance(name, str) or name in entry.ignored | {"__class__", "__dict__"}:
                    raise CheckpointError(f"`{name}` is not part of its state")
            parts = {name: reader.unpack(part) for name, part in encoded.items() if name in names}
            rule.put(value, parts, [name for name in removed if name in names])
        case {"items": items} if rule is not None and not rule.is_named and category != "tuple":
            rule.put(value, reader.unpack(items), ())
        case _:
            raise CheckpointError("its type has changed")


def _put_tensor(tensor: torch.Tensor, saved: torch.Tensor, change: Mapping[str, Any]) -> None:
    """Restore values and gradient, in place if the shape is the same: other tensors may share the memory."""
    with torch.no_grad():
        if (tensor.shape, tensor.dtype, tensor.layout) != (saved.shape, saved.dtype, saved.layout):
            tensor.data = saved
        elif tensor.layout is torch.strided:
            target = without_repeats(tensor.detach())
            values = saved[tuple(map(slice, target.shape))]
            try:
                target.copy_(values)
            except RuntimeError:  # several elements share memory, as in overlapping windows: NumPy can copy to that
                numpy.copyto(target.numpy(), values.numpy())
        else:
            tensor.copy_(saved)
    if "requires_grad" in change and tensor.is_leaf:
        tensor.requires_grad_(change["requires_grad"])
        put_gradient(tensor, change.get("grad"))


@contextmanager
def _naming(subject: str) -> Iterator[None]:
    """A context in which a failure becomes a CheckpointError that names what is restored."""
    try:
        yield
    except (CheckpointError, *MALFORMED) as error:
        message, hint = getattr(error, "message", error), getattr(error, "hint", "")
        raise CheckpointError(f"{subject} cannot be restored: {message}", hint) from None
