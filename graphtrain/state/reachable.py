"""All objects that are reachable from the resources of a run: each object once, breadth first, under its first path.

Paths are written as in Python: ``model.0.p``, ``train_data.dataset.cache['a']``; ``training_step<count>`` is a variable
of the enclosing function, ``__main__:COUNT`` a global of a module of the user.
"""

from __future__ import annotations

import collections
import dis
import functools
import sys
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy
import torch
from torch.utils.data import DataLoader

from graphtrain.state.classes import (
    IN_CONTAINERS,
    MOST_COMPARED,
    NOT_STATE,
    RULES,
    WRAPPERS,
    Contents,
    Namespace,
    category_of,
    is_constant,
    is_users,
    is_value,
)
from graphtrain.state.content import content_hash
from graphtrain.state.optimizers import states_of
from graphtrain.state.weights import uncompiled
from graphtrain.storage.encoding import LEAST_ADDRESS, is_saveable

MOST_OBJECTS = 200_000
# Larger containers are not examined. For data the limit is lower: training does not change samples.
MOST_ITEMS = 1_000
MOST_ITEMS_OF_DATA = 64

# Attributes of torch's objects that are not state, or that something else saves.
_IGNORED = {
    torch.nn.Module: frozenset(vars(torch.nn.Module())) | {
        "_compiled_call_impl", "_version", "_initialize_hook", "_load_hook",  # of lazy ones, until their first batch
    },
    torch.optim.Optimizer: frozenset(vars(torch.optim.SGD([torch.zeros(1)]))) | {
        "step",  # which schedulers wrap
        "_opt_called", "_step_count", "_need_device_dtype_check_for_fused",
        "_step_supports_amp_scaling",
    },
    DataLoader: frozenset({"_iterator", "_IterableDataset_len_called", "_DataLoader__multiprocessing_context"}),
}  # fmt: skip
# The dictionaries of hooks of an object, by category.
_HOOKS = {
    "module": ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    "tensor": ("_backward_hooks", "_post_accumulate_grad_hooks"),
    "optimizer": ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),
}

# Attributes that `torch.compile` adds to tensors and functions.
OF_THE_COMPILER = ("_dynamo", "_torchdynamo", "_has_dynamo")

REMEDY = "give the object that holds it a `state_dict` and a `load_state_dict`"
_NOT_LOOKED_FOR = f", where changes are not looked for: {REMEDY}"

# Of larger tensors and arrays of data, a stamp hashes only a sample; data is hashed whole after a save.
_MOST_BYTES = {"tensor": 64 * 2**10, "array": 2 * 2**20}

# Parts of the names of the operations of a function that use globals, attributes and modules, and that set attributes.
_OPERATIONS = (
    ("_GLOBAL", "LOAD_NAME", "STORE_NAME", "DELETE_NAME"),
    ("_ATTR", "_METHOD", "IMPORT_FROM"),
    ("IMPORT_NAME",),
    ("STORE_ATTR",),
)

Child = tuple[str, Any, bool]
"""Path, object, and whether something else saves it."""


@dataclass(eq=False, slots=True)
class Entry:
    """A reachable object, with its contents at set-up. One that is saved elsewhere is listed only for references."""

    path: str
    value: Any
    category: str
    is_saved_elsewhere: bool = False  # something else saves it, such as a `state_dict`
    is_data: bool = False  # data, or reachable from data
    code: Any = None  # the code of a function, the `grad_fn` of a tensor, the class of anything else
    ignored: frozenset[str] = frozenset()  # attributes that are not state
    in_state_dict: frozenset[str] = frozenset()  # attributes that its `state_dict` saves
    is_entered: bool = True  # False for a container that is too large to be examined
    stamp: Any = None  # as `stamp_of` returns it
    keys: tuple[Any, ...] = ()  # its contents
    parts: tuple[Any, ...] = ()


def contents_of(entry: Entry) -> Contents:
    """The present contents of an object whose category has contents; of a very large container, its length."""
    if entry.category in IN_CONTAINERS and len(entry.value) > MOST_COMPARED:
        return (), (len(entry.value),)
    contents: Contents = RULES[entry.category].contents(entry.value)
    return contents


