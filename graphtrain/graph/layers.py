"""The changes that overlays made to a graph, kept for the next overlay, for messages and for pictures.

They are not part of the value of a graph: two graphs made in different ways may be equal.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from graphtrain.language.syntax import python_tree

if TYPE_CHECKING:
    from graphtrain.graph.edits import Edit

_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Widened:
    """A guard by its parts: ``(expression or every or) and every and``.

    >>> Widened("finish.due", ("early_stop.stop",), ("a or b",)).text
    '(finish.due or early_stop.stop) and (a or b)'
    """

    expression: str
    alternatives: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The whole as one expression."""
        text = _joined("or", (self.expression, *self.alternatives))
        return _joined("and", (text, *self.conditions))

    def with_parts(self, alternative: str | None, condition: str | None) -> Widened:
        """The same with one more part, unless it already has that part."""
        alternatives, conditions = (
            tuple(dict.fromkeys((*parts, part))) if part is not None else parts
            for parts, part in ((self.alternatives, alternative), (self.conditions, condition))
        )
        return replace(self, alternatives=alternatives, conditions=conditions)


def _joined(operator: str, parts: tuple[str, ...]) -> str:
    if len(parts) == 1:
        return parts[0]
    return f" {operator} ".join(part.strip() if _binds_tighter(part, operator) else f"({part})" for part in parts)


def _binds_tighter(text: str, operator: str) -> bool:
    """True if an expression needs no parentheses next to an `and` or an `or`."""
    try:
        tree = python_tree(text).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    looser: tuple[type[ast.expr], ...] = (ast.IfExp, ast.Lambda, ast.NamedExpr)
    if operator == "and" and isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.Or):
        return False
    return not isinstance(tree, looser)


@dataclass(frozen=True)
class Touch:
    """An addition or change by an overlay; `value` is the result, in words, or empty."""

    overlay: str
    value: str = ""


@dataclass(frozen=True)
class Layers:
    """The overlays of a graph.

    Arguments:
        names: in the order in which they were named.
        touched: what (in words, as ``"node ema"``) -> which overlay added or changed it.
        anchors: the node or edge that an overlay relies on -> that overlay.
        last: a place (as ``"after step"``) -> the node or target that overlays last added there.
        waiting: edits skipped so far, because their nodes do not exist.
        done: every edit that was made, as text -> the overlay.
        widened: guards by their parts.
    """

    names: tuple[str, ...] = ()
    touched: Mapping[str, Touch] = field(default_factory=lambda: _NONE)
    anchors: Mapping[str, str] = field(default_factory=lambda: _NONE)
    last: Mapping[str, str] = field(default_factory=lambda: _NONE)
    waiting: tuple[Edit, ...] = ()
    done: Mapping[str, str] = field(default_factory=lambda: _NONE)
    widened: Mapping[str, Widened] = field(default_factory=lambda: _NONE)

    def overlay_of(self, what: str) -> str:
        """The overlay that made an addition or change; empty if none did."""
        touch = self.touched.get(what)
        return touch.overlay if touch is not None else ""

    def overlays_of_guard(self, name: str) -> list[str]:
        """The overlays that define or widen a guard."""
        whole = guard(name)
        touches = [touch for what, touch in self.touched.items() if what == whole or what.startswith(f"{whole} by ")]
        return list(dict.fromkeys(touch.overlay for touch in touches))

    def overlays_of_node(self, name: str) -> list[str]:
        """The overlays that change a node which another one, or the graph, has: its parameters and bindings."""
        return list(
            dict.fromkeys(touch.overlay for what, touch in self.touched.items() if what.startswith(f"`{name}."))
        )

    def guard(self, name: str, text: str) -> Widened:
        """The parts of a guard with this text; one that differs from its parts was written since, and is one part."""
        widened = self.widened.get(name)
        return widened if widened is not None and widened.text == text else Widened(text)

    def renamed(self, old: str, new: str) -> Layers:
        """The same with a node of the graph renamed."""
        touched = {(node(new) if what == node(old) else what): touch for what, touch in self.touched.items()}
        return replace(self, touched=touched)


def plain_layers(layers: Layers) -> dict[str, Any]:
    """The layers as a checkpoint stores them, for pictures; empty if there are none."""
    if not layers.names:
        return {}
    return {
        "names": list(layers.names),
        "touched": {what: [touch.overlay, touch.value] for what, touch in layers.touched.items()},
        "widened": {
            name: [parts.expression, list(parts.alternatives), list(parts.conditions)]
            for name, parts in layers.widened.items()
        },
    }


def layers_of(plain: Any) -> Layers:
    """The layers from `plain_layers`; none if they cannot be read, since a graph is the same without them."""
    try:
        return Layers(
            names=tuple(map(_text, plain["names"])),
            touched={what: Touch(_text(overlay), _text(value)) for what, (overlay, value) in plain["touched"].items()},
            widened={
                name: Widened(_text(expression), tuple(map(_text, alternatives)), tuple(map(_text, conditions)))
                for name, (expression, alternatives, conditions) in plain["widened"].items()
            },
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return Layers()


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, got a {type(value).__name__}")
    return value


def node(name: str) -> str:
    """What `Layers.touched` calls a node."""
    return f"node `{name}`"


def edge(source: str, words: Any) -> str:
    """What `Layers.touched` calls an edge, which reads ``"target if guard"``."""
    return f"edge `{source}` -> `{words}`"


def guard(name: str) -> str:
    """What `Layers.touched` calls the expression of a guard."""
    return f"guard `{name}`"


def widening(name: str, overlay: str) -> str:
    """What `Layers.touched` calls an addition to a guard, which several overlays may make."""
    return f"guard `{name}` by {overlay}"


def overlays_text(names: Iterable[str]) -> str:
    """The names of overlays, as shown in pictures and tables.

    >>> overlays_text(["ema", "swa"]), overlays_text([])
    ('overlay ema, swa', '')
    """
    listed = ", ".join(names)
    return f"overlay {listed}" if listed else ""
