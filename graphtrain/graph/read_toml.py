"""Reading TOML. No user code is run: the names of kinds stay names."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from graphtrain.errors import EditError, GraphError, GraphtrainError, UsageError
from graphtrain.graph.elements import NESTED, Edge, Node, Place
from graphtrain.graph.graph import Graph
from graphtrain.graph.lines import Lines
from graphtrain.graph.overlay import Overlay
from graphtrain.graph.overlay_places import with_overlays
from graphtrain.graph.problem import Problem
from graphtrain.graph.read_edits import read_edits
from graphtrain.graph.registry import find_graph, find_overlay, known_graphs, known_overlays
from graphtrain.guards.syntax import shorten
from graphtrain.kind.parameter import show_value
from graphtrain.names import FOREIGN, nearest, suggestion

FORMAT = 1
MAX_BYTES = 1 << 20
MAX_NESTING = 20
MAX_NODES = 10_000
_MAX_EDITED_NODES = 500_000  # a few seconds

_PLAIN_KEYS = (
    "format",
    "name",
    "start",
    "nodes",
    "guards",
    "edges",
    "clock",
    "outputs",
    "optional",
    "allow",
    "optimizer",
)
_OVERLAY_KEYS = ("format", "name", "start", "outputs", "optional", "allow", "optimizer", "edit")
_EXTENDING_KEYS = (*_OVERLAY_KEYS, "extends")
_SECTIONS = ("nodes", "edges", "guards", "clock", "start")
_FORMAT_LINE = re.compile(r"^\ufeff?[ \t]*format[ \t]*=", re.MULTILINE)
_EDGE = re.compile(r"(\S+)(?:\s+if\s+(.+))?", re.DOTALL)


@dataclass(frozen=True)
class Draft:
    """A graph as far as it could be read, and the problems of its text."""

    graph: Graph
    problems: list[Problem]


class _TooLargeError(UsageError):
    """A graph that is not read to its end: files of some KB can contain each other without end."""


@dataclass
class _Bounds:
    """The bounds of a graph, with all files that it is made of.

    Attributes:
        folder: where these have to be. None: anywhere.
        nodes: how many were read so far, each file counted as one more.
        edited: how many edits went through so far: each goes through all of its graph.
    """

    folder: Path | None = None
    nodes: int = 0
    edited: int = 0

    def count(self, nodes: int = 0, edited: int = 0) -> None:
        self.nodes += nodes
        self.edited += edited
        if self.nodes > MAX_NODES:
            raise _TooLargeError(f"the graph has more than {MAX_NODES:,} nodes, with those of the graphs in it")
        if self.edited > _MAX_EDITED_NODES:
            raise _TooLargeError(f"the edits of the graph go through more than {_MAX_EDITED_NODES:,} nodes")

    def expect_inside(self, source: str | Path, path: Path) -> None:
        """Raise a UsageError for a path that leads out of the folder, by itself or by a link."""
        if self.folder is not None and not path.is_relative_to(self.folder):
            raise UsageError(
                f"`{source}` leads out of the folder `{self.folder}`, in which the graph is to be contained",
                "name a file in that folder, or a shipped graph",
            )


@dataclass
class Reader:
    """A text while it is read: where it comes from, and the problems so far."""

    file: str
    folder: Path | None
    lines: Lines
    chain: tuple[str, ...]
    bounds: _Bounds
    section: tuple[str, ...] = ()
    problems: list[Problem] = field(default_factory=list)

    def place(self, *key: str) -> Place:
        return Place(self.file, self.lines.of(*self.section, *key))

    def problem(self, code: str, key: tuple[str, ...], message: str, hint: str = "") -> None:
        self.problems.append(Problem(code, "error", str(self.place(*key)), message, hint))

    def read_body(self, value: str | dict[str, Any], key: tuple[str, ...], name: str) -> Graph:
        """The graph that a path names or a table is; its problems are among those of the text.

        Raises:
            UsageError: there is no such file.
        """
        if isinstance(value, dict):
            return _read_table(value, replace(self, section=(*key, "graph")), name)
        draft = _read_source(value, self.folder or Path(), self.chain, self.bounds)
        self.problems += draft.problems
        return draft.graph

    def is_too_large(self, error: Exception) -> bool:
        """True for an error after which nothing more is read."""
        return isinstance(error, _TooLargeError)


def read_graph(source: str | Path, *, contained: bool = False) -> Draft:
    """Read a shipped or installed graph by name, or a file by path.

    Arguments:
        contained: True refuses other files than those in its folder and below it. Default: they may be anywhere.

    Raises:
        UsageError: there is no such graph or file, or it cannot be read.
    """
    if not isinstance(source, str | Path):
        raise UsageError(
            f"expected a Graph, the name of one, or a path; got a {type(source).__name__}",
            'everything else is passed by name, as in Trainer("fit", model=model)',
        )
    try:
        folder = Path(source).parent.resolve() if contained else None
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, circular links, a folder that is gone
        raise UsageError(f"there is no folder of {shorten(repr(str(source)))}: {error}") from None
    draft = _read_source(source, folder=None, chain=(), bounds=_Bounds(folder))
    is_named = isinstance(source, str) and find_graph(source) is not None
    return draft if is_named else replace(draft, graph=replace(draft.graph, source=str(source)))


def read_overlays(graph: Graph, sources: Sequence[str | Path], *, contained: bool = False) -> Draft:
    """A graph with overlays, by name or by path, as far as they compose.

    Arguments:
        contained: True refuses a file that names others outside of its folder. Default: they may be anywhere.

    Raises:
        UsageError: there is no such overlay, or it is a graph.
    """
    folder = Path().resolve() if contained else None
    return _with_overlays(Draft(graph, []), sources, None, (), _Bounds(folder))


def overlay_name(source: str | Path) -> str:
    """What the overlay of a name or a path calls itself.

    Raises:
        UsageError: there is no such overlay, or it is a graph.
    """
    return _read_overlay(source, None, (), _Bounds())[0].name


def read_text(text: str, name: str) -> Draft:
    """Read a graph from text; `name` stands for the file in messages."""
    return _read_text(text, file=name, folder=None, chain=(name,), bounds=_Bounds())


@dataclass(frozen=True)
class _Sort:
    """What a name or a path is to lead to: a graph or an overlay."""

    word: str
    find: Callable[[str], Traversable | None]
    known: Callable[[], list[str]]

    def hint(self, source: str) -> str:
        """What to write in place of a name that is not known."""
        match = nearest(source, self.known())
        return f"did you mean `{match}`?" if match else f"known: {', '.join(self.known())}; a path ends in .toml"


_GRAPHS = _Sort("graph", find_graph, known_graphs)
_OVERLAYS = _Sort("overlay", find_overlay, known_overlays)


def _read_source(source: str | Path, folder: Path | None, chain: tuple[str, ...], bounds: _Bounds) -> Draft:
    text, shown, inner_folder, inner_chain = _opened(source, folder, chain, bounds, _GRAPHS)
    return _read_text(text, file=shown, folder=inner_folder, chain=inner_chain, bounds=bounds)


def _opened(
    source: str | Path, folder: Path | None, chain: tuple[str, ...], bounds: _Bounds, sort: _Sort
) -> tuple[str, str, Path | None, tuple[str, ...]]:
    """The text of a graph or an overlay, its file as it is shown, its folder, and the chain that leads to it.

    Arguments:
        folder: the folder of the text that names `source`; None for a name or path typed by the user.
    """
    shipped = sort.find(source) if isinstance(source, str) else None
    if shipped is not None:
        file: Path | Traversable = shipped
        identity = f"<{sort.word} {source}>" if sort is _OVERLAYS else f"<{source}>"
        inner_folder = None
    else:
        path = Path(source)
        if folder is not None and path.is_absolute():
            raise UsageError(f"`{source}`: a graph must name others by shipped name or relative path")
        file = path = (folder or Path()) / path
        try:
            identity = str(path.resolve())
            exists = path.exists()
        except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, circular links, no permission
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(f"there is no {sort.word} {shorten(repr(str(source)))}: {reason}", sort.hint("")) from None
        bounds.expect_inside(source, Path(identity))
        if isinstance(source, str) and path.suffix != ".toml" and (not exists or not source):
            raise UsageError(f"there is no {sort.word} `{source}`", _other_sort(source, sort) or sort.hint(source))
        inner_folder = path.parent
    if identity in chain:
        cycle = " -> ".join((*chain[chain.index(identity) :], identity))
        raise UsageError(
            f"graphs that extend or contain each other in a cycle: {cycle}",
            "let one of them extend or contain something else, such as a shipped graph",
        )
    if len(chain) >= MAX_NESTING:
        raise UsageError(f"graphs nested more than {MAX_NESTING} levels deep: {' -> '.join(chain)}")
    bounds.count(nodes=1)
    text = _file_text(file)
    if (chain or sort is _OVERLAYS) and not _FORMAT_LINE.search(text.partition("\n[")[0]):
        # Nothing of it is quoted: a graph of a stranger may name any file of this machine.
        raise UsageError(f"`{source}` is no {sort.word}: there is no line `format = {FORMAT}` at its top")
    shown = f"{source}.toml" if shipped is not None else str(file)
    return text, shown, inner_folder, (*chain, identity)


def _other_sort(source: str | Path, sort: _Sort) -> str:
    """What to do with the name of a graph where an overlay is wanted, or the other way round; empty for others."""
    if sort is _GRAPHS and find_overlay(str(source)) is not None:
        return f'`{source}` is an overlay: name it beside a graph, as in --overlay {source} or extends = ["fit", ...]'
    if sort is _OVERLAYS and find_graph(str(source)) is not None:
        return f"`{source}` is a graph, which comes before the overlays"
    return ""


def _file_text(file: Path | Traversable) -> str:
    if not file.is_file():
        kind = "a folder" if file.is_dir() else "not a regular file" if getattr(file, "exists", bool)() else "missing"
        raise UsageError(f"cannot read the graph `{file}`: it is {kind}")
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read the graph `{file}`: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"the graph `{file}` is larger than 1 MiB", "a graph is a page of text; is this the right file?"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        hint = "a graph is TOML text; is this the right file?"
        raise UsageError(f"the graph `{file}` is not UTF-8 text (byte {error.start})", hint) from None


def _read_text(text: str, file: str, folder: Path | None, chain: tuple[str, ...], bounds: _Bounds) -> Draft:
    text = text.removeprefix("\ufeff")  # the byte order mark of some editors
    reader = Reader(file, folder, Lines(text), chain, bounds)
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: TOMLDecodeError, or an integer of 5,000 digits
        return Draft(Graph(Path(file).stem, "", {}, {}), [_syntax_problem(text, file, error)])
    graph = _read_table(data, reader, Path(file).stem)
    return Draft(graph, reader.problems)


def _syntax_problem(text: str, file: str, error: Exception) -> Problem:
    message = str(error).split("; use sys.")[0] if isinstance(error, ValueError) else "nested too deeply"
    position = re.search(r"\(at line (\d+), column \d+\)", message)
    line = int(position.group(1)) if position else None
    rows = text.split("\n")
    row = rows[line - 1].strip() if line is not None and line <= len(rows) else ""
    hint = ""
    if opening := re.match(r"([A-Za-z_][\w-]*)\s*=\s*\{[^}]*$", row):
        hint = f"an inline table ends on its line; write a separate table: [nodes.{opening.group(1)}]"
    elif re.match(r"[\w-]+\s*=\s*\{.*,\s*\}", row):
        hint = "no comma before the closing brace of an inline table"
    elif re.search(r"=\s*(True|False|None|nil|null|yes|no)\b", row):
        hint = "true and false are lower case, and there is no null: leave the key out"
    elif re.match(r"[\w-]+\s*:", row):
        hint = "this is TOML, not YAML: key = value"
    shown = f": {shorten(row, 80)}" if row else ""
    return Problem("G001", "error", str(Place(file, line)), f"TOML: {message.split(' (at')[0]}{shown}", hint)


def _read_table(data: Mapping[str, Any], reader: Reader, default_name: str) -> Graph:
    if "edit" in data and "extends" not in data and "nodes" not in data:
        message = "this is an overlay, a list of edits: it has no base"
        hint = 'name it beside a graph, as in --overlay FILE or extends = ["fit", "FILE"]; or add `extends = "fit"`'
        reader.problem("G003", ("edit",), message, hint)
        return Graph(default_name, "", {}, {})
    _check_keys(data, _EXTENDING_KEYS if "extends" in data else _PLAIN_KEYS, reader)
    name = _typed(data, "name", str, default_name, reader)
    allow = _strings(data, "allow", reader)
    if "extends" in data:
        return _extended(data, name, allow, reader)
    data = _without_stray_edges(data, reader)
    misplaced = [key for key in _table(data, "nodes", reader, quiet=True) if key in _SECTIONS and key not in data]
    for key in ("start", "nodes", "edges"):
        if key not in data and key not in misplaced:
            hint = '`start = "NODE"` names the node that runs first' if key == "start" else f"write it as [{key}]"
            reader.problem("G003", (), f"`{key}` is missing", hint)
    for key in misplaced:
        reader.problem("G003", ("nodes", key), f"`{key}` is inside [nodes]", _top_level(key))
    nodes = {
        key: _read_node(key, value, reader)
        for key, value in _table(data, "nodes", reader).items()
        if key not in misplaced
    }
    return Graph(
        name=name,
        start=_typed(data, "start", str, "", reader),
        nodes=nodes,
        edges={key: _read_edges(key, value, reader) for key, value in _table(data, "edges", reader).items()},
        guards=_string_table(data, "guards", reader),
        units=_string_table(data, "clock", reader),
        outputs=_strings(data, "outputs", reader),
        optional=_strings(data, "optional", reader),
        optimizer=_optimizer(data, reader),
        allow=allow,
        places={
            "start": reader.place("start"),
            **{f"guards.{key}": reader.place("guards", key) for key in _table(data, "guards", reader, quiet=True)},
            **{f"clock.{key}": reader.place("clock", key) for key in _table(data, "clock", reader, quiet=True)},
            **{f"edges.{key}": reader.place("edges", key) for key in _table(data, "edges", reader, quiet=True)},
        },
    )


def _check_keys(data: Mapping[str, Any], known: tuple[str, ...], reader: Reader) -> None:
    """Report keys at the top of a file that are not known, and another format."""
    for key in data:
        if key not in known:
            if key in _PLAIN_KEYS and "edit" in known:
                hint = "a graph with `extends` changes its base with [[edit]] tables"
                hint = hint if "extends" in known else "an overlay changes its graph with [[edit]] tables"
            elif key == "edit":
                hint = '[[edit]] changes the graph that `extends = "NAME"` names'
            else:
                hint = suggestion(key, known)
            reader.problem("G002", (key,), f"unknown key `{key}`", hint)
    if not reader.section and (type(data.get("format")) is not int or data["format"] != FORMAT):
        received = f"got {show_value(data['format'])}" if "format" in data else "it is missing"
        reader.problem("G003", ("format",), f"`format = {FORMAT}` is expected at the top; {received}")


def _without_stray_edges(data: Mapping[str, Any], reader: Reader) -> Mapping[str, Any]:
    """The data with one problem for a missing header [edges], instead of one for every edge under another header."""
    if "edges" in data:
        return data
    for section in ("nodes", "guards", "clock"):
        table = _table(data, section, reader, quiet=True)
        if stray := [key for key, value in table.items() if isinstance(value, list) and key not in _SECTIONS]:
            message = f"[edges] is missing: `{stray[0]}` is inside [{section}]"
            reader.problem("G003", (section, stray[0]), message, "put the header [edges] before it")
            remaining = {key: value for key, value in table.items() if key not in stray}
            return {**data, section: remaining, "edges": {key: table[key] for key in stray}}
    return data


def _top_level(key: str) -> str:
    if key in ("nodes", "edges", "guards", "clock"):
        return f"`{key}` belongs at the top level: put its header [{key}] before it"
    return f"`{key}` belongs at the top level: move its line above the first header"


def _read_node(name: str, value: Any, reader: Reader) -> Node:
    reader.bounds.count(nodes=1)
    key = ("nodes", name)
    place = reader.place(*key)
    if not isinstance(value, dict):
        hint = f"write `{name} = {{}}`, or a separate table: [nodes.{name}]"
        if name in FOREIGN:
            hint = suggestion(name, ())
        elif name in _PLAIN_KEYS:
            hint = _top_level(name)
        reader.problem("G003", key, f"nodes.{name}: expected a table of parameters, got {show_value(value)}", hint)
        return Node(name, name, place=place)
    rest = dict(value)
    reads = {
        slot: tuple(target) if isinstance(target, list) else target
        for slot, target in _mapping(rest.pop("reads", {}), (*key, "reads"), reader, lists=True).items()
    }
    writes = _mapping(rest.pop("writes", {}), (*key, "writes"), reader)
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
        if len(reader.section) >= 3 * MAX_NESTING:
            reader.problem("G003", key, f"graphs nested more than {MAX_NESTING} levels deep")
            return None, None
        inside = replace(reader, section=(*reader.section, *key), problems=[])
        graph = _read_table(value, inside, name)
        reader.problems += inside.problems
        return graph, None
    if not isinstance(value, str):
        reader.problem("G003", key, f"nodes.{name}.graph: expected a name, a path or a table, got {show_value(value)}")
        return None, None
    try:
        draft = _read_source(value, reader.folder or Path(), reader.chain, reader.bounds)
    except _TooLargeError:
        raise
    except GraphtrainError as error:
        reader.problem("G004", key, f"nodes.{name}.graph: {error.message}", error.hint)
        return None, None
    reader.problems += draft.problems
    return draft.graph, value


def _read_edges(source: str, value: Any, reader: Reader) -> tuple[Edge, ...]:
    key = ("edges", source)
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        reader.problem(
            "G003",
            key,
            f'edges.{source}: expected a list such as ["target if guard", "target"], got {show_value(value)}',
        )
        return ()
    edges = []
    for item in value:
        text = " ".join(item.split())
        place = reader.place(*key, text)
        match = _EDGE.fullmatch(text)
        if match is None or not match.group(1).isidentifier() or not (match.group(2) or "x").isidentifier():
            hint = "an edge names its guard; define the expression under [guards]" if match and match.group(2) else ""
            text = shorten(text, 120)
            reader.problem(
                "G003", (*key, text), f'edges.{source}: expected "target" or "target if guard", got "{text}"', hint
            )
            continue
        edges.append(Edge(match.group(1), match.group(2), place))
    return tuple(edges)


def _extended(data: Mapping[str, Any], name: str, allow: tuple[str, ...], reader: Reader) -> Graph:
    """A graph file with `extends`: another graph, overlays, and edits of its own."""
    sources = [data["extends"]] if isinstance(data["extends"], str) else data["extends"]
    if not isinstance(sources, list) or not all(isinstance(source, str) for source in sources):
        expected = "names or paths" if isinstance(sources, list) else "a name or a path"
        reader.problem("G003", ("extends",), f"extends: expected {expected}, got {show_value(sources)}")
        return Graph(name, "", {}, {})
    if not sources:
        message = "extends: expected a graph, then overlays; the list is empty"
        reader.problem("G003", ("extends",), message, 'as in extends = ["fit", "ema"]')
        return Graph(name, "", {}, {})
    folder = reader.folder or Path()
    try:
        draft = _read_source(sources[0], folder, reader.chain, reader.bounds)
    except _TooLargeError:
        raise
    except UsageError as error:
        reader.problem("G004", ("extends", sources[0]), f"extends: {error.message}", error.hint)
        return Graph(name, "", {}, {})
    draft = _with_overlays(draft, sources[1:], folder, reader.chain, reader.bounds, reader.place("extends"))
    reader.problems += draft.problems
    graph = draft.graph
    graph = replace(graph, name=name, allow=tuple(dict.fromkeys((*graph.allow, *allow))))
    head = _head(data, reader)
    graph = replace(graph, **head, places={**graph.places, **{key: reader.place(key) for key in head}})
    for key, edit in read_edits(data, reader):
        reader.bounds.count(edited=len(graph.nodes), nodes=edit.verb in ("insert", "nest"))
        if edit.if_there and not edit.has_nodes(graph):
            continue
        try:
            graph = edit.applied(graph)
        except (EditError, UsageError, GraphError) as error:
            reader.problem("G005", key, error.message, error.hint)
    return graph


def _optimizer(data: Mapping[str, Any], reader: Reader) -> str:
    name: str = _typed(data, "optimizer", str, "", reader)
    if "optimizer" in data and isinstance(data["optimizer"], str) and not name.isidentifier():
        reader.problem(
            "G003",
            ("optimizer",),
            f'`optimizer` names a resource or a slot; got "{name}"',
            'as in optimizer = "d_optimizer"; several are named at a node: reads = { optimizer = ["a", "b"] }',
        )
        return ""
    return name


def _head(data: Mapping[str, Any], reader: Reader) -> dict[str, Any]:
    """What stands at the top of a file with edits, and replaces what its base has there."""
    head: dict[str, Any] = {"start": _typed(data, "start", str, "", reader)} if "start" in data else {}
    if "optimizer" in data:
        head["optimizer"] = _optimizer(data, reader)
    return head | {key: _strings(data, key, reader) for key in ("outputs", "optional") if key in data}


def _with_overlays(
    draft: Draft,
    sources: Sequence[str | Path],
    folder: Path | None,
    chain: tuple[str, ...],
    bounds: _Bounds,
    place: Place | None = None,
) -> Draft:
    """A graph with overlays; `place` is that of the list that names them, and None where a person named them."""
    graph, problems = draft.graph, list(draft.problems)
    overlays: list[Overlay] = []
    where = str(place) if place is not None else graph.title
    for source in sources:
        try:
            overlay, found = _read_overlay(source, folder, chain, bounds)
        except _TooLargeError:
            raise
        except UsageError as error:
            if place is None:
                raise
            problems.append(Problem("G004", "error", where, f"extends: {error.message}", error.hint))
            continue
        problems += found
        bounds.count(edited=len(overlay.edits) * (len(graph.nodes) + len(overlay.edits)))
        bounds.count(nodes=sum(edit.verb in ("insert", "nest") for edit in overlay.edits))
        if overlay.name in (*graph.layers.names, *(other.name for other in overlays)):
            message = f"the graph has the overlay `{overlay.name}` already"
            hint = "name it once; two overlays need two names, which are those of their files or `name` in them"
            problems.append(Problem("G005", "error", where, message, hint))
            continue
        overlays.append(overlay)
    graph, conflicts = with_overlays(graph, overlays)
    return Draft(graph, [*problems, *conflicts])


def _read_overlay(
    source: str | Path, folder: Path | None, chain: tuple[str, ...], bounds: _Bounds
) -> tuple[Overlay, list[Problem]]:
    """An overlay, and the problems of its text.

    Raises:
        UsageError: there is none of that name, or it is a graph.
    """
    text, shown, folder, chain = _opened(source, folder, chain, bounds, _OVERLAYS)
    text = text.removeprefix("\ufeff")
    reader = Reader(shown, folder, Lines(text), chain, bounds)
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        return Overlay(Path(shown).stem, (), Place(shown)), [_syntax_problem(text, shown, error)]
    if "extends" in data or "nodes" in data:
        reason = "it has `extends`" if "extends" in data else "it has [nodes]"
        hint = "it is named with --graph, or first in `extends`; an overlay is a file of [[edit]] without `extends`"
        raise UsageError(f"`{source}` is a graph, not an overlay: {reason}", hint)
    _check_keys(data, _OVERLAY_KEYS, reader)
    name = _typed(data, "name", str, Path(shown).stem, reader)
    edits = tuple(edit for _, edit in read_edits(data, reader, name))
    overlay = Overlay(name, edits, Place(shown), _head(data, reader), _strings(data, "allow", reader))
    return overlay, reader.problems


def _typed(data: Mapping[str, Any], key: str, wanted: type, default: Any, reader: Reader) -> Any:
    value = data.get(key, default)
    if not isinstance(value, wanted):
        reader.problem("G003", (key,), f"{key}: expected a string, got {show_value(value)}")
        return default
    return value


def _table(data: Mapping[str, Any], key: str, reader: Reader, *, quiet: bool = False) -> dict[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        if not quiet:
            reader.problem("G003", (key,), f"{key}: expected a table, got {show_value(value)}", f"write it as [{key}]")
        return {}
    return value


def _string_table(data: Mapping[str, Any], key: str, reader: Reader) -> dict[str, str]:
    result = {}
    for name, value in _table(data, key, reader).items():
        if isinstance(value, str):
            result[name] = value
        elif key == "guards" and isinstance(value, bool):
            reader.problem(
                "G003", (key, name), f"guards.{name}: expected an expression in quotes, got {show_value(value)}"
            )
        else:
            reader.problem("G003", (key, name), f"{key}.{name}: expected a string, got {show_value(value)}")
    return result


def _strings(data: Mapping[str, Any], key: str, reader: Reader) -> tuple[str, ...]:
    value = data.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        reader.problem("G003", (key,), f"{key}: expected a list of strings, got {show_value(value)}")
        return ()
    return tuple(value)


def _mapping(value: Any, key: tuple[str, ...], reader: Reader, *, lists: bool = False) -> dict[str, Any]:
    dotted = ".".join(key)
    if not isinstance(value, dict):
        reader.problem("G003", key, f'{dotted}: expected a table such as {{ slot = "other" }}, got {show_value(value)}')
        return {}
    good = {}
    for slot, target in value.items():
        if isinstance(target, str) or (lists and isinstance(target, list) and all(isinstance(t, str) for t in target)):
            good[slot] = target
        else:
            reader.problem("G003", key, f"{dotted}.{slot}: expected the name of a slot, got {show_value(target)}")
    return good