def stamp_of(entry: Entry) -> Any:
    """A value that differs once an object has changed in a way that its contents do not show; None if there is none."""
    value, category = entry.value, entry.category
    match category:
        case "module":  # `ModuleStructure` compares its tensors, except for data
            tensors = (*value._parameters.values(), *value._buffers.values()) if entry.is_data else ()
            hooks = [hook for name in _HOOKS["module"] for hook in getattr(value, name).values() if _is_of_users(hook)]
            return tuple(map(id, value._modules.values())), tuple(map(id, hooks)), tuple(map(id, tensors))
        case "file":  # what is only written to is not state
            return None if not value.closed and value.readable() else ""
        case "watched":
            return content_hash(value)
        case "tensor" | "array" if not entry.is_saved_elsewhere:
            if (category == "array" and not value.flags.writeable) or not (entry.is_data or not is_saveable(value)):
                return None  # it is never saved, or always
            try:
                return content_hash(value, most_bytes=_MOST_BYTES[category])
            except (RuntimeError, NotImplementedError):  # of a class whose memory is not torch's
                return f"{value.shape} {value._version}"
    return None


def _is_of_users(hook: Any) -> bool:
    """False for a hook that a library registers: it does so in another process too."""
    return is_users(getattr(getattr(hook, "func", hook), "__module__", None))


def parts_of(entry: Entry) -> Iterator[Child]:
    """The parts of an object with contents."""
    path, category, is_saved_elsewhere = entry.path, entry.category, entry.is_saved_elsewhere
    if category == "mapping":
        for number, (key, part) in enumerate(zip(entry.keys, entry.parts, strict=True)):
            is_plain = is_value(key) or (isinstance(key, tuple) and all(map(is_value, key)))
            shown = repr(key) if is_plain else f"a {type(key).__name__}"
            is_address = type(key) is int and key >= LEAST_ADDRESS
            yield f"{path}[{f'#{number}' if is_address else shown}]", part, is_saved_elsewhere
            if not is_constant(key):
                yield f"{path}.keys()[{number}]", key, is_saved_elsewhere
        yield f"{path}.default_factory", getattr(entry.value, "default_factory", None), is_saved_elsewhere
    elif category in RULES and RULES[category].is_named:
        is_saved_elsewhere = is_saved_elsewhere and category != "module"
        for name, part in zip(entry.keys, entry.parts, strict=True):
            if name not in entry.ignored:
                yield place_of(entry, name), part, is_saved_elsewhere or name in entry.in_state_dict
    elif category in IN_CONTAINERS and category != "set":
        yield from [(f"{path}[{number}]", part, is_saved_elsewhere) for number, part in enumerate(entry.parts)]


def place_of(entry: Entry, name: str) -> str:
    """The path of an attribute, or of a global."""
    return f"{entry.path}{'' if entry.category == 'globals' else '.'}{name}"


