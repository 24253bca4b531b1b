"""The state that is reachable when a run begins, and the records kept of it."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from graphtrain.state.category import category_of, is_constant, is_users
from graphtrain.state.codec import is_plain_array, is_saveable
from graphtrain.state.content import content_hash, hold_the_same
from graphtrain.state.contents import FORMS
from graphtrain.state.reachable import HOOKS, Reachable, Reached, held_by_state, is_within, names_in, parts_of, state_of

States = dict[str, Mapping[Any, Any]]
"""Path -> the present `state_dict` of an object, read once in a save or a restore."""

_OF_A_FLAG = "{} may say that hooks are registered, so it is not saved: register them in `setup`"
_MOST_NAMED = 3
# Larger ones are compared by sample before a save, so that training does not wait; data is compared whole after the
# copy.
_MOST_BYTES = {"tensor": 64 * 2**10, "array": 2 * 2**20, "buffer": 2 * 2**20}


class InitialState:
    """The reachable objects, and records of properties that changed objects no longer show.

    Arguments:
        roots: name -> object: resources, step functions, functions of nodes.
        data: the names of those roots that are data.
        covered: the names of those roots that something else saves as a whole.
        elsewhere: the identities of objects that something else saves.
        left_out: paths that are not state, with all that is reached through them.
        with_code: False leaves out classes, and the globals of functions. Default: they count too.

    Attributes:
        reachable: the objects, each with what it held.
        elsewhere, left_out: the same as the arguments.
        replaced: paths of objects that were replaced since, with all that is reached through them.
        marks: the marks of tensors and arrays that are saved only if changed, by identity.
        structures: the structures of modules, by path.
        globals: module -> name -> value, for those that functions of the user use.
        graphs: the operations that computed tensors, by the identity of the tensor.
        imported: the names of all modules; None without code.
        flags: attributes that say that hooks were registered since `setup`, each with a line about it; empty where the
            hooks return. They are neither saved nor changed by a restore: a process without hooks has to register them.
        returning: the modules with hooks of a library, which registers them again by itself.
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
        # All that is reachable from data, also if it is reachable from elsewhere.
        within = {
            name: Reachable({"data": roots[name]}, ["data"], with_code=with_code)
            for name in data
            if name not in covered
        }
        of_data = {identity for listed in within.values() for identity in listed.by_id}
        self.reachable = Reachable(roots, data, covered, of_data, with_code=with_code)
        self.elsewhere, self.left_out = frozenset(elsewhere), tuple(left_out)
        self.replaced: tuple[str, ...] = ()
        self._instead: Mapping[str, Any] = {}
        by_path = self.reachable.by_path
        self.marks = {id(reached.value): mark_of(reached) for reached in by_path.values() if is_marked(reached)}
        tensors = [reached.value for reached in by_path.values() if reached.category == "tensor"]
        self.graphs = {id(tensor): tensor.grad_fn for tensor in tensors if not tensor.is_leaf}
        self.imported = frozenset(sys.modules) if with_code else None
        self.structures = {
            path: structure_of(reached.value, is_data=reached.is_data)
            for path, reached in by_path.items()
            if reached.category == "module"
        }
        # Where a module keeps its hooks: mappings, which change as hooks come and go.
        self.hooks = {path: [getattr(by_path[path].value, name) for name in HOOKS] for path in self.structures}
        self.returning: set[str] = set()
        self.flags: dict[str, str] = {}
        self.globals = {
            module: {name: namespace[name] for name in names if name in namespace}
            for module, (namespace, names) in self.reachable.globals.items()
        }
        self._of_data = {
            name: [reached for each in listed.by_path.values() if (reached := self.reachable.find(each.value))]
            for name, listed in within.items()
        }
        self._globals_of_data = {
            name: {module: names for module, (_, names) in listed.globals.items() if module in self.globals}
            for name, listed in within.items()
        }

    def note_hooks(self) -> None:
        """Note the flags of hooks that were registered since `setup`, and whether these will be registered again."""
        self.flags, self.returning = {}, set()
        for path, structure in self.structures.items():
            hooks = [hook for held in self.hooks[path] for hook in held.values() if id(hook) not in structure["hooks"]]
            if all(map(_is_of_lazy_module, hooks)):
                continue
            outer = [each for each in reversed(self.structures) if is_within(path, [each])]
            flags = [f"{each}.{name}" for each in outer for name in self._set_since(each) if "hook" in name]
            if flags and not any(is_users(getattr(getattr(hook, "func", hook), "__module__", None)) for hook in hooks):
                self.returning.add(path)
            for each in outer:  # where no name says so, all those of the nearest
                flags = flags or [f"{each}.{name}" for name in self._set_since(each)]
            line = "" if path in self.returning else _OF_A_FLAG
            self.flags |= {flag: line.format(flag) for flag in flags if not self.is_excluded(flag)}

    def _set_since(self, path: str) -> list[str]:
        """The attributes of a module that are True now and were not."""
        reached = self.reachable.by_path[path]
        before, now = dict(zip(reached.keys, reached.parts, strict=True)), vars(reached.value)
        set_since = (name for name, value in now.items() if value is True and before.get(name) is not True)
        return [name for name in set_since if name not in reached.ignored]

    @property
    def excludes(self) -> bool:
        """True if something is left out, or was replaced."""
        return bool(self.left_out or self.replaced)

    def replace(self, values: Mapping[str, Any]) -> None:
        """Note which objects were replaced, and by which."""
        self.replaced, self._instead = tuple(values), values

    @property
    def stateful(self) -> dict[str, Any]:
        """The objects in use that are saved by their `state_dict`, by path."""
        listed = self.reachable.stateful.items()
        return {path: value for path, value in listed if not self.is_excluded(path)} | {**self._instead}

    def listed(self, data: str | None = None) -> Iterator[Reached]:
        """The objects that were reachable, except those left out.

        Arguments:
            data: the name of a root; only what is reachable from it. Default: everything.
        """
        listed = self.reachable.by_path.values() if data is None else self._of_data[data]
        yield from (each for each in listed if not self.is_excluded(each.path)) if self.excludes else listed

    def names_of_globals(self, data: str | None = None) -> list[tuple[str, set[str]]]:
        """The globals in use, by module.

        Arguments:
            data: the name of a root; only those that its functions use. Default: all.
        """
        if data is not None:
            return sorted(self._globals_of_data[data].items())
        return [(module, self.reachable.globals[module][1]) for module in sorted(self.globals)]

    def listed_data(self) -> dict[str, list[Reached]]:
        """By the name of data that does not save itself: the objects reachable from it, except those left out."""
        return {name: list(self.listed(name)) for name in self._of_data}

    def places(self) -> Iterator[str]:
        """The paths of all reachable objects, including plain values."""
        for reached in self.reachable.by_path.values():
            yield reached.path
            if reached.is_entered:
                yield from (place for place, _, _ in parts_of(reached))
        for module, (namespace, names) in self.reachable.globals.items():
            yield from (f"{module}:{name}" for name in sorted(names & namespace.keys()))

    def globals_in_use(self) -> Iterator[tuple[str, str, Any, Any]]:
        """Module and name of each global that functions of the user use: its former and its present value."""
        for module, before in self.globals.items():
            namespace = self.reachable.globals[module][0]
            for name, value in before.items():
                if not self.is_left_out(f"{module}:{name}"):
                    yield module, name, value, namespace.get(name)

    def name_of_data(self, value: Any) -> str | None:
        """The name of the root that is this data; None for data added later, or that saves itself."""
        reached = self.reachable.find(value)
        return reached.path if reached is not None and reached.path in self._of_data else None

    def is_left_out(self, path: str) -> bool:
        """True for a path that is declared not to be state, or is reached through one."""
        return is_within(path, self.left_out)

    def is_replaced(self, path: str) -> bool:
        """True for a path that was replaced, or is reached through one."""
        return is_within(path, self.replaced)

    def is_excluded(self, path: str) -> bool:
        """True for a path that is left out or was replaced."""
        return self.is_left_out(path) or self.is_replaced(path)

    def ignored(self, reached: Reached, states: States) -> frozenset[str]:
        """The attributes that are not compared: those whose very value is in the present `state_dict`.

        An entry of the same name may have another form, which loading does not always restore.
        """
        if not (reached.category == "object" and reached.path in self.reachable.stateful):
            flags = (flag.rpartition(".") for flag in self.flags)
            return reached.ignored | {name for path, _, name in flags if path == reached.path}
        names, parts = FORMS["object"].contents(reached.value)
        held, state = dict(zip(names, parts, strict=True)), states.get(reached.path)
        if state is None:
            state = states[reached.path] = state_of(reached.value)
        equal = {name for name in held.keys() & state.keys() if hold_the_same(held[name], state[name])}
        return reached.ignored | held_by_state(reached.value, state) | equal


