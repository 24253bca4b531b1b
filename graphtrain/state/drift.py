"""What has changed of the reachable state since a run was set up, and putting it over what another process set up.

A baseline lists what is reachable when a run begins. At a save every attribute, item, variable, class attribute and
global that is bound to another object than then has drifted, and is described; values are compared as values. Tensors,
arrays and generators are described whenever nothing else saves them: those of data, if they look changed.
"""

from __future__ import annotations

import copy
import enum
import functools
import hashlib
import operator
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, final

import numpy
import torch

from graphtrain.errors import CheckpointError
from graphtrain.state.category import OF_A_RUN, category_of, is_left_alone, is_reopened, is_users, is_value
from graphtrain.state.contents import FORMS, MOST_COMPARED, SAMPLES, sample_of
from graphtrain.state.generators import any_generator
from graphtrain.state.reachable import HOOKS, Reachable, Reached, held_by_state, is_within, names_in, parts_of, state_of
from graphtrain.state.references import MALFORMED, Describer, Rebuilder, UnknownStateError, is_saveable, shown_path
from graphtrain.storage.strides import placement_of, without_repeats

Section = Mapping[str, Any]

NO_DRIFT: Section = {"changed": {}, "new": []}

# Of larger tensors and arrays a sample is hashed.
_WHOLE_BYTES = 64 * 2**10

# The length of the mark of a strided tensor.
_OF_A_USUAL_TENSOR = 5

# Attributes that the compiler gives to tensors and functions.
OF_THE_COMPILER = ("_dynamo", "_torchdynamo")

# Of the tensors and arrays of data that are not larger, copies of this much are kept.
_MOST_COPIED = 16 * 2**20

# How a change of what is changed where it is, is described.
_VALUES = ("tensor", "array", "bytes", "state", "position")


@dataclass
class Drift:
    """What has changed.

    Attributes:
        section: as a checkpoint holds it.
        unknown: a line for everything that has changed, or may have, and cannot be saved.
    """

    section: Section
    unknown: list[str] = field(default_factory=list)