@final
class Reachable:
    """The objects that are reachable from some roots.

    Arguments:
        roots: name -> object.
        data: the names of roots that are data. Default: none.
        saved_elsewhere: the names of roots that something else saves as a whole. Default: none.
        of_data: the identities of objects that belong to data, whose `state_dict` is not used. Default: none.

    Attributes:
        by_path, by_id: the objects; the globals of a module that functions use are one of them, ``"__main__:"``.
        stateful: path -> object that is saved by its `state_dict`: modules, optimizers, and others that have one.
        unexamined: path -> why the object there, or those reachable from it, were not examined.
        initial_states: the identities of the values in the states of optimizers.

    >>> list(Reachable({"task": types.SimpleNamespace(counts=[1, 2])}).by_path)
    ['task', 'task.counts']
    """

    def __init__(
        self,
        roots: Mapping[str, Any],
        data: Collection[str] = (),
        saved_elsewhere: Collection[str] = (),
        of_data: Collection[int] = (),
    ) -> None:
        self._of_data = of_data
        self.by_path: dict[str, Entry] = {}
        self.by_id: dict[int, Entry] = {}
        self.stateful: dict[str, Any] = {}
        self.unexamined: dict[str, str] = {}
        self.initial_states: set[int] = set()
        self._attributes: set[str] = set()  # that the user's functions name
        self._modules: list[tuple[types.ModuleType, bool]] = []  # of the user; and whether data led to them
        self._globals: dict[str, Namespace] = {}
        self._waiting: collections.deque[Entry] = collections.deque()
        self._optimizers: collections.deque[Entry] = collections.deque()  # last: most parameters belong to modules
        self._classes: set[type] = set()
        self._entered = 0  # without those that something else saves
        for name, value in roots.items():
            self._add(name, value, name in saved_elsewhere, is_data=name in data)
        for path, hook, _ in _hooks_of_all():
            self._add(path, hook)
        while queue := self._waiting or self._read_through_modules() or self._optimizers:
            entry = queue.popleft()
            for path, value, is_saved_elsewhere in self._children(entry):
                self._add(path, value, is_saved_elsewhere, is_data=entry.is_data)
        with_own_state = [path for path in self.stateful if self.by_path[path].category == "object"]
        for path, entry in self.by_path.items():
            if (limit := self._limit_of(entry)) and not is_within(path, with_own_state):
                self.unexamined[path] = f"{limit}{_NOT_LOOKED_FOR}"
        for module, namespace in sorted(self._globals.items()):
            entry = Entry(f"{module}:", namespace, "globals", code=Namespace)
            entry.keys, entry.parts = contents_of(entry)
            self.by_path[entry.path] = entry

    def find(self, value: Any) -> Entry | None:
        """The entry of this object; None if it is not listed."""
        return self.by_id.get(id(value))

    def path_of(self, value: Any) -> str | None:
        """The path of this object; None if it is not listed."""
        entry = self.find(value)
        return entry.path if entry is not None else None

    def _add(self, path: str, value: Any, is_saved_elsewhere: bool = False, *, is_data: bool = False) -> None:
        while type(value) in WRAPPERS:  # followed to what it wraps
            name = WRAPPERS[type(value)]
            path, value = f"{path}.{name}", getattr(value, name)
        if (module := uncompiled(value)) is not value:  # named as it is without `torch.compile`
            self._add(path, module, is_saved_elsewhere, is_data=is_data)
            path, is_saved_elsewhere = f"{path}<compiled>", True
        is_module = isinstance(value, types.ModuleType) and is_users(value.__name__)
        self._modules += [(value, is_data)] if is_module and (value, is_data) not in self._modules else ()
        category = category_of(type(value))
        is_foreign = category == "class" and not is_users(value.__module__)
        if is_foreign or id(value) in self.by_id or category in ("value", "skipped"):
            return
        self._entered += not is_saved_elsewhere
        if self._entered > MOST_OBJECTS:
            if self._entered == MOST_OBJECTS + 1:
                self.unexamined[path] = f"and others are beyond the first {MOST_OBJECTS:,} objects{_NOT_LOOKED_FOR}"
            return
        if path in self.by_path:  # keys with the same text
            path = f"{path}#{len(self.by_path)}"
        code = value.__code__ if category == "function" else value.grad_fn if category == "tensor" else type(value)
        entry = Entry(path, value, category, is_saved_elsewhere, is_data, code)
        is_part = id(value) in self._of_data and category not in ("module", "optimizer")
        # Not a module on the device `meta`, such as one that gets its parameters from `functional_call`.
        is_own = not (is_saved_elsewhere or is_data or is_part) and keeps_state(value)
        if is_own and not (category == "module" and any(tensor.is_meta for tensor in value.parameters())):
            self.stateful[path] = value
        self.by_id[id(value)] = self.by_path[path] = entry
        (self._optimizers if category == "optimizer" else self._waiting).append(entry)

    def _limit_of(self, entry: Entry) -> str:
        """What kind of object this is, if changes of it or of its items are not looked for; empty for any other."""
        if entry.is_data or entry.is_saved_elsewhere or entry.category not in ("hidden", *IN_CONTAINERS):
            return ""
        if entry.category == "hidden":
            return f"is a {entry.code.__module__}.{entry.code.__qualname__}"
        # Constants cannot change in place, and objects listed elsewhere are compared there.
        parts = (*entry.keys, *entry.parts) if entry.category == "set" or not entry.is_entered else ()
        if (size := len(entry.value)) <= MOST_COMPARED and all(is_constant(each) or self.find(each) for each in parts):
            return ""
        return "is a set of objects" if entry.is_entered else f"has {size:,} items"

    def _children(self, entry: Entry) -> Iterator[Child]:
        value, path, category = entry.value, entry.path, entry.category
        if category in IN_CONTAINERS:
            entry.is_entered = len(value) <= (MOST_ITEMS_OF_DATA if entry.is_data else MOST_ITEMS)
        if category in RULES:
            entry.keys, entry.parts = contents_of(entry)
        entry.stamp = stamp_of(entry)
        if category in ("module", "optimizer", "object"):
            known = [names for base, names in _IGNORED.items() if isinstance(value, base)]
            entry.ignored = frozenset(getattr(type(value), NOT_STATE, ())).union(*known)
        match category:
            case "module":
                if type(value).__module__.startswith("torch._dynamo"):  # it holds its bookkeeping, and the module
                    entry.ignored = frozenset(vars(value))
                parts = {**value._modules, **value._parameters, **value._buffers}
                is_saved = entry.is_saved_elsewhere or not entry.is_data  # of data nothing else does
                yield from [(f"{path}.{name}", part, is_saved) for name, part in parts.items()]
            case "optimizer":
                self.initial_states |= {id(part) for state in states_of(value) for part in state.values()}
                yield f"{path}.step", vars(value).get("step"), False  # if it was replaced
                for number, group in enumerate(value.param_groups):  # the parameters of no module: others are known
                    for index, parameter in enumerate(group["params"]):
                        yield f"{path}.param_groups[{number}]['params'][{index}]", parameter, entry.is_saved_elsewhere
                yield f"{path}.param_groups", value.param_groups, True
            case "object" if path in self.stateful:
                state = state_of(value)
                entry.in_state_dict = frozenset(map(str, state)) | saved_by_state_dict(value, state)
            case "tensor":
                if not torch.nn.parameter.is_lazy(value) and value.is_leaf:
                    yield f"{path}.grad", value.grad, entry.is_saved_elsewhere
                yield from [(f"{path}.__dict__", value.__dict__, False)] if value.__dict__ else ()
            case "generator":
                yield f"{path}.__dict__", getattr(value, "__dict__", None), False
                yield f"{path}.seed_seq", getattr(getattr(value, "bit_generator", value), "seed_seq", None), False
            case "function":
                yield from self._in_function(value, path)
            case "array":
                entry.keys = value.shape, value.dtype
                if not value.flags.writeable and isinstance(value.base, numpy.ndarray):
                    yield f"{path}.base", value.base, entry.is_saved_elsewhere
        if category in _HOOKS:
            yield from _in_hooks(value, path, _HOOKS[category])
        if entry.is_entered:
            yield from parts_of(entry)
        if category == "class":
            yield from _in_class(value)
        elif category in IN_CONTAINERS and type(value).__module__ not in ("builtins", "collections"):
            yield f"{path}.__dict__", getattr(value, "__dict__", None), entry.is_saved_elsewhere
        is_of_class = category in ("module", "optimizer", "object", *IN_CONTAINERS)
        if is_of_class and type(value) not in self._classes:
            self._classes.add(type(value))
            yield from [(f"{base.__module__}:{base.__qualname__}", base, False) for base in type(value).__mro__]

    def _in_function(self, function: Any, path: str) -> Iterator[Child]:
        yield f"{path}.__wrapped__", getattr(function, "__wrapped__", None), False
        is_of_users = is_users(function.__globals__.get("__name__"))
        # A decorator from a library holds the user's function in its closure.
        if not is_of_users and not is_users(function.__module__):
            return
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            yield f"{path}<{name}>", cell, False
        yield f"{path}.__dict__", function.__dict__, False
        if not is_of_users:
            return
        # The globals that it uses, and the modules that it imports.
        variables, attributes, imported, _ = names_in(function.__code__)
        self._attributes |= {name for name in attributes if not name.startswith("__")}
        package = function.__globals__.get("__package__") or ""
        for name in sorted(imported):
            yield from [(each, sys.modules.get(each), False) for each in (name, f"{package}.{name}".strip("."))]
        yield from self._used(function.__globals__, variables)

    def _used(self, namespace: dict[str, Any], used: Collection[str]) -> Iterator[Child]:
        module = namespace["__name__"]
        self._globals.setdefault(module, Namespace(namespace, set())).names.update(used)
        for name in sorted(namespace.keys() & used):
            value = namespace[name]
            if category_of(type(value)) not in ("function", "class") or is_users(value.__module__):
                yield f"{module}:{name}", value, False

    def _read_through_modules(self) -> collections.deque[Entry]:
        """List attributes of modules of the user that are named in functions of the user; returns the queue."""
        for module, is_data in self._modules:  # which grows
            for path, value, is_saved_elsewhere in self._used(vars(module), self._attributes):
                self._add(path, value, is_saved_elsewhere, is_data=is_data)
        return self._waiting


