"""The objects that were reachable when a run began, and what each of them held."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any, final

from graphtrain.state.classes import RULES
from graphtrain.state.content import ContentHash, have_equal_contents
from graphtrain.state.reachable import Entry, Reachable, is_within, saved_by_state_dict, state_of


@final
class StateSnapshot:
    """The objects that were reachable when a run began.

    Arguments:
        roots: name -> object: resources, step functions, functions of nodes.
        data: the names of the roots that are data.
        saved_elsewhere: the names of the roots that something else saves as a whole.
        excluded_ids: the identities of objects that something else saves, and of generators that data restores.
        left_out: paths that are not state; what they lead to is left out too.

    Attributes:
        reachable: the objects, each with its contents.
        left_out: as the argument.
        replaced: path -> the object that `rewire` has put there; what the path leads to is not compared.
        redrawn: the identities of objects that a resume creates again by drawing batches.
        of_data: name of data that does not save itself -> the objects reachable from it.
        imported: the names of all modules imported so far.
    """

    def __init__(
        self,
        roots: Mapping[str, Any],
        data: Collection[str] = (),
        saved_elsewhere: Collection[str] = (),
        excluded_ids: Collection[int] = (),
        left_out: Collection[str] = (),
    ) -> None:
        # All that is reachable from data, also if it is reachable from elsewhere.
        followed = [name for name in data if name not in saved_elsewhere]
        within = {name: Reachable({"data": roots[name]}, ["data"]) for name in followed}
        of_data = {identity for listed in within.values() for identity in listed.by_id}
        self.reachable = Reachable(roots, data, saved_elsewhere, of_data)
        self.left_out = tuple(left_out)
        self.replaced: Mapping[str, Any] = {}
        self.redrawn: frozenset[int] = frozenset()
        self.imported = frozenset(sys.modules)
        # The generators of data are restored by its source when it is reopened, and here when all is.
        entries = self.reachable.by_path.values()
        self._listed = [each for each in entries if each.category == "generator" or id(each.value) not in excluded_ids]
        known = {id(each.value): each for each in self._listed if id(each.value) not in excluded_ids}
        self.of_data: dict[str, list[Entry]] = {}
        for name, listed in within.items():
            parts = listed.by_path.values()
            same = [each if each.category == "globals" else known.get(id(each.value)) for each in parts]
            self.of_data[name] = [each for each in same if each is not None]

    @property
    def stateful(self) -> dict[str, Any]:
        """The objects in use that are saved by their `state_dict`: path -> object."""
        listed = self.reachable.stateful.items()
        return {**{path: value for path, value in listed if not self.is_excluded(path)}, **self.replaced}

    def entries(self, data: str | None = None) -> Iterator[Entry]:
        """The objects that were reachable, except those left out or replaced; with the name of data, those of it."""
        listed = self._listed if data is None else self.of_data[data]
        excludes = self.left_out or self.replaced
        yield from (entry for entry in listed if not self.is_excluded(entry.path)) if excludes else listed

    def is_excluded(self, path: str) -> bool:
        """True for a path that is left out or was replaced, or that leads through such a path."""
        return bool(self.left_out or self.replaced) and is_within(path, (*self.left_out, *self.replaced))

    def ignored(self, entry: Entry, states: Mapping[str, Any]) -> frozenset[str]:
        """The attributes that are not compared: those whose values are in the present `state_dict`.

        `states` has those already read, by path. The name alone is not enough: an entry of the same name may hold
        another value, which loading does not restore.
        """
        if entry.category == "module":  # private flags that hooks are registered: set with the hooks
            named = [(name, part) for name, part in vars(entry.value).items() if name[0] == "_" and "hook" in name]
            return entry.ignored.union(name for name, part in named if isinstance(part, bool))
        if not (entry.category == "object" and entry.path in self.reachable.stateful):
            return entry.ignored
        attributes = dict(zip(*RULES["object"].contents(entry.value), strict=True))
        state = states[entry.path] if entry.path in states else state_of(entry.value)
        common = attributes.keys() & state.keys()
        equal = {name for name in common if have_equal_contents(attributes[name], state[name])}
        return entry.ignored | saved_by_state_dict(entry.value, state) | equal


_OTHER = (
    "has changed since the checkpoint: training changed it in place, or `setup` creates it differently each time; "
    "let training change a copy, or seed `setup`"
)


def data_contents(snapshot: StateSnapshot, saved: Collection[str]) -> dict[str, dict[str, Any]]:
    """Hash the tensors, arrays and large containers of data, except those at paths that are saved.

    Returns, by name of data, its `hash`; and `is_whole`, False if only a sample was hashed.
    """
    contents = {}
    for name in snapshot.of_data:
        content = ContentHash(snapshot.reachable.path_of)
        digest = ""
        with contextlib.suppress(RuntimeError):  # training changes a dictionary meanwhile: no resume finds the same
            for entry in snapshot.entries(name):
                is_large = entry.category in ("tensor", "array") or not entry.is_entered
                if is_large and entry.is_data and not entry.is_saved_elsewhere and entry.path not in saved:
                    content.add(entry.value, entry.path)
            digest = content.hexdigest()
        contents[name] = {"hash": digest, "is_whole": content.is_whole}
    return contents


def compared_data(
    before: Mapping[str, Any], snapshot: StateSnapshot | None, saved: Collection[str], reported: Collection[str]
) -> tuple[list[str], str]:
    """A notice for each data that differs from its contents `before`; and which was too large to compare, in words.

    Arguments:
        before: as from `data_contents`, when a checkpoint was written; empty if it is not known.
        reported: the names of data that is already reported.
    """
    now = data_contents(snapshot, saved) if before and snapshot is not None else {}
    known = [name for name in now if name in before]
    lines = [f"{name} {_OTHER}" for name in known if name not in reported and before[name]["hash"] != now[name]["hash"]]
    large = [name for name in known if not now[name]["is_whole"]]
    return lines, f"{', '.join(large)} compared only in part" if large else ""
