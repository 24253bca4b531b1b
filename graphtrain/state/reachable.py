"""Everything that a run can reach from its resources: each object once, breadth first, under its first path.

Paths read as Python does: ``model.0.p``, ``train_data.dataset.cache['a']``, ``training_step<count>`` for a variable of
the enclosing function, ``__main__:COUNT`` for a global of a module of the user.
"""

from __future__ import annotations

import collections
import dis
import functools
import io
import sys
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy
import torch
from torch.utils.data import DataLoader

from graphtrain.state.category import (
    NOT_STATE,
    OF_A_RUN,
    STANDS_FOR,
    Category,
    category_of,
    is_constant,
    is_users,
    is_value,
)
from graphtrain.state.content import content_hash
from graphtrain.state.contents import CONTAINERS, FORMS, MOST_COMPARED, compared_contents
from graphtrain.state.optimizers import note_rates
from graphtrain.state.weights import uncompiled
from graphtrain.storage.encoding import LEAST_ADDRESS

MOST_OBJECTS = 200_000
MOST_DEPTH = 500
# Larger containers are not examined; of data, whose samples training does not change, a few suffice.
MOST_ITEMS = 1_000
MOST_ITEMS_OF_DATA = 64

_MODULE = frozenset(vars(torch.nn.Module())) | {"_compiled_call_impl", "_version"}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_HOOKS_OF_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_OPTIMIZER = frozenset(vars(torch.optim.SGD([torch.zeros(1)]))) | {
    "step",  # which schedulers wrap
    "_opt_called",
    "_rates_of_last_step",
    "_step_count",
    "_need_device_dtype_check_for_fused",
    "_step_supports_amp_scaling",
}
_MODULES_WITH_HOOKS = (torch.nn.Module.__module__, torch.optim.Optimizer.__module__)  # for all objects of the class
_CONTAINERS = frozenset({"list", "tuple", "deque", "set", "mapping"})
_PLAIN_CONTAINERS = (*CONTAINERS, collections.defaultdict, collections.Counter)
_LOADER = frozenset({"_iterator", "_IterableDataset_len_called", "_DataLoader__multiprocessing_context"})

# Attributes that the compiler gives to tensors and functions.
OF_THE_COMPILER = ("_dynamo", "_torchdynamo")

REMEDY = "give what holds it a `state_dict`"

Child = tuple[str, Any, bool]
"""Path, object, and whether a `state_dict` covers it."""


@dataclass(eq=False, slots=True)
class Reached:
    """An object, with its contents when it was listed.

    Attributes:
        ignored: attributes that are not state.
        covered: attributes with the name of an entry in its `state_dict`.
        is_covered: True if something else saves it: it is listed so that it can be referred to. For a module that is
            its `state_dict`; its other attributes are listed separately.
        is_data: True for data, and for objects that belong to it.
        is_kept: True if it belongs to an object saved by a `state_dict` of its own class: no bounds apply.
        is_shared: True for data that something else reaches too.
        code: the code of a function; of anything else the class.
        is_entered: False for a container too large to be examined.
        length: the number of items of a container.
        position: the position of a run or a file; the type of the elements of an array; a hash of a watched object.
        keys, parts: its contents, in the form of its category; of a very large container nothing.
    """

    path: str
    value: Any
    category: Category
    is_covered: bool
    is_data: bool
    depth: int
    is_kept: bool = False
    code: Any = None
    is_shared: bool = False
    ignored: frozenset[str] = frozenset()
    covered: frozenset[str] = frozenset()
    is_entered: bool = True
    length: int = 0
    position: str = ""
    keys: tuple[Any, ...] = ()
    parts: tuple[Any, ...] = ()


