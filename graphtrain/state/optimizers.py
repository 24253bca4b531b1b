"""Optimizers: their state beyond `state_dict`, and loading it into the objects that others may hold."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import torch

from graphtrain.state.content import is_identical
from graphtrain.state.generators import any_generator, generator_of

NO_RESUME = "a resume with this `setup` is refused, or not exact"
"""A part of each line about parameters that no resume can load as they are."""

CHANGED = (
    f"{{}} changed since `setup`: {{}}; {NO_RESUME}: make all of it in `setup`, and let training switch it on "
    "(docs/recipes.md, A model that grows)"
)
"""Such a line, about a thing and how it is now."""

NameOf = Callable[[torch.Tensor], str]


@final
class OptimizerForm:
    """The parameter groups that an optimizer was set up with, so that a save detects changes of them."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._groups = [list(group["params"]) for group in optimizer.param_groups]

    def __len__(self) -> int:
        return len(self._groups)

    def lost(
        self, path: str, optimizer: torch.optim.Optimizer, name_of: NameOf, reported: Collection[int]
    ) -> list[str]:
        """A line if a resume with the same `setup` could not load the groups, or not add them again.

        Arguments:
            name_of: returns the path at which a parameter can be found; empty if it cannot.
            reported: the identities of parameters of modules that are already reported as new.
        """
        before, now = self._groups, [group["params"] for group in optimizer.param_groups]
        if not (len(now) >= len(before) and all(map(is_identical, now, before))):
            return [CHANGED.format(f"{path}: parameter groups", "others, or in another order")]
        # Unchanged parameters are not listed: an optimizer may have 150,000 of them.
        late = [each for group in now[len(before) :] for each in group if not (name_of(each) or id(each) in reported)]
        return [CHANGED.format(f"{path}: parameter groups", "new parameters")] if late else []


def note_rates(optimizer: Any, *_: Any) -> None:
    """Keep the rates of a step, which rows have: a schedule may step before. A hook of all optimizers in a run."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    optimizer._rates_of_last_step = [rate.clone() if isinstance(rate, torch.Tensor) else rate for rate in rates]


def capture_optimizer(optimizer: Any, owned: set[int]) -> dict[str, Any]:
    """The state that an optimizer's `state_dict` leaves out: parameters of no module, whether it has stepped, and how.

    Arguments:
        owned: the identities of the parameters that modules own.
    """
    return {
        # A scheduler made in a fresh process would warn that it was stepped before the optimizer.
        "stepped": bool(getattr(optimizer, "_opt_called", False)),
        "rates": getattr(optimizer, "_rates_of_last_step", []),
        "loose": {
            key: {"value": parameter.detach(), "grad": parameter.grad}
            for key, parameter in _loose_parameters(optimizer, owned)
        },
    }


def restore_optimizer(optimizer: Any, state: Mapping[str, Any], owned: set[int]) -> None:
    """Restore what `capture_optimizer` took."""
    if state["stepped"] or hasattr(optimizer, "_opt_called"):  # which is restored too
        optimizer._opt_called = state["stepped"]
    optimizer._rates_of_last_step = state["rates"]
    for key, parameter in _loose_parameters(optimizer, owned):
        with torch.no_grad():
            parameter.copy_(state["loose"][key]["value"])
        put_gradient(parameter, state["loose"][key]["grad"])


def _loose_parameters(optimizer: Any, owned: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors updated by an optimizer that belong to no module, by their place in its groups."""
    for index, group in enumerate(optimizer.param_groups):
        for number, parameter in enumerate(group["params"]):
            if id(parameter) not in owned:
                yield f"{index}/{number}", parameter


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


def load_optimizer(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Load an optimizer's state, with the dtypes that were saved: `load_state_dict` casts to those of parameters."""
    optimizer.load_state_dict(state)
    groups, states = state.get("param_groups"), state.get("state")
    if not isinstance(groups, list) or not isinstance(states, Mapping):  # of a form of the user's
        return
    numbers = [number for group in groups for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    known: dict[int, Any] = {}
    for number, parameter in zip(numbers, parameters, strict=True):
        for key, saved in states.get(number, {}).items():
            loaded = optimizer.state[parameter]
            loaded[key] = _as_saved(saved, loaded.get(key), known)


def _as_saved(saved: Any, loaded: Any, known: dict[int, Any]) -> Any:
    """The saved value, with tensors on the device where loading put them; what was one object is one again."""
    if id(saved) not in known:
        if isinstance(saved, torch.Tensor) and isinstance(loaded, torch.Tensor):
            known[id(saved)] = saved.to(loaded.device)
        elif isinstance(saved, list) and isinstance(loaded, list | tuple) and len(saved) == len(loaded):
            known[id(saved)] = [_as_saved(*parts, known) for parts in zip(saved, loaded, strict=True)]
        else:
            known[id(saved)] = saved
    return known[id(saved)]


@contextmanager
def kept_groups(optimizers: Iterable[Any]) -> Iterator[None]:
    """A context in which states are loaded into optimizers, whose groups are the same objects after it.

    `load_state_dict` replaces them by copies, but others may hold them: a step function its group, groups one rate.
    """
    former = [
        (each, each.param_groups, [dict(group) for group in each.param_groups], each.state, dict(each.state))
        for each in optimizers
    ]
    yield
    # All of them, before groups that two optimizers share are restored.
    loaded = [([dict(group) for group in each.param_groups], dict(each.state)) for each, *_ in former]
    for (optimizer, groups, contents, states, of_parameters), (new_groups, new_states) in zip(
        former, loaded, strict=True
    ):
        for group, before, now in zip(groups, contents, new_groups, strict=True):
            values = {key: copied_into(before.get(key), value) for key, value in now.items()}
            group.clear()
            group.update(values)
        optimizer.param_groups = groups
        if type(states) is type(optimizer.state):
            values = {key: copied_into(of_parameters.get(key), value) for key, value in new_states.items()}
            states.clear()
            states.update(values)
            optimizer.state = states


def copied_into(present: Any, loaded: Any) -> Any:
    """The loaded value, in the tensor or container that was there before, which others may hold, if it fits."""
    if isinstance(present, torch.Tensor) and isinstance(loaded, torch.Tensor):
        if (present.shape, present.dtype, present.device) != (loaded.shape, loaded.dtype, loaded.device):
            return loaded
        with torch.no_grad():
            return present.copy_(loaded)
    if present is loaded or type(present) is not type(loaded):
        return loaded
    if (generator := generator_of(present)) is not None:
        generator.set_state(any_generator(loaded).get_state())
        return present
    match present:
        case dict():
            parts = {key: copied_into(present.get(key), part) for key, part in loaded.items()}
            present.clear()
            present.update(parts)
        case list() | collections.deque():
            befores = present if len(present) == len(loaded) else itertools.repeat(None)
            values = [copied_into(before, part) for before, part in zip(befores, [*loaded], strict=False)]
            present.clear()
            present.extend(values)
        case set():
            present.clear()
            present.update(loaded)
        case _:
            return loaded
    return present
