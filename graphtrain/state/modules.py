"""The state of modules beyond `state_dict`: modes, frozen flags, gradients, buffers that are not persistent."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, final

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from graphtrain.errors import CheckpointError
from graphtrain.names import plainly_named, quoted
from graphtrain.state.graphs import KEEPS_GRAPH, keeps_graph
from graphtrain.state.optimizers import CHANGED
from graphtrain.state.weights import weights_of
from graphtrain.storage.strides import without_repeats

# A shape, a dtype and strides.
_TensorForm = tuple[tuple[int, ...], torch.dtype, tuple[int, ...]]


@final
class ModuleForm:
    """The parameters and buffers of a module at set-up, so that a save detects changes of them.

    A buffer gets its saved form before its values are loaded. A change of parameters is reported.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._tensors = {name: (tensor, _form_of(tensor)) for name, tensor in _tensors(module)}
        self._graphs = {tensor.grad_fn for tensor, _ in self._tensors.values() if tensor is not None}

    def changed_buffers(self, module: torch.nn.Module) -> dict[str, Any]:
        """Name -> shape, dtype and strides of buffers whose form has changed; None for an empty one."""
        forms = {name: _form_of(owner._buffers[key]) for name, owner, key in _buffers(module)}
        return {
            name: None if form is None else [list(form[0]), form[1], list(form[2])]
            for name, form in forms.items()
            if name not in self._tensors or form != self._tensors[name][1]
        }

    def lost(self, path: str, module: torch.nn.Module) -> list[str]:
        """A line for parameters that have changed, which a resume could not load, and one for a buffer with a graph."""
        now, absent = dict(_tensors(module)), (None, None)
        kept = (
            f"{path}.{name} {KEEPS_GRAPH}"
            for name, tensor in now.items()
            if tensor is not None and tensor.grad_fn not in self._graphs and keeps_graph(tensor)
        )
        lines = [line for line in [next(kept, "")] if line]
        names = []
        for name in {**self._tensors, **now}:
            tensor, (before, form) = now.get(name), self._tensors.get(name, absent)
            if isinstance(before if before is not None else tensor, torch.nn.Parameter) and (
                tensor is not before or (form is not None and form != _form_of(tensor))
            ):
                names.append(name)
        return lines + [CHANGED.format(f"{path}: parameters", quoted(names))] * bool(names)


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Every place of a parameter or buffer, also an empty one."""
    for prefix, owner in plainly_named(module.named_modules()):
        for tensors in (owner._parameters, owner._buffers):
            for key, tensor in tensors.items():
                yield (f"{prefix}.{key}" if prefix else key), tensor


def _buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str]]:
    """Every place of a buffer, also an empty one: its name, the module it is in, and its name there."""
    for prefix, owner in plainly_named(module.named_modules()):
        for key in owner._buffers.keys():  # noqa: SIM118 - that of a scripted module is no mapping
            yield (f"{prefix}.{key}" if prefix else key), owner, key


def _form_of(tensor: torch.Tensor | None) -> _TensorForm | None:
    if tensor is None or torch.nn.parameter.is_lazy(tensor):
        return None
    return tensor.shape, tensor.dtype, tensor.stride() if tensor.layout is torch.strided else ()


def reshape_buffers(module: torch.nn.Module, forms: Mapping[str, Any], persistent: Collection[str]) -> None:
    """Give buffers the form of a saved state, so that it can be loaded.

    Arguments:
        forms: from `ModuleForm.changed_buffers`.
        persistent: the names in the saved `state_dict`.

    Raises:
        CheckpointError: the module no longer has such a submodule.
    """
    owners = dict(plainly_named(module.named_modules()))
    device = next((tensor.device for _, tensor in _tensors(module) if tensor is not None), None)
    for name, form in forms.items():
        prefix, _, key = name.rpartition(".")
        owner = owners.get(prefix)
        if owner is None:
            raise CheckpointError(f"the model no longer has a module `{prefix}`")
        values = None if form is None else torch.empty_strided(form[0], form[2], dtype=form[1], device=device)
        if key in owner._buffers:
            owner._buffers[key] = values
        elif key not in owner._parameters:
            owner.register_buffer(key, values, persistent=name in persistent)


def copies_state(module: torch.nn.Module) -> bool:
    """True if the module copies the tensors of a state that is loaded: it loads by the methods of torch alone.

    >>> copies_state(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
    True
    """
    names = ("load_state_dict", "_load_from_state_dict", "set_extra_state")
    return not any(
        inner._load_state_dict_pre_hooks or not getattr(inner, name).__module__.startswith("torch.nn.")
        for inner in module.modules()
        for name in names
    )


def is_lazy(module: torch.nn.Module) -> bool:
    """True for a module with parameters or buffers whose shape is set by the first batch."""
    return any(tensor is not None and torch.nn.parameter.is_lazy(tensor) for _, tensor in _tensors(module))


def _finish_lazy(module: torch.nn.Module) -> None:
    """Complete lazy modules whose parameters were loaded, as the first batch would."""
    for inner in module.modules():
        if isinstance(inner, LazyModuleMixin) and hasattr(inner, "_initialize_hook") and not is_lazy(inner):
            for name in ("_initialize_hook", "_load_hook"):
                getattr(inner, name).remove()
                delattr(inner, name)
            if inner.cls_to_become is not None:
                inner.__class__ = inner.cls_to_become


def capture_module(module: torch.nn.Module, form: ModuleForm | None = None) -> dict[str, Any]:
    """The state of a module that `state_dict` leaves out, except gradients.

    Arguments:
        form: its form at set-up. Default: the present form.
    """
    saved = weights_of(module, keep_vars=True)
    identities = {id(value) for value in saved.values()}
    parameters = dict(plainly_named(module.named_parameters()))
    forms = form.changed_buffers(module) if form is not None else {}
    return {
        "training": {name: inner.training for name, inner in plainly_named(module.named_modules())},
        "requires_grad": {name: parameter.requires_grad for name, parameter in parameters.items()},
        # None among them: a buffer may be filled, or emptied, during training.
        "buffers": {name: owner._buffers[key] for name, owner, key in _buffers(module) if name not in saved},
        # A `state_dict` of the user may leave out parameters that it considers frozen, or round them.
        "parameters": {
            name: parameter.detach()
            for name, parameter in parameters.items()
            if id(parameter) not in identities
            and (not _has_bits_of(saved[name], parameter) if name in saved else parameter.requires_grad)
        },
    } | ({"forms": forms} if forms else {})


def _has_bits_of(saved: Any, parameter: torch.Tensor) -> bool:
    is_alike = isinstance(saved, torch.Tensor) and saved.dtype == parameter.dtype
    return is_alike and torch.equal(saved.to(parameter.device), parameter)


def restore_module(module: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Restore what `capture_module` took, once weights are loaded.

    Raises:
        CheckpointError: the module no longer has such a buffer or parameter.
    """
    _finish_lazy(module)
    for name, inner in plainly_named(module.named_modules()):
        inner.training = state["training"].get(name, inner.training)
    parameters = dict(plainly_named(module.named_parameters()))
    for name, parameter in parameters.items():
        parameter.requires_grad_(state["requires_grad"].get(name, parameter.requires_grad))
    buffers = {name: (owner, key) for name, owner, key in _buffers(module)}
    with torch.no_grad():
        for name, saved in state["buffers"].items():
            if name not in buffers:
                raise CheckpointError(f"the model no longer has a buffer `{name}`")
            owner, key = buffers[name]
            now = owner._buffers[key]
            # It stays the same tensor, which others may hold, if the saved values fit into it.
            if saved is None or now is None or _form_of(now) != _form_of(saved):
                owner._buffers[key] = saved
            else:
                without_repeats(now).copy_(without_repeats(saved))
        for name, saved in state["parameters"].items() if "parameters" in state else ():
            if name not in parameters or parameters[name].shape != saved.shape:
                raise CheckpointError(f"the model no longer has a parameter `{name}` of shape {tuple(saved.shape)}")
            parameters[name].copy_(saved)