@final
class Baseline:
    """The state that is reachable when a run begins.

    Arguments:
        roots: name -> object: resources, step functions, functions of nodes.
        data: the names of those that are data.
        covered: the names of those that something else saves as a whole.
        elsewhere: the identities of objects that something else saves.
        left_out: paths that are no state, with all that is reached through them.
        with_code: False leaves out classes, and the globals of functions. Default: they count too.

    Attributes:
        stateful: what is saved by its `state_dict`, by path.
        not_restored: a line for everything that was saved and has no place now.
        left_out: the same as the argument.
    """

    def __init__(
        self,
        roots: Mapping[str, Any],
        data: Collection[str] = (),
        covered: Collection[str] = (),
        elsewhere: Collection[int] = (),
        left_out: Collection[str] = (),
        *,
        with_code: bool = True,
    ) -> None:
        self.reachable = Reachable(roots, data, covered, with_code=with_code)
        self.stateful = self.reachable.stateful
        self.not_restored: list[str] = []
        # Path -> what was put there last, until it was looked at once: objects that `setup` makes in this process as
        # they were then have drifted nevertheless, by the account of the process that saved them.
        self._restored: Mapping[str, Mapping[str, Any]] = {}
        self._elsewhere, self.left_out = frozenset(elsewhere), tuple(left_out)
        self._marks = {
            id(reached.value): _mark(reached) for reached in self.reachable.by_path.values() if _is_marked(reached)
        }
        self._states: dict[str, Mapping[Any, Any]] = {}  # asked for once in a save, or a restore
        self._copies = self._copied()
        self._redrawn: set[int] = set()
        self._forms = {
            reached.path: _form(reached.value, is_data=reached.is_data)
            for reached in self.reachable.by_path.values()
            if reached.category == "module"
        }
        self._globals = {
            module: {name: namespace[name] for name in names if name in namespace}
            for module, (namespace, names) in self.reachable.globals.items()
        }

        # All that is reachable from data, whatever else it is reachable from.
        within = {
            name: Reachable({"data": roots[name]}, ["data"], with_code=with_code)
            for name in data
            if name not in covered
        }
        self._of_data = {
            name: [reached for each in listed.by_path.values() if (reached := self.reachable.find(each.value))]
            for name, listed in within.items()
        }
        self._globals_of_data = {
            name: {module: names for module, (_, names) in listed.globals.items() if module in self._globals}
            for name, listed in within.items()
        }

    def _copied(self) -> dict[int, Any]:
        """Copies of small tensors and arrays of data, such as the weights of a sampler."""
        copies: dict[int, Any] = {}
        rest = _MOST_COPIED
        for reached in self.reachable.by_path.values():
            if reached.is_data and _is_marked(reached) and 0 < (size := _bytes_of(reached.value)) <= _WHOLE_BYTES:
                rest -= size
                if rest < 0:
                    break
                copies[id(reached.value)] = copy.deepcopy(_detached(reached.value))
        return copies

    def is_redrawn(self, data: str) -> None:
        """Note that a resume draws all batches of an epoch again: what data has bound since is bound again by that.

        Arguments:
            data: the name of a root.
        """
        self._redrawn |= {id(reached.value) for reached in self._of_data[data]}

    def name_of_data(self, value: Any) -> str | None:
        """The name of the root that is this data; None for data that came later, or that saves itself."""
        reached = self.reachable.find(value)
        return reached.path if reached is not None and reached.path in self._of_data else None

    def drift(self, data: str | None = None, states: Mapping[str, Any] | None = None) -> Drift:
        """What has changed until now.

        Arguments:
            data: the name of a root; only what is reachable from it. Default: everything.
            states: path -> the `state_dict` that an object has now. Default: they are asked for where they are needed.
        """
        self._states = {path: state for path, state in (states or {}).items() if isinstance(state, Mapping)}
        describer = Describer(self.reachable, self.stateful)
        drift = Drift({"changed": {}, "new": describer.new})
        changed = drift.section["changed"]
        restored: Mapping[str, Mapping[str, Any]] = {}
        if data is None:
            restored, self._restored = self._restored, {}
        for reached in self._in(data):
            last = restored.get(reached.path)
            if id(reached.value) in self._elsewhere or (last is None and self._has_not_changed(reached)):
                continue
            with describer.attempt(drift.unknown):
                if (change := self._change(reached, describer, drift.unknown, last)) is not None:
                    changed[reached.path] = change
        for module, names in self._names_of_globals(data):
            last = restored.get(f"{module}:")
            if held := self._changed_globals(module, names, describer, drift.unknown, last):
                changed[f"{module}:"] = {"set": held}
        describer.share_memory(drift.unknown)
        bounds = self.reachable.bounds.items()
        drift.unknown += [f"{shown_path(path)} {bound}" if path else bound for path, bound in bounds]
        return drift

    def _names_of_globals(self, data: str | None) -> list[tuple[str, set[str]]]:
        """The globals in use, by module; of data those that its functions use."""
        if data is not None:
            return sorted(self._globals_of_data[data].items())
        return [(module, self.reachable.globals[module][1]) for module in sorted(self._globals)]

    def _in(self, data: str | None) -> Iterator[Reached]:
        listed = self.reachable.by_path.values() if data is None else self._of_data[data]
        if not self.left_out:
            yield from listed
            return
        for reached in listed:
            if not self.is_left_out(reached.path):
                yield reached

    def _ignored(self, reached: Reached) -> frozenset[str]:
        """The attributes that are not compared: those whose very value the `state_dict` has now.

        An entry of the same name may be another form of it, which loading does not always put back.
        """
        if not (reached.category == "object" and reached.path in self.stateful):
            return reached.ignored
        names, parts = FORMS["object"].contents(reached.value)
        held, state = dict(zip(names, parts, strict=True)), self._states.get(reached.path)
        if state is None:
            state = self._states[reached.path] = state_of(reached.value)
        equal = {name for name in held.keys() & state.keys() if _is_equal(held[name], state[name])}
        return reached.ignored | held_by_state(reached.value, state) | equal

    def is_left_out(self, path: str) -> bool:
        """True for what is declared to be no state, and for all that is reached through it."""
        return is_within(path, self.left_out)

    # ---- comparing

    def _has_not_changed(self, reached: Reached) -> bool:
        """A quick look at what most objects are: they hold the very same as before."""
        value, category = reached.value, reached.category
        if category == "tensor":
            return reached.is_covered and not value.__dict__
        if category == "module":
            form = self._forms[reached.path]
            if reached.is_data or form["hooks"] or any(getattr(value, name) for name in HOOKS):
                return False
            if tuple(map(id, value._modules.values())) != form["submodules"]:
                return False
        elif category not in ("object", "optimizer", "cell", "list", "mapping") or not reached.is_entered:
            return False
        keys, parts = FORMS[category].contents(value)
        return _is_identical(parts, reached.parts) and _is_identical(keys, reached.keys)

    def _change(
        self, reached: Reached, describer: Describer, unknown: list[str], restored: Mapping[str, Any] | None
    ) -> dict[str, Any] | None:
        """How an object differs from what it was; None where it does not."""
        value, path = reached.value, reached.path
        match reached.category:
            case "tensor":
                self._check_attributes(reached)
                return None if reached.is_covered else self._changed_tensor(reached, describer)
            case "array":
                return self._changed_array(reached, describer)
            case "generator":
                return {"state": any_generator(value).get_state()}
            case "iterator":
                raise UnknownStateError(path, f"is an iterator ({type(value).__name__}), whose position is not saved")
            case "file":
                return _position_of_file(reached)
            case "run":
                if getattr(value, OF_A_RUN)()[1] != reached.position:
                    what = "that has trained, and its position is not saved: nest its graph in that of this run"
                    raise UnknownStateError(path, f"is a {type(value).__name__} {what}, or make it within the step")
                return None
            case "bytearray":
                return None if reached.is_covered else {"bytes": bytes(value)}
            case "module":
                unknown += _other_form(path, self._forms[path], _form(value, is_data=reached.is_data))
        form = FORMS.get(reached.category)
        if form is None or reached.category == "tuple" or (reached.is_covered and reached.category != "module"):
            return None
        if not reached.is_entered:
            return self._changed_large(reached, describer) if restored is None else self._all(reached, describer)
        keys, parts = form.contents(value)
        if restored is None and _is_identical(keys, reached.keys) and _is_identical(parts, reached.parts):
            return None
        if form.is_named:
            return self._changed_names(reached, dict(zip(keys, parts, strict=True)), describer, unknown, restored)
        if restored is None and _are_equal(keys, reached.keys) and _are_equal(parts, reached.parts):
            return None
        return self._all(reached, describer)

    def _changed_names(
        self,
        reached: Reached,
        now: Mapping[str, Any],
        describer: Describer,
        unknown: list[str],
        restored: Mapping[str, Any] | None,
    ) -> dict[str, Any] | None:
        before = dict(zip(reached.keys, reached.parts, strict=True))
        ignored = self._ignored(reached)
        put, taken = (restored.get("set", {}), restored.get("removed", ())) if restored is not None else ({}, ())
        described = {}
        if id(reached.value) in self._redrawn:
            unknown = []
        for name in sorted(set(now) - ignored):
            path = f"{reached.path}.{name}"
            is_same = name in before and name not in put and _is_equal(before[name], now[name])
            if is_same or self.is_left_out(path) or is_left_alone(now[name]):
                continue
            if reached.is_data and is_value(before.get(name)) and is_reopened(now[name], seeks=self._seeks):
                continue
            with describer.attempt(unknown):
                described[name] = describer.describe(now[name], path)
        removed = sorted({*before, *taken} - set(now) - ignored)
        if not described and not removed:
            return None
        return {"set": described} | ({"removed": removed} if removed else {})

    def _all(self, reached: Reached, describer: Describer) -> dict[str, Any]:
        value, path = reached.value, reached.path
        if len(reached.value if reached.category != "cell" else ()) > MOST_COMPARED:
            raise UnknownStateError(path, f"has {len(value):,} items and has changed: too many to be saved")
        if reached.category == "mapping":
            return {"pairs": describer.pairs(self._without_reopened(value) if reached.is_data else value, path)}
        parts = FORMS[reached.category].contents(value)[1]
        if reached.category == "set":
            return {"items": describer.describe(frozenset(parts), path)[1]}
        return {"items": [describer.describe(part, f"{path}[{number}]") for number, part in enumerate(parts)]}

    @functools.cached_property
    def _seeks(self) -> bool:
        """True if a class of the data's objects calls `seek`: it reads files by position, wherever they are."""
        objects = [reached for reached in self.reachable.by_path.values() if reached.is_data]
        kinds = {type(reached.value) for reached in objects if reached.category == "object"}
        return any(_calls_seek(kind) for kind in kinds if is_users(kind.__module__))

    def _without_reopened(self, mapping: Mapping[Any, Any]) -> Mapping[Any, Any]:
        pairs = dict(zip(*FORMS["mapping"].contents(mapping), strict=True))
        return {key: part for key, part in pairs.items() if not is_reopened(part, seeks=self._seeks)}

    def _changed_large(self, reached: Reached, describer: Describer) -> dict[str, Any] | None:
        if len(reached.value) == reached.length:
            keys, parts = sample_of(reached.value, reached.category)
            if _are_equal(keys, reached.keys) and _are_equal(parts, reached.parts):
                return None
        return self._all(reached, describer)

    def _check_attributes(self, reached: Reached) -> None:
        """A tensor that had attributes is listed with them."""
        attributes = reached.value.__dict__
        if not attributes or self.reachable.find(attributes) is not None:
            return
        if names := [name for name in attributes if not name.startswith(OF_THE_COMPILER)]:
            raise UnknownStateError(reached.path, f"was given attributes: {', '.join(names)}; set them in `setup`")

    def _changed_tensor(self, reached: Reached, describer: Describer) -> dict[str, Any] | None:
        tensor, path = reached.value, reached.path
        if (reached.is_data or not is_saveable(tensor)) and self._is_as_marked(reached):
            return None
        if not is_saveable(tensor):
            raise UnknownStateError(path, f"is a {type(tensor).__qualname__} that has changed, and cannot be saved")
        describer.count(tensor.numel() * tensor.element_size(), path)
        change: dict[str, Any] = {"tensor": tensor.detach()}
        if tensor.is_leaf:
            change["requires_grad"] = tensor.requires_grad
            if tensor.grad is not None:
                change["grad"] = tensor.grad
        return change

    def _is_as_marked(self, reached: Reached) -> bool:
        before, now = self._marks[id(reached.value)], _mark(reached)
        if reached.category == "array":
            return bool(before[:2] == now[:2]) and _is_equal(before[2], now[2])
        # Worker processes that are not forked get tensors in shared memory, to which those here move as well.
        is_moved = len(before) == len(now) == _OF_A_USUAL_TENSOR and reached.value.is_shared()
        return bool(before == now or (is_moved and (before[:3], before[4]) == (now[:3], now[4])))

    def _changed_array(self, reached: Reached, describer: Describer) -> dict[str, Any] | None:
        array, path = reached.value, reached.path
        if reached.is_covered or not array.flags.writeable:
            return None
        is_plain = type(array) in (numpy.ndarray, numpy.memmap) and not array.dtype.hasobject
        if (reached.is_data or not is_plain) and self._is_as_marked(reached):
            return None
        if not is_plain:
            what = "an array of objects" if array.dtype.hasobject else f"a {type(array).__qualname__}"
            raise UnknownStateError(path, f"is {what} that has changed, and cannot be saved")
        if (array.shape, str(array.dtype)) != self._marks[id(array)][:2]:
            raise UnknownStateError(path, "has another shape or type than it had: bind a new array instead")
        describer.count(array.nbytes, path)
        return {"array": numpy.asarray(array)}

    def _changed_globals(
        self,
        module: str,
        names: set[str],
        describer: Describer,
        unknown: list[str],
        restored: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        namespace = self.reachable.globals[module][0]
        put = restored["set"] if restored is not None else {}
        before, described = self._globals[module], {}
        for name in sorted(names & namespace.keys()):
            is_same = name in before and name not in put and _is_equal(before[name], namespace[name])
            if is_same or is_left_alone(namespace[name]) or self.is_left_out(f"{module}:{name}"):
                continue
            with describer.attempt(unknown):
                described[name] = describer.describe(namespace[name], f"{module}:{name}")
        return described

    # ---- putting back

    def restore(self, section: Mapping[str, Any], data: str | None = None) -> None:
        """Put what is not covered back to the baseline, and a drift over it.

        Arguments:
            section: of a `Drift`.
            data: the name that the drift was restricted to.

        Raises:
            CheckpointError: something that had changed does not exist now, or cannot be made.
        """
        with _naming("the state beside the resources"):
            changed, rebuilder = dict(section["changed"]), Rebuilder(self.reachable, self.stateful, [*section["new"]])
        self._states = {}
        self._back_to_the_baseline(data)
        for path, change in changed.items():
            if self.is_left_out(path):
                continue
            with _naming(f"the state of `{shown_path(path)}`"):
                if path.endswith(":"):
                    self._restore_globals(path.removesuffix(":"), change, rebuilder)
                elif path not in self.reachable.by_path:
                    self._is_missing(path)
                else:
                    _put(self.reachable.by_path[path], self._without_left_out(path, change), rebuilder)
        if data is None:
            self._restored = changed

    def _without_left_out(self, path: str, change: Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(change.get("set"), Mapping):
            return change
        described = {name: part for name, part in change["set"].items() if not self.is_left_out(f"{path}.{name}")}
        removed = [name for name in change.get("removed", ()) if not self.is_left_out(f"{path}.{name}")]
        return {"set": described, "removed": removed}

    def _is_missing(self, path: str) -> None:
        """Note what has no object to be restored into because `setup` put a plain value, such as None, in its place.

        Raises:
            CheckpointError: not even the place exists.
        """
        if any(
            place == path and is_value(part)
            for reached in self.reachable.by_path.values()
            if path.startswith(reached.path)
            for place, part, _ in parts_of(reached)
        ):
            self.not_restored.append(f"{path} is not what it was when it was saved: `setup` puts a plain value there")
            return
        raise CheckpointError(
            "it does not exist now",
            f'make it again in `setup`; or leave it out, if nothing depends on it: Trainer(..., not_state=["{path}"])',
        )

    def _back_to_the_baseline(self, data: str | None) -> None:
        """Undo what loading and setting up have changed beside what is saved: what had not drifted is as it was."""
        self._put_copies(data)
        for reached in self._in(data):
            if _holds(reached) and reached.is_entered:
                self._put_contents(reached, reached.keys, reached.parts)
        for module, names in self._names_of_globals(data):
            held = {name: part for name, part in self._globals[module].items() if name in names}
            self._put_globals(module, names, held)

    def _put_globals(self, module: str, names: Collection[str], held: Mapping[str, Any]) -> None:
        """Let the globals of some names be what they were; those that were not there are removed."""
        namespace = self.reachable.globals[module][0]
        namespace.update({name: part for name, part in held.items() if namespace.get(name) is not part})
        for name in (names & namespace.keys()) - held.keys():
            if not is_left_alone(namespace[name]):
                del namespace[name]

    def _put_contents(self, reached: Reached, keys: tuple[Any, ...], parts: tuple[Any, ...]) -> None:
        """Let an object hold what it held before: the very same objects.

        What data holds that has no plain form, such as an iterator over itself, stays: it is where drawing has left it.
        """
        form = FORMS[reached.category]
        keys_now, parts_now = form.contents(reached.value)
        if _is_identical(keys_now, keys) and _is_identical(parts_now, parts):
            return
        if form.is_named:
            ignored = self._ignored(reached)
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
            Describer(self.reachable, self.stateful).describe(value, "")
        except UnknownStateError:
            return False
        return True

    def _put_copies(self, data: str | None) -> None:
        """Give the small tensors and arrays of data the values that they had."""
        for reached in self._in(data):
            copied = self._copies.get(id(reached.value))
            if copied is not None and _content(_mark(reached)) != _content(self._marks[id(reached.value)]):
                change: dict[str, Any] = {reached.category: copied}
                _put(reached, change, Rebuilder(self.reachable, self.stateful, []))

    @contextmanager
    def kept(self, data: str) -> Iterator[None]:
        """A span after which data holds the same objects, with the same values, as before it.

        Arguments:
            data: the name of a root.
        """
        changed = self.drift(data).section["changed"]
        values = {
            path: copy.deepcopy(change) for path, change in changed.items() if any(key in change for key in _VALUES)
        }
        held = [
            (reached, FORMS[reached.category].contents(reached.value)) for reached in self._in(data) if _holds(reached)
        ]
        held_globals = []
        for module, names in self._names_of_globals(data):
            namespace = self.reachable.globals[module][0]
            held_globals.append((module, names, {name: namespace[name] for name in names & namespace.keys()}))
        try:
            yield
        finally:
            self._put_copies(data)
            for path, change in values.items():
                reached = self.reachable.by_path[path]
                _put(reached, change, Rebuilder(self.reachable, self.stateful, []))
            for reached, (keys, parts) in held:
                self._put_contents(reached, keys, parts)
            for module, names, parts_of_module in held_globals:
                self._put_globals(module, names, parts_of_module)

    def _restore_globals(self, module: str, change: Mapping[str, Any], rebuilder: Rebuilder) -> None:
        if module not in self.reachable.globals:
            raise CheckpointError(f"no function of the module `{module}` is reached now")
        namespace, names = self.reachable.globals[module]
        for name, described in change["set"].items():
            if self.is_left_out(f"{module}:{name}"):
                continue
            if name not in names:
                raise CheckpointError(f"no function of the module `{module}` uses `{name}` now")
            namespace[name] = rebuilder.rebuild(described)

    def places(self) -> Iterator[str]:
        """The path of everything that is reachable, plain values included."""
        for reached in self.reachable.by_path.values():
            yield reached.path
            if reached.is_entered:
                yield from (place for place, _, _ in parts_of(reached))
        for module, (namespace, names) in self.reachable.globals.items():
            yield from (f"{module}:{name}" for name in sorted(names & namespace.keys()))

    def listed(self) -> Iterator[Reached]:
        """What was reachable, all but what is left out."""
        return self._in(None)

    def globals_in_use(self) -> Iterator[tuple[str, str, Any, Any]]:
        """Module and name of each global that functions of the user's own use: what it was, and what it is."""
        for module, before in self._globals.items():
            namespace = self.reachable.globals[module][0]
            for name, value in before.items():
                if not self.is_left_out(f"{module}:{name}"):
                    yield module, name, value, namespace.get(name)


def _holds(reached: Reached) -> bool:
    """True for what can be made to hold what it held before."""
    if reached.category not in FORMS or isinstance(reached.value, tuple | frozenset) or reached.length > MOST_COMPARED:
        return False
    return not reached.is_covered or reached.category == "module"


def _put(reached: Reached, change: Mapping[str, Any], rebuilder: Rebuilder) -> None:
    """Put one change over an object."""
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
        case {"position": int(position)} if category == "file":
            value.seek(position)
        case {"bytes": bytes(content)} if category == "bytearray":
            value[:] = content
        case {"set": {**described}} if category in FORMS and FORMS[category].is_named:
            removed = tuple(change.get("removed", ()))
            for name in (*described, *removed):
                if not isinstance(name, str) or name in _bookkeeping(reached):
                    raise CheckpointError(f"`{name}` is no state of it")
            parts = {name: rebuilder.rebuild(part) for name, part in described.items()}
            FORMS[category].put(value, parts, removed)
        case {"pairs": pairs} if category == "mapping":
            FORMS["mapping"].put(value, rebuilder.pairs(pairs), ())
        case {"items": items} if category in ("list", "deque", "set", "cell"):
            FORMS[category].put(value, list(map(rebuilder.rebuild, items)), ())
        case _:
            raise CheckpointError("it is of another type now")


def _position_of_file(reached: Reached) -> dict[str, Any] | None:
    """How far a file has been read, which matters where it is read on."""
    file = reached.value
    if file.closed or not file.readable():
        return None
    if not file.writable() and file.seekable():
        with suppress(OSError):  # within a loop over the lines of a text
            return {"position": file.tell()}
    raise UnknownStateError(reached.path, "is an open file, whose position is not saved")


def _calls_seek(kind: type) -> bool:
    for name in dir(kind):
        for base in kind.__mro__:
            if isinstance(function := vars(base).get(name), types.FunctionType):
                names = names_in(function.__code__)
                if "seek" in names.attributes:
                    return True
                if "super" not in names.variables:  # nor does it call what it overrides
                    break
    return False


def _bookkeeping(reached: Reached) -> frozenset[str]:
    """The attributes that no change can have."""
    return reached.ignored | {"__class__", "__dict__"}


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """A span in which anything that goes wrong is an error that names what is restored."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{what} cannot be restored: {error.message}", error.hint) from None
    except MALFORMED as error:
        raise CheckpointError(f"{what} cannot be restored: {error}") from None


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
        tensor.grad.copy_(saved_gradient)  # which may be a part of a buffer of all gradients
    elif "requires_grad" in change:
        tensor.grad = saved_gradient


def _has_form(tensor: torch.Tensor, saved: torch.Tensor) -> bool:
    """True if values can be put where a tensor has its own, which others may share."""
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
    except RuntimeError:  # windows that overlap: element by element, some of them more than once
        storage = tensor.untyped_storage()
        memory = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        memory.set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))
        numbers = torch.arange(memory.numel(), device=tensor.device)
        numbers = numbers.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        memory[numbers.reshape(-1)] = saved.reshape(-1)


# ---- comparing values


def _is_identical(now: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _are_equal(now: Iterable[Any], before: Iterable[Any]) -> bool:
    now, before = tuple(now), tuple(before)
    return len(now) == len(before) and all(map(_is_equal, now, before))


def _is_equal(before: Any, now: Any) -> bool:
    """True for one object, and for plain values that are equal: 0.0 and -0.0 are not, and a NaN is itself."""
    if before is now:
        return True
    if type(before) is not type(now):
        return False
    if isinstance(before, numpy.generic):
        return bool(before.dtype == now.dtype and before.tobytes() == now.tobytes())
    if isinstance(before, float):
        return bool(before.hex() == now.hex())
    if isinstance(before, complex):
        return _is_equal(before.real, now.real) and _is_equal(before.imag, now.imag)
    if isinstance(before, Decimal):
        return str(before) == str(now)
    if isinstance(before, enum.Enum):
        return False
    if is_value(before):
        return bool(before == now)
    match category_of(type(before)):
        case "tuple":
            return len(before) == len(now) and all(map(_is_equal, before, now))
        case "method":
            return before.__func__ is now.__func__ and before.__self__ is now.__self__
    return False


# ---- marks of tensors and arrays


def _is_marked(reached: Reached) -> bool:
    return not reached.is_covered and reached.category in ("tensor", "array")


def _mark(reached: Reached) -> Any:
    """What changes when a tensor or an array does: its form, and a hash of it or, where it is large, of a sample.

    Of a tensor of a usual form also its place and its version, which tell more where a sample does not.
    """
    value = reached.value
    if reached.category == "array":
        content = tuple(value.flat) if value.dtype.hasobject else _hash(_sample_of_array(value))
        return value.shape, str(value.dtype), content
    try:
        content = hash_of_values(value)
    except (RuntimeError, NotImplementedError):  # of a class with other memory than torch's
        return (type(value), tuple(value.shape))
    is_usual = value.layout is torch.strided and not torch.nn.parameter.is_lazy(value) and not value.is_meta
    place = (0 if value.is_inference() else value._version, value.data_ptr()) if is_usual else ()
    shape = None if torch.nn.parameter.is_lazy(value) else value.shape
    return (shape, value.dtype, *place, content)


def hash_of_values(tensor: torch.Tensor) -> bytes:
    """A hash of a tensor's values; of more than 64 KiB some of them, evenly spaced."""
    return _hash(b"".join(map(_bytes_of_strided, _strided_parts(tensor))))


def _strided_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tensors of a usual form that have the content of this one; none for one without memory."""
    tensor = tensor.detach().as_subclass(torch.Tensor)
    if torch.nn.parameter.is_lazy(tensor) or tensor.is_meta:
        return ()
    if tensor.is_quantized:
        return (tensor.int_repr(),)
    if tensor.is_nested:
        return tuple(tensor.unbind())
    match tensor.layout:
        case torch.strided:
            return (tensor,)
        case torch.sparse_coo:
            return tensor._indices(), tensor._values()
        case torch.sparse_csr | torch.sparse_bsr:
            return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def _bytes_of_strided(tensor: torch.Tensor) -> bytes:
    flat = tensor.reshape(-1) if tensor.numel() * tensor.element_size() <= _WHOLE_BYTES else _sample(tensor)
    return bytes(_contiguous(flat).view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def _content(mark: Any) -> Any:
    """What a mark tells of the values, wherever they are and however they came there."""
    return (mark[0], mark[1], mark[-1])


def _bytes_of(value: Any) -> int:
    """The size of a tensor or an array whose values can be copied; 0 for another."""
    if isinstance(value, torch.Tensor):
        is_plain = is_saveable(value) and value.layout is torch.strided and not value.is_inference()
        return value.numel() * value.element_size() if is_plain else 0
    return 0 if value.dtype.hasobject or not value.flags.writeable else int(value.nbytes)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    # `contiguous` leaves a single element with whatever strides it has.
    return tensor.resolve_conj().resolve_neg().cpu().clone(memory_format=torch.contiguous_format)


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    numbers = torch.arange(0, tensor.numel(), max(1, tensor.numel() // SAMPLES), device=tensor.device)
    return torch.take(tensor, numbers)


def _sample_of_array(array: Any) -> bytes:
    step = max(1, array.size // SAMPLES) if array.nbytes > _WHOLE_BYTES else 1
    return numpy.ascontiguousarray(array.flat[::step]).tobytes()


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=8).digest()


def content_of(reached: Reached) -> Any:
    """What identifies the content of a tensor or an array in any process; None where that is not known."""
    mark = _mark(reached)
    return (tuple(mark[0]), str(mark[1]), mark[-1]) if len(mark) > 2 and isinstance(mark[-1], bytes) else None


def _form(module: torch.nn.Module, *, is_data: bool) -> dict[str, tuple[Any, ...]]:
    """The names and identities of what a module is made of; outside of data `ModuleForm` looks at its tensors."""
    return {
        "parameters": tuple(module._parameters) if is_data else (),
        "buffers": tuple(module._buffers) if is_data else (),
        "submodules": tuple(map(id, module._modules.values())),
        "hooks": tuple(
            id(hook)
            for name in HOOKS
            for hook in getattr(module, name).values()
            if getattr(hook, "__name__", "") != "_infer_parameters"  # of a lazy module, until its first batch
        ),
    }


def _other_form(path: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [f"{path} has other {what} than it was set up with" for what in before if before[what] != now[what]]