@final
class Reachable:
    """The objects that are reachable from some roots.

    Arguments:
        roots: name -> object.
        data: the names of roots that are data.
        covered: names of roots that something else saves as a whole. Default: none.
        of_data: the identities of objects that belong to data, and are followed by their attributes. Default: none.
        with_code: False leaves out classes, and the globals of functions. Default: they are listed too.

    Attributes:
        by_path, by_id: the listed objects.
        stateful: path -> object saved by its `state_dict`: modules, optimizers, and others that have one.
        globals: module -> the names of its globals that functions of the user use.
        bounds: path -> the reason why the object there, or those beyond it, were not examined.
        made_states: the identities of what optimizers have in their states already.

    >>> list(Reachable({"task": types.SimpleNamespace(counts=[1, 2])}).by_path)
    ['task', 'task.counts']
    """

    def __init__(
        self,
        roots: Mapping[str, Any],
        data: Collection[str] = (),
        covered: Collection[str] = (),
        of_data: Collection[int] = (),
        *,
        with_code: bool = True,
    ) -> None:
        self._with_code, self._of_data = with_code, of_data
        self.by_path: dict[str, Reached] = {}
        self.by_id: dict[int, Reached] = {}
        self.stateful: dict[str, Any] = {}
        self.globals: dict[str, tuple[dict[str, Any], set[str]]] = {}
        self.bounds: dict[str, str] = {}
        self._waiting: collections.deque[Reached] = collections.deque()
        self._unlisted: list[Reached] = []  # containers whose items are not listed by being in them
        self._kinds: set[type] = set()
        self._entered = 0  # covered objects do not count: something else saves them
        for name, value in roots.items():
            self._add(name, value, name in covered, name in data)
        for place, hook in _hooks_of_all() if with_code else ():
            self._add(place, hook, is_covered=False, is_data=False)
        self._walk()
        # Parameters last: most belong to modules, and are named there.
        optimizers = {path: held for path, held in self.stateful.items() if isinstance(held, torch.optim.Optimizer)}
        self.made_states = {
            id(part) for each in optimizers.values() for state in each.state.values() for part in state.values()
        }
        for path, optimizer in optimizers.items():
            for number, group in enumerate(optimizer.param_groups):
                for index, tensor in enumerate(group["params"]):
                    place = f"{path}.param_groups[{number}]['params'][{index}]"
                    self._add(place, tensor, is_covered=False, is_data=False, depth=1)
        self._walk()
        for reached in filter(None, map(self.by_path.get, covered)):
            if reached.is_shared and hasattr(reached.value, "state_dict") and not isinstance(reached.value, DataLoader):
                self.stateful[reached.path] = reached.value
        for reached in self._unlisted:
            # Constants cannot change in place, and objects listed elsewhere are compared there.
            if not all(is_constant(member) or id(member) in self.by_id for member in (*reached.keys, *reached.parts)):
                what = f"has {reached.length:,} items, in which changes are not looked for: {REMEDY}"
                if reached.is_entered:
                    what = f"is a set of objects, in which changes are not looked for: use a list, or {REMEDY}"
                self.bounds.setdefault(reached.path, what)

    def _walk(self) -> None:
        while self._waiting:
            reached = self._waiting.popleft()
            for path, value, is_covered in self._children(reached):
                is_kept = reached.is_kept or (reached.category == "object" and reached.path in self.stateful)
                self._add(path, value, is_covered, reached.is_data, reached.depth + 1, is_kept)

    def find(self, value: Any) -> Reached | None:
        """The entry of this very object."""
        return self.by_id.get(id(value))

    def path_of(self, value: Any) -> str | None:
        """The path of this very object; None if it is not listed."""
        reached = self.by_id.get(id(value))
        return reached.path if reached is not None else None

    def _add(
        self, path: str, value: Any, is_covered: bool, is_data: bool, depth: int = 0, is_kept: bool = False
    ) -> None:
        while type(value) in STANDS_FOR:
            name = STANDS_FOR[type(value)]
            path, value = f"{path}.{name}", getattr(value, name)
        if (module := uncompiled(value)) is not value:  # named as it is without `torch.compile`
            self._add(path, module, is_covered, is_data, depth, is_kept)
            path, is_covered = f"{path}<compiled>", True
        category = category_of(type(value))
        if (known := self.by_id.get(id(value))) is not None:
            known.is_shared |= known.is_data and not is_data
            return
        if category in ("value", "skipped"):
            return
        if category == "class" and not (self._with_code and is_users(value.__module__)):
            return
        self._entered += not (is_covered or is_kept)
        if self._entered > MOST_OBJECTS:
            what = f"more than {MOST_OBJECTS:,} objects are reachable, and changes beyond `{path}` are not looked for"
            self.bounds.setdefault("", f"{what}: {REMEDY}")
            return
        if depth > MOST_DEPTH:
            what = f"is nested more than {MOST_DEPTH} deep, and changes in it are not looked for: {REMEDY}"
            self.bounds.setdefault(path, what)
            return
        if path in self.by_path:  # keys with the same text
            path = f"{path}#{len(self.by_path)}"
        code = value.__code__ if category == "function" else type(value)
        reached = Reached(path, value, category, is_covered, is_data, depth, is_kept, code)
        # Not a module on the device `meta`, such as one that gets its parameters from `functional_call`.
        is_empty = isinstance(value, torch.nn.Module) and any(tensor.is_meta for tensor in value.parameters())
        is_part = id(value) in self._of_data and category not in ("module", "optimizer")
        if not (is_covered or is_data or is_part or is_empty) and keeps_state(value):
            self.stateful[path] = value
        self.by_id[id(value)] = self.by_path[path] = reached
        self._waiting.append(reached)

    # ---- contents of an object

    def _children(self, reached: Reached) -> Iterator[Child]:
        value, path = reached.value, reached.path
        if reached.category in _CONTAINERS:
            self._read_container(reached)
        elif form := FORMS.get(reached.category):
            reached.keys, reached.parts = form.contents(value)
        match reached.category:
            case "module":
                # Objects made by the compiler hold its bookkeeping, and the module.
                is_compiler = type(value).__module__.startswith("torch._dynamo")
                reached.ignored = frozenset(vars(value)) if is_compiler else _MODULE
                yield from self._in_module(reached)
            case "optimizer":
                reached.ignored = _OPTIMIZER
                yield from _in_optimizer(value, path)
            case "object":
                reached.ignored = frozenset(getattr(type(value), NOT_STATE, ()))
                if isinstance(value, DataLoader):
                    reached.ignored |= _LOADER
                if path in self.stateful:
                    state = state_of(value)
                    reached.covered = frozenset(map(str, state)) | held_by_state(value, state)
            case "tensor":
                yield from _in_tensor(value, path, reached.is_covered)
            case "generator":
                yield f"{path}.__dict__", getattr(value, "__dict__", None), False
            case "method" | "partial" as category:
                names = ("__self__", "__func__") if category == "method" else ("func", "args", "keywords", "__dict__")
                yield from ((f"{path}.{name}", getattr(value, name), False) for name in names)
            case "function":
                yield from self._in_function(value, path)
            case "array":
                reached.keys, reached.position = value.shape, str(value.dtype)
                if not value.flags.writeable and isinstance(value.base, numpy.ndarray):
                    yield f"{path}.base", value.base, reached.is_covered
            case "file":
                reached.position = position_of(value)
            case "watched":
                reached.position = content_hash(value)
            case "hidden" if not (reached.is_data or reached.is_covered):
                what = f"is a {type(value).__module__}.{type(value).__qualname__}, in which changes are not looked for"
                self.bounds.setdefault(path, f"{what}: {REMEDY}")
            case "run":
                held, reached.position = getattr(value, OF_A_RUN)()
                yield from ((f"{path}.resources[{name!r}]", part, False) for name, part in held.items())
        if reached.is_entered:
            yield from parts_of(reached)
        if reached.category == "class":
            yield from _in_class(value)
        elif reached.category in _CONTAINERS and type(value) not in _PLAIN_CONTAINERS:
            yield f"{path}.__dict__", getattr(value, "__dict__", None), reached.is_covered
            if self._with_code:
                yield f"{type(value).__module__}:{type(value).__qualname__}", type(value), False
        elif (
            self._with_code and reached.category in ("module", "optimizer", "object") and type(value) not in self._kinds
        ):
            self._kinds.add(type(value))
            yield from ((f"{base.__module__}:{base.__qualname__}", base, False) for base in type(value).__mro__)

    def _read_container(self, reached: Reached) -> None:
        value, size = reached.value, len(reached.value)
        reached.length = size
        reached.keys, reached.parts = compared_contents(value, reached.category)
        reached.is_entered = size <= (MOST_ITEMS_OF_DATA if reached.is_data else MOST_ITEMS)
        if reached.is_data or reached.is_kept or reached.is_covered:
            return
        if size > MOST_COMPARED:
            self.bounds.setdefault(reached.path, f"has {size:,} items, in which changes are not looked for: {REMEDY}")
        elif not reached.is_entered or reached.category == "set":
            self._unlisted.append(reached)

    def _in_module(self, reached: Reached) -> Iterator[Child]:
        value, path = reached.value, reached.path
        for name, child in value._modules.items():
            yield f"{path}.{name}", child, True
        for name, tensor in (*value._parameters.items(), *value._buffers.items()):
            yield f"{path}.{name}", tensor, True
        yield from _in_hooks(value, path, HOOKS)

    def _in_function(self, function: Any, path: str) -> Iterator[Child]:
        yield f"{path}.__wrapped__", getattr(function, "__wrapped__", None), False
        namespace = function.__globals__
        is_of_users = is_users(namespace.get("__name__"))
        # A decorator from a library holds the user's function in its closure.
        if not is_of_users and not is_users(function.__module__):
            return
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            yield f"{path}<{name}>", cell, False
        yield f"{path}.__dict__", function.__dict__, False
        if is_of_users and self._with_code:
            names = names_in(function.__code__)
            yield from self._in_namespace(namespace, names.variables, names.attributes, set())
            for imported in names.imported:
                if (module := _imported(imported, namespace)) is not None:
                    yield from self._in_namespace(vars(module), names.attributes, names.attributes, set())

    def _in_namespace(
        self, namespace: dict[str, Any], names: frozenset[str], attributes: frozenset[str], seen: set[str]
    ) -> Iterator[Child]:
        """Globals of a module of the user, and those of other such modules that are read through it."""
        module = namespace.get("__name__", "")
        seen.add(module)
        self.globals.setdefault(module, (namespace, set()))[1].update(names)
        for name in sorted(names & namespace.keys()):
            value = namespace[name]
            if isinstance(value, types.ModuleType):
                if value.__name__ not in seen and is_users(value.__name__):
                    yield from self._in_namespace(vars(value), attributes, attributes, seen)
            elif not _is_of_a_library(value):
                yield f"{module}:{name}", value, False


