"""A user's script: its function, and its graph.

It is imported under its stem, with its folder on the path, so that loader workers can import it too. Its graph is the
same for ``python train.py`` and for every command that is given ``train.py``: the graph that the script passes to
`graphtrain.main`, else its module-level name `graph`, else `fit`. An imported script does not run its block
``if __name__ == "__main__"``, so a call of `main` there is parsed, not run: names are looked up in the module, and a
graph that only the running script makes is an error.
"""

from __future__ import annotations

import ast
import functools
import importlib
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from graphtrain.errors import GraphError, UsageError
from graphtrain.graph import Graph
from graphtrain.graph.read_toml import Draft, read_overlays
from graphtrain.graph.registry import find_graph
from graphtrain.names import nearest, quoted
from graphtrain.storage.named import holds_a_graph

DEFAULT = "fit"
NAME = "graph"

_HINT = f"give it a name at the top level of the script, as in {NAME} = Graph.load(...), and call main(setup)"

_IMPORTING: ContextVar[bool] = ContextVar("importing", default=False)
# The graph that a module passed to `main` while it was imported.
_PASSED: WeakKeyDictionary[ModuleType, Any] = WeakKeyDictionary()


def is_importing() -> bool:
    """True while a script is imported by `import_script`, and not run."""
    return _IMPORTING.get()


def note_graph(module: str, graph: Any) -> None:
    """Keep the graph that the module of that name passes to `main` while it is imported."""
    if module in sys.modules:
        _PASSED[sys.modules[module]] = graph


def split_script(script: str) -> tuple[Path, str]:
    """The path and the function of ``SCRIPT[:FUNCTION]``; an empty name where there is none.

    >>> path, function = split_script("src/train.py:other")
    >>> path.as_posix(), function, split_script("train.py")[1]
    ('src/train.py', 'other', '')
    """
    file, _, function_name = script.rpartition(":")
    if not file or Path(script).exists():
        return Path(script), ""
    return Path(file), function_name


def import_script(path: Path) -> ModuleType:
    """The module of a script.

    Raises:
        UsageError: there is no such file, or it cannot be imported under its name.
    """
    if path.is_dir():
        raise UsageError(f"`{path}` is a folder", "SCRIPT is the path of a Python file")
    if not path.is_file():
        folder = path.parent if path.parent.is_dir() else Path()
        close = nearest(path.name, [file.name for file in folder.glob("*.py")])
        hint = f"did you mean {folder / close}?" if close else "SCRIPT is the path of a Python file"
        raise UsageError(f"there is no script `{path}`", hint)
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise UsageError(
            f"`{path}` cannot be imported: its name must be letters, digits and underscores, and end in .py",
            "rename the script",
        )
    if path.stem in sys.stdlib_module_names:
        raise UsageError(f"`{path}` has the name of a standard library module, `{path.stem}`", "rename the script")
    # A symbolic link is imported under its own name and from its own folder, as `python link.py` does.
    folder_name = str(path.parent.absolute())
    if folder_name not in sys.path:
        sys.path.insert(0, folder_name)
    importlib.invalidate_caches()  # the script may be newer than the cached listing of its folder
    token = _IMPORTING.set(True)
    try:
        module = importlib.import_module(path.stem)
    finally:
        _IMPORTING.reset(token)
    if module.__file__ is None or not path.samefile(module.__file__):
        other = module.__file__ or "a package without a file"
        raise UsageError(f"`{path}` has the name of another module, `{path.stem}` ({other})", "rename the script")
    return module


def setup_function(script: str) -> tuple[Path, str, Callable[..., Any]]:
    """The path, the name and the function of ``SCRIPT[:FUNCTION]``.

    Raises:
        UsageError: there is no such script or function.
    """
    path, function_name = split_script(script)
    function_name = function_name or "setup"
    module = import_script(path)
    function = getattr(module, function_name, None)
    if not callable(function):
        defined = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        close = nearest(function_name, defined)
        hint = (
            f"did you mean {path}:{close}?"
            if close
            else f"write a function {function_name}() that returns the resources as a mapping"
        )
        raise UsageError(f"`{path}` has no function `{function_name}`", hint)
    return path, function_name, function