def structure_of(module: torch.nn.Module, *, is_data: bool) -> dict[str, tuple[Any, ...]]:
    """The names and identities of the parts of a module; outside data, `ModuleForm` covers its tensors."""
    hooks = [hook for name in HOOKS for hook in getattr(module, name).values()]
    return {
        "parameters": tuple(module._parameters.keys()) if is_data else (),
        "buffers": tuple(module._buffers.keys()) if is_data else (),
        "submodules": tuple(map(id, module._modules.values())),
        "hooks": tuple(map(id, itertools.filterfalse(_is_of_lazy_module, hooks))),
    }


def _is_of_lazy_module(hook: Any) -> bool:
    """True for the hook that a lazy module has until its first batch."""
    return getattr(hook, "__name__", "") == "_infer_parameters"


# ---- marks: cheap change detection for tensors and arrays, where not all of them are saved


def is_marked(reached: Reached) -> bool:
    """True for a tensor or array that is saved only if changed: of data, or of a class that cannot be saved."""
    if reached.is_covered or reached.category not in _MOST_BYTES:
        return False
    if reached.category == "tensor":
        return reached.is_data or not is_saveable(reached.value)
    return reached.is_data or (reached.category == "array" and not is_plain_array(reached.value))


def mark_of(reached: Reached) -> tuple[Any, ...]:
    """Its mark: a hash, and for a tensor also the number of writes, which shows changes beyond a sample."""
    value = reached.value
    if reached.category != "tensor":
        return (content_hash(value, most_bytes=_MOST_BYTES[reached.category]),)
    try:
        content = content_hash(value, most_bytes=_MOST_BYTES["tensor"])
    except (RuntimeError, NotImplementedError):  # of a class whose memory is not torch's
        content = str(value.shape)
    return 0 if value.is_inference() else value._version, content


