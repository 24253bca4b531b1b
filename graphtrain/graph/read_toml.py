"""Reads graphs and overlays from TOML, and graphs from checkpoints. No user code is run: kinds stay names."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphtrain.errors import EditError, GraphError, GraphtrainError, UsageError
from graphtrain.graph.canonical import FORMAT
from graphtrain.graph.edits import Edit, edit_of, with_edits
from graphtrain.graph.elements import NESTED, Edge, Node, Place, Problem, Reads, Writes
from graphtrain.graph.overlay import Layers, Overlay, with_overlays
from graphtrain.graph.registry import GRAPHS, OVERLAYS, Texts, find_graph
from graphtrain.graph.sources import file_text, path_of
from graphtrain.kind.parameter import coerce, show_value
from graphtrain.names import suggestion
from graphtrain.printable import one_line, shorten

if TYPE_CHECKING:
    from graphtrain.graph.graph import Graph

_LISTS = ("outputs", "optional", "allow")
_TABLES = ("nodes", "edges", "guards", "clock")
_PLAIN_KEYS = ("format", "name", "start", "nodes", "guards", "edges", "clock", *_LISTS, "optimizer")
_OVERLAY_KEYS = ("format", "name", "start", *_LISTS, "optimizer", "edit")
_EXTENDING_KEYS = (*_OVERLAY_KEYS, "extends")
_FORMAT_LINE = re.compile(r"^[ \t]*format[ \t]*=", re.MULTILINE)
_EDGE = re.compile(r"(\S+)(?:\s+if\s+(.+))?", re.DOTALL)

# `tomllib` keeps no positions, and messages need them.
_HEADER = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_PART = r"(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')"
_KEY = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")


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
        self._text = text.split("\n")  # not splitlines(), which splits at characters that do not end a line in TOML
        self._lines: dict[tuple[str, ...], int] = {}
        section: tuple[str, ...] = ()
        edits = -1
        quotes = ""  # of the multi-line string that is open
        for number, line in enumerate(self._text, start=1):
            if quotes:
                quotes = "" if quotes in line else quotes
                continue
            key = section
            if header := _HEADER.match(line):
                section = tuple(part.strip().strip("\"'") for part in header.group(1).split("."))
                if line.lstrip().startswith("[["):
                    edits += 1
                    section = (*section, str(edits))
                self._lines.setdefault(section, number)
            elif match := _KEY.match(line):
                for part in re.findall(_PART, match.group(1)):
                    key = (*key, part.strip("\"'"))
                    self._lines.setdefault(key, number)
            quotes = next((mark for mark in ('"""', "'''") if line.count(mark) == 1), "")

    def of(self, *key: str) -> int | None:
        """The line of a key, or of the nearest enclosing key or section that has one."""
        for length in range(len(key), 0, -1):
            if (line := self._lines.get(key[:length])) is not None:
                return line if length == len(key) else self._line_in_list(line, key[length])
        return None

    def _line_in_list(self, first: int, item: str) -> int:
        """The line of a string, or of a table by its number, in a list that begins on a line."""
        tables = 0
        for number, line in enumerate(self._text[first - 1 :], start=first):
            if number > first and (_HEADER.match(line) or _KEY.match(line)):
                break
            if item in re.findall(r"[\"'](.*?)[\"']", " ".join(line.split())):
                return number
            tables += len(re.findall(r"(?:^|[\[,])\s*\{", line))  # not those that are values
            if item.isdecimal() and int(item) < tables:
                return number
        return first