@functools.cache
def names_in(code: types.CodeType) -> tuple[frozenset[str], ...]:
    """The names of globals, attributes, imported modules, and set attributes of a code object and functions in it.

    >>> [sorted(names) for names in names_in(compile("math.pi + f()", "", "eval"))]
    [['f', 'math'], ['pi'], [], []]
    """
    used = [(each.opname, each.argval) for each in dis.get_instructions(code)]
    inner = [names_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    names = [
        frozenset([name for operation, name in used for part in parts if part in operation]) for parts in _OPERATIONS
    ]
    return tuple([own.union(*others) for own, *others in zip(names, *inner, strict=True)])


def is_within(path: str, places: Collection[str]) -> bool:
    """True for a path that is one of these places, or that leads through one.

    >>> is_within("task.counts[0]", ["task.counts"]), is_within("task.counts_of", ["task.counts"])
    (True, False)
    """
    return any(path.startswith(place) and path[len(place) : len(place) + 1] in ("", ".", "[", "<") for place in places)


def keeps_state(value: Any) -> bool:
    """True for objects with `state_dict` and `load_state_dict`, except data loaders, which save their position."""
    both = all(callable(getattr(type(value), name, None)) for name in ("state_dict", "load_state_dict"))
    return both and not isinstance(value, DataLoader)


def state_of(value: Any) -> Mapping[Any, Any]:
    """The `state_dict` of an object; empty if it cannot be read."""
    try:
        state = value.state_dict()
    except Exception:  # saving it reports why
        return {}
    return state if isinstance(state, Mapping) else {}


def saved_by_state_dict(value: Any, state: Mapping[Any, Any]) -> frozenset[str]:
    """The names of the attributes of an object whose values, as objects, are in its `state_dict` under any name."""
    identities = {id(part) for part in (state, *state.values()) if not is_value(part)}
    names, parts = RULES["object"].contents(value)
    return frozenset(name for name, part in zip(names, parts, strict=True) if id(part) in identities)


def _in_hooks(value: Any, path: str, names: Collection[str]) -> Iterator[Child]:
    for name in names:
        if hooks := getattr(value, name, None):
            yield from [(f"{path}.{name}[{number}]", hook, False) for number, hook in enumerate(hooks.values())]


def _hooks_of_all() -> Iterator[Child]:
    """The user's hooks that torch calls for all modules, or for all optimizers."""
    for module in (sys.modules[torch.nn.Module.__module__], sys.modules[torch.optim.Optimizer.__module__]):
        names = [name for name, hooks in vars(module).items() if name[:8] == "_global_" and isinstance(hooks, dict)]
        yield from [child for child in _in_hooks(module, module.__name__, names) if _is_of_users(child[1])]


def _in_class(cls: type) -> Iterator[Child]:
    """What is not among the contents of a class of the user: its metaclass, properties and special methods."""
    yield f"{type(cls).__module__}:{type(cls).__qualname__}", type(cls), False
    for name, part in vars(cls).items():
        is_property = isinstance(part, property | functools.cached_property)
        functions = [getattr(part, each, None) for each in ("func", "fget", "fset", "fdel")] if is_property else [part]
        for function in functions:
            if isinstance(function, types.FunctionType):
                yield f"{cls.__module__}:{cls.__qualname__}.{name}", function, False