def arguments_in_source(script: str) -> tuple[str, list[str]] | None:
    """The function of ``SCRIPT[:FUNCTION]`` in messages, and the names of its arguments, from the source alone.

    Returns:
        None where only an import can tell: it takes any keyword, is decorated, or something else may bind its name.
    """
    path, function = split_script(script)
    function = function or "setup"
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (OSError, ValueError, SyntaxError, RecursionError):  # reported by the import
        return None
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    if len(found) != 1 or found[0].decorator_list or found[0].args.kwarg or _may_be_bound_elsewhere(tree, found[0]):
        return None
    arguments = found[0].args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return f"{path.name}:{function}", names


def _may_be_bound_elsewhere(tree: ast.Module, definition: ast.FunctionDef) -> bool:
    """True unless the name of a function is that of its definition alone, however the module is executed."""
    name = definition.name
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            is_bound = node.name == name and node is not definition
        elif isinstance(node, ast.Name):
            is_bound = node.id in ("exec", "globals", "vars") or (
                node.id == name and not isinstance(node.ctx, ast.Load)
            )
        elif isinstance(node, ast.alias):
            is_bound = name in (node.asname, node.name) or node.name == "*"
        elif isinstance(node, ast.Attribute):  # as in `module.setup = ...`, and `setup.__signature__ = ...`
            is_bound = not isinstance(node.ctx, ast.Load) and name in (node.attr, ast.unparse(node.value))
        else:
            continue
        if is_bound:
            return True
    return False


# ---- the graph


def is_script(source: str) -> bool:
    """True for ``SCRIPT`` and ``SCRIPT:FUNCTION``; a shipped graph or a run directory may have any name.

    >>> is_script("train.py"), is_script("train.py:setup"), is_script("fit"), is_script("my_fit.toml")
    (True, True, False, False)
    """
    path = split_script(source)[0]
    return path.suffix == ".py" and find_graph(source) is None and not holds_a_graph(path)


def load_graph(source: str | Path | Graph, *, overlays: Sequence[str] = (), contained: bool = False) -> Graph:
    """The graph that a word of the command line names, with overlays; a script is imported for it.

    Arguments:
        overlays: the names or paths of overlays that are added. Default: none.
        contained: as for `Graph.load`; a script is refused, for its code may read anything. Default: False.

    Raises:
        GraphError: the text is not a graph, or overlays do not fit it.
        UsageError: there is no such graph, overlay or script; or the graph of a script is known only when it runs.
        CheckpointError: the checkpoint is damaged.
    """
    named = named_graph(source, contained=contained)
    graph = named if isinstance(named, Graph) else Graph.load(named, contained=contained)
    draft = with_overlays(graph, overlays, contained=contained)
    if draft.problems:
        raise GraphError(draft.problems, f"graph `{graph.name}` with {quoted(overlays)}")
    return draft.graph


def with_overlays(graph: Graph, overlays: Sequence[str], *, contained: bool = False) -> Draft:
    """A graph with the overlays of the command line, as far as they fit it.

    Raises:
        UsageError: there is no such overlay, or the graph has it already.
    """
    if not overlays:
        return Draft(graph, [])
    for number, overlay in enumerate(overlays):
        if overlay in graph.layers.names:
            raise UsageError(
                f"--overlay {overlay}: the graph `{graph.title}` has this overlay already", "leave the option out"
            )
        if overlay in overlays[:number]:
            raise UsageError(f"--overlay {overlay} is given twice", "give it once")
    return read_overlays(graph, overlays, contained=contained)


def named_graph(source: str | Path | Graph, *, contained: bool = False) -> str | Path | Graph:
    """The graph of a script, as the script names it; any other source as it is.

    Raises:
        UsageError: there is no such script, its graph is known only when it runs, or scripts are refused.
    """
    if not (isinstance(source, str) and is_script(source)):
        return source
    if contained:
        raise UsageError(
            f"--contained: `{source}` is a script, and to find its graph its code would run", "name a graph file"
        )
    return script_graph(source)


def script_graph(script: str) -> Graph | str | Path:
    """The graph of ``SCRIPT[:FUNCTION]``, which is imported, not run.

    Raises:
        UsageError: there is no such script, its graph is known only when it runs, or it is no graph.
    """
    path, _ = split_script(script)
    module = import_script(path)
    passed = _PASSED.get(module)
    if passed is None:
        passed = _graph_in_the_source(path, module)
    return graph_of_module(passed, module, str(path))


