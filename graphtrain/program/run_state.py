"""Everything a continuation depends on, as one record of named sections.

A section is a field of `RunState`, made of the two functions that capture it and restore it, which stand side by side
below. To add a section, add such a pair and its field: checkpoint, digest, resume and verification follow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, final, get_type_hints

import numpy
import torch

from graphtrain.data.loaders import by_name, is_data
from graphtrain.data.samplers import held_generators
from graphtrain.data.source import keeps_position, parts_beside_position
from graphtrain.data.state import DataState
from graphtrain.errors import CheckpointError, UsageError
from graphtrain.graph.renaming import Renaming
from graphtrain.metrics.recorder import Recorder
from graphtrain.names import quoted, suggestion
from graphtrain.program.bind import BoundNode, Program
from graphtrain.program.factories import Renewals, Renewed
from graphtrain.program.resources import keeps_state
from graphtrain.program.rounds import is_fetching
from graphtrain.state.aliases import aliases_of, share
from graphtrain.state.baseline import Baseline, Contents, changed_parts
from graphtrain.state.category import is_users
from graphtrain.state.describer import Describer
from graphtrain.state.drift import NO_DRIFT, OTHER_SUBMODULES, Drift
from graphtrain.state.generators import generator_of, without_generators
from graphtrain.state.modules import is_lazy
from graphtrain.state.nested import CONSTANTS
from graphtrain.state.objects import MISFITS, SavedObjects
from graphtrain.state.random import capture_random, restore_random
from graphtrain.state.rebuilder import Rebuilder
from graphtrain.state.references import parts_in, shown_path
from graphtrain.storage.encoding import UnsaveableError
from graphtrain.storage.sharing import MustBeEqual
from graphtrain.storage.state_files import state_digest
from graphtrain.storage.tensor_files import KnownChecksum, nothing_known

Section = Mapping[str, Any]


@dataclass(frozen=True)
class Exemptions:
    """What is not restored as it was saved.

    Attributes:
        fresh: resources that keep the state they were set up with, or are not supplied any more.
        replaced: paths of nodes of another kind now: a field is restored only where its value is of the same type.
    """

    fresh: Collection[str] = ()
    replaced: Collection[str] = ()


# To compare more would delay the start; then only a resume tells that data was changed.
_MOST_AT_START = 20_000
_OTHER_DATA = (
    "holds other values than when it was saved: training changed them in place, or `setup` makes others; "
    "change copies, or seed `setup`"
)


@dataclass(frozen=True)
class ComparedData:
    """What has become of data.

    Attributes:
        changed: a line for each that holds something else.
        sampled: those of which a sample was compared, in words; empty for none.
    """

    changed: list[str] = field(default_factory=list)
    sampled: str = ""


def _shown_size(size: int) -> str:
    """Bytes, for a message.

    >>> _shown_size(40_200_000_000)
    '40 GB'
    """
    return f"{size / 1e9:.0f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


@dataclass(frozen=True)
class Handler:
    """How a section is captured, sharing tensors with the run, and restored into the same objects."""

    capture: Callable[[StatefulObjects, set[int]], Section]
    restore: Callable[[StatefulObjects, Section, Exemptions], Iterator[str] | None]


# ---- one pair for each section


def _capture_resources(run: StatefulObjects, alive: set[int]) -> Section:
    run.states = {name: _state_of(run, name, resource) for name, resource in run.objects.stateful.items()}
    return {name: without_generators(state) for name, state in run.states.items()}


def _state_of(run: StatefulObjects, name: str, resource: Any) -> Any:
    try:
        return resource.state_dict()
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
    for name, resource in run.objects.modules_first():
        if name in exempt.fresh:
            continue
        if name not in saved and name in run.copies:
            continue
        if name not in saved and run.is_supplied(name):
            raise CheckpointError(f"the checkpoint has no state of `{name}`, which is new")
        if name not in saved:  # it is new inside something that was supplied
            yield f"{name} new, as set up"
            continue
        try:
            run.objects.load(name, saved[name])
        except MISFITS as error:
            reason = str(error).strip().replace("\n\t", "\n    ")
            hint = ""
            if name in run.objects.optimizers and len(saved[name].get("param_groups", ())) > len(resource.param_groups):
                hint = "a group that was added during training is missing after `setup`: add it in `setup`"
            raise CheckpointError(f"the state of `{name}` does not fit any more: {reason}", hint) from None
    # What a node makes now and did not when the checkpoint was made: a copy of what was just loaded.
    for name, source in run.copies.items():
        if name in run.objects.stateful and name not in saved and name not in exempt.fresh:
            run.objects.load(name, run.objects.stateful[source].state_dict())
            yield f"{name} new, a copy of {source}"


def _restore_modules(run: StatefulObjects, saved: Section, exempt: Exemptions) -> None:
    run.objects.restore_modules(saved, exempt.fresh)


def _restore_gradients(run: StatefulObjects, saved: Section, exempt: Exemptions) -> None:
    run.objects.restore_gradients(saved, exempt.fresh)
    run.gradients = {name: gradients for name, gradients in saved.items() if name not in exempt.fresh}


def _capture_optimizers(run: StatefulObjects, alive: set[int]) -> Section:
    captured = run.objects.capture_optimizers(run.owned())
    for name, optimizer in run.objects.optimizers.items():
        groups = run.objects.groups
        made = len(groups[name]) if name in groups else len(optimizer.param_groups)
        if further := optimizer.param_groups[made:]:
            captured[name]["added"] = [list(map(run.path_of, group["params"])) for group in further]
        if name in groups and groups[name].lost(name, optimizer, run.path_of, ()):
            captured[name]["groups"] = _names_of_groups(run, optimizer)
    return captured


def _add_groups(run: StatefulObjects, saved: Section) -> None:
    """Add the groups again that optimizers were given during training; loading fills them."""
    for name, optimizer in run.objects.optimizers.items():
        added = saved.get(name, {}).get("added", [])
        for paths in added[len(optimizer.param_groups) - len(run.objects.groups[name]) :] if added else ():
            if all(paths):  # else loading refuses, and says what to do
                optimizer.add_param_group({"params": list(map(run.parameter_at, paths))})


def _names_of_groups(run: StatefulObjects, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    return [list(map(run.path_of, group["params"])) for group in optimizer.param_groups]


def _restore_optimizers(run: StatefulObjects, saved: Section, exempt: Exemptions) -> None:
    for name, optimizer in run.objects.optimizers.items():
        groups = saved.get(name, {}).get("groups")
        if groups is not None and name not in exempt.fresh and groups != _names_of_groups(run, optimizer):
            raise CheckpointError(f"the state of `{name}` does not fit any more: its groups are others")
    run.objects.restore_optimizers(saved, run.owned(), exempt.fresh)


def _capture_progress(run: StatefulObjects, alive: set[int]) -> Section:
    captured: dict[str, dict[str, Any]] = {}
    for bound in run.program.nodes:
        if bound.bypassed:
            continue
        bound.check_fields()
        # First: a node may bring what it stores up to date when it is asked for its state.
        state = {"state": bound.instance.state_dict()} if bound.kind.keeps_state else {}
        captured[bound.path] = {name: getattr(bound.instance, name) for name in _stored(bound)} | state
    return captured


def _restore_progress(run: StatefulObjects, saved: Section, exempt: Exemptions) -> Iterator[str]:
    for bound in run.program.nodes:
        if bound.path not in saved or bound.bypassed:
            continue
        values, is_replaced = saved[bound.path], bound.path in exempt.replaced
        stored = _stored(bound)
        taken = [name for name in stored if name in values]
        if is_replaced:
            taken = [name for name in taken if _is_alike(getattr(bound.instance, name), values[name])]
        for name in taken:
            setattr(bound.instance, name, values[name])
        if bound.kind.keeps_state:
            stored = [*stored, "state"]
            if "state" in values and not is_replaced:
                bound.instance.load_state_dict(values["state"])
                bound.check_fields()
                taken.append("state")
        yield from (f"{bound.path}.{name} left out" for name in sorted(set(values) - set(taken)))
        # On what an observer remembers now and did not before, and on what no digest has, nothing saved depends.
        if not bound.kind.observer:
            fields = bound.kind.fields
            essential = [name for name in stored if name not in fields or fields[name].in_digest]
            yield from (f"{bound.path}.{name} new" for name in essential if name not in taken and name not in values)


def _essential_progress(run: StatefulObjects, saved: Section) -> Section:
    """No clocks, no observers, no `runs` that nothing reads."""
    read = run.program.plan.fields_read
    essential = {}
    for bound in run.program.nodes:
        if bound.bypassed or bound.kind.observer:
            continue
        kept = {
            name: value
            for name, value in saved[bound.path].items()
            if name not in bound.kind.fields
            or (
                bound.kind.fields[name].in_digest
                and (name != "runs" or (bound.path, "runs") in read or _is_once(bound))
            )
        }
        if "fired" in kept:
            timed = _units_of_time(bound)
            kept["fired"] = {unit: value for unit, value in kept["fired"].items() if unit not in timed}
        essential[bound.path] = kept
    return essential


def _capture_slots(run: StatefulObjects, alive: set[int]) -> Section:
    return {run.program.slot_names[index]: run.program.slots[index] for index in sorted(alive)}


def _capture_renewed(run: StatefulObjects, alive: set[int]) -> Section:
    drifts = {name: renewed.listed.drift(states=run.states) for name, renewed in run.renewed.items()}
    run.unknown_of_renewed = [line for drift in drifts.values() for line in drift.unknown]
    return {
        name: {"random": renewed.random, "setup": renewed.setup, "reachable": drifts[name].section}
        for name, renewed in run.renewed.items()
    }


def _restore_renewed(run: StatefulObjects, saved: Section, exempt: Exemptions) -> None:
    for name, renewed in run.renewed.items():
        renewed.listed.restore(saved[name]["reachable"])


def _restore_slots(run: StatefulObjects, saved: Section, exempt: Exemptions) -> None:
    for name, value in saved.items():
        if name in run.program.slot_names:
            run.program.slots[run.program.slot_index(name)] = value


def _restore_metrics(run: StatefulObjects, saved: Section, exempt: Exemptions) -> None:
    run.recorder.load_state_dict(saved)


def _capture_reachable(run: StatefulObjects, alive: set[int]) -> Section:
    drift, run.states = run.drift(run.states), {}
    run.describer, run.changed = drift.describer, frozenset(drift.section["changed"])
    lost = run.lost_forms()
    run.unknown = [
        *lost,
        *run.lost_of_further(),
        *run.unknown_of_renewed,
        # What a module lacks or has since is said once, of its parameters.
        *(line for line in drift.unknown if not (lost and OTHER_SUBMODULES in line)),
        *run.data_state.unsaved,
    ]
    return drift.section if drift.section["changed"] else {}


def _restore_reachable(run: StatefulObjects, saved: Section, exempt: Exemptions) -> None:
    if run.baseline is not None:
        run.rebuilder = run.baseline.restore(saved or NO_DRIFT)
    run.objects.part_gradients(run.gradients)
    run.gradients = {}


def _capture_generators(run: StatefulObjects, alive: set[int]) -> Section:
    held = {name: generator_of(value) for name, value in run.generators.items()}
    return {**capture_random(), "generators": {name: value.get_state() for name, value in held.items() if value}}


def _restore_generators(run: StatefulObjects, saved: Section, exempt: Exemptions) -> None:
    restore_random(dict(saved))
    for name, state in saved["generators"].items():
        resource = name.rpartition("/")[0]
        generator = generator_of(run.generators.get(name))
        if generator is not None:
            generator.set_state(state)
        elif not run.is_left_out(resource):
            raise CheckpointError(
                f"the checkpoint has the state of a random generator of `{resource}`, which has no such one now",
                "make it again in `setup`; or, if this is other data on purpose: "
                f'Trainer(..., not_state=["{resource}"])',
            )


# ---- the record


@dataclass(frozen=True)
class RunState:
    """The state of a run at one position.

    The order of the fields is that of the file and of the digest, so part of the format; and that of restoring: a
    parameter has its value before its gradient and its optimizer refer to it, and nodes are set up from progress and
    slots. Random generators come last, after nodes are set up: `iter(DataLoader)` draws from them.

    Attributes:
        resources: the `state_dict` of each, by name.
        modules: what that leaves out of modules: modes, frozen flags, buffers that are not persistent.
        gradients: by module and parameter.
        optimizers: what `state_dict` leaves out of optimizers.
        progress: the fields of each node, by path.
        slots: values between nodes: those alive.
        metrics: running means.
        renewed: of the resources that were made again, by name: the random numbers that made them, and what has changed
            of them since.
        reachable: what has changed since the run was set up, of all that is reachable and that nothing else saves.
        random: of the process, and of the generators that data holds.
    """

    resources: Annotated[Section, Handler(_capture_resources, _restore_resources)]
    modules: Annotated[Section, Handler(lambda run, alive: run.objects.capture_modules(), _restore_modules)]
    gradients: Annotated[Section, Handler(lambda run, alive: run.objects.capture_gradients(), _restore_gradients)]
    optimizers: Annotated[Section, Handler(_capture_optimizers, _restore_optimizers)]
    progress: Annotated[Section, Handler(_capture_progress, _restore_progress)]
    slots: Annotated[Section, Handler(_capture_slots, _restore_slots)]
    metrics: Annotated[Section, Handler(lambda run, alive: run.recorder.state_dict(), _restore_metrics)]
    renewed: Annotated[Section, Handler(_capture_renewed, _restore_renewed)]
    reachable: Annotated[Section, Handler(_capture_reachable, _restore_reachable)]
    random: Annotated[Section, Handler(_capture_generators, _restore_generators)]

    @classmethod
    def of(cls, sections: Mapping[str, Section]) -> RunState:
        """The state with these sections; those that a checkpoint does not have are empty."""
        return cls(**{name: sections.get(name, {}) for name in SECTIONS})

    def sections(self) -> dict[str, Section]:
        """Section -> name -> state, in the order of the format; without those that few runs have if they are empty."""
        return {name: getattr(self, name) for name in SECTIONS if name not in _RARE or getattr(self, name)}

    def slot_names(self) -> set[str]:
        """The slots whose values it has."""
        return {*self.slots}


SECTIONS: Mapping[str, Handler] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(RunState, include_extras=True).items()
}
# What another graph takes over in memory; resources and means are the same objects, and stay as they are.
OF_NODES = ("progress", "slots", "random")
# Optimizers in a list that is a resource; a list of batches may be long, and is not gone through.
_MOST_LISTED = 64
_RARE = ("renewed", "reachable")
# Put back once nodes are set up, which calls code of the data, and draws random numbers.
_AFTER_SETUP = ("reachable", "renewed", "random")


# The position of data as it keeps it itself: that of data which is another on each rank differs.
_OF_DATA = ("source_state", "state")


def of_rank(bound: BoundNode) -> tuple[str, ...]:
    """The fields of a node's progress that each rank has of its own, as its kind declares."""
    declared: tuple[str, ...] = getattr(bound.kind.implementation, "of_rank", ())
    return declared