def position_of(file: Any) -> str:
    """The position in an open file; empty if it does not matter, because reading does not continue."""
    if file.closed or not file.readable():
        return ""
    try:
        in_memory = f" {content_hash(file.getvalue())}" if isinstance(file, io.BytesIO | io.StringIO) else ""
        return f"{file.tell()}{in_memory}"
    except OSError:  # within a loop over the lines of a text; or no file on a disk
        return "read"


def is_within(path: str, places: Collection[str]) -> bool:
    """True for a path that is one of these places, or is reached through one.

    >>> is_within("task.counts[0]", ["task.counts"]), is_within("task.counts_of", ["task.counts"])
    (True, False)
    """
    after = ("", ".", "[", "<")
    return any(path.startswith(place) and path[len(place) : len(place) + 1] in after for place in places)


def keeps_state(value: Any) -> bool:
    """True for objects that are saved and loaded by their own methods; of a loader these are about its position."""
    both = all(callable(getattr(type(value), name, None)) for name in ("state_dict", "load_state_dict"))
    return both and not isinstance(value, DataLoader)


def state_of(value: Any) -> Mapping[Any, Any]:
    """The `state_dict` of an object; empty where it cannot be read."""
    try:
        state = value.state_dict()
    except Exception:  # saving it reports why
        return {}
    return state if isinstance(state, Mapping) else {}


