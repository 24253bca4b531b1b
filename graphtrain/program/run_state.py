"""The state of a run, in named sections.

Each section has two functions, next to each other below, that capture and restore it. To add a section, add such a pair
and its name to `SECTIONS`: checkpoint, digest, resume and verification then have it. docs/architecture.md says where
state is listed that is not in the digest, not compared, or different on each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy
import torch

from graphtrain.errors import CheckpointError
from graphtrain.names import quoted
from graphtrain.program.stateful_objects import StatefulObjects
from graphtrain.state.changes import NO_CHANGES, OTHER_SUBMODULES, changes_since, restore_changes
from graphtrain.state.codec import StateReader, parts_in
from graphtrain.state.generators import capture_random, restore_random
from graphtrain.state.modules import capture_module, fit_buffers, restore_module
from graphtrain.state.objects import MISFITS
from graphtrain.state.optimizers import kept_groups, put_gradient
from graphtrain.state.reachable import is_within
from graphtrain.state.weights import weights_of
from graphtrain.storage.state_files import state_digest
from graphtrain.storage.strides import DEVICES

Section = Mapping[str, Any]
RunState = Mapping[str, Section]
"""The state of a run at a position: section -> name -> state."""


class Exemptions(NamedTuple):
    """State that is not restored as it was saved.

    Attributes:
        from_setup: resources that keep their state from set-up, or are no longer supplied.
        replaced: paths of nodes whose kind has changed; their fields are restored only with values of the same type.
    """

    from_setup: Collection[str] = ()
    replaced: Collection[str] = ()


EVERYTHING = Exemptions()


class Handler(NamedTuple):
    """The functions of a section: `capture` shares tensors with the run, `restore` restores the same objects."""

    capture: Callable[[StatefulObjects, set[str]], Section]
    restore: Callable[[StatefulObjects, Section, Exemptions], Iterator[str] | None]


# ---- one pair for each section


def _capture_optimizers(run: StatefulObjects, alive: set[str]) -> Section:
    return {
        name: {
            # Without it, a scheduler in a new process warns that it is stepped before the optimizer.
            "stepped": bool(getattr(optimizer, "_opt_called", False)),
            "parameters": run.objects.groups[name].paths(optimizer, run.paths),
            "added": len(optimizer.param_groups) - len(run.objects.groups[name].set_up),
        }
        for name, optimizer in run.objects.optimizers.items()
    }


def _restore_optimizers(run: StatefulObjects, saved: Section, exempt: Exemptions) -> None:
    listed = run.snapshot.reachable.by_path if run.snapshot is not None else {}
    for name in (run.objects.optimizers.keys() & saved.keys()).difference(exempt.from_setup):
        optimizer: Any = run.objects.optimizers[name]
        before = saved[name]["parameters"]
        for paths in before[max(len(optimizer.param_groups), len(before) - saved[name]["added"]) :]:
            added = [listed[path].value for path in paths.split("\n") if path in listed]
            if len(added) == paths.count("\n") + 1:
                optimizer.add_param_group({"params": added})  # loading fills it
        if before != (now := run.objects.groups[name].paths(optimizer, run.paths)):
            former, present = ({*"\n".join(groups).split("\n")} for groups in (before, now))
            gone, new = (quoted(sorted(each)) for each in (former - present, present - former))
            differences = [f"no longer {gone}"] * bool(gone) + [f"now {new}"] * bool(new)
            raise CheckpointError(
                f"`{name}` does not have the parameters of the saved run: "
                f"{' and '.join(differences) or 'other groups, or another order'}",
                "give it the same parameters in `setup`, with the same `requires_grad`; or begin another run with "
                "these weights: --init NAME=RUN/newest --run-dir OTHER",
            )
        if saved[name]["stepped"] or hasattr(optimizer, "_opt_called"):
            optimizer._opt_called = saved[name]["stepped"]


def _capture_resources(run: StatefulObjects, alive: set[str]) -> Section:
    run.states = {name: _state_of(name, resource) for name, resource in run.objects.stateful.items()}
    return run.states


def _state_of(name: str, resource: Any) -> Any:
    try:
        return weights_of(resource) if isinstance(resource, torch.nn.Module) else resource.state_dict()
    except Exception as error:
        raise CheckpointError(f"`{name}` cannot be saved: its state_dict raised {error!r}") from error


def _restore_resources(run: StatefulObjects, saved: Section, exempt: Exemptions) -> Iterator[str]:
    stateful, modules = run.objects.stateful, run.objects.modules
    for name in sorted(saved.keys() - stateful.keys() - {*exempt.from_setup}):
        if not is_within(name, run.left_out):
            raise CheckpointError(f"the checkpoint has state of `{name}`, which is not supplied")
    with kept_groups(run.objects.optimizers.values()):
        # Modules first: an optimizer casts what it loads to the dtype and the device of its parameters.
        for name in sorted(stateful.keys() & saved.keys() - {*exempt.from_setup}, key=lambda name: name not in modules):
            try:
                run.objects.load(name, saved[name])
            except MISFITS as error:
                reason = str(error).strip().replace("\n\t", "\n    ")
                hint = "create it as in the saved run; or begin another run, with another --run-dir"
                raise CheckpointError(f"the state of `{name}` no longer fits: {reason}", hint) from None
    new = stateful.keys() - saved.keys() - {*exempt.from_setup}
    for name in (*filter(new.__contains__, run.copies), *sorted(new - run.copies.keys())):
        if (source := run.copies.get(name)) is not None:  # no node copied it when the checkpoint was written
            run.objects.load(name, _state_of(source, stateful[source]))
            yield f"{name} new, a copy of {source}"
        elif name in run.resources:
            raise CheckpointError(f"the checkpoint has no state of `{name}`, which is supplied now")
        else:  # it is new inside something that was supplied
            yield f"{name} new, as set up"


def _capture_modules(run: StatefulObjects, alive: set[str]) -> Section:
    return {name: capture_module(module, run.objects.structures[name]) for name, module in run.objects.modules.items()}


def _restore_modules(run: StatefulObjects, saved: Section, exempt: Exemptions) -> None:
    for name in (run.objects.modules.keys() & saved.keys()).difference(exempt.from_setup):
        restore_module(run.objects.modules[name], saved[name])


def _capture_gradients(run: StatefulObjects, alive: set[str]) -> Section:
    captured: dict[str, dict[str, torch.Tensor]] = {name: {} for name in run.objects.modules}
    for path, name, parameter in run.objects.parameters():
        if parameter.grad is not None:
            captured[path][name] = parameter.grad
    return captured


def _restore_gradients(run: StatefulObjects, saved: Section, exempt: Exemptions) -> None:
    for path, name, parameter in run.objects.parameters():
        if path in saved and path not in exempt.from_setup:
            put_gradient(parameter, saved[path].get(name))


def _capture_progress(run: StatefulObjects, alive: set[str]) -> Section:
    captured: dict[str, dict[str, Any]] = {}
    for node in run.program.nodes:
        if node.bypassed:
            continue
        node.check_fields()
        # First, as `state_dict` of a node may update its fields.
        state = {"state": dict(node.instance.state_dict())} if node.kind.keeps_state else {}
        if node.kind.fetches and "ahead" in state.get("state", ()):
            # The rest is the position of the data, which saves it.
            state["state"]["ahead"] = run.encoded(state["state"]["ahead"], f"{node.path}.state.ahead")
        fields = {}
        for name, declared in node.kind.fields.items():
            if declared.stored:
                fields[name] = getattr(node.instance, name)
                # Its value may refer to objects of others, except in the fields of the engine.
                if declared.in_digest and not declared.with_gradients and name not in ("fired", "source_state"):
                    fields[name] = run.encoded(fields[name], f"{node.path}.{name}")
        captured[node.path] = {**fields, **state}
    return captured


def _restore_progress(run: StatefulObjects, saved: Section, exempt: Exemptions) -> Iterator[str]:
    for node in run.program.nodes:
        if node.path not in saved or node.bypassed:
            continue
        values, is_replaced, fields = saved[node.path], node.path in exempt.replaced, node.kind.fields
        stored = [name for name, declared in fields.items() if declared.stored]
        restored = [name for name in stored if name in values]
        if is_replaced:
            types = {name: type(getattr(node.instance, name)) for name in restored}
            restored = [name for name in restored if types[name] is type(run.decoded(values[name]))]
        for name in restored:
            setattr(node.instance, name, run.decoded(values[name]))
        if node.kind.keeps_state:
            stored = [*stored, "state"]
            if "state" in values and not is_replaced:
                node.instance.load_state_dict({name: run.decoded(value) for name, value in values["state"].items()})
                node.check_fields()
                restored.append("state")
        yield from (f"{node.path}.{name} left out" for name in sorted(set(values) - set(restored)))
        # Nothing depends on new fields of observers, or on fields outside the digest.
        if not node.kind.observer:
            essential = [name for name in stored if name not in fields or fields[name].in_digest]
            yield from (f"{node.path}.{name} new" for name in essential if name not in restored and name not in values)


def _capture_slots(run: StatefulObjects, alive: set[str]) -> Section:
    slots = run.program.slots
    return {path: run.encoded(slots[path], f"slots[{path!r}]") for path in slots if path in alive}


def _restore_slots(run: StatefulObjects, saved: Section, exempt: Exemptions) -> None:
    for name, value in saved.items():
        if name in run.program.slots:
            run.program.slots[name] = run.decoded(value)


def _capture_reachable(run: StatefulObjects, alive: set[str]) -> Section:
    changed = changes_since(run.snapshot, states=run.states) if run.snapshot is not None else NO_CHANGES
    objects = run.objects
    run.writer, run.changed = changed.writer, frozenset(changed.section)
    if run.writer is not None:
        stateful = sorted(run.states.keys() - {*objects.modules, *objects.optimizers})
        parts = [each for name in stateful for each in parts_in(run.states[name], f"{name}.state_dict()")]
        run.writer.begin_transit({path: part for path, part in parts if isinstance(part, torch.Tensor | numpy.ndarray)})
    run.states = {}
    lost, device = run.objects.lost(), torch.device(run.program.resources.get("device", "cpu")).type
    run.unknown = [
        *lost,
        *[
            f"{path} has changed since `rewire` supplied it, and is in no `state_dict`"
            for snapshot in run.supplied_later
            for path in changes_since(snapshot).section
            if not path.endswith(":")  # the globals of a module
        ],
        # A module that lost or gained parts is reported once, by its parameters.
        *[line for line in changed.unknown if not (lost and OTHER_SUBMODULES in line)],
        *[
            f"the random generator of the device {device} is not saved: draw random numbers on the CPU"
            for _ in {device} - {"cpu", *DEVICES}
        ],
    ]
    return changed.section


def _restore_reachable(run: StatefulObjects, saved: Section, exempt: Exemptions) -> None:
    if run.snapshot is not None:
        restore_changes(run.snapshot, saved, reader=run.reader)
    run.reader = None


# ---- the sections


SECTIONS: dict[str, Handler] = {
    # The paths of the parameters of each optimizer, and what its `state_dict` does not have.
    "optimizers": Handler(_capture_optimizers, _restore_optimizers),
    # The `state_dict` of each, by name.
    "resources": Handler(_capture_resources, _restore_resources),
    # State of modules that it does not have: modes, `requires_grad`, buffers that are not persistent.
    "modules": Handler(_capture_modules, _restore_modules),
    # By module and parameter.
    "gradients": Handler(_capture_gradients, _restore_gradients),
    # The fields of each node, by path.
    "progress": Handler(_capture_progress, _restore_progress),
    # The values of slots that are alive.
    "slots": Handler(_capture_slots, _restore_slots),
    # Running means; the rows are in a file of their own.
    "metrics": Handler(
        lambda run, alive: run.recorder.state_dict(), lambda run, saved, exempt: run.recorder.load_state_dict(saved)
    ),
    # The changes since set-up of all other reachable state, with its random generators.
    "reachable": Handler(_capture_reachable, _restore_reachable),
    # The global generators of the process.
    "random": Handler(lambda run, alive: capture_random(), lambda run, saved, exempt: restore_random(saved)),
}
"""The sections of a `RunState`.

