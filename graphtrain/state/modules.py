"""The state of modules and optimizers beyond `state_dict`: gradients, modes, frozen flags, non-persistent buffers."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, final

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from graphtrain.errors import CheckpointError
from graphtrain.names import plainly_named, quoted
from graphtrain.state.content import is_identical
from graphtrain.state.graphs import KEEPS_GRAPH, keeps_graph
from graphtrain.state.kinds import KINDS, category_of
from graphtrain.state.weights import weights_of
from graphtrain.storage.background import uncollected
from graphtrain.storage.strides import without_repeats

NO_RESUME = "a resume with this `setup` is refused, or not exact"
"""A part of each line about parameters that no resume can load as they are."""

NameOf = Callable[[torch.Tensor], str]

_CHANGED = (
    f"{{}} changed since `setup`: {{}}; {NO_RESUME}: make all of it in `setup`, and let training switch it on "
    "(docs/recipes.md, A model that grows)"
)

# A shape, a dtype and strides.
_TensorForm = tuple[tuple[int, ...], torch.dtype, tuple[int, ...]]


@final
class ModuleForm:
    """The parameters and buffers of a module at set-up, so that a save detects changes of them.

    A buffer gets its saved form before its values are loaded. A change of parameters is reported.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        tensors = dict(_tensors(module))
        self._forms = {name: _form_of(tensor) for name, tensor in tensors.items()}
        self._parameters = {name: each for name, each in tensors.items() if isinstance(each, torch.nn.Parameter)}
        # Checked at every save, for 335 modules in 0.4 ms; walking through them takes 2 ms.
        self._held = [
            (held, tuple(held.values()), tuple(map(_form_of, held.values())))
            for inner in module.modules()
            for held in (inner._parameters, inner._buffers)
        ]
        self._modules = [(inner._modules, tuple(inner._modules.values())) for inner in module.modules()]
        self._graphs = [_graphs_of(held) for held, *_ in self._held]

    def _is_same(self) -> bool:
        if any(forms != tuple(map(_form_of, held.values())) for held, _, forms in self._held):
            return False
        held = itertools.chain(((held, made) for held, made, _ in self._held), self._modules)
        return all(len(now) == len(made) and all(map(operator.is_, now.values(), made)) for now, made in held)

    def changed(self, module: torch.nn.Module) -> dict[str, Any]:
        """Name -> shape, dtype and strides of buffers whose form has changed; None for an empty one."""
        if self._is_same():
            return {}
        buffers = {name: _form_of(owner._buffers[key]) for name, owner, key in _buffers(module)}
        return {
            name: None if form is None else [list(form[0]), form[1], list(form[2])]
            for name, form in buffers.items()
            if name not in self._forms or form != self._forms[name]
        }

    def lost(self, path: str, module: torch.nn.Module) -> list[str]:
        """A line for parameters that have changed, which a resume could not load, and one for buffers with graphs."""
        lines = self._lost_graphs(path, module)
        if self._is_same():
            return lines
        now = {name: each for name, each in _tensors(module) if isinstance(each, torch.nn.Parameter)}
        names = [
            name
            for name in {**self._parameters, **now}
            if self._parameters.get(name) is not now.get(name)
            or (self._forms[name] is not None and self._forms[name] != _form_of(now[name]))
        ]
        return lines + [_CHANGED.format(f"{path}: parameters", quoted(names))] * bool(names)

    def _lost_graphs(self, path: str, module: torch.nn.Module) -> list[str]:
        """A line for the first buffer that keeps a graph."""
        if all(_graphs_of(held) == made for (held, *_), made in zip(self._held, self._graphs, strict=True)):
            return []
        made = set(itertools.chain.from_iterable(self._graphs))
        kept = (
            f"{path}.{name} {KEEPS_GRAPH}"
            for name, tensor in _tensors(module)
            if tensor is not None and not tensor.is_leaf and tensor.grad_fn not in made and keeps_graph(tensor)
        )
        return list(itertools.islice(kept, 1))


def _graphs_of(held: Mapping[str, torch.Tensor | None]) -> list[Any]:
    return [tensor.grad_fn for tensor in held.values() if tensor is not None and not tensor.is_leaf]


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor | None]]:
    """Every place of a parameter or buffer, also an empty one."""
    for prefix, owner in plainly_named(module.named_modules()):
        for held in (owner._parameters, owner._buffers):
            for key, tensor in held.items():
                yield (f"{prefix}.{key}" if prefix else key), tensor