def held_by_state(value: Any, state: Mapping[Any, Any]) -> frozenset[str]:
    """The attributes of an object whose very objects are in its `state_dict`, under any name."""
    held = {id(part) for part in (state, *state.values()) if not is_value(part)}
    names, parts = FORMS["object"].contents(value)
    return frozenset(name for name, part in zip(names, parts, strict=True) if id(part) in held)


def _in_tensor(tensor: torch.Tensor, path: str, is_covered: bool) -> Iterator[Child]:
    if not torch.nn.parameter.is_lazy(tensor) and tensor.is_leaf and tensor.grad is not None:
        yield f"{path}.grad", tensor.grad, is_covered
    if tensor.__dict__:
        yield f"{path}.__dict__", tensor.__dict__, False
    yield from _in_hooks(tensor, path, _HOOKS_OF_TENSORS)


def _in_hooks(value: Any, path: str, names: Collection[str]) -> Iterator[Child]:
    for name in names:
        if hooks := getattr(value, name, None):
            yield from ((f"{path}.{name}[{number}]", hook, False) for number, hook in enumerate(hooks.values()))


def _hooks_of_all() -> Iterator[tuple[str, Any]]:
    """The user's hooks that torch calls for all modules, or for all optimizers."""
    for module in map(sys.modules.__getitem__, _MODULES_WITH_HOOKS):
        for name, held in vars(module).items():
            if name.startswith("_global_") and isinstance(held, dict):
                hooks = [hook for hook in held.values() if callable(hook) and hook is not note_rates]
                yield from ((f"{module.__name__}.{name}[{number}]", hook) for number, hook in enumerate(hooks))


