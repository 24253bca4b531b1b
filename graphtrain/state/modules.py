"""The state of modules beyond `state_dict`: modes, frozen flags, buffers that it leaves out, shapes; kept graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, final

import torch

from graphtrain.errors import CheckpointError
from graphtrain.names import plainly_named, quoted
from graphtrain.state.optimizers import CHANGED
from graphtrain.state.weights import weights_of
from graphtrain.storage.strides import without_repeats

KEEPS_GRAPH = "keeps a graph of operations, which is not saved: detach it"
_MOST_NODES = 1_000


@final
class ModuleStructure:
    """The parameters and buffers of a module at set-up, with which each save compares the present ones."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._set_up = {name: (tensor, _metadata_of(tensor)) for name, tensor in _tensors(module)}
        self._graphs = {tensor.grad_fn for tensor, _ in self._set_up.values() if tensor is not None}

    def is_changed(self, name: str, tensor: torch.Tensor | None) -> bool:
        """True if a parameter or buffer was added, filled, emptied, or has another shape, dtype or strides."""
        return name not in self._set_up or self._set_up[name][1] != _metadata_of(tensor)

    def lost(self, path: str, module: torch.nn.Module) -> list[str]:
        """A notice about parameters that have changed, which a resume could not load, and one about a graph."""
        now, lines, changed = dict(_tensors(module)), list[str](), list[str]()
        for name in {**self._set_up, **now}:
            tensor, (before, metadata) = now.get(name), self._set_up.get(name, (None, None))
            is_parameter = isinstance(tensor if before is None else before, torch.nn.Parameter)
            is_other = tensor is not before or (metadata is not None and metadata != _metadata_of(tensor))
            if name not in self._set_up or (is_parameter and is_other):
                changed.append(name)
            elif not lines and tensor is not None and tensor.grad_fn not in self._graphs and keeps_graph(tensor):
                lines.append(f"{path}.{name} {KEEPS_GRAPH}")
        return lines + [CHANGED.format(f"{path}: parameters or buffers", quoted(changed))] * bool(changed)


def _tensors(module: torch.nn.Module, *kinds: str) -> Iterator[tuple[str, torch.Tensor | None]]:
    """The name and value of every parameter and buffer, which may be None."""
    for prefix, inner in plainly_named(module.named_modules()):
        for kind in kinds or ("_parameters", "_buffers"):
            for key, tensor in getattr(inner, kind).items():
                yield (f"{prefix}.{key}" if prefix else key), tensor


def _metadata_of(tensor: torch.Tensor | None) -> tuple[object, ...] | None:
    """The shape, dtype and strides."""
    if tensor is None or torch.nn.parameter.is_lazy(tensor):
        return None
    return tensor.shape, tensor.dtype, tensor.stride() if tensor.layout is torch.strided else ()


def capture_module(module: torch.nn.Module, structure: ModuleStructure) -> dict[str, Any]:
    """The state of a module beyond `state_dict`, without gradients; also buffers that could not be loaded from it."""
    saved, parameters = weights_of(module, keep_vars=True), dict(plainly_named(module.named_parameters()))
    identities = {id(value) for value in saved.values()}
    return {
        "training": {name: inner.training for name, inner in plainly_named(module.named_modules())},
        "requires_grad": {name: parameter.requires_grad for name, parameter in parameters.items()},
        # None among them: a buffer may be filled, or emptied, during training.
        "buffers": {
            name: tensor
            for name, tensor in _tensors(module, "_buffers")
            if name not in saved or structure.is_changed(name, tensor)
        },
        # A `state_dict` of the user may leave out parameters that it considers frozen, or round them.
        "parameters": {
            name: parameter.detach()
            for name, parameter in parameters.items()
            if id(parameter) not in identities and (name in saved or parameter.requires_grad)
        },
    }


def fit_buffers(module: torch.nn.Module, saved: Mapping[str, torch.Tensor | None]) -> None:
    """Give buffers that training filled, emptied or reshaped their saved shape, so that weights can be loaded."""
    for prefix, inner in plainly_named(module.named_modules()):
        for key, tensor in [*inner._buffers.items()]:
            name = f"{prefix}.{key}" if prefix else key
            if name in saved and _metadata_of(tensor) != _metadata_of(saved[name]):
                inner._buffers[key] = saved[name]


def restore_module(module: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Restore what `capture_module` returned, after weights are loaded; a CheckpointError if it does not fit."""
    for name, inner in plainly_named(module.named_modules()):
        inner.training = state["training"].get(name, inner.training)
    parameters = dict(plainly_named(module.named_parameters()))
    for name, parameter in parameters.items():
        parameter.requires_grad_(state["requires_grad"].get(name, parameter.requires_grad))
    fit_buffers(module, state["buffers"])
    tensors: dict[str, Any] = dict(_tensors(module))
    with torch.no_grad():
        for name, saved in {**state["buffers"], **state["parameters"]}.items():
            shape = getattr(saved, "shape", None)
            if getattr(tensors.get(name), "shape", None) != shape:
                raise CheckpointError(
                    f"the model has no parameter or buffer `{name}` of shape {tuple(shape or ())} now"
                )
            if saved is not None:  # it stays the same tensor, which others may hold, if the saved values fit into it
                without_repeats(tensors[name]).copy_(without_repeats(saved))


def keeps_graph(tensor: torch.Tensor) -> bool:
    """True for a tensor from which a backward pass can still reach a parameter.

    False if an operation has freed its saved values: then the tensor is kept only for its value. Of a very large graph,
    only the 1,000 operations nearest to the tensor are examined.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> kept = (weight * weight).sum()
    >>> keeps_graph(kept), keeps_graph(kept.detach()), kept.backward(), keeps_graph(kept)
    (True, False, None, False)
    """
    operations: list[Any] = [tensor.grad_fn] if tensor.grad_fn is not None else []
    known, reaches_a_leaf = {None, *operations}, False
    for operation in operations:  # which grows
        if _has_been_freed(operation):
            return False
        reaches_a_leaf |= getattr(getattr(operation, "variable", None), "requires_grad", False)
        following = dict.fromkeys(each for each, _ in operation.next_functions if each not in known)
        operations += [*following][: _MOST_NODES - len(operations)]
        known.update(following)
    return reaches_a_leaf


def _has_been_freed(operation: Any) -> bool:
    """True for an operation whose saved values a backward pass has freed: reading them fails."""
    try:
        for name in (each for each in dir(operation) if each.startswith("_raw_saved_")):
            raw = getattr(operation, name)
            # A hook, such as that of activation checkpointing, would compute the value again.
            if all(getattr(each, "unpack_hook", None) is None for each in (raw if isinstance(raw, tuple) else (raw,))):
                getattr(operation, name.removeprefix("_raw"), None)
    except RuntimeError:
        return True
    return False
