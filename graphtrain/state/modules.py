"""The state of modules and optimizers beyond `state_dict`: gradients, modes, frozen flags, non-persistent buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, final

import torch

from graphtrain.errors import CheckpointError
from graphtrain.storage.collector import uncollected
from graphtrain.storage.strides import without_repeats


def capture_module(module: torch.nn.Module) -> dict[str, Any]:
    """What `state_dict` leaves out of a module, all but the gradients."""
    saved = module.state_dict(keep_vars=True)
    identities = {id(value) for value in saved.values()}
    return {
        "training": {name: inner.training for name, inner in module.named_modules()},
        "requires_grad": {name: parameter.requires_grad for name, parameter in module.named_parameters()},
        # None among them: a buffer may be filled, or emptied, during training.
        "buffers": {name: owner._buffers[key] for name, owner, key in _buffers(module) if name not in saved},
        # A `state_dict` of the user's own may leave out what it takes to be frozen.
        "parameters": {
            name: parameter.detach()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and name not in saved and id(parameter) not in identities
        },
    }


def restore_module(module: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Restore what `capture_module` took.

    Raises:
        CheckpointError: the module has no such buffer or parameter any more.
    """
    for name, inner in module.named_modules():
        inner.training = state["training"].get(name, inner.training)
    parameters = dict(module.named_parameters())
    for name, parameter in parameters.items():
        parameter.requires_grad_(state["requires_grad"].get(name, parameter.requires_grad))
    buffers = {name: (owner, key) for name, owner, key in _buffers(module)}
    with torch.no_grad():
        for name, saved in state["buffers"].items():
            if name not in buffers:
                raise CheckpointError(f"the model has no buffer `{name}` any more")
            _put(*buffers[name], saved)
        for name, saved in state.get("parameters", {}).items():
            if name not in parameters or parameters[name].shape != saved.shape:
                raise CheckpointError(f"the model has no parameter `{name}` of shape {tuple(saved.shape)} any more")
            parameters[name].copy_(saved)


def _buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str]]:
    """Every place of a buffer, also an empty one: its name, the module it is in, and its name there."""
    for prefix, owner in module.named_modules():
        for key in owner._buffers:
            yield (f"{prefix}.{key}" if prefix else key), owner, key


def _put(owner: torch.nn.Module, key: str, saved: torch.Tensor | None) -> None:
    """Fill a buffer. It stays the same tensor, which others may refer to, where the values saved fit into it."""
    now = owner._buffers[key]
    if (
        saved is None
        or now is None
        or (now.shape, now.dtype, now.stride()) != (saved.shape, saved.dtype, saved.stride())
    ):
        owner._buffers[key] = saved
    else:
        without_repeats(now).copy_(without_repeats(saved))


def capture_gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every gradient there is, by the parameter's name."""
    return {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}


def restore_gradients(module: torch.nn.Module, gradients: Mapping[str, torch.Tensor]) -> None:
    """Restore gradients; parameters without a saved one have none."""
    for name, parameter in module.named_parameters():
        saved = gradients.get(name)
        parameter.grad = None if saved is None else saved.to(parameter.device)


def capture_optimizer(optimizer: Any, owned: set[int]) -> dict[str, Any]:
    """What an optimizer's `state_dict` leaves out: the parameters that belong to no module, and whether it has stepped.

    Arguments:
        owned: the identities of the parameters that modules own.
    """
    return {
        # A scheduler made in a fresh process would warn that it was stepped before the optimizer.
        "stepped": bool(getattr(optimizer, "_opt_called", False)),
        "loose": {
            key: {"value": parameter.detach(), "grad": parameter.grad}
            for key, parameter in _loose_parameters(optimizer, owned)
        },
    }


def restore_optimizer(optimizer: Any, state: Mapping[str, Any], owned: set[int]) -> None:
    """Restore what `capture_optimizer` took."""
    if state["stepped"]:
        optimizer._opt_called = True
    with torch.no_grad():
        for key, parameter in _loose_parameters(optimizer, owned):
            parameter.copy_(state["loose"][key]["value"])
            parameter.grad = state["loose"][key]["grad"]


def _loose_parameters(optimizer: Any, owned: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors an optimizer updates that belong to no module, by their place in its groups."""
    for index, group in enumerate(optimizer.param_groups):
        for number, parameter in enumerate(group["params"]):
            if id(parameter) not in owned:
                yield f"{index}/{number}", parameter


@uncollected()
def load_optimizer(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Load an optimizer's state with the dtypes it was saved with: `load_state_dict` casts them to the parameters'."""
    optimizer.load_state_dict(_quick_to_search(optimizer, state))
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        if number in state["state"]:
            loaded = optimizer.state[parameter]
            for key, saved in state["state"][number].items():
                loaded[key] = _as_saved(saved, loaded.get(key))


@final
class _Numbers(list[int]):
    """Numbers of parameters; whether one is among them is known at once."""

    def __init__(self, numbers: Iterable[int]) -> None:
        super().__init__(numbers)
        self._known = frozenset(self)

    def __contains__(self, number: object) -> bool:
        return number in self._known

    def __deepcopy__(self, memo: object) -> list[int]:
        return list(self)


def _quick_to_search(optimizer: Any, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """A state whose groups are searched at once: torch searches them for each tensor, which took 28 s for 150,000."""
    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        return state  # which may keep the lists
    groups = [{**group, "params": _Numbers(group["params"])} for group in state["param_groups"]]
    return {**state, "param_groups": groups}


def _as_saved(saved: Any, loaded: Any) -> Any:
    """What was saved, with tensors on the device where loading put them."""
    if isinstance(saved, torch.Tensor):
        return saved.to(loaded.device) if isinstance(loaded, torch.Tensor) else saved
    if isinstance(saved, list) and isinstance(loaded, list | tuple) and len(saved) == len(loaded):
        return [_as_saved(part, other) for part, other in zip(saved, loaded, strict=True)]
    return saved
