"""The objects of a run that have state."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, final

import torch

from graphtrain.data.loaders import by_name, is_data
from graphtrain.data.samplers import generator_objects
from graphtrain.data.source import keeps_position
from graphtrain.data.state import DataState
from graphtrain.errors import UsageError
from graphtrain.names import suggestion
from graphtrain.printable import shown_path
from graphtrain.program.bind import Program
from graphtrain.program.own_attributes import own_attributes
from graphtrain.report.recorder import Recorder
from graphtrain.state.changes import changes_since
from graphtrain.state.classes import CONSTANTS, is_users
from graphtrain.state.codec import StateReader, StateWriter
from graphtrain.state.objects import SavedObjects
from graphtrain.state.reachable import Reachable, is_within, keeps_state, parts_of
from graphtrain.state.snapshot import StateSnapshot
from graphtrain.state.weights import uncompiled
from graphtrain.storage.encoding import Encoded
from graphtrain.storage.state_files import name_of_part, state_digest


@final
class StatefulObjects:
    """The objects of a run that have state.

    Arguments:
        resources: those of the user, by name, and their copies.
        copies: the copies among them, each with the name of its source.

    Attributes:
        objects: those with a `state_dict`: resources, and once the run has begun, objects in resources.
        data_state: the state of the data, to which nodes report.
        snapshot: the state that was reachable when the run began; None before.
        supplied_later: the state reachable from objects that `rewire` supplied. Only their `state_dict` is saved.
        left_out: the paths given as `not_state`.
        unknown: a line for everything that the last capture could not save.
    """

    def __init__(
        self, program: Program, resources: Mapping[str, Any], recorder: Recorder, copies: Mapping[str, str]
    ) -> None:
        resources = {name: uncompiled(value) for name, value in resources.items()}
        self.program = program
        self.copies = copies
        self.recorder: Recorder = recorder
        data, _ = self._data(resources)
        self.objects = SavedObjects(
            {name: value for name, value in resources.items() if name not in data and keeps_state(value)}
        )
        self.data_state: DataState = program.resources.get("data_state", DataState())
        self.snapshot: StateSnapshot | None = None
        self.resources = resources
        self.left_out: tuple[str, ...] = ()
        self.unknown: list[str] = []
        self.states: Mapping[str, Any] = {}  # the `state_dict` of each, while they are captured
        self.writer: StateWriter | None = None  # while a state is captured
        self.reader: StateReader | None = None  # while a state is restored
        self.changed: frozenset[str] = frozenset()  # the paths that the last capture has saved as changes
        self.supplied_later: list[StateSnapshot] = []

    def begin(self, left_out: Collection[str] = (), run: Any = None) -> None:
        """List the reachable state before anything has changed.

        Arguments:
            left_out: paths that are not state. Default: none.
            run: the trainer, which a step function may refer to. Default: none.

        Raises:
            UsageError: a path in `left_out` does not exist.
        """
        supplied = {name: value for name, value in by_name(self.resources, self.program.drawn) if value is not None}
        data, by_position = self._data(supplied)
        drawn = {id(supplied[name]) for name in data}
        # Data that is supplied under another name too is followed as data.
        roots = {name: value for name, value in supplied.items() if name in data or id(value) not in drawn}
        for node in self.program.nodes:
            implementation = node.kind.implementation
            if is_users(implementation.__module__):
                roots[f"kind {node.kind.name}"] = implementation
        if by_position:  # unless something else reads or reaches it, which may change it
            read_resources = self.program.read_resources
            read = {name for name in supplied if name not in data or name.partition(".")[0] in read_resources}
            reached = Reachable({name: value for name, value in roots.items() if name not in by_position}).by_id
            reached_ids = reached.keys() | {id(supplied[name]) for name in read}
            by_position = [name for name in by_position if id(supplied[name]) not in reached_ids]
        excluded = {id(run), *[id(generator) for name in data for generator in generator_objects(roots[name])]}
        snapshot = StateSnapshot(roots, data, by_position, excluded, left_out)
        entries = snapshot.reachable.by_path.values() if left_out else ()
        places = [place for entry in entries if entry.is_entered for place, *_ in parts_of(entry)]
        places += [entry.path for entry in entries]
        for path in left_out:
            if path not in places:
                raise UsageError(f"not_state: there is no `{path}`", suggestion(path, places))
        self.track(snapshot)

    def _data(self, resources: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """The names of data among some resources, and of data whose state is just the position that nodes save."""
        data: list[str] = []
        kept: list[str] = []
        drawn = self.program.drawn
        for name, value in resources.items():
            resource = name.partition(".")[0]
            # A resource with a `state_dict` that is read, but from which no node fetches batches, is not data.
            is_object = resource not in drawn and resource in self.program.read_resources and keeps_state(value)
            if is_data(name, value, drawn) and not (is_object or isinstance(value, torch.nn.Module)):
                data.append(name)
                if resource in drawn and keeps_position(value):
                    if shared := [other for other in kept if resources[other] is value]:
                        raise UsageError(
                            f"`{shared[0]}` and `{name}` are one {type(value).__name__}, which keeps its own position: "
                            "drawing from one would move the other",
                            "make two of them",
                        )
                    kept.append(name)
        return data, kept

    def track(self, snapshot: StateSnapshot, former: StatefulObjects | None = None) -> None:
        """Save changes since a snapshot from now on, and the objects with a `state_dict` that it lists.

        Arguments:
            former: the objects of the run so far, of which the set-up is kept. Default: everything is set up now.
        """
        self.snapshot = self.data_state.snapshot = snapshot
        self.left_out = snapshot.left_out
        reached = snapshot.reachable.by_path
        # `rewire` has replaced some objects since the run began.
        snapshot.replaced = {
            name: value
            for name, value in self.resources.items()
            if name in reached and reached[name].value is not value and keeps_state(reached[name].value)
        }
        supplied = self.objects.stateful.items()
        stateful = {path: value for path, value in supplied if not is_within(path, snapshot.left_out)}
        known = {id(value) for value in stateful.values()}
        stateful |= {path: value for path, value in snapshot.stateful.items() if id(value) not in known}
        self.objects = SavedObjects(stateful, former.objects if former is not None else None)
        for node in self.program.nodes:
            node.own_attributes = node.own_attributes or own_attributes(node, snapshot.reachable.path_of)
        if former is None:
            return
        # Of objects supplied since then, only the `state_dict` is saved.
        listed, known = snapshot.reachable, {id(value) for _, value in by_name(former.resources, former.program.drawn)}
        added = {
            name: value
            for name, value in by_name(self.resources, self.program.drawn)
            if value is not None and listed.find(value) is None and id(value) not in known
        }
        self.supplied_later = [*former.supplied_later]
        if added:
            data = self._data(added)
            self.supplied_later.append(StateSnapshot(added, *data, listed.by_id, snapshot.left_out, with_code=False))

    def set_up(self) -> dict[str, Any]:
        """The objects with a `state_dict` that `setup` returned, without copies, and optimizers in lists by number."""
        listed = {
            f"{name}[{number}]": value
            for name, values in self.resources.items()
            if type(values) in (list, tuple)  # not their subclasses, which may do anything
            for number, value in enumerate(values)
            if isinstance(value, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler)
        }
        return {name: value for name, value in self.objects.stateful.items() if name not in self.copies} | listed

    def foreign_schedulers(self) -> list[str]:
        """The names of the schedulers whose optimizer was not supplied, also not inside another object."""
        kind, objects = torch.optim.lr_scheduler.LRScheduler, self.set_up()
        owners = [value for value in (*objects.values(), *self.resources.values()) if not isinstance(value, kind)]
        known = {id(part) for value in owners for part in (value, getattr(value, "optimizer", None))}
        schedulers = [(name, value) for name, value in objects.items() if isinstance(value, kind)]
        return [name for name, scheduler in schedulers if id(scheduler.optimizer) not in known]

    def paths(self) -> dict[int, str]:
        """The path of every object that was reachable when the run began, and of every parameter, by identity."""
        listed = self.snapshot.reachable.by_id if self.snapshot is not None else {}
        # Also of a model that has replaced another.
        parameters = {id(parameter): f"{path}.{name}" for path, name, parameter in self.objects.parameters()}
        return {**{identity: entry.path for identity, entry in listed.items()}, **parameters}

    def encoded(self, value: Any, path: str) -> Any:
        """A value of a slot or field, encoded; objects that are saved elsewhere become references."""
        return value if self.writer is None or type(value) in CONSTANTS else self.writer.pack(value, path)

    def decoded(self, value: Any) -> Any:
        """The value that `encoded` encoded; a CheckpointError if it refers to something that does not exist."""
        if not isinstance(value, Encoded):
            return value
        assert self.reader is not None, "values are encoded by references to what a snapshot lists"
        return self.reader.unpack(value)

    def must_be_equal(self) -> set[str]:
        """What must be equal on all ranks: parameters, optimizers, schedulers, and progress except that of data.

        The names are those of `StagedState.digests`.
        """
        optimizers, scheduler = self.objects.optimizers, torch.optim.lr_scheduler.LRScheduler
        whole = {*optimizers, *(name for name, value in self.objects.stateful.items() if isinstance(value, scheduler))}
        progress = [
            node.path
            for node in self.program.nodes
            if not (node.kind.fetches or hasattr(node.kind.implementation, "of_rank"))
        ]
        parts = {"resources": whole, "optimizers": optimizers, "progress": progress}
        return {
            *whole,
            *(f"{file}/{name}" for file, names in self.objects.weights().items() for name in names),
            *(name_of_part(section, name) for section, names in parts.items() for name in names),
        }

    def differs_from(self, saved: Mapping[str, Any]) -> list[str]:
        """A line for each restored state that differs from the saved one, because `setup` creates something else."""
        now, of = changes_since(self.snapshot).section if self.snapshot is not None else {}, "reachable"
        changed = [
            path
            for path in sorted(now)
            if state_digest({of: {path: now[path]}}) != state_digest({of: {path: saved.get(path)}})
        ]
        return [f"{shown_path(path)} differs from what was saved: `setup` creates something else" for path in changed]
