"""The words in a picture: names and values as one short line, whatever the graph contains."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from typing import Any

from graphtrain.graph.elements import Node, is_computed
from graphtrain.kind.declaration import FROM
from graphtrain.kind.trigger import Trigger

LINE_LENGTH = 32  # characters; about the width of the longest guard of `fit`
TOOLTIP_LENGTH = 400
PARAMETER_LINES = 3


def one_line(text: str, length: int = TOOLTIP_LENGTH) -> str:
    """`text` without line breaks and control characters, cut to a length.

    Graphs may come from strangers: a control character makes an SVG unreadable, a direction mark makes it misleading.

    >>> one_line("two\\nlines"), one_line("much too long", 9)
    ('two lines', 'much too…')
    """
    plain = "".join(character if character.isprintable() else " " for character in text[: 4 * TOOLTIP_LENGTH])
    line = " ".join(plain.split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


def value_text(value: Any) -> str:
    """The value of a parameter as text: a trigger needs no quotes.

    >>> value_text(["1 epochs", "10 minutes"]), value_text(True), value_text(1e-3)
    ('1 epochs or 10 minutes', 'true', '0.001')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
        return " or ".join(value)
    return str(value) if isinstance(value, Trigger) else reprlib.repr(value)


def kind_line(node: Node) -> str:
    """The kind of a node or the name of its body; empty where it is the name of the node too."""
    kind = node.use if node.body is None else node.body.name
    return "" if kind == node.name else one_line(kind, LINE_LENGTH)


def parameter_lines(node: Node) -> Iterator[str]:
    """The parameters set in the graph, by a value or an expression, the first few of them where there are many.

    >>> list(parameter_lines(Node("clip", "clip", reads={"max_norm": "1 / (1 + step.steps)"})))
    ['max_norm = 1 / (1 + step.steps)']
    >>> list(parameter_lines(Node("save", "checkpoint", {"every": "1 epochs", "from": "5 epochs", "keep": 2})))
    ['every = 1 epochs from 5 epochs', 'keep = 2']
    >>> list(parameter_lines(Node("log", "log", {"from": "5 epochs"})))
    ['from 5 epochs']
    """
    shown = {**node.parameters, **{name: target for name, target in node.reads.items() if is_computed(target)}}
    start = f"{FROM} {value_text(shown.pop(FROM))}" if FROM in shown else ""
    lines = []
    for name, value in shown.items():
        line = f"{name} = {value_text(value)}"
        if name == "every" and start:
            is_short = len(f"{line} {start}") <= LINE_LENGTH
            lines += [f"{line} {start}"] if is_short else [one_line(line, LINE_LENGTH), one_line(start, LINE_LENGTH)]
        else:
            lines.append(one_line(line, LINE_LENGTH))
    if start and "every" not in shown:  # that of its kind
        lines.insert(0, one_line(start, LINE_LENGTH))
    yield from first_few(lines, PARAMETER_LINES + 1)


def first_few(lines: list[str], most: int) -> list[str]:
    """At most `most` lines: where there are more, the last one says how many are left out, and that is never one.

    >>> first_few(["a", "b", "c"], 3), first_few(["a", "b", "c", "d"], 3)
    (['a', 'b', 'c'], ['a', 'b', 'and 2 more'])
    """
    return lines if len(lines) <= most else [*lines[: most - 1], f"and {len(lines) - most + 1} more"]


def tooltip(node: Node) -> str:
    """Everything that the graph declares about a node.

    >>> tooltip(Node("train_batch", "train_batch", reads={"window": "accumulate.every"}))
    'train_batch; window is accumulate.every'
    """
    kind = kind_line(node)
    parts = [f"{node.name} ({kind})" if kind else node.name]
    parts += [f"{name} = {value_text(value)}" for name, value in node.parameters.items()]
    parts += [f"{slot} is {value_text(other)}" for slot, other in (*node.reads.items(), *node.writes.items())]
    return one_line("; ".join(parts))


def runs_line(runs: int | None) -> Iterator[str]:
    """The number of runs of a node; nothing if not known.

    >>> list(runs_line(1)), list(runs_line(46000)), list(runs_line(None))
    (['1 run'], ['46,000 runs'], [])
    """
    if runs is not None:
        yield "1 run" if runs == 1 else f"{runs:,} runs"
