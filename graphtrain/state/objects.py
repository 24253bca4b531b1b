"""Objects with a `state_dict`, such as models and optimizers: capturing and restoring their state.

In addition to each `state_dict`, a checkpoint has three sections: `modules`, `gradients` and `optimizers`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, final

import torch

from graphtrain.names import plainly_named
from graphtrain.state.kinds import is_users
from graphtrain.state.modules import (
    ModuleForm,
    capture_module,
    copies_state,
    is_lazy,
    reshape_buffers,
    restore_module,
)
from graphtrain.state.optimizers import (
    NameOf,
    OptimizerForm,
    capture_optimizer,
    copied_into,
    load_optimizer,
    put_gradient,
    restore_optimizer,
)
from graphtrain.state.reachable import held_by_state, state_of
from graphtrain.state.weights import load_weights

Section = Mapping[str, Any]

MISFITS = (RuntimeError, ValueError, KeyError, TypeError)
"""The exceptions of loading a state that does not fit."""


@final
class SavedObjects:
    """Objects with a `state_dict`, by path.

    Attributes:
        stateful: all of them.
        modules, optimizers: the modules and optimizers among them.
        groups: the groups that optimizers were set up with; none before `note_forms`.
    """

    def __init__(self, stateful: Mapping[str, Any]) -> None:
        self.stateful: dict[str, Any] = {}
        self.modules: dict[str, torch.nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self._forms: dict[str, ModuleForm] = {}
        self.groups: dict[str, OptimizerForm] = {}
        for path, value in stateful.items():
            self.add(path, value)

    def add(self, path: str, value: Any) -> None:
        """Add an object to those that are saved."""
        self.stateful[path] = value
        if isinstance(value, torch.nn.Module):
            self.modules[path] = value
        elif isinstance(value, torch.optim.Optimizer):
            self.optimizers[path] = value

    def drop(self, path: str) -> None:
        """Remove an object from those that are saved."""
        for objects in (self.stateful, self.modules, self.optimizers):
            objects.pop(path, None)

    def note_forms(self, former: SavedObjects | None = None) -> None:
        """Note their form at set-up.

        Arguments:
            former: those of the run so far, whose forms are kept. Default: all forms are noted now.
        """
        self._forms = {name: ModuleForm(module) for name, module in self.modules.items()}
        self.groups = {name: OptimizerForm(optimizer) for name, optimizer in self.optimizers.items()}
        if former is not None:
            kept = {name for name, value in former.stateful.items() if self.stateful.get(name) is value}
            self._forms |= {name: form for name, form in former._forms.items() if name in kept}
            self.groups |= {name: groups for name, groups in former.groups.items() if name in kept}

    def lost(self, name_of: NameOf = lambda parameter: "") -> list[str]:
        """A line for each change of modules and optimizers that a resume could not load.

        Arguments:
            name_of: returns the path at which a parameter can be found. Default: none can.
        """
        lines = [line for name, form in self._forms.items() for line in form.lost(name, self.modules[name])]
        reported = self.owned() if lines else ()
        for name, groups in self.groups.items():
            lines += groups.lost(name, self.optimizers[name], name_of, reported)
        return lines

    def is_lazy(self) -> bool:
        """True as long as a module waits for its first batch to make its parameters."""
        return any(map(is_lazy, self.modules.values()))

    def copying(self) -> set[str]:
        """The names of the modules that copy the tensors of a state that is loaded."""
        return {name for name, module in self.modules.items() if copies_state(module)}

    def weights(self) -> dict[str, set[str]]:
        """The names of the parameters of each module."""
        return {name: {*dict(plainly_named(module.named_parameters()))} for name, module in self.modules.items()}

    def trained_in_evaluation_mode(self) -> list[str]:
        """The trained modules that are in evaluation mode as a whole, as pretrained ones are."""
        groups = [group for optimizer in self.optimizers.values() for group in optimizer.param_groups]
        trained = {id(parameter) for group in groups for parameter in group["params"]}
        return [
            name
            for name, module in self.modules.items()
            if not module.training and any(id(parameter) in trained for parameter in module.parameters())
        ]

    def owned(self) -> set[int]:
        """The identities of all parameters that some module owns."""
        return {id(parameter) for module in self.modules.values() for parameter in module.parameters()}

    # ---- what `state_dict` leaves out, captured and restored; `but` are the paths of those that stay as they are

    def capture_modules(self) -> dict[str, Any]:
        """Modes, frozen flags, and buffers that are not persistent."""
        return {name: capture_module(module, self._forms.get(name)) for name, module in self.modules.items()}

    def restore_modules(self, saved: Section, but: Collection[str] = ()) -> None:
        """Restore what `capture_modules` took."""
        for name in (self.modules.keys() & saved.keys()).difference(but):
            restore_module(self.modules[name], saved[name])

    def capture_gradients(self) -> dict[str, Any]:
        """Every gradient, by module and parameter."""
        return {
            name: {key: each.grad for key, each in plainly_named(module.named_parameters()) if each.grad is not None}
            for name, module in self.modules.items()
        }

    def restore_gradients(self, saved: Section, but: Collection[str] = ()) -> None:
        """Restore gradients; parameters without a saved one have none."""
        for parameter, gradient in self._with_gradients({name: saved[name] for name in saved if name not in but}):
            put_gradient(parameter, gradient)

    def separate_gradients(self, saved: Section) -> None:
        """Give a parameter a gradient of its own if a buffer of all gradients, of which it is a part, holds another.

        After `zero_grad`, which sets gradients to None, the next ones are no longer parts of that buffer.
        """
        for parameter, gradient in self._with_gradients(saved):
            present = parameter.grad
            if gradient is None or type(present) is not torch.Tensor or present.layout is not torch.strided:
                continue
            if not torch.allclose(present, gradient.to(present.device), rtol=0, atol=0, equal_nan=True):
                parameter.grad = gradient.to(parameter.device)

    def _with_gradients(self, saved: Section) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor | None]]:
        for name in self.modules.keys() & saved.keys():
            for key, parameter in plainly_named(self.modules[name].named_parameters()):
                yield parameter, saved[name].get(key)

    def capture_optimizers(self, owned: set[int]) -> dict[str, Any]:
        """Whether optimizers have stepped, and their parameters that are not `owned`, by identity, by a module."""
        return {name: capture_optimizer(optimizer, owned) for name, optimizer in self.optimizers.items()}

    def restore_optimizers(self, saved: Section, owned: set[int], but: Collection[str] = ()) -> None:
        """Restore what `capture_optimizers` took."""
        for name in (self.optimizers.keys() & saved.keys()).difference(but):
            restore_optimizer(self.optimizers[name], saved[name], owned)

    # ---- loading

    def reshape(self, modules: Section, states: Section, but: Collection[str] = ()) -> None:
        """Give modules their saved form; loading fills them."""
        for name, module in self.modules.items():
            if name not in but and (forms := modules.get(name, {}).get("forms")):
                reshape_buffers(module, forms, states.get(name, ()))

    def load(self, path: str, state: Any, *, strict: bool = True) -> None:
        """Load a `state_dict`; with `strict=False`, that of a module may be a part of it.

        Raises:
            one of `MISFITS`: it does not fit.
        """
        value = self.stateful[path]
        if path in self.modules:
            load_weights(value, state, strict=strict)
            return
        if path in self.optimizers:
            load_optimizer(value, state)
            return
        # Others may hold what the state of an object of the user has; those of torch share parts among themselves.
        is_own = is_users(type(value).__module__)
        parts = {name: getattr(value, name) for name in (held_by_state(value, state_of(value)) if is_own else ())}
        value.load_state_dict(state)
        for name, part in parts.items():
            if (loaded := getattr(value, name, part)) is not part and copied_into(part, loaded) is part:
                setattr(value, name, part)
