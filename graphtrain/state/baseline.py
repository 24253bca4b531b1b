"""The state beside the resources: what was reachable when a run began, what has changed since, and putting it back.

A baseline lists what is reachable when a run begins (`InitialState`). At a save it is compared with what is there then
(`DriftFinder`); a resume puts the drift over what another process set up (`Restorer`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from graphtrain.state.codec import StateReader
from graphtrain.state.drift import Drift, DriftFinder
from graphtrain.state.initial import InitialState, States
from graphtrain.state.reachable import Reached, is_within, parts_of
from graphtrain.state.restorer import Restorer


@final
class Baseline:
    """The state that is reachable when a run begins.

    Arguments:
        roots: name -> object: resources, step functions, functions of nodes.
        data: the names of those that are data.
        covered: the names of those that something else saves as a whole.
        elsewhere: the identities of objects that something else saves.
        left_out: paths that are no state, with all that is reached through them.
        with_code: False leaves out classes, and the globals of functions. Default: they count too.

    Attributes:
        stateful: what is saved by its `state_dict`, by path.
        not_restored: a line for everything that was saved and has no place now.
        left_out: the same as the argument.
    """

    def __init__(
        self,
        roots: Mapping[str, Any],
        data: Collection[str] = (),
        covered: Collection[str] = (),
        elsewhere: Collection[int] = (),
        left_out: Collection[str] = (),
        *,
        with_code: bool = True,
    ) -> None:
        self._initial = InitialState(roots, data, covered, elsewhere, left_out, with_code=with_code)
        self.reachable, self.left_out = self._initial.reachable, self._initial.left_out
        self.stateful = self.reachable.stateful
        self.not_restored: list[str] = []
        # What was put there last, until it was looked at once: objects that `setup` makes in this process as they were
        # then have drifted nevertheless, by the account of the process that saved them.
        self._restored: Mapping[str, Mapping[str, Any]] = {}
        self._redrawn: set[int] = set()

    def is_redrawn(self, data: str) -> None:
        """Note that a resume draws all batches of an epoch again: what data has bound since is bound again by that.

        Arguments:
            data: the name of a root.
        """
        self._redrawn |= {id(reached.value) for reached in self._initial.of_data(data)}

    def name_of_data(self, value: Any) -> str | None:
        """The name of the root that is this data; None for data that came later, or that saves itself."""
        return self._initial.name_of_data(value)

    def drift(self, data: str | None = None, states: Mapping[str, Any] | None = None) -> Drift:
        """What has changed until now.

        Arguments:
            data: the name of a root; only what is reachable from it. Default: everything.
            states: path -> the `state_dict` that an object has now. Default: they are asked for where they are needed.
        """
        restored: Mapping[str, Mapping[str, Any]] = {}
        if data is None:
            restored, self._restored = self._restored, {}
        known = {path: state for path, state in (states or {}).items() if isinstance(state, Mapping)}
        return DriftFinder(self._initial, known, restored, self._redrawn).drift(data)

    def listed_data(self) -> dict[str, list[Reached]]:
        """By the name of data that does not save itself: what was reachable from it, all but what is left out."""
        return {name: list(self._initial.listed(name)) for name in self._initial.names_of_data}

    def restore(self, section: Mapping[str, Any], data: str | None = None) -> StateReader:
        """Put what is not covered back to the baseline, and a drift over it.

        Arguments:
            section: of a `Drift`.
            data: the name that the drift was restricted to.

        Returns:
            What has found or made the objects that the drift refers to.

        Raises:
            CheckpointError: something that had changed does not exist now, or cannot be made.
        """
        restorer = Restorer(self._initial, {})
        reader = restorer.restore(section, data)
        self.not_restored += restorer.not_restored
        if data is None:
            self._restored = dict(section)
        return reader

    @contextmanager
    def kept(self, data: str) -> Iterator[None]:
        """A span after which data holds the same objects, with the same values, as before it.

        Arguments:
            data: the name of a root.
        """
        states: States = {}
        changed = DriftFinder(self._initial, states, {}, self._redrawn).drift(data).section
        with Restorer(self._initial, states).kept(data, changed):
            yield

    def is_left_out(self, path: str) -> bool:
        """True for what is declared to be no state, and for all that is reached through it."""
        return is_within(path, self.left_out)

    def replace(self, values: Mapping[str, Any]) -> None:
        """Note what other objects have taken the place of: what is reached through it is no state any more."""
        self._initial.replace(values)

    def is_replaced(self, path: str) -> bool:
        """True for what another object has taken the place of, and for all that was reached through it."""
        return is_within(path, self._initial.replaced)

    def places(self) -> Iterator[str]:
        """The path of everything that is reachable, plain values included."""
        for reached in self.reachable.by_path.values():
            yield reached.path
            if reached.is_entered:
                yield from (place for place, _, _ in parts_of(reached))
        for module, (namespace, names) in self.reachable.globals.items():
            yield from (f"{module}:{name}" for name in sorted(names & namespace.keys()))

    def listed(self) -> Iterator[Reached]:
        """What was reachable, all but what is left out."""
        return self._initial.listed()

    def globals_in_use(self) -> Iterator[tuple[str, str, Any, Any]]:
        """Module and name of each global that functions of the user's own use: what it was, and what it is."""
        for module, before in self._initial.globals.items():
            namespace = self.reachable.globals[module][0]
            for name, value in before.items():
                if not self.is_left_out(f"{module}:{name}"):
                    yield module, name, value, namespace.get(name)
