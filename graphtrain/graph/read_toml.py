"""Reads graphs and overlays from TOML, and graphs from checkpoints. No user code is run: kinds stay names."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphtrain.errors import EditError, GraphError, GraphtrainError, UsageError
from graphtrain.graph.canonical import FORMAT
from graphtrain.graph.edits import Edit, edit_of, with_edits
from graphtrain.graph.elements import NESTED, Edge, Node, Place, Problem, slots_of
from graphtrain.graph.layers import Layers
from graphtrain.graph.overlay import Overlay, with_overlays
from graphtrain.graph.registry import GRAPHS, OVERLAYS, find_graph
from graphtrain.graph.sources import GraphReading, TextSource
from graphtrain.kind.parameter import show_value
from graphtrain.names import suggestion
from graphtrain.printable import one_line, shorten

if TYPE_CHECKING:
    from graphtrain.graph.graph import Graph

_LISTS = ("outputs", "optional", "allow")
_TABLES = ("nodes", "edges", "guards", "clock")
_PLAIN_KEYS = ("format", "name", "start", "nodes", "guards", "edges", "clock", *_LISTS, "optimizer")
_OVERLAY_KEYS = ("format", "name", "start", *_LISTS, "optimizer", "edit")
_EXTENDING_KEYS = (*_OVERLAY_KEYS, "extends")
_EDGE = re.compile(r"(\S+)(?:\s+if\s+(.+))?", re.DOTALL)

# `tomllib` keeps no positions, and messages need them.
_HEADER = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_PART = r"(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')"
_KEY = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")
_TOKEN = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|#.*|[\[\]{}]")


class Lines:
    """The lines of keys (``("nodes", "clip")``), of strings in lists (``("edges", "decide", "step if due")``), and of
    tables in lists, by their number (``("edit", "0")``).

    A dotted key also gives its line to an enclosing table that has none.

    >>> Lines('edit = [\\n  { remove = "log" },\\n  { remove = "clip" },\\n]').of("edit", "1")
    3
    >>> Lines('[nodes]\\nclip = {}\\n[edges]\\nclip = [\\n  "step",\\n]').of("edges", "clip", "step")
    5
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[str, ...], int] = {}
        section: tuple[str, ...] = ()
        key: tuple[str, ...] = ()
        edits = -1
        quotes = ""  # of the multi-line string that is open
        depth = 0  # of the multi-line list that is open
        tables = 0  # in that list
        # Not splitlines(), which splits at characters that do not end a line in TOML.
        for number, line in enumerate(text.split("\n"), start=1):
            if quotes:
                if quotes in line:
                    quotes = ""
                continue
            if depth == 0 and (header := _HEADER.match(line)):
                section = tuple(part.strip().strip("\"'") for part in header.group(1).split("."))
                if line.lstrip().startswith("[["):
                    edits += 1
                    section = (*section, str(edits))
                self._lines.setdefault(section, number)
                key = section
                continue
            if depth == 0 and (match := _KEY.match(line)):
                key, tables = section, 0
                for part in re.findall(_PART, match.group(1)):
                    key = (*key, part.strip("\"'"))
                    self._lines.setdefault(key, number)
            quotes = next((mark for mark in ('"""', "'''") if line.count(mark) == 1), "")
            if quotes:
                continue
            for token in _TOKEN.finditer(line):
                if depth == 1 and token.group() == "{":
                    self._lines.setdefault((*key, str(tables)), number)
                    tables += 1
                depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token.group(), 0)
                string = token.group(1) if token.group(1) is not None else token.group(2)
                if string is not None:
                    self._lines.setdefault((*key, " ".join(string.split())), number)
            depth = max(depth, 0)

    def of(self, *key: str) -> int | None:
        """The line of a key, or of the nearest enclosing key or section that has one."""
        while key:
            if key in self._lines:
                return self._lines[key]
            key = key[:-1]
        return None


