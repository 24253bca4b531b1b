"""What was reachable when a run began: every object, with what it held."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any, final

from graphtrain.state.content import hold_the_same
from graphtrain.state.kinds import KINDS, is_users
from graphtrain.state.reachable import HOOKS, Entry, Reachable, held_by_state, is_within, parts_of, state_of

States = dict[str, Mapping[Any, Any]]
"""Path -> the present `state_dict` of an object, read once in a save or a restore."""


@final
class StateSnapshot:
    """The objects that were reachable when a run began.

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
        replaced: path -> the object that has replaced the one there, with all that is reached through it.
        redrawn: the identities of objects that a resume makes again by drawing batches.
        imported: the names of all modules; None without code.
        structures: the submodules and hooks of modules, by path.
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
        self.replaced: Mapping[str, Any] = {}
        self.redrawn: frozenset[int] = frozenset()
        self.imported = frozenset(sys.modules) if with_code else None
        modules = [node for node in self.reachable.by_path.values() if node.category == "module"]
        self.structures = {node.path: structure_of(node) for node in modules}
        self._of_data = {
            name: [
                node
                for each in listed.by_path.values()
                if (node := each if each.category == "globals" else self.reachable.find(each.value))
            ]
            for name, listed in within.items()
        }

    @property
    def stateful(self) -> dict[str, Any]:
        """The objects in use that are saved by their `state_dict`, by path."""
        listed = self.reachable.stateful.items()
        return {**{path: value for path, value in listed if not self.is_excluded(path)}, **self.replaced}

    def nodes(self, data: str | None = None) -> Iterator[Entry]:
        """The objects that were reachable, except those left out.

        Arguments:
            data: the name of a root; only what is reachable from it. Default: everything.
        """
        listed = self.reachable.by_path.values() if data is None else self._of_data[data]
        excludes = self.left_out or self.replaced
        yield from (node for node in listed if not self.is_excluded(node.path)) if excludes else listed

    def data(self) -> dict[str, list[Entry]]:
        """By the name of data that does not save itself: the objects reachable from it, except those left out."""
        return {name: list(self.nodes(name)) for name in self._of_data}

    def note_redrawn(self, data: str) -> None:
        """Note that a resume draws all batches of an epoch of data again, with what data makes for it."""
        self.redrawn |= {id(node.value) for node in self._of_data[data]}

    def places(self) -> Iterator[str]:
        """The paths of all reachable objects, including plain values."""
        for node in self.reachable.by_path.values():
            yield node.path
            if node.is_entered:
                yield from (place for place, _, _ in parts_of(node))

    def name_of_data(self, value: Any) -> str | None:
        """The name of the root that is this data; None for data added later, or that saves itself."""
        node = self.reachable.find(value)
        return node.path if node is not None and node.path in self._of_data else None

    def is_left_out(self, path: str) -> bool:
        """True for a path that is declared not to be state, or is reached through one."""
        return is_within(path, self.left_out)

    def is_replaced(self, path: str) -> bool:
        """True for a path that was replaced, or is reached through one."""
        return is_within(path, self.replaced)

    def is_excluded(self, path: str) -> bool:
        """True for a path that is left out or was replaced."""
        return self.is_left_out(path) or self.is_replaced(path)

    def ignored(self, node: Entry, states: States) -> frozenset[str]:
        """The attributes that are not compared: those whose very value is in the present `state_dict`.

        An entry of the same name may have another form, which loading does not always restore.
        """
        if node.category == "module":  # which says that hooks are registered: they are registered again with it
            flags = (name for name, part in vars(node.value).items() if "hook" in name and isinstance(part, bool))
            return node.ignored.union(flags)
        if not (node.category == "object" and node.path in self.reachable.stateful):
            return node.ignored
        held = dict(zip(*KINDS["object"].contents(node.value), strict=True))
        if node.path not in states:
            states[node.path] = state_of(node.value)
        state = states[node.path]
        equal = {name for name in held.keys() & state.keys() if hold_the_same(held[name], state[name])}
        return node.ignored | held_by_state(node.value, state) | equal

    def has_flag_of_hooks(self, path: str) -> bool:
        """True if a module, or one around it, has an attribute that says that it has registered hooks."""
        around = (self.reachable.by_path[each].value for each in self.structures if is_within(path, [each]))
        return any("hook" in name and part is True for module in around for name, part in vars(module).items())


def structure_of(node: Entry) -> dict[str, tuple[Any, ...]]:
    """The parts of a module, of whose tensors `ModuleForm` knows, but for data."""
    module = node.value
    return {
        "parameters": tuple(module._parameters) if node.is_data else (),
        "buffers": tuple(module._buffers) if node.is_data else (),
        "submodules": tuple(map(id, module._modules.values())),
        "hooks": tuple(map(id, itertools.filterfalse(_is_of_lazy_module, hooks_of(module)))),
    }


def hooks_of(module: Any) -> list[Any]:
    """The hooks of a module."""
    return [hook for name in HOOKS for hook in getattr(module, name).values()]


def is_hook_of_library(hook: Any) -> bool:
    """True for a hook that no code of the user's has defined."""
    return not is_users(getattr(getattr(hook, "func", hook), "__module__", None))


def _is_of_lazy_module(hook: Any) -> bool:
    """True for the hook that a lazy module has until its first batch."""
    return getattr(hook, "__name__", "") == "_infer_parameters"
