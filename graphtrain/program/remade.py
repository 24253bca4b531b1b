"""Objects with a `state_dict` that nodes make, such as a model for each fold: saved by it, and made again for a resume.

A kind declares which of the slots that it writes hold such objects, and that it may be called once more with the same
inputs. These inputs are kept; a checkpoint holds them, and of the objects what it holds of resources.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, final

from graphtrain.errors import CheckpointError
from graphtrain.graph.renaming import Renaming
from graphtrain.names import quoted
from graphtrain.program.bind import BoundNode, Program
from graphtrain.program.resources import keeps_state
from graphtrain.state.baseline import Baseline
from graphtrain.state.generators import without_generators
from graphtrain.state.objects import MISFITS, SavedObjects
from graphtrain.storage.encoding import Tensors, UnsaveableError, pack

Section = Mapping[str, Any]
Inputs = Mapping[str, Any]


@final
class Made:
    """What one call of a node has made.

    Arguments:
        inputs: what it was called with, by the names of what it reads; without resources, which are at hand again.
        values: what it wrote, by the path of the slot.
        elsewhere: the identities of objects that something else saves.

    Raises:
        TypeError: what was declared to be an object with a `state_dict` is none.
    """

    def __init__(self, bound: BoundNode, inputs: Inputs, values: Section, elsewhere: Mapping[int, Any]) -> None:
        self.path, self.inputs = bound.path, inputs
        paths = dict(zip(bound.kind.writes, bound.planned.own_writes, strict=True))
        self.objects = {name: values[path] for name, path in paths.items() if name in bound.kind.remade}
        for name, value in self.objects.items():
            if not keeps_state(value):
                raise TypeError(
                    f"{bound.path}: `{name}` is declared `remade`, which is for objects with a `state_dict` and a "
                    f"`load_state_dict`; got a {type(value).__qualname__}"
                )
        self._baseline = Baseline(self.objects, elsewhere=elsewhere, with_code=False)
        self._saved = SavedObjects(self.objects)
        self._saved.note_forms()

    def owned(self) -> set[int]:
        """The identities of the parameters of its modules."""
        return self._saved.owned()

    def capture(self, owned: set[int], unknown: list[str]) -> dict[str, Any]:
        """The state of the objects, all but their inputs.

        Arguments:
            owned: the identities of the parameters that modules own.
            unknown: gets a line for all that cannot be saved.
        """
        drift = self._baseline.drift()
        lost = self._saved.lost()
        unknown += [f"{self.path}: {line}" for line in [*lost, *drift.unknown]]
        return {
            "states": {name: without_generators(value.state_dict()) for name, value in self.objects.items()},
            "modules": self._saved.capture_modules(),
            "gradients": self._saved.capture_gradients(),
            "optimizers": self._saved.capture_optimizers(owned),
            "reachable": drift.section,
        }

    def restore(self, saved: Section, owned: set[int]) -> None:
        """Put the state of objects that were made again into them.

        Raises:
            CheckpointError: it does not fit.
        """
        objects = self._saved
        objects.reshape(saved["modules"], saved["states"])
        for name, _ in objects.modules_first():
            state = saved["states"][name]
            try:
                objects.load(name, state)
            except MISFITS as error:
                raise CheckpointError(f"`{self.path}` makes another `{name}` than the saved one: {error}") from None
        objects.restore_modules(saved["modules"])
        objects.restore_gradients(saved["gradients"])
        objects.restore_optimizers(saved["optimizers"], owned)
        self._baseline.restore(saved["reachable"])


@dataclass(frozen=True)
class _Place:
    """Where an object came from: what made it, and the name under which it did."""

    made: Made
    name: str


@final
class Remade:
    """All that nodes of a program have made and that a resume makes again."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def _made(self) -> list[Made]:
        return [bound.made for bound in self._program.nodes if bound.made is not None]

    def _places(self) -> dict[int, _Place]:
        return {id(value): _Place(made, name) for made in self._made() for name, value in made.objects.items()}

    def take(self, former: Program, renaming: Renaming) -> None:
        """Take over what the nodes of a former program have made."""
        for bound in former.nodes:
            other = self._program.by_path.get(renaming.path(bound.path))
            if bound.made is not None and other is not None and other.remake is not None:
                other.made = copy.copy(bound.made)
                other.made.path = other.path

    def owned(self) -> set[int]:
        """The identities of the parameters of modules that nodes made."""
        return {identity for made in self._made() for identity in made.owned()}

    def slots(self, alive: set[int]) -> set[str]:
        """The slots, of those alive, that hold something that is made again."""
        places = self._places()
        return {self._program.slot_names[index] for index in alive if id(self._program.slots[index]) in places}

    def capture(self, alive: set[int], owned: set[int], unknown: list[str]) -> dict[str, Any]:
        """What is alive, by the path of the node that made it, with what is needed to make it again.

        Raises:
            UnsaveableError: an input of a node can be neither saved nor made again.
        """
        places, program = self._places(), self._program
        held = {program.slot_names[index]: program.slots[index] for index in sorted(alive)}
        in_slots = {slot: places[id(value)] for slot, value in held.items() if id(value) in places}
        needed: dict[str, Made] = {}
        waiting = [place.made for place in in_slots.values()]
        while waiting:
            made = waiting.pop()
            if made.path not in needed:
                needed[made.path] = made
                waiting += [places[id(value)].made for value in _flat(made.inputs.values()) if id(value) in places]
        return {
            path: {
                "inputs": {name: self._input(made, name, value, places) for name, value in made.inputs.items()},
                "slots": {slot: place.name for slot, place in in_slots.items() if place.made is made},
                **made.capture(owned, unknown),
            }
            for path, made in needed.items()
        }

    def _input(self, made: Made, name: str, value: Any, places: Mapping[int, _Place]) -> Any:
        if isinstance(value, tuple):
            return ("tuple", [self._input(made, name, part, places) for part in value])
        if id(value) in places:
            return ("made", places[id(value)].made.path, places[id(value)].name)
        what = f"`{name}`, which `{made.path}` needs to make {quoted(made.objects)} again"
        try:
            pack(value, what, Tensors("input"))
        except UnsaveableError as error:
            reason = error.message.partition(" cannot be saved: ")[2]
            raise UnsaveableError(f"the slot {what},", reason, "give it plain values") from None
        return ("value", value)

    def restore(self, saved: Section, owned: Callable[[], set[int]]) -> None:
        """Make the objects again, what others need first, and put their state into them.

        Raises:
            CheckpointError: the node is of another kind now, or its objects do not fit.
        """
        done: set[str] = set()
        for path in saved:
            self._make(path, saved, done)
        for path, entry in saved.items():
            made = self._program.by_path[path].made
            assert made is not None, "just made"
            made.restore(entry, owned())
            for slot, name in entry["slots"].items():
                if slot in self._program.slot_names:
                    self._program.slots[self._program.slot_index(slot)] = made.objects[name]

    def _make(self, path: str, saved: Section, done: set[str]) -> None:
        if path in done:
            return
        done.add(path)
        bound = self._program.by_path.get(path)
        if bound is None or bound.remake is None or path not in saved:
            raise CheckpointError(
                f"`{path}` has made {quoted(saved.get(path, {}).get('states', ()))}, and no such node makes it now",
                "resume with the saved graph: --graph saved",
            )
        for other in {part[1] for value in saved[path]["inputs"].values() for part in _references(value)}:
            self._make(other, saved, done)
        bound.remake({name: self._value(value) for name, value in saved[path]["inputs"].items()})

    def _value(self, described: Any) -> Any:
        match described:
            case ("tuple", parts):
                return tuple(map(self._value, parts))
            case ("made", str(path), str(name)):
                made = self._program.by_path[path].made
                assert made is not None, "made before"
                return made.objects[name]
            case ("value", value):
                return value
        raise CheckpointError(f"an input described as {str(described)[:100]} cannot be read")


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


def _references(described: Any) -> Iterator[tuple[str, str, str]]:
    match described:
        case ("tuple", parts):
            for part in parts:
                yield from _references(part)
        case ("made", path, name):
            yield "made", path, name
