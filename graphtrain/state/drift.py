"""The changes of the reachable state since a run was set up.

Every attribute, item, variable, class attribute and global that is bound to another object than then has drifted, and
is described; values are compared by value. Tensors, arrays and generators are described whenever nothing else saves
them; those of data, only if they look changed.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy
from torch.nn.modules.lazy import LazyModuleMixin

from graphtrain.state.category import OF_A_RUN, is_left_alone, is_reopened, is_value
from graphtrain.state.codec import StateWriter, UnknownStateError, is_plain_array, is_saveable, shown_path
from graphtrain.state.content import are_equal, content_hash, is_equal, is_identical
from graphtrain.state.contents import FORMS, MOST_COMPARED, compared_contents
from graphtrain.state.generators import any_generator
from graphtrain.state.graphs import KEEPS_GRAPH, computed_again
from graphtrain.state.initial import InitialState, States, is_as_marked, lines_about_modules, structure_of
from graphtrain.state.reachable import OF_THE_COMPILER, REMEDY, Reached, calls_seek, position_of

Section = Mapping[str, Any]

OTHER_SUBMODULES = "has other submodules than it was set up with"
NO_DRIFT: Section = {}


@dataclass
class Drift:
    """What has changed.

    Attributes:
        section: the form in a checkpoint: path -> change.
        unknown: a line for everything that has changed, or may have, and cannot be saved.
        writer: the writer that encoded it; None if nothing was examined.
    """

    section: Section
    unknown: list[str] = field(default_factory=list)
    writer: StateWriter | None = None


@final
class DriftFinder:
    """Compares the present reachable state with that at the start of the run, once.

    Arguments:
        initial: the state at the start.
        states: path -> the present `state_dict` of an object; others are added when needed.
        restored: path -> what a restore has put there: it counts as drift, even if this process set up the same.
        redrawn: the identities of objects that a resume makes again by drawing.
    """

    def __init__(
        self,
        initial: InitialState,
        states: States,
        restored: Mapping[str, Mapping[str, Any]],
        redrawn: Collection[int],
    ) -> None:
        self._initial, self._states, self._restored, self._redrawn = initial, states, restored, redrawn
        self._writer = StateWriter(
            initial.reachable, initial.stateful, initial.is_excluded if initial.excludes else None
        )
        self._unknown: list[str] = []

    def drift(self, data: str | None = None) -> Drift:
        """What has changed.

        Arguments:
            data: the name of a root; only what is reachable from it. Default: everything.
        """
        changed: dict[str, Any] = {}
        elsewhere = self._initial.elsewhere
        self._initial.note_hooks()
        for reached in self._initial.listed(data):
            restored = self._restored.get(reached.path) if self._restored else None
            if (elsewhere and id(reached.value) in elsewhere) or (restored is None and self._has_not_changed(reached)):
                continue
            with self._writer.attempt(self._unknown):
                if (change := self._change(reached, restored)) is not None:
                    changed[reached.path] = change
        for module, names in self._initial.names_of_globals(data):
            if described := self._changed_globals(module, names, self._restored.get(f"{module}:")):
                changed[f"{module}:"] = {"set": described}
        self._unknown += self._writer.lost_memory()
        self._unknown += [f"{shown_path(path)} {KEEPS_GRAPH}" for path in self._writer.graphs]
        self._unknown += filter(None, self._initial.flags.values()) if data is None else ()
        if data is None and self._initial.imported is not None:
            self._unknown += lines_about_modules(self._initial.imported)
        bounds = self._initial.reachable.bounds.items()
        self._unknown += [f"{shown_path(path)} {bound}" if path else bound for path, bound in bounds]
        return Drift(changed, self._unknown, self._writer)

    def _has_not_changed(self, reached: Reached) -> bool:
        """A quick check for the common case: the object holds the very same objects as before."""
        value, category = reached.value, reached.category
        if category == "tensor":
            return reached.is_covered and not value.__dict__
        if category == "module":
            form = self._initial.structures[reached.path]
            if reached.is_data or form["hooks"] or any(self._initial.hooks[reached.path]):
                return False
            if tuple(map(id, value._modules.values())) != form["submodules"]:
                return False
        elif category not in ("object", "optimizer", "cell", "list", "mapping") or not reached.is_entered:
            return False
        keys, parts = FORMS[category].contents(value)
        is_same = is_identical(parts, reached.parts) and is_identical(keys, reached.keys)
        return is_same and type(value) is reached.code

    def _change(self, reached: Reached, restored: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """The change of an object; None if there is none."""
        value, path = reached.value, reached.path
        match reached.category:
            case "tensor":
                self._check_attributes(reached)
                return None if reached.is_covered else self._changed_tensor(reached)
            case "array":
                return self._changed_array(reached)
            case "generator":
                return {"state": any_generator(value).get_state()}
            case "iterator":
                what = f"is an iterator ({type(value).__name__}), whose position is not saved"
                raise UnknownStateError(path, f"{what}: {REMEDY}")
            case "file":
                if position_of(value) != reached.position and not (reached.is_data and self._seeks):
                    what = "is an open file, whose position is not saved: open it when it is read"
                    raise UnknownStateError(path, what)
                return None
            case "watched":
                if content_hash(value) != reached.position:
                    what = (
                        f"is a {type(value).__module__}.{type(value).__qualname__} that has changed, and is not saved"
                    )
                    raise UnknownStateError(path, f"{what}: {REMEDY}")
                return None
            case "run":
                if getattr(value, OF_A_RUN)()[1] != reached.position:
                    what = "that has trained, and its position is not saved: nest its graph in that of this run"
                    raise UnknownStateError(path, f"is a {type(value).__name__} {what}, or make it within the step")
                return None
            case "buffer":
                return self._changed_buffer(reached)
            case "module":
                before, now = self._initial.structures[path], structure_of(value, is_data=reached.is_data)
                others = [what for what in before if before[what] != now[what]]
                if path in self._initial.returning:
                    others.remove("hooks")
                self._unknown += [f"{path} has other {what} than it was set up with" for what in others]
        code = value.__code__ if reached.category == "function" else type(value)
        is_lazy = reached.category == "module" and issubclass(reached.code, LazyModuleMixin)  # until its first batch
        if code is not reached.code and not is_lazy:
            self._unknown.append(f"{shown_path(path)} was given another class or other code, which is not saved")
        form = FORMS.get(reached.category)
        if form is None or reached.category == "tuple" or (reached.is_covered and reached.category != "module"):
            return None
        if not reached.is_entered:
            return self._changed_large(reached) if restored is None else self._all(reached)
        keys, parts = form.contents(value)
        if restored is None and is_identical(keys, reached.keys) and is_identical(parts, reached.parts):
            return None
        if form.is_named:
            return self._changed_names(reached, dict(zip(keys, parts, strict=True)), restored)
        if restored is None and are_equal(keys, reached.keys) and are_equal(parts, reached.parts):
            return None
        return self._all(reached)

    def _changed_names(
        self,
        reached: Reached,
        now: Mapping[str, Any],
        restored: Mapping[str, Any] | None,
    ) -> dict[str, Any] | None:
        before = dict(zip(reached.keys, reached.parts, strict=True))
        ignored = self._initial.ignored(reached, self._states)
        put, taken = (restored.get("set", {}), restored.get("removed", ())) if restored is not None else ({}, ())
        described = {}
        computed = computed_again(reached.value) if reached.category == "module" else ()
        unknown = [] if id(reached.value) in self._redrawn else self._unknown
        for name in sorted(set(now) - ignored):
            path = f"{reached.path}.{name}"
            is_same = name in before and name not in put and is_equal(before[name], now[name])
            if is_same or self._initial.is_excluded(path) or is_left_alone(now[name]):
                continue
            if reached.is_data and is_value(before.get(name)) and is_reopened(now[name], seeks=self._seeks):
                continue
            with self._writer.attempt(unknown):
                part = now[name].detach() if name in computed else now[name]  # with no graph that is used again
                described[name] = self._writer.pack(part, path)
        removed = sorted({*before, *taken} - set(now) - ignored)
        if not described and not removed:
            return None
        return {"set": described} | ({"removed": removed} if removed else {})

    def _all(self, reached: Reached) -> dict[str, Any]:
        value, path = reached.value, reached.path
        if len(reached.value if reached.category != "cell" else ()) > MOST_COMPARED:
            raise UnknownStateError(path, f"has {len(value):,} items and has changed: too many to be saved")
        form = FORMS[reached.category]
        keys, parts = form.contents(value)
        kept: Any = list(parts)
        if reached.category == "mapping":
            pairs = zip(keys, parts, strict=True)
            kept = [pair for pair in pairs if not (reached.is_data and is_reopened(pair[1], seeks=self._seeks))]
        elif reached.category == "set":
            kept = set(parts)
            if all(type(part) is int for part in parts):  # put back as a resume does: do they come in this order?
                form.put(trial := set(reached.parts), parts, ())
                if tuple(trial) != parts:
                    self._unknown.append(f"{shown_path(path)} is a set in an order that is not saved: use a list")
        return {"items": self._writer.pack(kept, path, f"{path}[:]")}

    @functools.cached_property
    def _seeks(self) -> bool:
        """True if a class of the data's objects calls `seek`, so that it reads files by position."""
        listed = self._initial.reachable.by_path.values()
        return any(map(calls_seek, {type(each.value) for each in listed if each.is_data and each.category == "object"}))

    def _changed_large(self, reached: Reached) -> dict[str, Any] | None:
        if len(reached.value) == reached.length:
            keys, parts = compared_contents(reached.value, reached.category)
            if are_equal(keys, reached.keys) and are_equal(parts, reached.parts):
                return None
        return self._all(reached)

    def _check_attributes(self, reached: Reached) -> None:
        """A tensor that had attributes is listed with them."""
        attributes = reached.value.__dict__
        if not attributes or self._initial.reachable.find(attributes) is not None:
            return
        if names := [name for name in attributes if not name.startswith(OF_THE_COMPILER)]:
            raise UnknownStateError(reached.path, f"was given attributes: {', '.join(names)}; set them in `setup`")

    def _changed_tensor(self, reached: Reached) -> dict[str, Any] | None:
        tensor, path = reached.value, reached.path
        if is_as_marked(reached, self._initial.marks):
            return None
        if not is_saveable(tensor):
            raise UnknownStateError(path, f"is a {type(tensor).__qualname__} that has changed, and cannot be saved")
        self._writer.count(tensor.numel() * tensor.element_size(), path)
        if tensor.grad_fn is not self._initial.graphs.get(id(tensor)):  # else `setup` makes it again
            self._writer.note_graph(tensor, path)
        change: dict[str, Any] = {"tensor": tensor.detach()}
        if tensor.is_leaf:
            change["requires_grad"] = tensor.requires_grad
            if tensor.grad is not None:
                change["grad"] = tensor.grad
        return change

    def _changed_array(self, reached: Reached) -> dict[str, Any] | None:
        array, path = reached.value, reached.path
        if reached.is_covered or not array.flags.writeable:
            return None
        if is_as_marked(reached, self._initial.marks):
            return None
        if not is_plain_array(array):
            what = "an array of objects" if array.dtype.hasobject else f"a {type(array).__qualname__}"
            raise UnknownStateError(path, f"is {what} that has changed, and cannot be saved")
        if (array.shape, str(array.dtype)) != (reached.keys, reached.position):
            raise UnknownStateError(path, "has another shape or type than it had: bind a new array instead")
        self._writer.count(array.nbytes, path)
        return {"array": numpy.asarray(array)}

    def _changed_buffer(self, reached: Reached) -> dict[str, Any] | None:
        if reached.is_covered or is_as_marked(reached, self._initial.marks):
            return None
        self._writer.count(len(reached.value), reached.path)
        return {"bytes": bytes(reached.value)}

    def _changed_globals(self, module: str, names: set[str], restored: Mapping[str, Any] | None) -> dict[str, Any]:
        namespace = self._initial.reachable.globals[module][0]
        put = restored["set"] if restored is not None else {}
        before, described = self._initial.globals[module], {}
        for name in sorted(names & namespace.keys()):
            is_same = name in before and name not in put and is_equal(before[name], namespace[name])
            if is_same or is_left_alone(namespace[name]) or self._initial.is_excluded(f"{module}:{name}"):
                continue
            with self._writer.attempt(self._unknown):
                described[name] = self._writer.pack(namespace[name], f"{module}:{name}")
        return described