def graph_of_module(passed: Any, module: ModuleType, script: str) -> Graph | str | Path:
    """What a script passes to `main`, else its module-level `graph`, else `fit`.

    Raises:
        UsageError: it is no graph.
    """
    graph = passed if passed is not None else getattr(module, NAME, None)
    if graph is None:
        return DEFAULT
    if not isinstance(graph, Graph | str | Path):
        what = "main" if passed is not None else f"`{NAME}`"
        raise UsageError(
            f"{script}: {what} has a {type(graph).__name__} as the graph; "
            "expected a Graph, the name of a shipped graph, or the path of a TOML file",
            f"`{NAME}` is the name of the graph: give the value another name"
            if passed is None
            else "as in main(setup, graph='fit')",
        )
    return graph


def _graph_in_the_source(path: Path, module: ModuleType) -> Any:
    """The graph that the calls of `main` which an import does not run pass; None if they pass none.

    Raises:
        UsageError: it is known only when the script runs, or two calls pass different graphs.
    """
    tree = ast.parse(path.read_bytes(), str(path))
    calls = list(_calls_of_main(tree))
    # What is assigned under ``if __name__ == "__main__"`` has no value in an imported module.
    guarded = [node for node in tree.body if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)]
    not_run = set[str]().union(*map(_names_bound_in, guarded))
    graphs: list[Any] = []
    for call, around in calls:
        argument = _graph_argument(call)
        try:
            if argument is not None:
                graphs.append(_value(argument, module, not_run | _names_bound_in(around)))
            elif NAME not in not_run:
                graphs.append(None)
            else:
                raise LookupError(NAME)
        except (LookupError, AttributeError):
            raise UsageError(
                f"`{path}` makes its graph where it calls main, in line {call.lineno}, so only "
                f"`python {shlex.quote(str(path))}` knows it",
                _HINT,
            ) from None
    if any(graph is not graphs[0] and graph != graphs[0] for graph in graphs):
        lines = ", ".join(str(call.lineno) for call, _ in calls)
        raise UsageError(f"`{path}` calls main with different graphs, in lines {lines}", _HINT)
    return graphs[0] if graphs else None


def _calls_of_main(tree: ast.Module) -> Iterator[tuple[ast.Call, ast.stmt]]:
    """Every call of `graphtrain.main`, and the statement of the module that it is in."""
    functions, packages = set(), set()
    for statement in ast.walk(tree):
        if isinstance(statement, ast.ImportFrom) and statement.module == "graphtrain":
            functions |= {alias.asname or alias.name for alias in statement.names if alias.name == "main"}
        elif isinstance(statement, ast.Import):
            packages |= {alias.asname or alias.name for alias in statement.names if alias.name == "graphtrain"}
    names = functions | {f"{package}.main" for package in packages}
    for statement in tree.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
                yield node, statement


def _graph_argument(call: ast.Call) -> ast.expr | None:
    """The graph among the arguments of a call of `main`; or what may hold it, as in ``*arguments``."""
    for keyword in call.keywords:
        if keyword.arg in (NAME, None):
            return keyword.value if keyword.arg is not None else ast.Starred(keyword.value)
    starred = next((argument for argument in call.args if isinstance(argument, ast.Starred)), None)
    return starred or (call.args[1] if len(call.args) > 1 else None)


def _value(argument: ast.expr, module: ModuleType, unset: set[str]) -> Any:
    """The value of an argument, without running the call.

    Arguments:
        unset: names that get their values only when the script runs.

    Raises:
        LookupError, AttributeError: only the call knows it.
    """
    if isinstance(argument, ast.Constant):
        return argument.value
    names = ast.unparse(argument).split(".")
    if names[0] in unset or not all(name.isidentifier() for name in names):
        raise LookupError(names[0])
    return functools.reduce(getattr, names, module)


def _names_bound_in(statement: ast.stmt) -> set[str]:
    """The names that a statement binds when it runs."""
    nodes = list(ast.walk(statement))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    imported = {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    return stored | imported | {node.arg for node in nodes if isinstance(node, ast.arg)}