def is_as_marked(reached: Reached, marks: Mapping[int, tuple[Any, ...]]) -> bool:
    """True if its mark has not changed; False if it has none."""
    before = marks.get(id(reached.value))
    return before is not None and before == mark_of(reached)


# ---- modules of the user that are first imported during a run: their variables were not listed


def lines_about_modules(known: Collection[str]) -> list[str]:
    """A line for each module with variables.

    Arguments:
        known: the names of the modules that had been imported when the run began.
    """
    lines = []
    for name in sorted(itertools.filterfalse(known.__contains__, [*sys.modules])):  # of thousands, at every save
        # Code generated by a compiler, as into a module of torch, is in separate files.
        if not (is_users(name) and is_users(name.partition(".")[0])):
            continue
        module = sys.modules[name]
        if isinstance(module, types.ModuleType) and (variables := variables_of(module)):
            shown = ", ".join([*variables[:_MOST_NAMED], *(["..."] if len(variables) > _MOST_NAMED else [])])
            what = f"so its variables ({shown}) are not saved: import it before the run begins"
            lines.append(f"the module {name} was imported during the run, {what}")
    return lines


def variables_of(module: types.ModuleType) -> list[str]:
    """The globals of a module that can change: those that its functions assign, and containers and objects.

    >>> module = types.ModuleType("example")
    >>> vars(module).update(RATE=0.1, NAMES=("a", "b"), SEEN=[])
    >>> variables_of(module)
    ['SEEN']
    """
    assigned: set[str] = set()
    for part in list(vars(module).values()):
        if getattr(part, "__module__", None) == module.__name__:
            assigned |= _assigned_by(part)
    return sorted(
        name
        for name, part in vars(module).items()
        # Not functions, nor objects made by a library, such as annotations, which are never examined.
        if not name.startswith("__")
        and (name in assigned or not (is_constant(part) or category_of(type(part)) in ("function", "opaque")))
    )


def _assigned_by(part: object) -> frozenset[str]:
    """The globals that a function, or the functions of a class, assign."""
    part = getattr(part, "__func__", part)
    if isinstance(part, types.FunctionType):
        return names_in(part.__code__).assigned_variables
    functions = vars(part).values() if isinstance(part, type) else ()
    return frozenset[str]().union(*(_assigned_by(each) for each in functions if not isinstance(each, type)))
