"""The state of modules and optimizers beyond `state_dict`: gradients, modes, frozen flags, non-persistent buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from graphtrain.errors import CheckpointError
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


def fill_buffers(module: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Fill persistent buffers that are empty, and were not when the state was saved: loading would not."""
    for name, owner, key in _buffers(module):
        saved = state.get(name)
        if owner._buffers[key] is None and isinstance(saved, torch.Tensor):
            owner._buffers[key] = torch.empty_like(saved)


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
        saved, held = gradients.get(name), parameter.grad
        if saved is None:
            parameter.grad = None
        elif held is not None and (held.shape, held.dtype, held.layout) == (saved.shape, saved.dtype, saved.layout):
            held.detach().copy_(saved)  # which may be a part of a buffer of all gradients
        else:
            parameter.grad = saved.to(parameter.device)


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


def load_optimizer(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Load an optimizer's state into the objects that it has: `load_state_dict` would put copies in their place.

    Groups, and tensors in them, may be held by others as well: two groups that share a learning rate still do after
    this. The dtypes are those saved: `load_state_dict` casts them to the parameters'.
    """
    groups, states = optimizer.param_groups, optimizer.state
    held = [dict(group) for group in groups]
    optimizer.load_state_dict(state)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        for key, saved in state["state"].get(number, {}).items():
            optimizer.state[parameter][key] = _as_saved(saved, optimizer.state[parameter].get(key))
    for group, before, loaded in zip(groups, held, optimizer.param_groups, strict=True):
        now = {key: _poured(before.get(key), value) for key, value in loaded.items()}
        group.clear()
        group.update(now)
    optimizer.param_groups = groups
    if type(states) is type(optimizer.state) and states is not optimizer.state:
        loaded_states = dict(optimizer.state)
        states.clear()
        states.update(loaded_states)
        optimizer.state = states


def _poured(held: Any, loaded: Any) -> Any:
    """What was loaded, in the tensor or the list that was there before."""
    both = isinstance(held, torch.Tensor) and isinstance(loaded, torch.Tensor)
    if both and (held.shape, held.dtype, held.device) == (loaded.shape, loaded.dtype, loaded.device):
        with torch.no_grad():
            return held.copy_(loaded)
    if type(held) is list and type(loaded) is list:
        held[:] = (
            [_poured(before, value) for before, value in zip(held, loaded, strict=True)]
            if len(held) == len(loaded)
            else loaded
        )
        return held
    return loaded


def _as_saved(saved: Any, loaded: Any) -> Any:
    """What was saved, with tensors on the device where loading put them."""
    if isinstance(saved, torch.Tensor):
        return saved.to(loaded.device) if isinstance(loaded, torch.Tensor) else saved
    if isinstance(saved, list) and isinstance(loaded, list | tuple) and len(saved) == len(loaded):
        return [_as_saved(part, other) for part, other in zip(saved, loaded, strict=True)]
    return saved