@dataclass(frozen=True)
class Draft:
    """The readable part of a graph, and the problems of its text."""

    graph: Graph
    problems: list[Problem]

    def sound(self, subject: str) -> Graph:
        """The graph.

        Raises:
            GraphError: there are problems; `subject` is named in the message.
        """
        if self.problems:
            raise GraphError(self.problems, subject)
        return self.graph


@dataclass(frozen=True)
class Reader:
    """A text being read: its source, and the table that is being read."""

    source: TextSource
    reading: GraphReading
    lines: Lines
    section: tuple[str, ...] = ()

    def place(self, *key: str) -> Place | None:
        file = self.source.file
        return Place(file, self.lines.of(*self.section, *key)) if file else None

    def problem(self, code: str, key: tuple[str, ...], message: str, hint: str = "") -> None:
        self.reading.problems.append(Problem(code, "error", str(self.place(*key) or ""), message, hint))

    def text(self, data: Mapping[str, Any], key: str, default: str = "") -> str:
        value = data.get(key, default)
        if isinstance(value, str):
            return value
        self.problem("G003", (key,), f"{key}: expected a string, got {show_value(value)}")
        return default

    def texts(self, data: Mapping[str, Any], key: str) -> tuple[str, ...]:
        value = data.get(key, [])
        if _are_texts(value):
            return tuple(value)
        self.problem("G003", (key,), f"{key}: expected a list of strings, got {show_value(value)}")
        return ()

    def table(self, data: Mapping[str, Any], key: str) -> dict[str, Any]:
        value = data.get(key, {})
        if isinstance(value, dict):
            return value
        self.problem("G003", (key,), f"{key}: expected a table, got {show_value(value)}", f"write it as [{key}]")
        return {}

    def table_of_texts(self, table: Mapping[str, Any], key: str) -> dict[str, str]:
        for name, value in table.items():
            if not isinstance(value, str):
                self.problem("G003", (key, name), f"{key}.{name}: expected a string, got {show_value(value)}")
        return {name: value for name, value in table.items() if isinstance(value, str)}

    def slots(self, value: Any, key: tuple[str, ...], *, lists: bool = False) -> dict[str, Any]:
        slots, wrong = slots_of(".".join(key), value, lists=lists)
        for message in wrong:
            self.problem("G003", key, message)
        return slots


def read_graph(make: type[Graph], source: str | Path) -> Draft:
    """Read a shipped or installed graph by name, or a file by path; `make` is the class of the graph.

    Raises:
        UsageError: there is no such graph or file, or it cannot be read.
    """
    if not isinstance(source, str | Path):
        raise UsageError(
            f"expected a Graph, the name of one, or a path; got a {type(source).__name__}",
            'everything else is passed by name, as in Trainer("fit", model=model)',
        )
    reading = GraphReading(make)
    graph = _read_source(source, TextSource(), reading)
    is_named = isinstance(source, str) and find_graph(source) is not None
    return Draft(graph if is_named else replace(graph, source=str(source)), reading.problems)


def read_overlays(graph: Graph, sources: Sequence[str | Path]) -> Draft:
    """A graph with overlays, by name or by path, and the problems of those that do not compose.

    Raises:
        UsageError: there is no such overlay, or it is a graph.
    """
    reading = GraphReading(type(graph))
    return Draft(_with_overlays(graph, sources, TextSource(), reading), reading.problems)


def read_text(make: type[Graph], text: str, name: str) -> Draft:
    """Read a graph from text; `name` stands for the file in messages."""
    reading = GraphReading(make)
    graph = _read_text(text.removeprefix("\ufeff"), TextSource(name, Path(), (name,)), reading)
    return Draft(graph, reading.problems)


def from_json(make: type[Graph], text: str) -> Graph:
    """Read a canonical JSON, or that of a checkpoint; it names no other graphs.

    Raises:
        ValueError: the text is not a graph.
    """
    reading = GraphReading(make)
    try:
        graph = _read_table(json.loads(text), Reader(TextSource(), reading, Lines("")), "")
        wrong = "; ".join(problem.message for problem in reading.problems)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        wrong = repr(error)
    if wrong:
        raise ValueError(f"not a canonical graph: {shorten(one_line(wrong), 200)}")
    return graph


