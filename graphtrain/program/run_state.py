"""Everything a continuation depends on, as one record of named sections.

A section is a field of `RunState`, made of the two functions that capture and restore it, which are next to each other
below. To add a section, add such a pair and its field: checkpoint, digest, resume and verification follow. What
is not in the digest, not compared, or different on each rank is listed by name: docs/architecture.md says where.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import torch

from graphtrain.errors import CheckpointError
from graphtrain.names import plainly_named, quoted
from graphtrain.program.bind import ProgramNode
from graphtrain.program.rounds import is_fetching
from graphtrain.state.changes import OTHER_SUBMODULES, changes
from graphtrain.state.generators import AnyGenerator, any_generator, named_generators
from graphtrain.state.objects import MISFITS
from graphtrain.state.optimizers import kept_groups
from graphtrain.state.restore import restore
from graphtrain.state.weights import weights_of
from graphtrain.storage.strides import DEVICES

if TYPE_CHECKING:
    from graphtrain.program.stateful_objects import StatefulObjects

Section = Mapping[str, Any]

_OF_ANOTHER_DEVICE = "the random generator of the device {} is not saved: draw random numbers on the CPU"


@dataclass(frozen=True)
class Exemptions:
    """The state that is not restored as it was saved.

    Attributes:
        fresh: resources that keep their state from set-up, or are no longer supplied.
        replaced: paths of nodes whose kind has changed: a field is restored only if its value has the same type.
    """

    fresh: Collection[str] = ()
    replaced: Collection[str] = ()


EVERYTHING = Exemptions()


@dataclass(frozen=True)
class Handler:
    """How a section is captured, sharing tensors with the run, and restored into the same objects."""

    capture: Callable[[StatefulObjects, set[int]], Section]
    restore: Callable[[StatefulObjects, Section, Exemptions], Iterator[str] | None]


# ---- one pair for each section


def _capture_resources(run: StatefulObjects, alive: set[int]) -> Section:
    run.states = {name: _state_of(run, name, resource) for name, resource in run.objects.stateful.items()}
    return run.states


def _state_of(run: StatefulObjects, name: str, resource: Any) -> Any:
    try:
        return weights_of(resource) if isinstance(resource, torch.nn.Module) else resource.state_dict()
    except Exception as error:
        if isinstance(resource, torch.optim.Optimizer):
            grouped = {id(parameter) for group in resource.param_groups for parameter in group["params"]}
            others = [key for key in resource.state if isinstance(key, torch.Tensor) and id(key) not in grouped]
            if others:
                named = quoted((run.path_of(each) or f"one of shape {tuple(each.shape)}" for each in others), 3)
                raise CheckpointError(
                    f"`{name}` cannot be saved: it has state of parameters outside of its groups, {named}",
                    "leave them in a group, frozen by requires_grad_(False), or `del optimizer.state[parameter]`",
                ) from error
        raise CheckpointError(f"`{name}` cannot be saved: its state_dict raised {error!r}") from error


def _restore_resources(run: StatefulObjects, saved: Section, exempt: Exemptions) -> Iterator[str]:
    for name in sorted(
        name for name in set(saved) - set(run.objects.stateful) - set(exempt.fresh) if not run.is_left_out(name)
    ):
        raise CheckpointError(f"the checkpoint has the state of `{name}`, which was not supplied now")
    with kept_groups(run.objects.optimizers.values()):
        # Modules first: an optimizer casts what it loads to the dtype and the device of its parameters.
        for name, resource in sorted(run.objects.stateful.items(), key=lambda item: item[0] not in run.objects.modules):
            if name in exempt.fresh or (name not in saved and name in run.copies):
                continue
            if name not in saved and name in run.resources:
                raise CheckpointError(f"the checkpoint has no state of `{name}`, which is new")
            if name not in saved:  # it is new inside something that was supplied
                yield f"{name} new, as set up"
                continue
            _load(run, name, resource, saved[name])
    # A copy that no node made when the checkpoint was written: it is made of what was just loaded.
    for name, source in run.copies.items():
        if name in run.objects.stateful and name not in saved and name not in exempt.fresh:
            run.objects.load(name, _state_of(run, source, run.objects.stateful[source]))
            yield f"{name} new, a copy of {source}"


def _load(run: StatefulObjects, name: str, resource: Any, state: Any) -> None:
    """Load the state of one object.

    Raises:
        CheckpointError: it does not fit.
    """
    if name in run.objects.optimizers:
        _expect_same_parameters(run, name)
    try:
        run.objects.load(name, state)
    except MISFITS as error:
        reason = str(error).strip().replace("\n\t", "\n    ")
        hint = "make it as in the saved run; or begin another run, with another --run-dir"
        if name in run.objects.optimizers and len(state.get("param_groups", ())) > len(resource.param_groups):
            hint = "a group that was added during training is missing after `setup`: add it in `setup`"
        raise CheckpointError(f"the state of `{name}` no longer fits: {reason}", hint) from None


def _restore_gradients(run: StatefulObjects, saved: Section, exempt: Exemptions) -> None:
    run.objects.restore_gradients(saved, exempt.fresh)
    run.gradients = {name: gradients for name, gradients in saved.items() if name not in exempt.fresh}


def _capture_optimizers(run: StatefulObjects, alive: set[int]) -> Section:
    captured = run.objects.capture_optimizers(run.objects.owned())
    for name, optimizer in run.objects.optimizers.items():
        groups = run.objects.groups
        made = len(groups[name]) if name in groups else len(optimizer.param_groups)
        if further := optimizer.param_groups[made:]:
            captured[name]["added"] = [list(map(run.path_of, group["params"])) for group in further]
        if name not in run.parameters:
            run.parameters[name] = _parameters_of(run, optimizer)[:made]
        is_lost = name in groups and groups[name].lost(name, optimizer, run.path_of, ())
        captured[name]["parameters"] = _parameters_of(run, optimizer) if is_lost else run.parameters[name]
    return captured


def add_groups(run: StatefulObjects, saved: Section) -> None:
    """Add again the groups that were added to optimizers during training; loading fills them."""
    for name, optimizer in run.objects.optimizers.items():
        added = saved.get(name, {}).get("added", [])
        for paths in added[len(optimizer.param_groups) - len(run.objects.groups[name]) :] if added else ():
            if all(paths):  # else loading refuses, with a hint
                optimizer.add_param_group({"params": list(map(run.parameter_at, paths))})


def _parameters_of(run: StatefulObjects, optimizer: torch.optim.Optimizer) -> list[str]:
    """The paths of the parameters in each group, as one text, which is quick to save."""
    paths = {key: each.path for key, each in run.snapshot.reachable.by_id.items()} if run.snapshot is not None else {}
    for name, module in run.objects.modules.items():  # also of one that has replaced another
        paths |= {id(each): f"{name}.{key}" for key, each in plainly_named(module.named_parameters())}
    groups = [[paths.get(id(each), "a parameter") for each in group["params"]] for group in optimizer.param_groups]
    return list(map("\n".join, groups))


def _expect_same_parameters(run: StatefulObjects, name: str) -> None:
    """Raise unless an optimizer has the parameters that it had, which its state has by their numbers only.

    Raises:
        CheckpointError: it has not.
    """
    entry, made = run.saved_optimizers.get(name, {}), len(run.objects.groups.get(name, ()))
    now = _parameters_of(run, run.objects.optimizers[name])[:made]
    before = entry.get("parameters", now)
    if before == (now[: len(before)] if "added" in entry else now):
        return
    former, present = ("\n".join(groups).split("\n") for groups in (before, now))
    gone, come = (quoted([each for each in a if each not in b]) for a, b in ((former, present), (present, former)))
    what = " and ".join(f"{text} {each}" for text, each in (("no longer", gone), ("now", come)) if each)
    raise CheckpointError(
        f"`{name}` does not have the parameters of the saved run: {what or 'other groups, or another order'}",
        "give it the same in `setup`, also by `requires_grad`; or begin another run with these weights: --init "
        "NAME=RUN/newest --run-dir OTHER",
    )


def _restore_optimizers(run: StatefulObjects, saved: Section, exempt: Exemptions) -> None:
    run.objects.restore_optimizers(saved, run.objects.owned(), exempt.fresh)


def _capture_progress(run: StatefulObjects, alive: set[int]) -> Section:
    captured: dict[str, dict[str, Any]] = {}
    for node in run.program.nodes:
        if node.bypassed:
            continue
        node.check_fields()
        # First: a node may update what it stores when its state is read.
        state = {"state": node.instance.state_dict()} if node.kind.keeps_state else {}
        captured[node.path] = {name: getattr(node.instance, name) for name in stored_fields(node)} | state
    return captured


def _restore_progress(run: StatefulObjects, saved: Section, exempt: Exemptions) -> Iterator[str]:
    for node in run.program.nodes:
        if node.path not in saved or node.bypassed:
            continue
        values, is_replaced = saved[node.path], node.path in exempt.replaced
        stored = stored_fields(node)
        taken = [name for name in stored if name in values]
        if is_replaced:
            taken = [name for name in taken if _is_alike(getattr(node.instance, name), run.decoded(values[name]))]
        for name in taken:
            setattr(node.instance, name, run.decoded(values[name]))
        if node.kind.keeps_state:
            stored = [*stored, "state"]
            if "state" in values and not is_replaced:
                state = values["state"]
                if is_fetching(node):
                    state = {name: run.decoded(value) for name, value in state.items()}
                node.instance.load_state_dict(state)
                node.check_fields()
                taken.append("state")
        yield from (f"{node.path}.{name} left out" for name in sorted(set(values) - set(taken)))
        # Nothing saved depends on new fields of observers, or on fields outside the digest.
        if not node.kind.observer:
            fields = node.kind.fields
            essential = [name for name in stored if name not in fields or fields[name].in_digest]
            yield from (f"{node.path}.{name} new" for name in essential if name not in taken and name not in values)


def essential_progress(run: StatefulObjects, saved: Section) -> Section:
    """No clocks, no observers, no `runs` that nothing reads."""
    read = run.program.plan.fields_read
    essential = {}
    for node in run.program.nodes:
        if node.bypassed or node.kind.observer:
            continue
        # Whether it has run decides whether it is due.
        is_once = node.plan_node.trigger is not None and node.plan_node.trigger.once
        kept = {
            name: value
            for name, value in saved[node.path].items()
            if name not in node.kind.fields
            or (node.kind.fields[name].in_digest and (name != "runs" or (node.path, "runs") in read or is_once))
        }
        if "fired" in kept:
            counters = {unit: node.scope.counter(unit) for unit in node.scope.graph.units}
            timed = {  # the units whose field is outside the digest, such as seconds
                unit
                for unit, (owner, name) in counters.items()
                if owner is not None and name in owner.kind.fields and not owner.kind.fields[name].in_digest
            }
            kept["fired"] = {unit: value for unit, value in kept["fired"].items() if unit not in timed}
        essential[node.path] = kept
    return essential


def _capture_slots(run: StatefulObjects, alive: set[int]) -> Section:
    return {run.program.slot_names[index]: run.program.slots[index] for index in sorted(alive)}


def _restore_slots(run: StatefulObjects, saved: Section, exempt: Exemptions) -> None:
    for name, value in saved.items():
        if name in run.program.slot_names:
            run.program.slots[run.program.slot_index(name)] = run.decoded(value)


def _capture_reachable(run: StatefulObjects, alive: set[int]) -> Section:
    changed, run.states = run.changes(run.states), {}
    run.writer, run.changed = changed.writer, frozenset(changed.section)
    lost, device = run.objects.lost(run.path_of), torch.device(run.program.resources.get("device", "cpu")).type
    run.unknown = [
        *lost,
        *[
            f"{path} has changed since `rewire` supplied it, and is in no `state_dict`"
            for further in run.further
            for path in changes(further).section
        ],
        # Parts that a module lost or gained are reported once, by its parameters.
        *[line for line in changed.unknown if not (lost and OTHER_SUBMODULES in line)],
        *run.data_state.unsaved,
        *([] if device in ("cpu", *DEVICES) else [_OF_ANOTHER_DEVICE.format(device)]),
    ]
    return changed.section


def _restore_reachable(run: StatefulObjects, saved: Section, exempt: Exemptions) -> None:
    if run.snapshot is not None:
        restore(run.snapshot, saved, reader=run.reader)
    run.reader = None
    run.objects.separate_gradients(run.gradients)
    run.gradients = {}


def _generators(run: StatefulObjects) -> dict[str, AnyGenerator]:
    """Those of the process, and those in resources."""
    return {**named_generators(), **{name: any_generator(value) for name, value in run.generators.items()}}


def _capture_generators(run: StatefulObjects, alive: set[int]) -> Section:
    return {name: generator.get_state() for name, generator in _generators(run).items()}


def _restore_generators(run: StatefulObjects, saved: Section, exempt: Exemptions) -> None:
    generators = _generators(run)
    for name, state in saved.items():
        resource = name.rpartition("/")[0]
        if name in generators:
            generators[name].set_state(state)
        elif resource and not run.is_left_out(resource):
            raise CheckpointError(
                f"the checkpoint has the state of a random generator of `{resource}`, which has no such one now",
                "make it again in `setup`; or, if this is other data on purpose: "
                f'Trainer(..., not_state=["{resource}"])',
            )


# ---- the record


@dataclass(frozen=True)
class RunState:
    """The state of a run at one position.

    The order of the fields is that of the file and of the digest, so part of the format; and it is the order of
    restoring: a parameter has its value before its gradient and its optimizer refer to it, and nodes are set up from
    progress and slots. Random generators come last, after nodes are set up: `iter(DataLoader)` draws from them.

    Attributes:
        resources: the `state_dict` of each, by name.
        modules: state of modules that it leaves out: modes, frozen flags, non-persistent buffers.
        gradients: by module and parameter.
        optimizers: state of optimizers that `state_dict` leaves out.
        progress: the fields of each node, by path.
        slots: the values between nodes that are alive.
        metrics: running means; the rows are in a file of their own.
        reachable: the changes since set-up of all reachable state that nothing else saves.
        random: the generators of the process, and those in data.
    """

    resources: Annotated[Section, Handler(_capture_resources, _restore_resources)]
    modules: Annotated[
        Section,
        Handler(
            lambda run, alive: run.objects.capture_modules(),
            lambda run, saved, exempt: run.objects.restore_modules(saved, exempt.fresh),
        ),
    ]
    gradients: Annotated[Section, Handler(lambda run, alive: run.objects.capture_gradients(), _restore_gradients)]
    optimizers: Annotated[Section, Handler(_capture_optimizers, _restore_optimizers)]
    progress: Annotated[Section, Handler(_capture_progress, _restore_progress)]
    slots: Annotated[Section, Handler(_capture_slots, _restore_slots)]
    metrics: Annotated[
        Section,
        Handler(
            lambda run, alive: run.recorder.state_dict(), lambda run, saved, exempt: run.recorder.load_state_dict(saved)
        ),
    ]
    reachable: Annotated[Section, Handler(_capture_reachable, _restore_reachable)]
    random: Annotated[Section, Handler(_capture_generators, _restore_generators)]

    @classmethod
    def of(cls, sections: Mapping[str, Section]) -> RunState:
        """The state with these sections; those missing in a checkpoint are empty."""
        return cls(**{name: sections.get(name, {}) for name in SECTIONS})

    def sections(self) -> dict[str, Section]:
        """Section -> name -> state, in the order of the format; without rare sections that are empty."""
        return {name: getattr(self, name) for name in SECTIONS if name not in _RARE or getattr(self, name)}


SECTIONS: Mapping[str, Handler] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(RunState, include_extras=True).items()
}
# The sections that another graph takes over in memory; resources and means stay the same objects.
OF_NODES = ("progress", "slots", "random")
_RARE = ("reachable",)
# Sections that are not in the digest where rows are recorded by wall-clock time.
OF_TIMED_ROWS = ("metrics",)
# Restored once nodes are set up, which calls code of the data, and draws random numbers.
AFTER_SETUP = ("reachable", "random")


def stored_fields(node: ProgramNode) -> list[str]:
    return [name for name, declared in node.kind.fields.items() if declared.stored]


def _is_alike(value: Any, saved: Any) -> bool:
    """True if a saved value fits a field whose present value is `value`."""
    numbers = all(isinstance(number, int | float) and not isinstance(number, bool) for number in (value, saved))
    return value is None or numbers or type(value) is type(saved)