def _in_optimizer(optimizer: Any, path: str) -> Iterator[Child]:
    """Groups and their settings, which its `state_dict` covers: others may hold them too."""
    yield f"{path}.step", vars(optimizer).get("step"), False  # if it was replaced
    yield from _in_hooks(optimizer, path, _HOOKS_OF_OPTIMIZERS)
    yield f"{path}.param_groups", optimizer.param_groups, True
    for number, group in enumerate(optimizer.param_groups):
        yield f"{path}.param_groups[{number}]", group, True
        for name, part in group.items():
            if name != "params":
                yield f"{path}.param_groups[{number}][{name!r}]", part, True


def parts_of(reached: Reached) -> Iterator[Child]:
    """A part of an object of a form, by attribute, number or key."""
    path, is_covered = reached.path, reached.is_covered
    match reached.category:
        case "module" | "optimizer" | "object" | "class" | "function":
            is_covered = is_covered and reached.category != "module"
            for name, part in zip(reached.keys, reached.parts, strict=True):
                if name not in reached.ignored:
                    yield f"{path}.{name}", part, is_covered or name in reached.covered
        case "list" | "tuple" | "deque":
            for number, part in enumerate(reached.parts):
                yield f"{path}[{number}]", part, is_covered
        case "mapping":
            for number, (key, part) in enumerate(zip(reached.keys, reached.parts, strict=True)):
                shown = f"#{number}" if type(key) is int and key >= LEAST_ADDRESS else shown_key(key)
                yield f"{path}[{shown}]", part, is_covered
                if not is_constant(key):
                    yield f"{path}.keys()[{number}]", key, is_covered
            yield f"{path}.default_factory", getattr(reached.value, "default_factory", None), is_covered
        case "set":
            for member in sorted(filter(is_value, reached.parts), key=repr):
                yield f"{path}[{member!r}]", member, is_covered
        case "cell":
            for part in reached.parts:
                yield f"{path}.cell_contents", part, False


