"""Reads graphs and overlays from TOML, and graphs from checkpoints. No user code is run: kinds stay names."""

from __future__ import annotations

import contextlib
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Generic

from graphtrain.errors import EditError, GraphError, GraphtrainError, UsageError
from graphtrain.graph.canonical import FORMAT
from graphtrain.graph.elements import NESTED, Edge, Edit, G, Layers, Node, Problem, Reads, Writes
from graphtrain.graph.overlay import Overlay, edit_of, with_edits, with_head, with_overlays
from graphtrain.graph.registry import GRAPHS, OVERLAYS, Texts, find_graph
from graphtrain.kind.parameter import coerce, show_value
from graphtrain.names import suggestion
from graphtrain.printable import one_line

_LISTS = dict.fromkeys(("outputs", "optional", "allow"), tuple[str, ...])
_HEAD: dict[str, Any] = {"start": str, **_LISTS, "optimizer": str}
_TABLES = ("nodes", "edges", "guards", "clock")
_PLAIN_KEYS = ("format", "name", *_HEAD, *_TABLES)
_OVERLAY_KEYS = ("format", "name", *_HEAD, "edit")
_EXTENDING_KEYS = (*_OVERLAY_KEYS, "extends")
_FORMAT_LINE = re.compile(r"^[ \t]*format[ \t]*=", re.MULTILINE)
_EDGE = re.compile(r"(\S+)(?:\s+if\s+(.+))?", re.DOTALL)

_INLINE = "an inline table is on one line; write a longer one as a table of its own: [nodes.NAME]"
_HEADER = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_PART = r"(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')"
_KEY = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")


def _lines_of(text: str) -> dict[tuple[str, ...], int]:
    """The lines of keys, and of tables in lists by their number, for messages: `tomllib` keeps no positions.

    >>> _lines_of('[nodes]\\nclip = {}\\n[[edit]]\\nremove = "log"')
    {('nodes',): 1, ('nodes', 'clip'): 2, ('edit', '0'): 3, ('edit', '0', 'remove'): 4}
    """
    lines: dict[tuple[str, ...], int] = {}
    tables = Counter[tuple[str, ...]]()
    section: tuple[str, ...] = ()
    key = section
    for number, line in enumerate(text.split("\n"), start=1):
        if header := _HEADER.match(line):
            key = tuple(part.strip().strip("\"'") for part in header[1].split("."))
            section = (*key, str(tables[key])) if line.lstrip().startswith("[[") else key
            lines.setdefault(section, number)
        elif match := _KEY.match(line):
            key = section
            for part in re.findall(_PART, match[1]):
                key = (*key, part.strip("\"'"))
                lines.setdefault(key, number)
        tables[key] += line.lstrip().startswith("[[")
    return lines


@dataclass(frozen=True)
class Reader(Generic[G]):
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

    make: type[G]
    problems: list[Problem] = field(default_factory=list)
    file: str = ""
    folder: Path | None = None
    chain: tuple[str, ...] = ()
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    section: tuple[str, ...] = ()

    def place(self, *key: str) -> str:
        """The file and the line of a key, or of the nearest enclosing one that has a line; empty without a file."""
        key = (*self.section, *key)
        for length in range(len(key), 0, -1) if self.file else ():
            if key[:length] in self.lines:
                return f"{self.file}:{self.lines[key[:length]]}"
        return self.file

    def problem(self, code: str, key: tuple[str, ...], message: str, hint: str = "") -> None:
        self.problems.append(Problem(code, "error", self.place(*key), message, hint))

    def value(self, data: Mapping[str, Any], key: str, annotation: Any, default: Any, *around: str) -> Any:
        """The value of a key, of the type of an annotation; the default if it is left out, or reported."""
        try:
            return coerce(data.get(key, default), annotation)
        except ValueError as error:
            self.problem("G003", (*around, key), f"{'.'.join((*around, key))}: {error}")
            return default


def sound(graph: G, problems: list[Problem], subject: str) -> G:
    """The graph of a text without problems; a GraphError, which names the subject, for one that has some."""
    if problems:
        raise GraphError(problems, subject)
    return graph


def read_graph(make: type[G], source: str | Path) -> tuple[G, list[Problem]]:
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


