"""Everything a continuation depends on, as one tree: captured for a checkpoint or a digest, and put back.

Sections: `resources` (each one's `state_dict`), `modules` and `optimizers` (what that leaves out), `gradients`,
`random`, `progress` (by node path), `slots` (those alive), `metrics` (running means).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from graphtrain.data.samplers import generators_of
from graphtrain.errors import CheckpointError
from graphtrain.metrics.recorder import Recorder
from graphtrain.program.bind import BoundNode, Program
from graphtrain.state.modules import (
    capture_gradients,
    capture_module,
    capture_optimizer,
    load_optimizer,
    restore_gradients,
    restore_module,
    restore_optimizer,
)
from graphtrain.state.random import capture_random, restore_random

Tree = dict[str, dict[str, Any]]


class State:
    """The state of a bound program.

    Arguments:
        resources: what the user supplied, by name.
    """

    def __init__(self, program: Program, resources: Mapping[str, Any], recorder: Recorder) -> None:
        self._program = program
        self._recorder = recorder
        self._resources = dict(resources)
        self._modules = {name: one for name, one in resources.items() if isinstance(one, torch.nn.Module)}
        self._optimizers = {name: one for name, one in resources.items() if isinstance(one, torch.optim.Optimizer)}
        self.stateful = {name: one for name, one in resources.items() if _keeps_state(one)}
        self._generators = {
            f"{name}/{number}": generator
            for name, one in resources.items()
            if not isinstance(one, torch.nn.Module | torch.optim.Optimizer)
            for number, generator in enumerate(generators_of(one))
        }

    def trained_in_evaluation_mode(self) -> list[str]:
        """The modules that an optimizer trains and that are in evaluation mode as a whole, as pretrained ones come."""
        trained = {
            id(parameter)
            for optimizer in self._optimizers.values()
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        return [
            name
            for name, module in self._modules.items()
            if not module.training and any(id(parameter) in trained for parameter in module.parameters())
        ]

    # ---- capture

    def capture(self, alive: set[int]) -> Tree:
        """The whole tree, sharing its tensors with the run; `alive` are the slots that will be read."""
        return {
            "resources": {name: one.state_dict() for name, one in self.stateful.items()},
            "modules": {name: capture_module(one) for name, one in self._modules.items()},
            "gradients": {name: capture_gradients(one) for name, one in self._modules.items()},
            "optimizers": {name: capture_optimizer(one, self._owned()) for name, one in self._optimizers.items()},
            "progress": {bound.path: _progress(bound) for bound in self._program.nodes if not bound.bypassed},
            "slots": {self._program.slot_names[index]: self._program.slots[index] for index in sorted(alive)},
            "metrics": self._recorder.state_dict(),
            "random": self.capture_generators(),
        }

    def capture_generators(self) -> dict[str, Any]:
        """The states of the global random generators, and of those that resources hold."""
        return {
            **capture_random(),
            "generators": {name: one.get_state() for name, one in self._generators.items()},
        }

    def _owned(self) -> set[int]:
        """The identities of all parameters that some module owns."""
        return {id(parameter) for module in self._modules.values() for parameter in module.parameters()}

    def essential(self, tree: Tree) -> Tree:
        """What the continuation depends on: no clocks, no observers, no `runs` that nothing reads."""
        read = self._program.plan.fields_read
        progress = {}
        for bound in self._program.nodes:
            if bound.bypassed or bound.kind.observer:
                continue
            saved = tree["progress"][bound.path]
            kept = {
                name: value
                for name, value in saved.items()
                if name not in bound.kind.fields
                or (bound.kind.fields[name].in_digest and (name != "runs" or (bound.path, "runs") in read))
            }
            if "fired" in kept:
                timed = self._units_of_time(bound)
                kept["fired"] = {unit: value for unit, value in kept["fired"].items() if unit not in timed}
            progress[bound.path] = kept
        return {**tree, "progress": progress}

    def _units_of_time(self, bound: BoundNode) -> set[str]:
        """The units of a node's clock whose field is outside the digest, such as seconds."""
        found = set()
        for unit, text in bound.scope.graph.units.items():
            owner, _, name = text.partition(".")
            declared = bound.scope.nodes[owner].kind.fields.get(name)
            if declared is not None and not declared.in_digest:
                found.add(unit)
        return found

    # ---- restore: first what nodes are set up from, then, after their iterators exist, the random generators

    def restore_objects(self, tree: Mapping[str, Mapping[str, Any]], anew: Collection[str] = ()) -> None:
        """Put the state of resources, modules and gradients back, into the same objects.

        Arguments:
            anew: resources that stay as they were set up now, or that are not supplied any more. Default: none.

        Raises:
            CheckpointError: a resource has changed its shape, or is missing.
        """
        saved = tree["resources"]
        for name in sorted(set(saved) - set(self.stateful) - set(anew)):
            raise CheckpointError(f"the checkpoint has the state of `{name}`, which was not supplied now")
        for name, one in sorted(self.stateful.items(), key=lambda item: item[0] not in self._modules):
            if name in anew:
                continue
            if name not in saved:
                raise CheckpointError(f"the checkpoint has no state of `{name}`, which is new")
            try:
                if name in self._optimizers:
                    load_optimizer(one, saved[name])
                else:
                    one.load_state_dict(saved[name])
            except (RuntimeError, ValueError, KeyError, TypeError) as error:
                reason = str(error).strip().replace("\n\t", "\n    ")
                hint = ""
                if name in self._optimizers and len(saved[name].get("param_groups", ())) > len(one.param_groups):
                    hint = "a group that was added while it trained is not there when it is set up: make it there"
                raise CheckpointError(f"the state of `{name}` does not fit any more: {reason}", hint) from None
        for name, module in self._modules.items():
            if name not in anew:
                restore_module(module, tree["modules"][name])
                restore_gradients(module, tree["gradients"][name])
        for name, optimizer in self._optimizers.items():
            if name not in anew:
                restore_optimizer(optimizer, tree["optimizers"][name], self._owned())

    def restore_progress(self, tree: Mapping[str, Mapping[str, Any]], replaced: Collection[str] = ()) -> list[str]:
        """Put the progress of nodes, the slots and the means back; what the graph has no place for is left out.

        Arguments:
            replaced: the paths of nodes that are of another kind now: a field of theirs is taken only where its value
                is of the same type. Default: none.

        Returns:
            What of the progress did not fit the kinds, in words.
        """
        misfits = []
        for bound in self._program.nodes:
            saved = tree["progress"].get(bound.path)
            if saved is None or bound.bypassed:
                continue
            stored = [name for name, declared in bound.kind.fields.items() if declared.stored]
            own = ["state"] if bound.kind.keeps_state else []
            taken = [name for name in stored if name in saved]
            if bound.path in replaced:
                taken = [name for name in taken if _alike(getattr(bound.instance, name), saved[name])]
            for name in taken:
                setattr(bound.instance, name, saved[name])
            if own and "state" in saved and bound.path not in replaced:
                bound.instance.load_state_dict(saved["state"])
                taken.append("state")
            misfits += [f"{bound.path}.{name} left out" for name in sorted(set(saved) - set(taken))]
            misfits += [
                f"{bound.path}.{name} new" for name in [*stored, *own] if name not in taken and name not in saved
            ]
        for name, value in tree["slots"].items():
            if name in self._program.slot_names:
                self._program.slots[self._program.slot_index(name)] = value
        self._recorder.load_state_dict(tree["metrics"])
        return misfits

    def restore_generators(self, tree: Mapping[str, Mapping[str, Any]]) -> None:
        """Put every random generator back. Last: `iter(DataLoader)` draws from them."""
        restore_random(dict(tree["random"]))
        for name, saved in tree["random"]["generators"].items():
            if name in self._generators:
                self._generators[name].set_state(saved)


def _alike(value: Any, saved: Any) -> bool:
    """True if a saved value may be one of a field that holds `value` now."""
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (value, saved))
    return value is None or numbers or type(value) is type(saved)


def _keeps_state(value: Any) -> bool:
    """True for objects whose state is saved with the run. Data is not among them: its position is replayed."""
    both = callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))
    return both and (isinstance(value, torch.nn.Module) or not hasattr(value, "__iter__"))


def _progress(bound: BoundNode) -> dict[str, Any]:
    bound.check_fields()
    saved = {name: getattr(bound.instance, name) for name, one in bound.kind.fields.items() if one.stored}
    if bound.kind.keeps_state:
        saved["state"] = bound.instance.state_dict()
    return saved