_NO_COPIES: Mapping[str, str] = MappingProxyType({})
_NOT_RENEWED: Mapping[str, Renewed] = MappingProxyType({})


@final
class StatefulObjects:
    """The objects of a run that have state.

    Arguments:
        resources: what the user supplied, by name, and what was made of that.
        made: of the latter, what each is a copy of. Default: nothing was made.

    Attributes:
        objects: those with a `state_dict`: resources, and once the run has begun those that they hold.
        generators: random generators that resources hold: ``"train_data/0"``.
        data_state: of the data; nodes report to it.
        baseline: what was reachable when the run began; None before.
        unknown: a line for all that the last capture could not describe.
        renewed: the resources that were made again since the run began, by name.
        made_otherwise: a line for all that a resume makes again in another way than the run did.
    """

    def __init__(
        self, program: Program, resources: Mapping[str, Any], recorder: Recorder, made: Mapping[str, str] = _NO_COPIES
    ) -> None:
        self.program = program
        self.copies = made
        self.recorder = recorder
        self.objects = SavedObjects({name: value for name, value in resources.items() if keeps_state(value)})
        self.generators = {
            f"{name}/{number}": generator
            for name, value in by_name(resources)
            if not isinstance(value, torch.nn.Module | torch.optim.Optimizer)
            for number, generator in enumerate(held_generators(value))
        }
        self.data_state: DataState = program.resources.get("data_state", DataState())
        self.baseline: Baseline | None = None
        self._resources = resources
        self.unknown: list[str] = []
        self.states: Section = {}  # the `state_dict` of each, while they are captured
        self.gradients: dict[str, Any] = {}  # by module, while a state is restored
        self.aliases: dict[str, list[list[Any]]] = {}  # what values in transit shared when captured last
        self.describer: Describer | None = None  # while a state is captured
        self.rebuilder: Rebuilder | None = None  # while a state is restored
        self._data_at_start: Contents = {}
        self.changed: frozenset[str] = frozenset()  # the paths that the last capture has described
        self._further: list[Baseline] = []
        self.unknown_of_renewed: list[str] = []
        self.renewed: Mapping[str, Renewed] = {}
        self.made_otherwise: list[str] = []

    def begin(self, left_out: Collection[str] = (), run: Any = None) -> None:
        """List what is reachable, before anything has changed.

        Arguments:
            left_out: paths that are no state. Default: none.
            run: what runs this, which a step function may hold. Default: nothing does.

        Raises:
            UsageError: nothing is reachable under one of them.
        """
        renewals = self.program.resources.get("renewals")
        factories = renewals.factories.items() if isinstance(renewals, Renewals) else ()
        # Before what they make: what a function holds is not replaced with it.
        roots: dict[str, Any] = {f"factory {name}": factory.function for name, factory in factories}
        roots |= {name: value for name, value in by_name(self._resources) if value is not None}
        for bound in self.program.nodes:
            implementation = bound.kind.implementation
            if is_users(implementation.__module__):
                roots[f"kind {bound.kind.name}"] = implementation
        data = [name for name, value in roots.items() if is_data(name, value)]
        covered = [name for name in data if keeps_position(roots[name])]
        for name in covered:
            beside = {f"{name}.{part}": value for part, value in parts_beside_position(roots[name]).items()}
            roots |= beside
            data += beside
        owned = self.owned()
        loose = {
            id(parameter)
            for optimizer in self.objects.optimizers.values()
            for group in optimizer.param_groups
            for parameter in group["params"]
            if id(parameter) not in owned
        }
        elsewhere = loose | {id(run), *(id(value) for value in self.generators.values())}
        baseline = Baseline(roots, data, covered, elsewhere, left_out)
        at_start = baseline.content_of_data(most=_MOST_AT_START)
        self._data_at_start = {name: content for name, content in at_start.items() if content["is_whole"]}
        places = list(baseline.places()) if left_out else []
        for path in left_out:
            if path not in places:
                raise UsageError(f"not_state: there is no `{path}`", suggestion(path, places))
        self.watch(baseline)

    def watch(
        self, baseline: Baseline, former: StatefulObjects | None = None, renewed: Mapping[str, Renewed] = _NOT_RENEWED
    ) -> None:
        """Save what differs from a baseline, and the objects with a `state_dict` that it lists.

        Arguments:
            former: those of the run so far: what it has set up was set up then. Default: everything is set up now.
            renewed: the resources that were made again since the run began, what others are made of first. Default:
                none.
        """
        self.baseline = self.data_state.baseline = baseline
        self.renewed = renewed
        made_again = {name: each.value for name, each in renewed.items()}
        baseline.replace(made_again | self._supplied_again(baseline))
        self._list_renewed(baseline)
        objects = self.objects
        for path in filter(baseline.is_left_out, [*objects.stateful]):
            objects.drop(path)
        known = {id(value) for value in objects.stateful.values()}
        for path, value in baseline.stateful.items():
            is_left = baseline.is_left_out(path) or baseline.is_replaced(path)
            if id(value) not in known and keeps_state(value) and not is_left:
                objects.add(path, value)
        for listed in (each.listed for each in renewed.values()):
            for path, value in listed.stateful.items():
                if id(value) not in known and keeps_state(value) and not baseline.is_left_out(path):
                    objects.add(path, value)
        objects.note_forms(former.objects if former is not None else None)
        if former is not None:
            self._watch_further(baseline, former)

    def _supplied_again(self, baseline: Baseline) -> dict[str, Any]:
        """The objects with a `state_dict` in whose place `rewire` has supplied others since the run began."""
        listed = baseline.reachable.by_path
        return {
            name: value
            for name, value in self._resources.items()
            if name in listed and listed[name].value is not value and keeps_state(listed[name].value)
        }

    def _list_renewed(self, baseline: Baseline) -> None:
        """Note what can be reached from each resource that was made again, as it is now, and from nothing else."""
        by_id = baseline.reachable.by_id
        elsewhere = {identity for identity, reached in by_id.items() if not baseline.is_replaced(reached.path)}
        elsewhere |= {id(value) for value in self.generators.values()}
        for name, renewed in self.renewed.items():
            if renewed.baseline is None:
                roots = {name: renewed.value}
                renewed.baseline = Baseline(roots, elsewhere=elsewhere, left_out=baseline.left_out, with_code=False)
            elsewhere |= renewed.baseline.reachable.by_id.keys()

    def _watch_further(self, baseline: Baseline, former: StatefulObjects) -> None:
        """Note what was supplied since the run began: of that nothing but its `state_dict` is saved."""
        listed, known = baseline.reachable, {id(value) for _, value in by_name(former._resources)}
        further = {
            name: value
            for name, value in by_name(self._resources)
            if value is not None and listed.find(value) is None and id(value) not in known and name not in self.renewed
        }
        self._further = former._further
        if further:
            data = [name for name in further if is_data(name, further[name])]
            covered = [name for name in data if keeps_position(further[name])]
            self._further = [
                *former._further,
                Baseline(further, data, covered, listed.by_id, baseline.left_out, with_code=False),
            ]

    def lost_of_further(self) -> list[str]:
        """A line for all that has changed of what was supplied since the run began, and that no `state_dict` has."""
        drifts = [further.drift() for further in self._further]
        return [
            f"{path} has changed since `rewire` supplied it, and is in no `state_dict`"
            for drift in drifts
            for path in drift.section["changed"]
        ]

    def is_left_out(self, path: str) -> bool:
        """True for what is declared to be no state."""
        return self.baseline is not None and self.baseline.is_left_out(path)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The paths that are declared to be no state."""
        return self.baseline.left_out if self.baseline is not None else ()

    def set_up(self) -> dict[str, Any]:
        """The objects with a `state_dict` made by `setup`, and optimizers in a list.

        A copy that a node makes has no settings of its own.
        """
        listed = {
            f"{name}[{number}]": value
            for name, values in self._resources.items()
            if type(values) in (list, tuple) and len(values) <= _MOST_LISTED  # those of a user may do anything
            for number, value in enumerate(values)
            if isinstance(value, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler)
        }
        return {name: value for name, value in self.objects.stateful.items() if name not in self.copies} | listed

    def is_supplied(self, name: str) -> bool:
        """True for a resource; False for what one was found to hold."""
        return name in self._resources

    def lost_forms(self) -> list[str]:
        """A line for each way in which modules and optimizers are not what a resume could load."""
        return self.objects.lost(self.path_of)

    def is_lazy(self) -> bool:
        """True as long as a module waits for its first batch to know what its parameters are."""
        return any(map(is_lazy, self.objects.modules.values()))

    def path_of(self, parameter: torch.Tensor) -> str:
        """Where a parameter was reached when the run began; empty where it was not."""
        for baseline in self._baselines():
            reached = baseline.reachable.find(parameter)
            if reached is not None and not baseline.is_replaced(reached.path):
                return reached.path
        return ""

    def _baselines(self) -> Iterator[Baseline]:
        """All that is known of what was reachable when it was made."""
        if self.baseline is not None:
            yield self.baseline
            yield from (renewed.listed for renewed in self.renewed.values())

    def parameter_at(self, path: str) -> torch.Tensor:
        """The parameter that was reached there.

        Raises:
            CheckpointError: there is none.
        """
        baselines = [baseline for baseline in self._baselines() if not baseline.is_replaced(path)]
        reached = next(
            (baseline.reachable.by_path[path] for baseline in baselines if path in baseline.reachable.by_path), None
        )
        if reached is None or not isinstance(reached.value, torch.Tensor):
            raise CheckpointError(
                f"the parameter `{path}` of a group that was added during training does not exist now",
                "add the group in `setup`",
            )
        return reached.value

    def not_restored(self) -> list[str]:
        """A line for everything that was saved and has no place now, or is not what it was."""
        missing = [line for baseline in self._baselines() for line in baseline.not_restored]
        return [*self.made_otherwise, *missing, *self.data_state.not_as_before()]

    def comparison_of_data(self) -> Callable[[], tuple[Contents, list[str]]]:
        """A function, for another thread, that compares what data holds, and was not just captured, with the start.

        It gives what data holds, and a line for all that was changed and is not saved.
        """
        baseline, changed, at_start = self.baseline, self.changed, self._data_at_start

        def compare() -> tuple[Contents, list[str]]:
            if baseline is None:
                return {}, []
            try:
                now = baseline.content_of_data(changed, pauses=True)
            except RuntimeError:  # a dictionary has changed its size, for instance
                return {}, [f"{name} was changed while it was compared" for name in baseline.names_of_data]
            return now, [baseline.changed_in_place(path) for path in changed_parts(at_start, now)]

        return compare

    def compared_data(self, manifest: Section, reachable: Section, but: Collection[str]) -> ComparedData:
        """What data holds, compared with what it held when a checkpoint was made.

        Arguments:
            reachable: the section of the checkpoint.
            but: the names of data that is reported already.
        """
        saved = manifest.get("data_content", {})
        if self.baseline is None or not saved:
            return ComparedData()
        now = self.baseline.content_of_data(reachable.get("changed", {}))
        reported = [line for line in manifest["unknown"] if any(line.startswith(name) for name in now)]
        changed = [
            f"{shown_path(path)} {_OTHER_DATA}"
            for path in changed_parts(saved, {name: content for name, content in now.items() if name not in but})
            if not any(line.startswith(path) for line in reported)
        ]
        sampled = [name for name in now if name in saved and not (saved[name]["is_whole"] and now[name]["is_whole"])]
        sizes = ", ".join(f"{name} ({_shown_size(now[name]['bytes'])})" for name in sampled)
        return ComparedData(changed, f"{sizes} compared by sample" if sampled else "")

    def drift(self, states: Mapping[str, Any] | None = None) -> Drift:
        """What has changed since the run began, that nothing else saves; `states` as for `Baseline.drift`."""
        return self.baseline.drift(states=states) if self.baseline is not None else Drift(NO_DRIFT)

    def owned(self) -> set[int]:
        """The identities of all parameters that some module owns."""
        return self.objects.owned()

    def trained_in_evaluation_mode(self) -> list[str]:
        """The modules that an optimizer trains and that are in evaluation mode as a whole, as pretrained ones come."""
        trained = {
            id(parameter)
            for optimizer in self.objects.optimizers.values()
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        return [
            name
            for name, module in self.objects.modules.items()
            if not module.training and any(id(parameter) in trained for parameter in module.parameters())
        ]

    def capture(self, alive: set[int], sections: Collection[str] = tuple(SECTIONS)) -> RunState:
        """The state as it is, sharing its tensors with the run; `alive` are the slots that will be read."""
        if "resources" in sections:
            _refuse_objects(_capture_slots(self, alive))
        captured = {name: SECTIONS[name].capture(self, alive) for name in sections}
        if "slots" in captured and self.describer is not None:
            self._note_aliases(captured, self.describer)
        self.describer = None
        return RunState.of(captured)

    def _note_aliases(self, captured: Mapping[str, Section], describer: Describer) -> None:
        """Note what values in transit share: those of slots, and those that nodes have kept for a later visit."""
        kept = _kept_by_nodes(captured.get("progress", {}))
        if not captured["slots"] and not kept:
            self.aliases = {}
            return
        others = (
            (f"{name}.state_dict(){''.join(f'[{key!r}]' for key in keys)}", part)
            for name, state in captured.get("resources", {}).items()
            if name not in self.objects.modules and name not in self.objects.optimizers
            for keys, part in parts_in(state)
            if isinstance(part, torch.Tensor | numpy.ndarray)
        )
        # What data has put into its position it loads in a way of its own.
        positions = [f"{bound.path}.state" for bound in self.program.nodes if bound.kind.keeps_state]
        aliases = aliases_of({**kept, **captured["slots"]}, describer, others, quiet=positions)
        self.aliases = aliases.places
        self.unknown += aliases.unknown

    def share(self, aliases: Any, progress: Section, renaming: Renaming) -> list[str]:
        """Let values in transit share what they shared when `aliases` were noted.

        Arguments:
            progress: what nodes were restored from: they hold its very containers.
            renaming: of what the names in `aliases` were.

        Returns:
            A line for all that is not shared any more.
        """
        if self.rebuilder is None:
            return []
        indices = {name: self.program.slot_index(name) for name in self.program.slot_names}
        values = {name: self.program.slots[index] for name, index in indices.items()}
        kept = _kept_by_nodes(progress)

        def name_now(name: str) -> str:
            path, _, field = name.rpartition(".")
            return f"{renaming.path(path)}.{field}" if path else renaming.slot(name)

        lost = share(values := {**kept, **values}, aliases, self.rebuilder, name_now)
        for name, index in indices.items():
            self.program.slots[index] = values[name]
        for bound in self.program.nodes:
            for name in _stored(bound):
                place = f"{bound.path}.{name}"
                if place in kept and getattr(bound.instance, name) is kept[place]:
                    setattr(bound.instance, name, values[place])
        self.rebuilder = None
        return lost

    def essential_parts(self, state: RunState) -> dict[str, Section]:
        """The sections of which the continuation depends on a part only: that part."""
        parts: dict[str, Section] = {"progress": _essential_progress(self, state.progress)}
        if state.renewed:
            parts["renewed"] = {name: {"reachable": entry["reachable"]} for name, entry in state.renewed.items()}
        # By how much a form differs depends on what was set up; the form itself is that of the tensors.
        if any("forms" in entry for entry in state.modules.values()):
            parts["modules"] = {
                name: {key: part for key, part in entry.items() if key != "forms"}
                for name, entry in state.modules.items()
            }
        return parts

    def weights(self) -> dict[str, set[str]]:
        """The names of the parameters of each module."""
        return {name: {*dict(module.named_parameters())} for name, module in self.objects.modules.items()}

    def must_be_equal(self) -> MustBeEqual:
        """What has to be equal on all ranks of a run: parameters, optimizers, schedulers, and progress."""
        stateful, optimizers, nodes = self.objects.stateful, self.objects.optimizers, self.program.nodes
        schedulers = {
            name for name, value in stateful.items() if isinstance(value, torch.optim.lr_scheduler.LRScheduler)
        }
        return MustBeEqual(
            {**self.weights(), **dict.fromkeys([*optimizers, *schedulers])},
            {"resources": {*optimizers, *schedulers}, "optimizers": {*optimizers}},
            {bound.path: (*_OF_DATA, *of_rank(bound)) if is_fetching(bound) else of_rank(bound) for bound in nodes},
        )

    def digest_of(self, state: RunState) -> str:
        """The digest that a run has whose state this is."""
        return state_digest({**state.sections(), **self.essential_parts(state)})

    def digest(
        self,
        alive: set[int],
        sections: Collection[str] = tuple(SECTIONS),
        reachable: Section | None = None,
        known: KnownChecksum = nothing_known,
    ) -> str:
        """SHA-256 (hexadecimal) of all that the continuation depends on.

        Arguments:
            reachable: taken for the section of this name. Default: what it is now.
            known: as for `checksums`. Default: everything is hashed.
        """
        state = self.capture(alive, sections)
        if reachable is not None:
            state = dataclasses.replace(state, reachable=reachable)
        essential = {**state.sections(), **self.essential_parts(state)}
        return state_digest({name: essential[name] for name in sections if name in essential}, known)

    def differs_from(self, saved: Section) -> list[str]:
        """A line for what is not as it was saved although it was restored: `setup` made something else before."""
        now = self.drift().section
        changed, changed_before = now["changed"], saved.get("changed", {})
        paths = [
            path
            for path in sorted({*changed, *changed_before})
            if _text_of(changed.get(path)) != _text_of(changed_before.get(path))
        ]
        if not paths and _text_of(now["new"]) != _text_of(saved.get("new", [])):
            paths = sorted(changed)
        what = "is not what it was when it was saved: `setup` makes something else"
        return [f"{shown_path(path)} {what}" for path in paths]

    def restore(
        self, state: RunState, exempt: Exemptions = Exemptions(), sections: Collection[str] = tuple(SECTIONS)
    ) -> list[str]:
        """Put back what nodes are set up from: everything but the random generators.

        Returns:
            Messages about saved progress that does not fit the nodes.

        Raises:
            CheckpointError: a resource has changed its shape, or is missing.
        """
        self.objects.reshape(state.modules, state.resources, exempt.fresh)
        _add_groups(self, state.optimizers)
        return [
            line
            for name in sections
            if name not in _AFTER_SETUP
            for line in SECTIONS[name].restore(self, getattr(state, name), exempt) or ()
        ]

    def restore_after_setup(self, state: RunState, sections: Collection[str] = _AFTER_SETUP) -> None:
        """Put back what setting nodes up may have changed."""
        for name in sections:
            SECTIONS[name].restore(self, getattr(state, name), Exemptions())


def _refuse_objects(slots: Section) -> None:
    for name, value in slots.items():
        if keeps_state(value):
            raise UnsaveableError(
                f"the slot `{name}`",
                f"nothing is known that could make its {type(value).__qualname__} again",
                "supply it as a resource; one that a node makes again is a `Factory`, and the node a `renew`",
            )


def _kept_by_nodes(progress: Section) -> dict[str, Any]:
    """What nodes hold that can be changed in place, by node and field."""
    return {
        f"{path}.{name}": value
        for path, fields in progress.items()
        for name, value in fields.items()
        if type(value) not in CONSTANTS
    }


def _text_of(part: Any) -> str:
    return state_digest({"part": {"part": part}})


def _stored(bound: BoundNode) -> list[str]:
    return [name for name, declared in bound.kind.fields.items() if declared.stored]


def _is_alike(value: Any, saved: Any) -> bool:
    """True if a saved value may be one of a field that holds `value` now."""
    numbers = all(isinstance(number, int | float) and not isinstance(number, bool) for number in (value, saved))
    return value is None or numbers or type(value) is type(saved)


def _is_once(bound: BoundNode) -> bool:
    """True if whether a node has run makes it due or not."""
    return bound.planned.trigger is not None and bound.planned.trigger.once


def _units_of_time(bound: BoundNode) -> set[str]:
    """The units of a node's clock whose field is outside the digest, such as seconds."""
    timed = set()
    for unit in bound.scope.graph.units:
        owner, name = bound.scope.counter(unit)
        declared = owner.kind.fields.get(name) if owner is not None else None
        if declared is not None and not declared.in_digest:
            timed.add(unit)
    return timed