def read_overlays(graph: G, sources: Sequence[str | Path]) -> tuple[G, list[Problem]]:
    """A graph with overlays, by name or by path, and the problems of those that conflict.

    Raises:
        UsageError: there is no such overlay, or it is a graph.
    """
    if not sources:
        return graph, []
    reader = Reader(type(graph))
    overlays = [_read_overlay(source, reader) for source in sources]
    graph, problems, _ = with_overlays(graph, overlays, graph.title)
    return graph, [*reader.problems, *problems]


def read_text(make: type[G], text: str, name: str) -> tuple[G, list[Problem]]:
    """The readable part of a graph, and the problems of its text; `name` stands for the file in messages."""
    text = text.removeprefix("\ufeff")
    reader = Reader(make, file=name, folder=Path(), chain=(name,), lines=_lines_of(text))
    return _read_text(reader, text), reader.problems


def from_json(make: type[G], text: str) -> G:
    """The graph of a canonical JSON, or of that in a checkpoint; it names no other graphs."""
    reader = Reader(make)
    try:
        graph = _read_table(json.loads(text), reader, "")
        wrong = "; ".join(problem.message for problem in reader.problems)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        wrong = repr(error)
    if wrong:
        raise ValueError(f"not a canonical graph: {one_line(wrong, 200)}")
    return graph


def _read_source(source: str | Path, named_in: Reader[G]) -> G:
    return _read_text(*_opened(source, GRAPHS, named_in))


def _read_text(reader: Reader[G], text: str) -> G:
    data, name = _tables(text, reader), Path(reader.file).stem
    return _read_table(data, reader, name) if data is not None else reader.make(name, "", {}, {})


def _opened(source: str | Path, sort: Texts, named_in: Reader[G]) -> tuple[Reader[G], str]:
    """The reader of a graph or an overlay that a text, or the user, names, and its text; raises a UsageError."""
    path: Path | Traversable | None = sort.find(source) if isinstance(source, str) else None
    file, folder, identity, chain = f"{source}.toml", Path(), f"<{sort.word} {source}>", named_in.chain
    if path is None:
        path = _path_of(source, sort, named_in.folder)
        file, folder, identity = str(path), path.parent, str(path.resolve())
    if identity in chain:
        cycle = " -> ".join((*chain[chain.index(identity) :], identity))
        raise UsageError(
            f"graphs that extend or contain each other in a cycle: {cycle}",
            "let one of them extend or contain something else, such as a shipped graph",
        )
    try:
        text = path.read_text(encoding="utf-8").removeprefix("\ufeff")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 text (byte {error.start})"
        raise UsageError(f"cannot read the {sort.word} `{path}`: {reason}", "is it the right file?") from None
    if (chain or sort is OVERLAYS) and not _FORMAT_LINE.search(text.partition("\n[")[0]):
        # Its text is not quoted: a graph of a stranger may name any file of this machine.
        raise UsageError(f"`{source}` is no {sort.word}: there is no line `format = {FORMAT}` at its top")
    return Reader(named_in.make, named_in.problems, file, folder, (*chain, identity), _lines_of(text)), text


def _path_of(source: str | Path, sort: Texts, folder: Path | None) -> Path:
    """The path of a file that a text in a folder names; the folder is None for one that the user names."""
    path = Path(source)
    if folder is not None and path.is_absolute():
        raise UsageError(f"`{source}`: a graph must name others by shipped name or relative path")
    path = (folder or Path()) / path
    with contextlib.suppress(OSError, ValueError):  # too long, a NUL, no permission
        if path.is_file():
            return path
    raise UsageError(f"there is no {sort.word} `{one_line(str(source), 200)}`", sort.hint(str(source)))