@dataclass(frozen=True)
class Reader:
    """A text being read.

    Attributes:
        make: the class of the graphs.
        problems: of this text and all others that it names.
        file: its name in messages; empty for JSON, and for what the user names.
        folder: the base of the relative paths in it; None for names and paths typed by the user.
        chain: the files that lead to it, from the outermost one.
        lines: the lines of its keys.
        section: the table that is being read.
    """

    make: type[Graph]
    problems: list[Problem] = field(default_factory=list)
    file: str = ""
    folder: Path | None = None
    chain: tuple[str, ...] = ()
    lines: Lines = field(default_factory=lambda: Lines(""))
    section: tuple[str, ...] = ()

    def place(self, *key: str) -> Place | None:
        return Place(self.file, self.lines.of(*self.section, *key)) if self.file else None

    def problem(self, code: str, key: tuple[str, ...], message: str, hint: str = "") -> None:
        self.problems.append(Problem(code, "error", str(self.place(*key) or ""), message, hint))

    def value(self, data: Mapping[str, Any], key: str, annotation: Any, default: Any, *around: str) -> Any:
        """The value of a key, of the type of an annotation; the default if it is left out, or reported."""
        try:
            return coerce(data.get(key, default), annotation)
        except ValueError as error:
            self.problem("G003", (*around, key), f"{'.'.join((*around, key))}: {error}")
            return default

    def table_of_texts(self, table: Mapping[str, Any], key: str) -> dict[str, str]:
        texts = {name: self.value(table, name, str, None, key) for name in table}
        return {name: text for name, text in texts.items() if text is not None}


def sound(graph: Graph, problems: list[Problem], subject: str) -> Graph:
    """The graph of a text without problems; a GraphError, which names the subject, for one that has some."""
    if problems:
        raise GraphError(problems, subject)
    return graph


def read_graph(make: type[Graph], source: str | Path) -> tuple[Graph, list[Problem]]:
    """The readable part of a graph, and the problems of its text: shipped or installed, by name, or a file by path.

    Raises:
        UsageError: there is no such graph or file, or it cannot be read.
    """
    if not isinstance(source, str | Path):
        raise UsageError(
            f"expected a Graph, the name of one, or a path; got a {type(source).__name__}",
            'everything else is passed by name, as in Trainer("fit", model=model)',
        )
    reader = Reader(make)
    graph = _read_source(source, reader)
    is_named = isinstance(source, str) and find_graph(source) is not None
    return graph if is_named else replace(graph, source=str(source)), reader.problems


def read_overlays(graph: Graph, sources: Sequence[str | Path]) -> tuple[Graph, list[Problem]]:
    """A graph with overlays, by name or by path, and the problems of those that do not compose.

    Raises:
        UsageError: there is no such overlay, or it is a graph.
    """
    reader = Reader(type(graph))
    overlays = [_read_overlay(source, reader) for source in sources]
    graph, problems = with_overlays(graph, overlays, graph.title)
    return graph, [*reader.problems, *problems]


def read_text(make: type[Graph], text: str, name: str) -> tuple[Graph, list[Problem]]:
    """The readable part of a graph, and the problems of its text; `name` stands for the file in messages."""
    text = text.removeprefix("\ufeff")
    reader = Reader(make, file=name, folder=Path(), chain=(name,), lines=Lines(text))
    return _read_text(reader, text), reader.problems


def from_json(make: type[Graph], text: str) -> Graph:
    """Read a canonical JSON, or that of a checkpoint; it names no other graphs.

    Raises:
        ValueError: the text is not a graph.
    """
    reader = Reader(make)
    try:
        graph = _read_table(json.loads(text), reader, "")
        wrong = "; ".join(problem.message for problem in reader.problems)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        wrong = repr(error)
    if wrong:
        raise ValueError(f"not a canonical graph: {shorten(one_line(wrong), 200)}")
    return graph


def _read_source(source: str | Path, named_in: Reader) -> Graph:
    return _read_text(*_opened(source, GRAPHS, named_in))


def _read_text(reader: Reader, text: str) -> Graph:
    data, name = _tables(text, reader), Path(reader.file).stem
    return _read_table(data, reader, name) if data is not None else reader.make(name, "", {}, {})