def _read_source(source: str | Path, named_in: TextSource, reading: GraphReading) -> Graph:
    found, text = named_in.opened(source, GRAPHS)
    return _read_text(text, found, reading)


def _read_text(text: str, source: TextSource, reading: GraphReading) -> Graph:
    data = _tables(text, source, reading)
    name = Path(source.file).stem
    if data is None:
        return reading.make(name, "", {}, {})
    return _read_table(data, Reader(source, reading, Lines(text)), name)


def _tables(text: str, source: TextSource, reading: GraphReading) -> dict[str, Any] | None:
    """The data of a TOML text; None, with a problem, if it is not TOML."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: TOMLDecodeError, or an integer of 5,000 digits
        message = str(error).split("; use sys.")[0] if isinstance(error, ValueError) else "nested too deeply"
    position = re.search(r"\(at line (\d+), column \d+\)", message)
    place = Place(source.file, int(position.group(1)) if position else None)
    reading.problems.append(Problem("G001", "error", str(place), f"TOML: {message.split(' (at')[0]}"))
    return None


def _read_table(data: Mapping[str, Any], reader: Reader, default_name: str) -> Graph:
    make = reader.reading.make
    if "edit" in data and "extends" not in data and "nodes" not in data:
        message = "this is an overlay, a list of edits: it has no base"
        hint = 'name it after a graph, as in --overlay FILE or extends = ["fit", "FILE"]; or add `extends = "fit"`'
        reader.problem("G003", ("edit",), message, hint)
        return make(default_name, "", {}, {})
    is_json = not reader.source.file
    layers = Layers()
    if is_json and "layers" in data:
        data = {**data}
        saved = data.pop("layers")
        layers = Layers(tuple(saved["names"]), {what: tuple(by) for what, by in saved["made"].items()})
    _check_keys(data, _EXTENDING_KEYS if "extends" in data and not is_json else _PLAIN_KEYS, reader)
    name = reader.text(data, "name", default_name)
    if "extends" in data:
        return _extended(data, name, reader) if not is_json else make(name, "", {}, {})
    for key in ("start", "nodes", "edges"):
        if key not in data:
            hint = '`start = "NODE"` names the node that runs first' if key == "start" else f"write it as [{key}]"
            reader.problem("G003", (), f"`{key}` is missing", hint)
    nodes, edges, guards, clock = (reader.table(data, key) for key in _TABLES)
    named = {"edges": edges, "guards": guards, "clock": clock}
    places = [("start",), *((section, name) for section, table in named.items() for name in table)]
    return make(
        name=name,
        start=reader.text(data, "start"),
        nodes={key: _read_node(key, value, reader) for key, value in nodes.items()},
        edges={key: _read_edges(key, value, reader) for key, value in edges.items()},
        guards=reader.table_of_texts(guards, "guards"),
        units=reader.table_of_texts(clock, "clock"),
        outputs=reader.texts(data, "outputs"),
        optional=reader.texts(data, "optional"),
        optimizer=_optimizer(data, reader),
        allow=reader.texts(data, "allow"),
        places={".".join(key): place for key in places if (place := reader.place(*key)) is not None},
        layers=layers,
    )


def _check_keys(data: Mapping[str, Any], known: tuple[str, ...], reader: Reader) -> None:
    """Report unknown keys at the top of a file, and an unexpected format."""
    for key in data:
        if key not in known:
            is_edited = key in _PLAIN_KEYS and "edit" in known
            hint = "a file of edits changes a graph with [[edit]] tables" if is_edited else suggestion(key, known)
            reader.problem("G002", (key,), f"unknown key `{key}`", hint)
    if not reader.section and (type(data.get("format")) is not int or data["format"] != FORMAT):
        received = f"got {show_value(data['format'])}" if "format" in data else "it is missing"
        reader.problem("G003", ("format",), f"`format = {FORMAT}` is expected at the top; {received}")


def _read_node(name: str, value: Any, reader: Reader) -> Node:
    key = ("nodes", name)
    place = reader.place(*key)
    if not isinstance(value, dict):
        hint = f"write `{name} = {{}}`, or a separate table: [nodes.{name}]"
        hint = "it belongs at the top level, above [nodes]" if name in _PLAIN_KEYS else suggestion(name, ()) or hint
        reader.problem("G003", key, f"nodes.{name}: expected a table of parameters, got {show_value(value)}", hint)
        return Node(name, name, place=place)
    rest = dict(value)
    reads = reader.slots(rest.pop("reads", {}), (*key, "reads"), lists=True)
    writes = reader.slots(rest.pop("writes", {}), (*key, "writes"))
    use = rest.pop("use", None)
    if use is not None and not isinstance(use, str):
        reader.problem("G003", key, f"nodes.{name}.use: expected the name of a kind, got {show_value(use)}")
        use = name
    body, reference = None, None
    if "graph" in rest:
        body, reference = _read_body(name, rest.pop("graph"), reader)
        if use not in (None, NESTED):
            reader.problem("G003", key, f"nodes.{name} has both `use` and `graph`", "keep one of them")
        use = NESTED
    return Node(name, use or name, rest, reads, writes, body, reference, place=place)


def _read_body(name: str, value: Any, reader: Reader) -> tuple[Graph | None, str | None]:
    key = ("nodes", name, "graph")
    if isinstance(value, dict):
        return _read_table(value, replace(reader, section=(*reader.section, *key)), name), None
    if not isinstance(value, str) or not reader.source.file:
        reader.problem("G003", key, f"nodes.{name}.graph: expected a name, a path or a table, got {show_value(value)}")
        return None, None
    try:
        return _read_source(value, reader.source, reader.reading), value
    except GraphtrainError as error:
        reader.problem("G004", key, f"nodes.{name}.graph: {error.message}", error.hint)
        return None, None


def _read_edges(source: str, value: Any, reader: Reader) -> tuple[Edge, ...]:
    key = ("edges", source)
    items = [value] if isinstance(value, str) else value
    if not _are_texts(items):
        expected = 'a list such as ["target if guard", "target"]'
        reader.problem("G003", key, f"edges.{source}: expected {expected}, got {show_value(value)}")
        return ()
    edges = []
    for item in items:
        text = " ".join(item.split())
        place = reader.place(*key, text)
        match = _EDGE.fullmatch(text)
        if match is None or not match.group(1).isidentifier() or not (match.group(2) or "x").isidentifier():
            hint = "an edge names its guard; define the expression under [guards]" if match and match.group(2) else ""
            text = shorten(text, 120)
            message = f'edges.{source}: expected "target" or "target if guard", got "{text}"'
            reader.problem("G003", (*key, text), message, hint)
            continue
        edges.append(Edge(match.group(1), match.group(2), place))
    return tuple(edges)


def _extended(data: Mapping[str, Any], name: str, reader: Reader) -> Graph:
    """A graph file with `extends`: another graph, overlays, and its edits."""
    allow = reader.texts(data, "allow")
    sources = [data["extends"]] if isinstance(data["extends"], str) else data["extends"]
    graph = reader.reading.make(name, "", {}, {})
    if not _are_texts(sources) or not sources:
        message = f"extends: expected a graph, then overlays, by name or path; got {show_value(sources)}"
        reader.problem("G003", ("extends",), message, 'as in extends = ["fit", "ema"]')
        return graph
    try:
        graph = _read_source(sources[0], reader.source, reader.reading)
    except UsageError as error:
        reader.problem("G004", ("extends", sources[0]), f"extends: {error.message}", error.hint)
        return graph
    graph = _with_overlays(graph, sources[1:], reader.source, reader.reading, reader.place("extends"))
    head = _head(data, reader)
    places = {**graph.places, **{key: place for key in head if (place := reader.place(key)) is not None}}
    graph = replace(graph, name=name, allow=tuple(dict.fromkeys((*graph.allow, *allow))), **head, places=places)
    edits = _read_edits(data, reader)
    return with_edits(graph, edits, reader.reading.problems, lambda graph, edit: edit.applied(graph))


def _optimizer(data: Mapping[str, Any], reader: Reader) -> str:
    name = reader.text(data, "optimizer")
    if not name.isidentifier() and isinstance(data.get("optimizer"), str):
        message = f'`optimizer` names a resource or a slot; got "{name}"'
        hint = 'as in optimizer = "d_optimizer"; several are named at a node: reads = { optimizer = ["a", "b"] }'
        reader.problem("G003", ("optimizer",), message, hint)
        return ""
    return name


def _head(data: Mapping[str, Any], reader: Reader) -> dict[str, Any]:
    """The values at the top of a file with edits, which replace those of its base."""
    head: dict[str, Any] = {"start": reader.text(data, "start")} if "start" in data else {}
    if "optimizer" in data:
        head["optimizer"] = _optimizer(data, reader)
    return head | {key: reader.texts(data, key) for key in ("outputs", "optional") if key in data}


def _read_edits(data: Mapping[str, Any], reader: Reader, overlay: str = "") -> Iterator[Edit]:
    """The edits of a file in order; problems are reported to the reader.

    Arguments:
        overlay: the name of their overlay. Default: they are from a graph file.
    """
    tables = data.get("edit", [])
    if not isinstance(tables, list):
        reader.problem("G003", ("edit",), "edit: expected tables written as [[edit]]")
        return
    for number, table in enumerate(tables):
        key = ("edit", str(number))
        if not isinstance(table, dict):
            reader.problem("G003", key, f"edit: expected a table, got {show_value(table)}")
            continue
        place = reader.place(*key)
        assert place is not None, "edits are in files"
        try:
            edit = edit_of(table, place, overlay)
            inner = edit.arguments.get("graph")
            if isinstance(inner, dict):
                inside = replace(reader, section=(*reader.section, *key, "graph"))
                edit = edit.with_graph(_read_table(inner, inside, edit.subject))
            elif isinstance(inner, str) and find_graph(inner) is None:
                edit = edit.with_graph(_read_source(inner, reader.source, reader.reading))
        except (EditError, UsageError, GraphError) as error:
            reader.problem("G005", key, error.message, error.hint)
            continue
        yield edit


def _with_overlays(
    graph: Graph, sources: Sequence[str | Path], named_in: TextSource, reading: GraphReading, place: Place | None = None
) -> Graph:
    """A graph with overlays; `place` is that of the list that names them, None if the user named them."""
    overlays: list[Overlay] = []
    where = str(place) if place is not None else graph.title
    for source in sources:
        try:
            overlays.append(_read_overlay(source, named_in, reading))
        except UsageError as error:
            if place is None:
                raise
            reading.problems.append(Problem("G004", "error", where, f"extends: {error.message}", error.hint))
    graph, conflicts = with_overlays(graph, overlays, where)
    reading.problems += conflicts
    return graph


def _read_overlay(source: str | Path, named_in: TextSource, reading: GraphReading) -> Overlay:
    """An overlay.

    Raises:
        UsageError: there is none with that name, or it is a graph.
    """
    found, text = named_in.opened(source, OVERLAYS)
    stem, place = Path(found.file).stem, Place(found.file)
    data = _tables(text, found, reading)
    if data is None:
        return Overlay(stem, (), place)
    if "extends" in data or "nodes" in data:
        reason = "it has `extends`" if "extends" in data else "it has [nodes]"
        hint = "it is named with --graph, or first in `extends`; an overlay is a file of [[edit]] without `extends`"
        raise UsageError(f"`{source}` is a graph, not an overlay: {reason}", hint)
    reader = Reader(found, reading, Lines(text))
    _check_keys(data, _OVERLAY_KEYS, reader)
    name = reader.text(data, "name", stem)
    edits = tuple(_read_edits(data, reader, name))
    return Overlay(name, edits, place, _head(data, reader), reader.texts(data, "allow"))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
