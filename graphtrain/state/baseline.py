"""The state outside the resources: what was reachable when a run began, its changes since, and restoring it.

A baseline lists what is reachable when a run begins (`InitialState`). At a save it is compared with the present state
(`DriftFinder`); a resume applies the drift to the set-up of another process.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import numpy
import torch

from graphtrain.errors import CheckpointError
from graphtrain.state.category import is_left_alone, is_value
from graphtrain.state.codec import MALFORMED, StateReader, StateWriter, UnknownStateError, shown_path
from graphtrain.state.content import is_identical
from graphtrain.state.contents import FORMS, MOST_COMPARED
from graphtrain.state.drift import NO_DRIFT, Drift, DriftFinder
from graphtrain.state.generators import any_generator
from graphtrain.state.initial import InitialState, States, is_as_marked, mark_of
from graphtrain.state.reachable import Reached, parts_of
from graphtrain.storage.strides import placement_of, without_repeats

# The descriptions of changes in place.
_VALUES = ("tensor", "array", "bytes", "state")


@final
class Baseline(InitialState):
    """The state that is reachable when a run begins, compared and restored.

    Arguments: those of `InitialState`.

    Attributes:
        not_restored: a line for everything that was saved and no longer has a place.
    """

    not_restored: tuple[str, ...] = ()
    # What was restored last, until it was examined once: it counts as drift, as in the process that saved it, even if
    # this `setup` makes equal objects.
    _restored: Mapping[str, Mapping[str, Any]] = NO_DRIFT
    _redrawn: frozenset[int] = frozenset()
    _as_marked: tuple[str, ...] = ()

    def note_marks(self) -> None:
        """Note what is as marked, before anything is loaded: loading into memory that it shares does not change it."""
        self._as_marked = tuple(each.path for each in self.listed() if is_as_marked(each, self.marks))

    def is_redrawn(self, data: str) -> None:
        """Note that a resume draws all batches of an epoch again, which also binds again what data has bound since.

        Arguments:
            data: the name of a root.
        """
        self._redrawn |= {id(reached.value) for reached in self._of_data[data]}

    def drift(self, data: str | None = None, states: Mapping[str, Any] | None = None) -> Drift:
        """The changes so far.

        Arguments:
            data: the name of a root; only what is reachable from it. Default: everything.
            states: path -> the present `state_dict` of an object. Default: read where needed.
        """
        restored = NO_DRIFT
        if data is None:
            restored, self._restored = self._restored, NO_DRIFT
        known = {path: state for path, state in (states or {}).items() if isinstance(state, Mapping)}
        return DriftFinder(self, known, restored, self._redrawn).drift(data)

    def reader(self, sections: Mapping[str, Any]) -> StateReader:
        """Finds or makes the objects of encoded values, which may be anywhere in these sections."""
        return StateReader(self.reachable, self.stateful, sections)

    def restore(
        self,
        section: Mapping[str, Any],
        data: str | None = None,
        left: Collection[str] = (),
        reader: StateReader | None = None,
    ) -> None:
        """Restore the uncovered state to the baseline, and apply a drift.

        Arguments:
            section: that of a `Drift`.
            data: the name to which the drift was restricted.
            left: the names of data that stays as it is.
            reader: finds or makes the objects of the drift. Default: a new one.

        Raises:
            CheckpointError: something that had changed no longer exists, or cannot be made.
        """
        with _naming("the state outside the resources"):
            changed, reader = dict(section), reader or self.reader(section)
        self.note_hooks()
        self._back_to_the_beginning(data, {id(reached.value) for name in left for reached in self._of_data[name]})
        for path, change in changed.items():
            if self.is_excluded(path):
                continue
            with _naming(f"the state of `{shown_path(path)}`"):
                if path.endswith(":"):
                    self._restore_globals(path.removesuffix(":"), change, reader)
                elif path not in self.reachable.by_path:
                    self._is_missing(path)
                else:
                    _overwrite(self.reachable.by_path[path], self._without_left_out(path, change), reader)
        marked = [self.reachable.by_path[path] for path in self._as_marked if path not in changed]
        self.marks |= {id(reached.value): mark_of(reached) for reached in marked}
        if data is None:
            self._restored = dict(section)

    def _without_left_out(self, path: str, change: Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(change.get("set"), Mapping):
            return change
        described = {name: part for name, part in change["set"].items() if not self.is_excluded(f"{path}.{name}")}
        removed = [name for name in change.get("removed", ()) if not self.is_excluded(f"{path}.{name}")]
        return {"set": described, "removed": removed}

    def _is_missing(self, path: str) -> None:
        """Note a change without its object, because `setup` put a plain value, such as None, in its place.

        Raises:
            CheckpointError: not even the place exists.
        """
        if any(
            place == path and is_value(part)
            for reached in self.reachable.by_path.values()
            if path.startswith(reached.path)
            for place, part, _ in parts_of(reached)
        ):
            self.not_restored += (f"{path} is not what it was when it was saved: `setup` puts a plain value there",)
            return
        raise CheckpointError(
            "it does not exist now",
            f'make it again in `setup`; or leave it out, if nothing depends on it: Trainer(..., not_state=["{path}"])',
        )

    def _back_to_the_beginning(self, data: str | None, left: Collection[int]) -> None:
        """Undo other changes by loading and set-up: what had not drifted is as it was."""
        states: States = {}
        for reached in self.listed(data):
            if _holds(reached) and reached.is_entered and id(reached.value) not in left:
                self._put_contents(reached, reached.keys, reached.parts, states)
        for module, names in self.names_of_globals(data):
            held = {name: part for name, part in self.globals[module].items() if name in names}
            self._put_globals(module, names, held)

    def _put_globals(self, module: str, names: Collection[str], held: Mapping[str, Any]) -> None:
        """Restore the globals of these names; those that did not exist are removed."""
        namespace = self.reachable.globals[module][0]
        namespace.update({name: part for name, part in held.items() if namespace.get(name) is not part})
        for name in (names & namespace.keys()) - held.keys():
            if not is_left_alone(namespace[name]):
                del namespace[name]

    def _put_contents(self, reached: Reached, keys: tuple[Any, ...], parts: tuple[Any, ...], states: States) -> None:
        """Restore the contents of an object: the very same objects.

        Contents of data without a plain form, such as an iterator over itself, stay where drawing has left them.
        """
        form = FORMS[reached.category]
        keys_now, parts_now = form.contents(reached.value)
        if is_identical(keys_now, keys) and is_identical(parts_now, parts):
            return
        if form.is_named:
            ignored = self.ignored(reached, states)
            now = dict(zip(keys_now, parts_now, strict=True))
            before = dict(zip(keys, parts, strict=True))
            if reached.is_data:
                ignored |= {name for name, part in now.items() if not self._has_plain_form(part)}
            changed = {
                name: part
                for name, part in before.items()
                if name not in ignored and not (name in now and now[name] is part)
            }
            form.put(reached.value, changed, sorted(set(now) - set(before) - ignored))
        elif reached.category == "mapping":
            form.put(reached.value, dict(zip(keys, parts, strict=True)), ())
        else:
            form.put(reached.value, parts, ())

    def _has_plain_form(self, value: Any) -> bool:
        if is_value(value):
            return True
        try:
            StateWriter(self.reachable, self.stateful).pack(value, "")
        except UnknownStateError:
            return False
        return True

    @contextmanager
    def kept(self, data: str) -> Iterator[None]:
        """A context in which changes of data are undone at the end: same objects, same values.

        Arguments:
            data: the name of a root.
        """
        states: States = {}
        changed = DriftFinder(self, states, {}, self._redrawn).drift(data).section
        values = {
            path: copy.deepcopy(change) for path, change in changed.items() if any(key in change for key in _VALUES)
        }
        held = [
            (reached, FORMS[reached.category].contents(reached.value))
            for reached in self.listed(data)
            if _holds(reached)
        ]
        held_globals = []
        for module, names in self.names_of_globals(data):
            namespace = self.reachable.globals[module][0]
            held_globals.append((module, names, {name: namespace[name] for name in names & namespace.keys()}))
        try:
            yield
        finally:
            for path, change in values.items():
                reached = self.reachable.by_path[path]
                _overwrite(reached, change, StateReader(self.reachable, self.stateful, {}))
            for reached, (keys, parts) in held:
                self._put_contents(reached, keys, parts, states)
            for module, names, parts_of_module in held_globals:
                self._put_globals(module, names, parts_of_module)

    def _restore_globals(self, module: str, change: Mapping[str, Any], reader: StateReader) -> None:
        if module not in self.reachable.globals:
            raise CheckpointError(f"no function of the module `{module}` is reachable now")
        namespace, names = self.reachable.globals[module]
        for name, described in change["set"].items():
            if self.is_excluded(f"{module}:{name}"):
                continue
            if name not in names:
                raise CheckpointError(f"no function of the module `{module}` uses `{name}` now")
            namespace[name] = reader.unpack(described)


def _holds(reached: Reached) -> bool:
    """True for an object whose contents can be restored."""
    if reached.category not in FORMS or isinstance(reached.value, tuple | frozenset) or reached.length > MOST_COMPARED:
        return False
    return not reached.is_covered or reached.category == "module"


def _overwrite(reached: Reached, change: Mapping[str, Any], reader: StateReader) -> None:
    """Apply one change to an object."""
    value, category = reached.value, reached.category
    match change:
        case {"state": state} if category == "generator":
            any_generator(value).set_state(state)
        case {"tensor": torch.Tensor() as saved} if category == "tensor":
            _put_tensor(value, saved, change)
        case {"array": numpy.ndarray() as saved} if category == "array":
            if (value.shape, value.dtype) != (saved.shape, saved.dtype):
                raise CheckpointError(f"its shape is {value.shape} now, and was {saved.shape}")
            value[...] = saved
        case {"bytes": bytes(content)} if category == "buffer":
            value[:] = content
        case {"set": {**described}} if category in FORMS and FORMS[category].is_named:
            removed = tuple(change.get("removed", ()))
            for name in (*described, *removed):
                if not isinstance(name, str) or name in reached.ignored | {"__class__", "__dict__"}:
                    raise CheckpointError(f"`{name}` is not part of its state")
            parts = {name: reader.unpack(part) for name, part in described.items()}
            FORMS[category].put(value, parts, removed)
        case {"items": items} if category in ("list", "deque", "set", "cell", "mapping"):
            parts = reader.unpack(items)
            FORMS[category].put(value, dict(parts) if category == "mapping" else parts, ())
        case _:
            raise CheckpointError("it is of another type now")


def _put_tensor(tensor: torch.Tensor, saved: torch.Tensor, change: Mapping[str, Any]) -> None:
    with torch.no_grad():
        if tensor.layout is saved.layout is torch.sparse_coo and tensor.shape == saved.shape:
            tensor.copy_(saved)
        elif _has_form(tensor, saved):
            _fill(tensor, saved)
        else:
            tensor.data = saved
    if "requires_grad" in change and tensor.is_leaf:
        tensor.requires_grad_(change["requires_grad"])
    saved_gradient = change.get("grad")
    if saved_gradient is not None and tensor.grad is not None and tensor.grad.shape == saved_gradient.shape:
        tensor.grad.copy_(saved_gradient)  # which may be part of a buffer of all gradients
    elif "requires_grad" in change:
        tensor.grad = saved_gradient


def _has_form(tensor: torch.Tensor, saved: torch.Tensor) -> bool:
    """True if values can be copied into a tensor in place, whose memory others may share."""
    if (tensor.shape, tensor.dtype, tensor.layout) != (saved.shape, saved.dtype, saved.layout):
        return False
    # Not every stride is saved: not that of a narrow column of a wide matrix, for instance.
    return tensor.stride() == saved.stride() or (placement_of(tensor) is None and placement_of(saved) is None)


def _fill(tensor: torch.Tensor, saved: torch.Tensor) -> None:
    target, values = without_repeats(tensor.detach()), without_repeats(saved)
    if target.shape != values.shape:
        target, values = tensor.detach(), saved
    try:
        target.copy_(values)
    except RuntimeError:  # several elements are one, which they were not: one by one, some more than once
        storage = tensor.untyped_storage()
        memory = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        memory.set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))
        numbers = torch.arange(memory.numel(), device=tensor.device)
        numbers = numbers.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        memory[numbers.reshape(-1)] = saved.reshape(-1)


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """A context in which any failure is an error that names what is restored."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{what} cannot be restored: {error.message}", error.hint) from None
    except MALFORMED as error:
        raise CheckpointError(f"{what} cannot be restored: {error}") from None