def _opened(source: str | Path, sort: Texts, named_in: Reader) -> tuple[Reader, str]:
    """The reader of a graph or an overlay that a text, or the user, names, and its text; raises a UsageError."""
    shipped, chain = sort.find(source) if isinstance(source, str) else None, named_in.chain
    if shipped is not None:
        path, file, folder, identity = shipped, f"{source}.toml", Path(), f"<{sort.word} {source}>"
    else:
        path = path_of(source, sort, named_in.folder)
        file, folder, identity = str(path), path.parent, str(path.resolve())
    if identity in chain:
        cycle = " -> ".join((*chain[chain.index(identity) :], identity))
        raise UsageError(
            f"graphs that extend or contain each other in a cycle: {cycle}",
            "let one of them extend or contain something else, such as a shipped graph",
        )
    text = file_text(path)
    if (chain or sort is OVERLAYS) and not _FORMAT_LINE.search(text.partition("\n[")[0]):
        # Its text is not quoted: a graph of a stranger may name any file of this machine.
        raise UsageError(f"`{source}` is no {sort.word}: there is no line `format = {FORMAT}` at its top")
    return Reader(named_in.make, named_in.problems, file, folder, (*chain, identity), Lines(text)), text


def _tables(text: str, reader: Reader) -> dict[str, Any] | None:
    """The data of a TOML text; None, with a problem, if it is not TOML."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: TOMLDecodeError, or an integer of 5,000 digits
        message = str(error).split("; use sys.")[0] if isinstance(error, ValueError) else "nested too deeply"
    position = re.search(r"\(at line (\d+), column \d+\)", message)
    place = Place(reader.file, int(position.group(1)) if position else None)
    reader.problems.append(Problem("G001", "error", str(place), f"TOML: {message.split(' (at')[0]}"))
    return None


def _read_table(data: Mapping[str, Any], reader: Reader, default_name: str) -> Graph:
    make = reader.make
    if "edit" in data and "extends" not in data and "nodes" not in data:
        message = "this is an overlay, a list of edits: it has no base"
        hint = 'name it after a graph, as in --overlay FILE or extends = ["fit", "FILE"]; or add `extends = "fit"`'
        reader.problem("G003", ("edit",), message, hint)
        return make(default_name, "", {}, {})
    is_json = not reader.file
    layers = Layers()
    if is_json and "layers" in data:
        data = {**data}
        saved = data.pop("layers")
        layers = Layers(tuple(saved["names"]), dict(saved["added"]))
    _check_keys(data, _EXTENDING_KEYS if "extends" in data and not is_json else _PLAIN_KEYS, reader)
    name = reader.value(data, "name", str, default_name)
    if "extends" in data:
        return _extended(data, name, reader) if not is_json else make(name, "", {}, {})
    for key in ("start", "nodes", "edges"):
        if key not in data:
            hint = '`start = "NODE"` names the node that runs first' if key == "start" else f"write it as [{key}]"
            reader.problem("G003", (), f"`{key}` is missing", hint)
    nodes, edges, guards, clock = (reader.value(data, key, dict, {}) for key in _TABLES)
    named = {"edges": edges, "guards": guards, "clock": clock}
    places = [("start",), ("optimizer",), *((section, name) for section, table in named.items() for name in table)]
    return make(
        name=name,
        nodes={key: _read_node(key, value, reader) for key, value in nodes.items()},
        edges={key: _read_edges(key, value, reader) for key, value in edges.items()},
        guards=reader.table_of_texts(guards, "guards"),
        units=reader.table_of_texts(clock, "clock"),
        allow=reader.value(data, "allow", tuple[str, ...], ()),
        places={".".join(key): place for key in places if (place := reader.place(*key)) is not None},
        layers=layers,
        **{"start": "", **_head(data, reader)},
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
    reads = reader.value(rest, "reads", Reads, {}, *key)
    writes = reader.value(rest, "writes", Writes, {}, *key)
    use = reader.value(rest, "use", str | None, None, *key)
    for name_of in ("reads", "writes", "use"):
        rest.pop(name_of, None)
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
    if not isinstance(value, str) or not reader.file:
        reader.problem("G003", key, f"nodes.{name}.graph: expected a name, a path or a table, got {show_value(value)}")
        return None, None
    try:
        return _read_source(value, reader), value
    except GraphtrainError as error:
        reader.problem("G004", key, f"nodes.{name}.graph: {error.message}", error.hint)
        return None, None


def _read_edges(source: str, value: Any, reader: Reader) -> tuple[Edge, ...]:
    key = ("edges", source)
    edges = []
    for item in [value] if isinstance(value, str) else reader.value({source: value}, source, list[str], [], "edges"):
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
    allow = reader.value(data, "allow", tuple[str, ...], ())
    sources = [data["extends"]] if isinstance(data["extends"], str) else data["extends"]
    graph = reader.make(name, "", {}, {})
    if not isinstance(sources, list) or not sources or not all(isinstance(source, str) for source in sources):
        message = f"extends: expected a graph, then overlays, by name or path; got {show_value(sources)}"
        reader.problem("G003", ("extends",), message, 'as in extends = ["fit", "ema"]')
        return graph
    try:
        graph = _read_source(sources[0], reader)
    except UsageError as error:
        reader.problem("G004", ("extends", sources[0]), f"extends: {error.message}", error.hint)
        return graph
    overlays = []
    for source in sources[1:]:
        try:
            overlays.append(_read_overlay(source, reader))
        except UsageError as error:
            reader.problem("G004", ("extends",), f"extends: {error.message}", error.hint)
    graph, conflicts = with_overlays(graph, overlays, str(reader.place("extends")))
    reader.problems.extend(conflicts)
    head = _head(data, reader)
    places = {**graph.places, **{key: place for key in head if (place := reader.place(key)) is not None}}
    graph = replace(graph, name=name, allow=tuple(dict.fromkeys((*graph.allow, *allow))), **head, places=places)
    edits = _read_edits(data, reader)
    return with_edits(graph, edits, reader.problems, lambda graph, edit: edit.applied(graph))


def _head(data: Mapping[str, Any], reader: Reader) -> dict[str, Any]:
    """The values at the top of a file with edits, which replace those of its base."""
    head = {key: reader.value(data, key, str, "") for key in ("start", "optimizer") if key in data}
    return head | {key: reader.value(data, key, tuple[str, ...], ()) for key in ("outputs", "optional") if key in data}


def _read_edits(data: Mapping[str, Any], reader: Reader, overlay: str = "") -> Iterator[Edit]:
    """The edits of a file, or of an overlay with a name, in order; problems are reported to the reader."""
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
                edit = edit.with_graph(_read_source(inner, reader))
        except (EditError, UsageError, GraphError) as error:
            reader.problem("G005", key, error.message, error.hint)
            continue
        yield edit


def _read_overlay(source: str | Path, named_in: Reader) -> Overlay:
    """An overlay; raises a UsageError if there is none with that name, or it is a graph."""
    reader, text = _opened(source, OVERLAYS, named_in)
    stem, place = Path(reader.file).stem, Place(reader.file)
    data = _tables(text, reader)
    if data is None:
        return Overlay(stem, (), place)
    if "extends" in data or "nodes" in data:
        reason = "it has `extends`" if "extends" in data else "it has [nodes]"
        hint = "it is named with --graph, or first in `extends`; an overlay is a file of [[edit]] without `extends`"
        raise UsageError(f"`{source}` is a graph, not an overlay: {reason}", hint)
    _check_keys(data, _OVERLAY_KEYS, reader)
    name = reader.value(data, "name", str, stem)
    edits = tuple(_read_edits(data, reader, name))
    return Overlay(name, edits, place, _head(data, reader), reader.value(data, "allow", tuple[str, ...], ()))
