"""What is reachable when a run begins, and what is remembered of it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any, final

import torch

from graphtrain.state.contents import FORMS
from graphtrain.state.equality import hold_the_same
from graphtrain.state.imports import lines_about_modules
from graphtrain.state.marks import is_marked, mark_of
from graphtrain.state.reachable import HOOKS, Reachable, Reached, held_by_state, is_within, state_of

States = dict[str, Mapping[Any, Any]]
"""Path -> the `state_dict` that an object has now: each is asked for once in a save, or a restore."""


@final
class InitialState:
    """The reachable objects, and what objects cannot tell by themselves once they have changed.

    Arguments: those of `Baseline`.

    Attributes:
        reachable: the objects, each with what it held.
        elsewhere: the identities of objects that something else saves.
        left_out: paths that are no state, with all that is reached through them.
        replaced: paths of what another object has taken the place of since, with all that is reached through them.
        marks: of tensors and arrays that are saved only if they have changed, by identity.
        structures: of modules, by path.
        globals: module -> name -> value, of those that functions of the user's own use.
        graphs: what tensors were computed by, by the identity of the tensor.
    """

    def __init__(
        self,
        roots: Mapping[str, Any],
        data: Collection[str],
        covered: Collection[str],
        elsewhere: Collection[int],
        left_out: Collection[str],
        *,
        with_code: bool,
    ) -> None:
        self.reachable = Reachable(roots, data, covered, with_code=with_code)
        self.elsewhere, self.left_out = frozenset(elsewhere), tuple(left_out)
        self.replaced: tuple[str, ...] = ()
        self._instead: Mapping[str, Any] = {}
        by_path = self.reachable.by_path
        self.marks = {id(reached.value): mark_of(reached) for reached in by_path.values() if is_marked(reached)}
        tensors = [reached.value for reached in by_path.values() if reached.category == "tensor"]
        self.graphs = {id(tensor): tensor.grad_fn for tensor in tensors if not tensor.is_leaf}
        self._modules = frozenset(sys.modules) if with_code else None
        self.structures = {
            path: structure_of(reached.value, is_data=reached.is_data)
            for path, reached in by_path.items()
            if reached.category == "module"
        }
        self.hooks = {path: hooks_of(by_path[path].value) for path in self.structures}
        self.globals = {
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
            name: {module: names for module, (_, names) in listed.globals.items() if module in self.globals}
            for name, listed in within.items()
        }

    @property
    def leaves_out(self) -> bool:
        """True if something is left out."""
        return bool(self.left_out or self.replaced)

    def replace(self, values: Mapping[str, Any]) -> None:
        """Note what other objects have taken the place of, and which."""
        self.replaced, self._instead = tuple(values), values

    @property
    def stateful(self) -> dict[str, Any]:
        """What is saved by its `state_dict`, by path: that which is in use."""
        listed = self.reachable.stateful.items()
        return {path: value for path, value in listed if not self.is_left_out(path)} | {**self._instead}

    def listed(self, data: str | None = None) -> Iterator[Reached]:
        """What was reachable, all but what is left out.

        Arguments:
            data: the name of a root; only what is reachable from it. Default: everything.
        """
        listed = self.reachable.by_path.values() if data is None else self._of_data[data]
        if not self.leaves_out:
            yield from listed
            return
        for reached in listed:
            if not self.is_left_out(reached.path):
                yield reached

    def names_of_globals(self, data: str | None = None) -> list[tuple[str, set[str]]]:
        """The globals in use, by module.

        Arguments:
            data: the name of a root; only those that its functions use. Default: all.
        """
        if data is not None:
            return sorted(self._globals_of_data[data].items())
        return [(module, self.reachable.globals[module][1]) for module in sorted(self.globals)]

    def imported_since(self) -> list[str]:
        """A line for each module of the user's own that was imported since, and that has variables."""
        return lines_about_modules(self._modules) if self._modules is not None else []

    @property
    def names_of_data(self) -> list[str]:
        """The roots that are data, and that do not save themselves."""
        return list(self._of_data)

    def of_data(self, data: str) -> list[Reached]:
        """All that is reachable from data, what is left out included."""
        return self._of_data[data]

    def name_of_data(self, value: Any) -> str | None:
        """The name of the root that is this data; None for data that came later, or that saves itself."""
        reached = self.reachable.find(value)
        return reached.path if reached is not None and reached.path in self._of_data else None

    def is_left_out(self, path: str) -> bool:
        """True for what is declared to be no state, or was replaced, and for all that is reached through it."""
        return is_within(path, self.left_out) or is_within(path, self.replaced)

    def ignored(self, reached: Reached, states: States) -> frozenset[str]:
        """The attributes that are not compared: those whose very value the `state_dict` has now.

        An entry of the same name may be another form of it, which loading does not always put back.
        """
        if not (reached.category == "object" and reached.path in self.reachable.stateful):
            return reached.ignored
        names, parts = FORMS["object"].contents(reached.value)
        held, state = dict(zip(names, parts, strict=True)), states.get(reached.path)
        if state is None:
            state = states[reached.path] = state_of(reached.value)
        equal = {name for name in held.keys() & state.keys() if hold_the_same(held[name], state[name])}
        return reached.ignored | held_by_state(reached.value, state) | equal


def structure_of(module: torch.nn.Module, *, is_data: bool) -> dict[str, tuple[Any, ...]]:
    """The names and identities of what a module is made of; outside of data `ModuleForm` looks at its tensors."""
    return {
        "parameters": tuple(module._parameters.keys()) if is_data else (),
        "buffers": tuple(module._buffers.keys()) if is_data else (),
        "submodules": tuple(map(id, module._modules.values())),
        "hooks": tuple(
            id(hook)
            for name in HOOKS
            for hook in getattr(module, name).values()
            if getattr(hook, "__name__", "") != "_infer_parameters"  # of a lazy module, until its first batch
        ),
    }


def hooks_of(module: torch.nn.Module) -> tuple[Mapping[int, Any], ...]:
    """Where a module keeps its hooks: mappings, which change as hooks come and go."""
    return tuple(getattr(module, name) for name in HOOKS)
