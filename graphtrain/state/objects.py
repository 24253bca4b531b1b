"""The objects of a run that have a `state_dict`, such as models and optimizers; and loading a state into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, final

import torch

from graphtrain.names import plainly_named
from graphtrain.state.classes import is_users
from graphtrain.state.modules import ModuleStructure, is_lazy
from graphtrain.state.optimizers import ParameterGroups, copied_into, load_optimizer
from graphtrain.state.reachable import saved_by_state_dict, state_of
from graphtrain.state.weights import load_weights

MISFITS = (RuntimeError, ValueError, KeyError, TypeError)
"""The exceptions of loading a state that does not fit."""


@final
class SavedObjects:
    """Objects with a `state_dict`.

    Arguments:
        stateful: path -> object.
        former: those of the run so far, from which the structure at set-up is taken. Default: it is the present one.

    Attributes:
        modules, optimizers: the modules and optimizers among them, by path.
        structures, groups: the parameters and buffers of modules, and the parameter groups of optimizers, at set-up.
    """

    def __init__(self, stateful: Mapping[str, Any], former: SavedObjects | None = None) -> None:
        self.stateful = dict(stateful)
        self.modules = {name: each for name, each in stateful.items() if isinstance(each, torch.nn.Module)}
        self.optimizers = {name: each for name, each in stateful.items() if isinstance(each, torch.optim.Optimizer)}
        self.structures = {name: ModuleStructure(module) for name, module in self.modules.items()}
        self.groups = {name: ParameterGroups(optimizer) for name, optimizer in self.optimizers.items()}
        if former is not None:
            kept = {name for name, value in former.stateful.items() if self.stateful.get(name) is value}
            self.structures |= {name: structure for name, structure in former.structures.items() if name in kept}
            self.groups |= {name: groups for name, groups in former.groups.items() if name in kept}

    def lost(self) -> list[str]:
        """A notice about each change of modules, or else of optimizers, that a resume could not load."""
        of_modules = [line for name, each in self.structures.items() for line in each.lost(name, self.modules[name])]
        return of_modules or [
            line for name, each in self.groups.items() for line in each.lost(name, self.optimizers[name])
        ]

    def is_lazy(self) -> bool:
        """True as long as a module waits for its first batch to create its parameters."""
        return any(map(is_lazy, self.modules.values()))

    def weights(self) -> dict[str, set[str]]:
        """The names of the parameters of each module."""
        return {name: {*dict(plainly_named(module.named_parameters()))} for name, module in self.modules.items()}

    def parameters(self) -> Iterator[tuple[str, str, torch.nn.Parameter]]:
        """Every parameter of a module: the path of the module, the name in it, and the parameter."""
        for path, module in self.modules.items():
            for name, parameter in plainly_named(module.named_parameters()):
                yield path, name, parameter

    def trained_in_evaluation_mode(self) -> list[str]:
        """The paths of the trained modules that are in evaluation mode, as pretrained ones often are."""
        groups = [group for optimizer in self.optimizers.values() for group in optimizer.param_groups]
        trained = {id(parameter) for group in groups for parameter in group["params"]}
        return [
            name
            for name, module in self.modules.items()
            if not module.training and any(id(parameter) in trained for parameter in module.parameters())
        ]

    def load(self, path: str, state: Any, *, strict: bool = True) -> None:
        """Load a `state_dict` into an object; with `strict=False`, that of a module may be incomplete.

        Raises:
            one of `MISFITS`: it does not fit the object.
        """
        value = self.stateful[path]
        if path in self.modules:
            load_weights(value, state, strict=strict)
            return
        if path in self.optimizers:
            load_optimizer(value, state)
            return
        # Other objects may refer to what an object of the user saves; torch's share parts among themselves.
        is_own = is_users(type(value).__module__)
        parts = {name: getattr(value, name) for name in (saved_by_state_dict(value, state_of(value)) if is_own else ())}
        value.load_state_dict(state)
        for name, part in parts.items():
            if (loaded := getattr(value, name, part)) is not part and copied_into(part, loaded) is part:
                setattr(value, name, part)