def _form_of(tensor: torch.Tensor | None) -> _TensorForm | None:
    if tensor is None or torch.nn.parameter.is_lazy(tensor):
        return None
    return tensor.shape, tensor.dtype, tensor.stride() if tensor.layout is torch.strided else ()


def reshape_module(module: torch.nn.Module, forms: Mapping[str, Any], persistent: Collection[str]) -> None:
    """Give buffers the form of a saved state, so that it can be loaded.

    Arguments:
        forms: from `ModuleForm.changed`.
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
        if key in owner._parameters:
            continue
        values = None if form is None else torch.empty_strided(form[0], form[2], dtype=form[1], device=device)
        if key in owner._buffers:
            owner._buffers[key] = values
        else:
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


def settle_lazy(module: torch.nn.Module) -> None:
    """Complete lazy modules whose parameters were loaded, as the first batch would."""
    for inner in module.modules():
        if isinstance(inner, LazyModuleMixin) and hasattr(inner, "_initialize_hook") and not is_lazy(inner):
            for name in ("_initialize_hook", "_load_hook"):
                getattr(inner, name).remove()
                delattr(inner, name)
            if inner.cls_to_become is not None:
                inner.__class__ = inner.cls_to_become


def capture_module(module: torch.nn.Module, made: ModuleForm | None = None) -> dict[str, Any]:
    """The state of a module that `state_dict` leaves out, except gradients.

    Arguments:
        made: its form at set-up. Default: the present form.
    """
    saved = weights_of(module, keep_vars=True)
    identities = {id(value) for value in saved.values()}
    parameters = dict(plainly_named(module.named_parameters()))
    forms = made.changed(module) if made is not None else {}
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
    """Restore what `capture_module` took.

    Raises:
        CheckpointError: the module no longer has such a buffer or parameter.
    """
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
            _put(*buffers[name], saved)
        for name, saved in state.get("parameters", {}).items():
            if name not in parameters or parameters[name].shape != saved.shape:
                raise CheckpointError(f"the model no longer has a parameter `{name}` of shape {tuple(saved.shape)}")
            parameters[name].copy_(saved)


def _buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, str]]:
    """Every place of a buffer, also an empty one: its name, the module it is in, and its name there."""
    for prefix, owner in plainly_named(module.named_modules()):
        for key in owner._buffers.keys():  # noqa: SIM118 - that of a scripted module is no mapping
            yield (f"{prefix}.{key}" if prefix else key), owner, key


def _put(owner: torch.nn.Module, key: str, saved: torch.Tensor | None) -> None:
    """Fill a buffer. It stays the same tensor, which others may hold, if the saved values fit into it."""
    now = owner._buffers[key]
    if (
        saved is None
        or now is None
        or (now.shape, now.dtype, now.stride()) != (saved.shape, saved.dtype, saved.stride())
    ):
        owner._buffers[key] = saved
    else:
        without_repeats(now).copy_(without_repeats(saved))


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
        made, now = self._groups, [group["params"] for group in optimizer.param_groups]
        if not (len(now) >= len(made) and all(map(is_identical, now, made))):
            return [_CHANGED.format(f"{path}: parameter groups", "others, or in another order")]
        # Unchanged parameters are not listed: an optimizer may have 150,000 of them.
        late = [each for group in now[len(made) :] for each in group if not (name_of(each) or id(each) in reported)]
        return [_CHANGED.format(f"{path}: parameter groups", "new parameters")] if late else []


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
    with torch.no_grad():
        for key, parameter in _loose_parameters(optimizer, owned):
            parameter.copy_(state["loose"][key]["value"])
            parameter.grad = state["loose"][key]["grad"]


def _loose_parameters(optimizer: Any, owned: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors updated by an optimizer that belong to no module, by their place in its groups."""
    for index, group in enumerate(optimizer.param_groups):
        for number, parameter in enumerate(group["params"]):
            if id(parameter) not in owned:
                yield f"{index}/{number}", parameter


