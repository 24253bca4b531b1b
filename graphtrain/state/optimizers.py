"""Optimizers: their state beyond `state_dict`, and loading it into the objects that others may hold."""

from __future__ import annotations

import collections
import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import torch

from graphtrain.state.classes import RULES, category_of
from graphtrain.state.content import is_identical
from graphtrain.state.generators import generator_of
from graphtrain.storage.files import uncollected

NO_RESUME = "a resume with this `setup` is refused, or not exact"
"""Part of every notice about parameters that no resume can load."""

CHANGED = (
    f"{{}} changed since `setup`: {{}}; {NO_RESUME}: create all of it in `setup`, and let training switch it on "
    "(docs/gallery.md, A model that grows)"
)
"""Such a notice, about an object and how it has changed."""

_NO_PATH = "a parameter"


@final
class ParameterGroups:
    """The parameter groups of an optimizer at set-up, and the paths of the parameters in its present ones."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.set_up = [list(group["params"]) for group in optimizer.param_groups]
        self._known: list[list[torch.Tensor]] = []
        self._paths: list[str] = []

    def paths(self, optimizer: torch.optim.Optimizer, paths: Callable[[], Mapping[int, str]]) -> list[str]:
        """The paths of the parameters in each group, joined to one text, which is faster to save than a list.

        Arguments:
            paths: returns identity -> path; called only if the groups have changed.
        """
        groups = [group["params"] for group in optimizer.param_groups]
        if len(groups) != len(self._known) or not all(map(is_identical, groups, self._known)):
            by_id = paths()
            self._known = [list(group) for group in groups]
            self._paths = ["\n".join([by_id.get(id(each), _NO_PATH) for each in group]) for group in groups]
        return self._paths

    def lost(self, path: str, optimizer: torch.optim.Optimizer) -> list[str]:
        """A notice if a resume with the same `setup` could neither load the groups nor add those that are new."""
        before, now = self.set_up, [group["params"] for group in optimizer.param_groups]
        added = "\n".join(self._paths[len(before) :]).split("\n")
        if len(now) >= len(before) and all(map(is_identical, now, before)) and _NO_PATH not in added:
            return []
        return [CHANGED.format(f"{path}: parameter groups", "other parameters, or another order")]


def states_of(optimizer: torch.optim.Optimizer) -> list[Mapping[Any, Any]]:
    """The state of each parameter by name, and of each other key, which may be any value."""
    return [state if isinstance(state, Mapping) else {"value": state} for state in optimizer.state.values()]


def put_gradient(parameter: torch.Tensor, gradient: torch.Tensor | None) -> None:
    """Give a parameter a gradient: in the memory of the present one, which may be part of a buffer of all gradients."""
    present = parameter.grad
    if gradient is None or present is None:
        parameter.grad = gradient.to(parameter.device) if gradient is not None else None
    elif (present.shape, present.dtype, present.layout) == (gradient.shape, gradient.dtype, gradient.layout):
        present.detach().copy_(gradient)
    else:
        parameter.grad = gradient.to(parameter.device)


# ---- loading


@uncollected()
def load_optimizer(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Load an optimizer's state, with the dtypes that were saved: `load_state_dict` casts to those of parameters."""
    optimizer.load_state_dict(state)
    groups, states = state.get("param_groups"), state.get("state")
    if not isinstance(groups, list) or not isinstance(states, Mapping):  # from a `state_dict` of the user
        return
    numbers = [number for group in groups for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        for key, saved in states.get(number, {}).items():
            loaded = optimizer.state[parameter]
            loaded[key] = _as_saved(saved, loaded.get(key))


def _as_saved(saved: Any, loaded: Any) -> Any:
    """The saved value, with tensors on the device where loading has put them."""
    if isinstance(saved, torch.Tensor) and isinstance(loaded, torch.Tensor):
        return saved.to(loaded.device)
    if isinstance(saved, list) and isinstance(loaded, list | tuple) and len(saved) == len(loaded):
        saved[:] = map(_as_saved, saved, loaded)
    return saved


@contextmanager
def kept_groups(optimizers: Iterable[Any]) -> Iterator[None]:
    """A context for loading states into optimizers, which keep their parameter groups and states as objects.

    `load_state_dict` replaces them by copies, but other objects may refer to them, such as a step function to a group.
    """
    former = [(each, each.param_groups, [*map(dict, each.param_groups)], each.state) for each in optimizers]
    yield
    # All of them, before groups that two optimizers share are restored.
    loaded = [([*map(dict, each.param_groups)], copy.copy(each.state)) for each, *_ in former]
    for (optimizer, groups, before, states), (new_groups, new_states) in zip(former, loaded, strict=True):
        for group, values, now in zip(groups, before, new_groups, strict=True):
            group.clear()
            group.update({key: copied_into(values.get(key), value) for key, value in now.items()})
        optimizer.param_groups, optimizer.state = groups, copied_into(states, new_states)


def copied_into(present: Any, loaded: Any) -> Any:
    """The loaded value, copied into the present tensor or container if it fits: other objects may refer to that."""
    if isinstance(present, torch.Tensor) and isinstance(loaded, torch.Tensor):
        if (present.shape, present.dtype, present.device) != (loaded.shape, loaded.dtype, loaded.device):
            return loaded
        with torch.no_grad():
            return present.copy_(loaded)
    if present is loaded or type(present) is not type(loaded):
        return loaded
    if category_of(type(present)) == "generator":
        generator_of(present).set_state(generator_of(loaded).get_state())
        return present
    match present:
        case dict():
            parts: Any = {key: copied_into(present.get(key), part) for key, part in loaded.items()}
        case list() | collections.deque():
            parts = [*map(copied_into, present if len(present) == len(loaded) else itertools.repeat(None), loaded)]
        case set():
            parts = [*loaded]
        case _:
            return loaded
    RULES[category_of(type(present))].put(present, parts, ())
    return present