Their order is that of the file and the digest, so it is part of the format. It is also the order of restoring: a
parameter before its gradient and its optimizer, progress and slots before nodes are set up, and random generators after
that, because `iter(DataLoader)` draws from them.
"""
# The sections that `rewire` carries over; resources and means stay the same objects.
OF_NODES = ("progress", "slots", "random")
# Not in the digest of a run that records rows by wall-clock time.
OF_TIMED_ROWS = ("metrics",)
# Restored once nodes are set up, which runs code of the data and draws random numbers.
AFTER_SETUP = ("reachable", "random")


# ---- the whole state


def capture(run: StatefulObjects, alive: set[str], sections: Collection[str] = tuple(SECTIONS)) -> RunState:
    """The present state, sharing tensors with the run. `alive`: the slots that will be read."""
    run.writer = None
    needed = {*sections, "reachable"} if "resources" in sections else {*sections}
    # First, the objects to which other values refer.
    order = dict.fromkeys(("optimizers", "resources", "reachable", *SECTIONS))
    captured = {name: SECTIONS[name].capture(run, alive) for name in order if name in needed}
    if run.writer is not None:
        run.unknown = list(dict.fromkeys([*run.unknown, *run.writer.lost]))
    return {name: captured[name] for name in SECTIONS if name in captured}


def essential(run: StatefulObjects, state: RunState) -> dict[str, Section]:
    """The state on which the continuation depends: what a digest covers, and `verify` compares."""
    # Observers that record rows by wall-clock time do so at other moments in every replay.
    recording = [node for node in run.program.timed_nodes if node.kind.observer and node.kind.may_record_rows]
    kept: dict[str, Section] = {**state, **{name: {} for name in OF_TIMED_ROWS if recording}}
    if "progress" not in state:
        return kept
    progress: dict[str, dict[str, Any]] = {}  # no clocks, no observers, no `runs` that nothing reads
    for node in run.program.nodes:
        if node.bypassed or node.kind.observer:
            continue
        outside = {name for name, field in node.kind.fields.items() if not field.in_digest}
        trigger, clocks = node.plan_node.trigger, run.program.clocks[node.scope]
        # With "once" in its trigger, `runs` decides whether it is due.
        if (node.path, "runs") not in run.program.plan.fields_read and not (trigger is not None and trigger.once):
            outside.add("runs")
        values = {name: value for name, value in state["progress"][node.path].items() if name not in outside}
        if "fired" in values:  # not of units whose field is outside the digest, such as seconds
            timed = {unit for unit, clock in clocks.items() if not clock.declared.in_digest}
            values["fired"] = {unit: value for unit, value in values["fired"].items() if unit not in timed}
        progress[node.path] = values
    return {**kept, "progress": progress}


def digest(run: StatefulObjects, state: RunState, sections: Collection[str] = tuple(SECTIONS)) -> str:
    """A digest of these sections, as far as the continuation depends on them."""
    return state_digest({name: section for name, section in essential(run, state).items() if name in sections})


def restore(
    run: StatefulObjects, state: RunState, sections: Collection[str], exempt: Exemptions = EVERYTHING
) -> list[str]:
    """Restore some sections.

    Returns:
        Lines about saved state that does not fit, or that is new.

    Raises:
        CheckpointError: a resource has another shape, is missing, or is new.
    """
    if "resources" in sections:
        if run.snapshot is not None:
            run.reader = StateReader(run.snapshot, {name: state[name] for name in ("reachable", "progress", "slots")})
        for name in run.objects.modules.keys() & state["modules"].keys():
            if name not in exempt.from_setup:
                fit_buffers(run.objects.modules[name], state["modules"][name]["buffers"])
    return [line for name in sections for line in SECTIONS[name].restore(run, state[name], exempt) or ()]