@uncollected()
def load_optimizer(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Load an optimizer's state into its present objects: `load_state_dict` would replace them by copies.

    Groups, and tensors in them, may be held by others: two groups that share a learning rate still do after this. The
    dtypes are those saved: `load_state_dict` casts them to the parameters'.
    """
    if not _is_of_torch(state):
        _load_by_itself(optimizer, state)
        return
    held = _HeldGroups(optimizer)
    optimizer.load_state_dict(state)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    as_saved: dict[int, Any] = {}
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        if number in state["state"]:
            # Made by `setup`, their tensors may be parts of others; made by the first step, there are none yet.
            loaded_state, held_state = optimizer.state[parameter], held.states.get(parameter, {})
            for key, saved in state["state"][number].items():
                loaded_state[key] = _as_saved(saved, loaded_state.get(key), held_state.get(key), as_saved)
    held.take(*held.loaded())


def _load_by_itself(optimizer: Any, state: Mapping[str, Any]) -> None:
    """Load a state of a custom form, as of an optimizer that wraps another, whose groups it may replace too."""
    optimizers: list[Any] = [optimizer]
    held: list[_HeldGroups] = []
    for each in optimizers:  # which grows
        held.append(_HeldGroups(each))
        inner = [value for value in vars(each).values() if isinstance(value, torch.optim.Optimizer)]
        optimizers += [value for value in inner if not any(value is known for known in optimizers)]
    optimizer.load_state_dict(state)
    loaded = [each.loaded() for each in held]  # all of them, before shared groups are restored
    for each, (groups, states) in zip(held, loaded, strict=True):
        each.take(groups, states)


def _is_of_torch(state: Mapping[str, Any]) -> bool:
    """True for a state of the form made by `torch.optim.Optimizer.state_dict`."""
    groups = state.get("param_groups")
    is_list = isinstance(groups, list) and isinstance(state.get("state"), Mapping)
    return is_list and all(isinstance(group, Mapping) and "params" in group for group in groups or ())


@final
class _HeldGroups:
    """The present groups and states of an optimizer, into which values are loaded.

    Attributes:
        states: parameter -> its state before loading.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._groups, self.states = optimizer.param_groups, optimizer.state
        self._before = [dict(group) for group in self._groups]

    def loaded(self) -> tuple[list[dict[str, Any]], dict[Any, Any]]:
        """What the optimizer has now, by itself."""
        return [dict(group) for group in self._optimizer.param_groups], dict(self._optimizer.state)

    def take(self, groups: list[dict[str, Any]], states: dict[Any, Any]) -> None:
        """Give the optimizer its former groups and states again, with the loaded values."""
        optimizer = self._optimizer
        for group, before, loaded in zip(self._groups, self._before, groups, strict=True):
            now = {key: poured(before.get(key), value) for key, value in loaded.items()}
            group.clear()
            group.update(now)
        optimizer.param_groups = self._groups
        if type(self.states) is type(optimizer.state) and self.states is not optimizer.state:
            self.states.clear()
            self.states.update(states)
            optimizer.state = self.states


def poured(held: Any, loaded: Any) -> Any:
    """The loaded value, in the tensor or container that was there before, which others may hold."""
    kind = type(held)
    if held is loaded or (kind is not type(loaded) and not isinstance(held, torch.Tensor)):
        return loaded
    match category_of(kind):
        case "tensor" if isinstance(loaded, torch.Tensor):
            if (held.shape, held.dtype, held.device) != (loaded.shape, loaded.dtype, loaded.device):
                return loaded
            with torch.no_grad():
                return held.copy_(loaded)
        case "list" | "deque":
            befores = held if len(held) == len(loaded) else itertools.repeat(None)
            KINDS["list"].put(
                held, [poured(before, part) for before, part in zip(befores, [*loaded], strict=False)], ()
            )
        case "mapping":
            KINDS["mapping"].put(held, {key: poured(held.get(key), part) for key, part in loaded.items()}, ())
        case "set" if not isinstance(held, frozenset):
            KINDS["set"].put(held, tuple(loaded), ())
        case _:
            return loaded
    return held


def _as_saved(saved: Any, loaded: Any, held: Any, met: dict[int, Any]) -> Any:
    """The saved value, with tensors on the device where loading put them, or in the one that is held; each once."""
    if id(saved) in met:
        return met[id(saved)]
    if isinstance(saved, torch.Tensor) and isinstance(loaded, torch.Tensor):
        met[id(saved)] = poured(held, saved.to(loaded.device))
    elif isinstance(saved, list) and isinstance(loaded, list | tuple) and len(saved) == len(loaded):
        parts = met[id(saved)] = list[Any]()
        parts += [_as_saved(part, other, None, met) for part, other in zip(saved, loaded, strict=True)]
    return met.get(id(saved), saved)