def shown_key(key: Any) -> str:
    """A key in the form of a path."""
    if is_value(key):
        return repr(key)
    return f"({', '.join(map(shown_key, key))})" if isinstance(key, tuple) else f"a {type(key).__name__}"


def _in_class(kind: type) -> Iterator[Child]:
    """The functions of a class of the user, including those behind properties."""
    path = f"{kind.__module__}:{kind.__qualname__}"
    for name, part in vars(kind).items():
        match part:
            case property():
                for accessor in (part.fget, part.fset, part.fdel):
                    yield f"{path}.{name}.{getattr(accessor, '__name__', '')}", accessor, False
            case functools.cached_property():
                yield f"{path}.{name}", part.func, False
            case types.FunctionType() if name.startswith("__"):  # others are among its contents
                yield f"{path}.{name}", part, False


class Names(NamedTuple):
    """The names in code.

    Attributes:
        variables: globals.
        attributes: attributes, some of which may be those of modules.
        imported: modules that it imports itself.
        assigned: the attributes that it sets.
        assigned_variables: the globals that it sets.
    """

    variables: frozenset[str]
    attributes: frozenset[str]
    imported: tuple[str, ...]
    assigned: frozenset[str]
    assigned_variables: frozenset[str]


@functools.cache
def names_in(code: types.CodeType) -> Names:
    """The names in code, including those in nested functions.

    >>> sorted(names_in(compile("math.pi + f()", "", "eval")).attributes)
    ['pi']
    """
    pairs = [(instruction.opname, instruction.argval) for instruction in dis.get_instructions(code)]
    variables = {name for op, name in pairs if "_GLOBAL" in op or op in ("LOAD_NAME", "STORE_NAME", "DELETE_NAME")}
    attributes = {name for op, name in pairs if "_ATTR" in op or "_METHOD" in op or op == "IMPORT_FROM"}
    imported = [name for op, name in pairs if op == "IMPORT_NAME"]
    assigned = {name for op, name in pairs if op == "STORE_ATTR"}
    assigned_variables = {name for op, name in pairs if op in ("STORE_GLOBAL", "DELETE_GLOBAL")}
    inner = [names_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return Names(
        frozenset(variables).union(*(names.variables for names in inner)),
        frozenset(attributes).union(*(names.attributes for names in inner)),
        tuple(dict.fromkeys([*imported, *(name for names in inner for name in names.imported)])),
        frozenset(assigned).union(*(names.assigned for names in inner)),
        frozenset(assigned_variables).union(*(names.assigned_variables for names in inner)),
    )


def calls_seek(kind: type) -> bool:
    """True for a class of the user with a method, own or overridden, that calls `seek`."""
    for name in dir(kind) if is_users(kind.__module__) else ():
        for base in kind.__mro__:
            if isinstance(function := vars(base).get(name), types.FunctionType):
                names = names_in(function.__code__)
                if "seek" in names.attributes:
                    return True
                if "super" not in names.variables:  # nor does it call the overridden method
                    break
    return False


def _imported(name: str, namespace: Mapping[str, Any]) -> types.ModuleType | None:
    """The module of the user named by an `import` within a function, if it is already imported."""
    package = str(namespace.get("__package__") or "")
    for full in (name, f"{package}.{name}".strip(".")):
        module = sys.modules.get(full)
        if isinstance(module, types.ModuleType) and is_users(module.__name__):
            return module
    return None


def _is_of_a_library(value: Any) -> bool:
    return category_of(type(value)) in ("function", "class") and not is_users(getattr(value, "__module__", None))
