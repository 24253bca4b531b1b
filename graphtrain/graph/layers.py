"""Which overlay added or changed what, for messages and pictures; not part of the value of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from graphtrain.graph.edits import Edit
    from graphtrain.graph.graph import Graph


@dataclass(frozen=True)
class Layers:
    """The overlays of a graph.

    Arguments:
        names: in the order in which they were named.
        origins: ``"node ema"``, ``"settings validate"`` or ``"guard ending"`` -> the overlays that added or changed it.
        waiting: edits skipped so far, because their nodes do not exist.
        done: the edits that were made.
    """

    names: tuple[str, ...] = ()
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    waiting: tuple[Edit, ...] = ()
    done: tuple[Edit, ...] = ()

    def of(self, what: Literal["node", "settings", "guard"], name: str) -> tuple[str, ...]:
        """The overlays that added a node, changed the settings of one, or defined or widened a guard."""
        return self.origins.get(f"{what} {name}", ())

    def renamed(self, old: str, new: str) -> Layers:
        """The same with a node of the graph renamed."""
        new_keys = {f"node {old}": f"node {new}"}
        return replace(self, origins={new_keys.get(key, key): by for key, by in self.origins.items()})

    def noted(self, before: Graph, after: Graph, edit: Edit) -> Layers:
        """The same with what an edit of an overlay has changed."""
        changed = [f"node {name}" for name in after.nodes if name not in before.nodes]
        changed += [f"settings {name}" for name, each in after.nodes.items() if before.nodes.get(name, each) != each]
        changed += [f"guard {name}" for name, text in after.guards.items() if before.guards.get(name) != text]
        by = {what: tuple(dict.fromkeys((*self.origins.get(what, ()), edit.overlay))) for what in changed}
        return replace(self, origins={**self.origins, **by}, done=(*self.done, edit))

    def plain(self) -> dict[str, Any]:
        """The layers as a checkpoint stores them, for pictures; empty if there are none."""
        origins = {what: list(by) for what, by in self.origins.items()}
        return {"names": list(self.names), "origins": origins} if self.names else {}


def overlays_text(names: Iterable[str]) -> str:
    """The names of overlays, as shown in pictures and tables.

    >>> overlays_text(["ema", "swa"]), overlays_text([])
    ('overlay ema, swa', '')
    """
    listed = ", ".join(names)
    return f"overlay {listed}" if listed else ""