def _tables(text: str, reader: Reader[Any]) -> dict[str, Any] | None:
    """The data of a TOML text; None, with a problem, if it is not TOML."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: TOMLDecodeError, or an integer of 5,000 digits
        message = str(error).split("; use sys.")[0] if isinstance(error, ValueError) else "nested too deeply"
    position = re.search(r"\(at line (\d+), column \d+\)", message)
    place = f"{reader.file}:{position[1]}" if position else reader.file
    line = text.splitlines()[int(position[1]) - 1] if position else ""
    hint = _INLINE if line.count("{") > line.count("}") else ""
    reader.problems.append(Problem("G001", "error", place, f"TOML: {message.split(' (at')[0]}", hint))
    return None


def _read_table(data: Mapping[str, Any], reader: Reader[G], default_name: str) -> G:
    is_json = not reader.file
    if "edit" in data and "extends" not in data and "nodes" not in data:
        message = "this is an overlay, a list of edits: it has no base"
        hint = 'name it after a graph, as in --overlay FILE or extends = ["fit", "FILE"]; or add `extends = "fit"`'
        reader.problem("G003", ("edit",), message, hint)
        return reader.make(default_name, "", {}, {})
    is_extending = "extends" in data and not is_json
    plain_keys = (*_PLAIN_KEYS, "overlays") if is_json else _PLAIN_KEYS
    _check_keys(data, _EXTENDING_KEYS if is_extending else plain_keys, reader)
    name = reader.value(data, "name", str, default_name)
    if is_extending:
        return _extended(data, name, reader)
    for key in ("start", "nodes", "edges"):
        if key not in data:
            hint = '`start = "NODE"` names the node that runs first' if key == "start" else f"write it as [{key}]"
            reader.problem("G003", (), f"`{key}` is missing", hint)
    tables = {key: reader.value(data, key, dict, {}) for key in _TABLES}
    things = [("start",), ("optimizer",), *[(section, name) for section in tables for name in tables[section]]]
    texts = {
        section: {name: reader.value(tables[section], name, str, "", section) for name in tables[section]}
        for section in ("guards", "clock")
    }
    return reader.make(
        name=name,
        nodes={key: _read_node(key, value, reader) for key, value in tables["nodes"].items()},
        edges={key: _read_edges(key, value, reader) for key, value in tables["edges"].items()},
        guards=texts["guards"],
        units=texts["clock"],
        places={".".join(key): reader.place(*key) for key in things},
        layers=Layers(reader.value(data, "overlays", tuple[str, ...], ()) if is_json else ()),
        **{"start": "", **_head(data, reader)},
    )


def _check_keys(data: Mapping[str, Any], known: tuple[str, ...], reader: Reader[Any]) -> None:
    """Report unknown keys at the top of a file, and an unexpected format."""
    for key in data:
        if key not in known:
            is_edited = key in _PLAIN_KEYS and "edit" in known
            hint = "a file of edits changes a graph with [[edit]] tables" if is_edited else suggestion(key, known)
            reader.problem("G002", (key,), f"unknown key `{key}`", hint)
    if not reader.section and (type(data.get("format")) is not int or data["format"] != FORMAT):
        received = f"got {show_value(data['format'])}" if "format" in data else "it is missing"
        reader.problem("G003", ("format",), f"`format = {FORMAT}` is expected at the top; {received}")


def _read_node(name: str, value: Any, reader: Reader[G]) -> Node:
    key = ("nodes", name)
    if not isinstance(value, dict):
        hint = f"write `{name} = {{}}`, or a separate table: [nodes.{name}]"
        hint = "it belongs at the top level, above [nodes]" if name in _PLAIN_KEYS else suggestion(name, ()) or hint
        reader.problem("G003", key, f"nodes.{name}: expected a table of parameters, got {show_value(value)}", hint)
        return Node(name, name)
    reads = reader.value(value, "reads", Reads, {}, *key)
    writes = reader.value(value, "writes", Writes, {}, *key)
    use = reader.value(value, "use", str | None, None, *key)
    rest = {name: each for name, each in value.items() if name not in ("reads", "writes", "use", "graph")}
    if "graph" not in value:
        return Node(name, use or name, rest, reads, writes)
    if use not in (None, NESTED):
        reader.problem("G003", key, f"nodes.{name} has both `use` and `graph`", "keep one of them")
    return Node(name, NESTED, rest, reads, writes, _read_body(name, value["graph"], reader))


def _read_body(name: str, value: Any, reader: Reader[G]) -> G | None:
    key = ("nodes", name, "graph")
    if isinstance(value, dict):
        return _read_table(value, replace(reader, section=(*reader.section, *key)), name)
    if not isinstance(value, str) or not reader.file:
        reader.problem("G003", key, f"nodes.{name}.graph: expected a name, a path or a table, got {show_value(value)}")
        return None
    try:
        return _read_source(value, reader)
    except GraphtrainError as error:
        reader.problem("G004", key, f"nodes.{name}.graph: {error.message}", error.hint)
        return None


def _read_edges(source: str, value: Any, reader: Reader[Any]) -> tuple[Edge, ...]:
    edges = []
    for item in [value] if isinstance(value, str) else reader.value({source: value}, source, list[str], [], "edges"):
        text = " ".join(item.split())
        match = _EDGE.fullmatch(text)
        if match is None or not match[1].isidentifier() or not (match[2] or "x").isidentifier():
            hint = "an edge names its guard; define the expression under [guards]" if match and match[2] else ""
            message = f'edges.{source}: expected "target" or "target if guard", got "{one_line(text, 120)}"'
            reader.problem("G003", ("edges", source), message, hint)
        else:
            edges.append(Edge(match[1], match[2]))
    return tuple(edges)


def _extended(data: Mapping[str, Any], name: str, reader: Reader[G]) -> G:
    """A graph file with `extends`: another graph, overlays, and its edits."""
    sources = [data["extends"]] if isinstance(data["extends"], str) else data["extends"]
    graph = reader.make(name, "", {}, {})
    if not isinstance(sources, list) or not sources or not all(isinstance(source, str) for source in sources):
        message = f"extends: expected a graph, then overlays, by name or path; got {show_value(sources)}"
        reader.problem("G003", ("extends",), message, 'as in extends = ["fit", "ema"]')
        return graph
    try:
        graph = _read_source(sources[0], reader)
        overlays = [_read_overlay(source, reader) for source in sources[1:]]
    except UsageError as error:
        reader.problem("G004", ("extends",), f"extends: {error.message}", error.hint)
        return graph
    graph, conflicts, _ = with_overlays(graph, overlays, reader.place("extends"))
    reader.problems.extend(conflicts)
    head = _head(data, reader)
    graph = with_head(replace(graph, name=name), head, {key: reader.place(key) for key in head})
    return with_edits(graph, _read_edits(data, reader), reader.problems)[0]


def _head(data: Mapping[str, Any], reader: Reader[Any]) -> dict[str, Any]:
    """The values at the top of a file with edits, which replace those of its base."""
    if data.get("optimizer") == "":
        reader.problem("G003", ("optimizer",), 'optimizer: expected the name of a resource or a slot, got ""')
    return {key: reader.value(data, key, type_of, type_of()) for key, type_of in _HEAD.items() if key in data}


def _read_edits(data: Mapping[str, Any], reader: Reader[G], overlay: str = "") -> Iterator[Edit]:
    """The edits of a file, or of an overlay with a name, in order; problems are reported to the reader."""
    tables = data.get("edit", [])
    if not isinstance(tables, list):
        reader.problem("G003", ("edit",), "edit: expected tables written as [[edit]]")
        return
    for number, table in enumerate(tables):
        key = ("edit", str(number))
        try:
            edit = edit_of(table, reader.place(*key), overlay)
            body = edit.arguments.get("graph")
            if isinstance(body, dict):
                body = _read_table(body, replace(reader, section=(*reader.section, *key, "graph")), edit.subject)
            elif isinstance(body, str) and find_graph(body) is None:
                body = _read_source(body, reader)
        except (EditError, UsageError, GraphError) as error:
            reader.problem("G005", key, error.message, error.hint)
            continue
        yield replace(edit, arguments={**edit.arguments, "graph": body}) if body is not None else edit


def _read_overlay(source: str | Path, named_in: Reader[G]) -> Overlay:
    """An overlay; raises a UsageError if there is none with that name, or it is a graph."""
    reader, text = _opened(source, OVERLAYS, named_in)
    data = _tables(text, reader) or {"format": FORMAT}
    if "extends" in data or "nodes" in data:
        reason = "it has `extends`" if "extends" in data else "it has [nodes]"
        hint = "it is named with --graph, or first in `extends`; an overlay is a file of [[edit]] without `extends`"
        raise UsageError(f"`{source}` is a graph, not an overlay: {reason}", hint)
    _check_keys(data, _OVERLAY_KEYS, reader)
    name = reader.value(data, "name", str, Path(reader.file).stem)
    return Overlay(name, tuple(_read_edits(data, reader, name)), reader.file, _head(data, reader))
