"""The state beside the resources: what was reachable when a run began, what has changed since, and putting it back.

A baseline lists what is reachable when a run begins (`InitialState`). At a save it is compared with what is there then
(`DriftFinder`); a resume puts the drift over what another process set up (`Restorer`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from graphtrain.state.content import MOST_BYTES, MOST_ITEMS, ContentHash, content_hash
from graphtrain.state.drift import Drift, DriftFinder
from graphtrain.state.initial import InitialState, States
from graphtrain.state.reachable import REMEDY, Reached, is_within, parts_of
from graphtrain.state.rebuilder import Rebuilder
from graphtrain.state.references import shown_path
from graphtrain.state.restorer import Restorer

Contents = dict[str, dict[str, Any]]
"""By the name of data: `parts`, path -> hash; the `bytes` of them; `is_whole`, False if a sample was compared."""

_MOST_PARTS = 1_000


def changed_parts(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The paths of what differs between two `Contents`; of data that only one of them has, none."""
    return [
        path
        for name in now
        if name in before
        for path, content in now[name]["parts"].items()
        if before[name]["parts"].get(path, content) != content
    ]


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

    def changed_in_place(self, path: str) -> str:
        """A line about data that has changed and is not saved."""
        reached = self.reachable.by_path.get(path)
        what = "has changed in place"
        if reached is not None and reached.length:
            what = f"has {reached.length:,} items, some of which have changed in place"
        return f"{shown_path(path)} {what}, and is not saved: change copies, or {REMEDY}"

    @property
    def names_of_data(self) -> list[str]:
        """The roots that are data, and that do not save themselves."""
        return self._initial.names_of_data

    def content_of_data(
        self, changed: Collection[str] = (), *, most: int = MOST_ITEMS, pauses: bool = False
    ) -> Contents:
        """What data holds and no drift has, by the name of the data.

        Arguments:
            changed: the paths of what a drift has. Default: none.
            most: how many items are compared. Default: a million, in a gigabyte of tensors and arrays.
            pauses: True lets other threads run now and then.
        """
        contents: Contents = {}
        content = ContentHash(self.reachable.path_of, most_items=most, most_bytes=MOST_BYTES, pauses=pauses)
        for name in self._initial.names_of_data:
            parts, before = {}, content.bytes
            for reached in self._initial.listed(name):
                if _is_compared_whole(reached) and reached.path not in changed:
                    parts[reached.path] = content.of(reached.path, reached.value)
            if len(parts) > _MOST_PARTS:
                parts = {name: content_hash(parts)}
            contents[name] = {"parts": parts, "bytes": content.bytes - before, "is_whole": content.is_whole}
        return contents

    def restore(self, section: Mapping[str, Any], data: str | None = None) -> Rebuilder:
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
        rebuilder = restorer.restore(section, data)
        self.not_restored += restorer.not_restored
        if data is None:
            self._restored = dict(section["changed"])
        return rebuilder

    @contextmanager
    def kept(self, data: str) -> Iterator[None]:
        """A span after which data holds the same objects, with the same values, as before it.

        Arguments:
            data: the name of a root.
        """
        states: States = {}
        changed = DriftFinder(self._initial, states, {}, self._redrawn).drift(data).section["changed"]
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


def _is_compared_whole(reached: Reached) -> bool:
    """True for what may change where it is and is not saved with every checkpoint."""
    if not reached.is_data or reached.is_covered:
        return False
    return reached.category in ("tensor", "array", "buffer") or not reached.is_entered
