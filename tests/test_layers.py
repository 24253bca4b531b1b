"""Arrows run one way: command -> viz, graphs, nodes -> engine; and nothing reads Python out of a text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import graphtrain

PACKAGE = Path(graphtrain.__file__).parent
OUTER = ("command", "nodes", "graphs", "viz")

# What can be read, edited, checked and drawn without torch, whose import takes a second.
DEFINITION = [
    "checks",
    "difference",
    "edit",
    "elements",
    "errors",
    "frames",
    "graph",
    "guards",
    "hints",
    "kind",
    "machine",
    "names",
    "nested",
    "outcome",
    "parameter",
    "problem",
    "registry",
    "text",
    "trigger",
    "version",
]


def modules() -> dict[str, ast.Module]:
    """Every module of the package, folders behind links included: dotted name -> syntax tree."""
    found = {}
    for folder in (PACKAGE, *(PACKAGE / name for name in OUTER)):  # a search does not follow links
        for file in folder.rglob("*.py"):
            parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(file.read_text(encoding="utf-8"), str(file))
    return found


MODULES = modules()


def layer(module: str) -> str:
    """The first name below the package: ``command``, ``nodes``, ``engine``, ...; empty for the package itself."""
    return module.split(".")[1] if "." in module else ""


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module a tree imports, inside functions too; `from a import b` counts as a and as a.b."""
    for one in ast.walk(tree):
        if isinstance(one, ast.Import):
            yield from (alias.name for alias in one.names)
        elif isinstance(one, ast.ImportFrom):
            assert one.level == 0, "imports are absolute"
            assert one.module is not None
            yield one.module
            yield from (f"{one.module}.{alias.name}" for alias in one.names)


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_every_folder_is_seen() -> None:
    assert {"graphtrain.engine.trainer", "graphtrain.nodes.clip", "graphtrain.viz.dot", "graphtrain.graphs"} <= set(
        MODULES
    )
    assert "graphtrain.command.run" in MODULES and len(MODULES) > 60


@pytest.mark.parametrize(
    ("inner", "forbidden"),
    [("", OUTER), ("nodes", ("command", "viz", "graphs")), ("viz", ("command", "nodes")), ("graphs", OUTER)],
)
def test_arrows_run_one_way(inner: str, forbidden: tuple[str, ...]) -> None:
    checked = 0
    for module, tree in MODULES.items():
        inside = layer(module) == inner if inner else layer(module) not in OUTER
        # `python -m graphtrain` is the command, and the table of contents names `main`.
        if not inside or module in ("graphtrain.__main__", "graphtrain"):
            continue
        checked += 1
        for name in imports(tree):
            bad = [one for one in forbidden if one != inner and within(name, f"graphtrain.{one}")]
            assert not bad, f"{module} imports {name}"
    assert checked


def test_nobody_makes_a_second_copy() -> None:
    for module, tree in MODULES.items():
        for name in imports(tree):
            assert name.partition(".")[0] not in ("nodes", "graphs", "viz"), f"{module} imports {name}"


FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "torch.load", "torch.save", "yaml.load", "marshal.loads"}
FORBIDDEN_MODULES = ("pickle", "dill", "cloudpickle", "marshal", "shelve", "yaml", "joblib")


def calls(tree: ast.AST) -> Iterator[str]:
    for one in ast.walk(tree):
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Name | ast.Attribute):
            yield ast.unparse(one.func)


def test_nothing_runs_what_it_reads() -> None:
    for module, tree in MODULES.items():
        for name in imports(tree):
            assert not any(within(name, bad) for bad in FORBIDDEN_MODULES), f"{module} imports {name}"
        for call in calls(tree):
            assert call not in FORBIDDEN_CALLS, f"{module} calls {call}"


def _at_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported; those under ``if TYPE_CHECKING`` do not."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        one = waiting.pop()
        if isinstance(one, ast.If) and ast.unparse(one.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            waiting += one.orelse
            continue
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield one
        for _, value in ast.iter_fields(one):
            if isinstance(value, list):
                waiting += [inner for inner in value if isinstance(inner, ast.stmt)]


def reached_by_import(module: str) -> dict[str, str]:
    """Every module that importing one imports, and which module of ours asks for it."""
    reached: dict[str, str] = {module: ""}
    waiting = [module]
    while waiting:
        current = waiting.pop()
        parents = [current.rsplit(".", n)[0] for n in range(1, current.count(".") + 1)]
        wanted = dict.fromkeys(parents, current)
        for statement in _at_import(MODULES[current]):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                wanted |= dict.fromkeys(imports(statement), current)
        for name, asker in wanted.items():
            if name not in reached:
                reached[name] = asker
                if name in MODULES:
                    waiting.append(name)
    return reached


def definition_modules() -> list[str]:
    return sorted(name for name in MODULES if layer(name) in (*DEFINITION, "", "viz", "graphs"))


@pytest.mark.parametrize("module", definition_modules())
def test_a_graph_needs_no_torch(module: str) -> None:
    reached = reached_by_import(module)
    for name, asker in reached.items():
        assert name.partition(".")[0] not in ("torch", "numpy", "safetensors"), f"{asker} imports {name}"
        assert not within(name, "graphtrain.nodes"), f"{asker} imports {name}"


def test_the_engine_does_need_it() -> None:
    assert "torch" in reached_by_import("graphtrain.engine.trainer"), "or the test above sees nothing"


def test_a_display_knows_snapshots_and_nothing_else() -> None:
    modules = [name for name in MODULES if layer(name) == "display"]
    assert "graphtrain.display.live" in modules
    for module in modules:
        for name in imports(MODULES[module]):
            own = [one for one in ("engine", "graph", "kind", "storage", *OUTER) if within(name, f"graphtrain.{one}")]
            assert not own and name.partition(".")[0] != "torch", f"{module} imports {name}"


def test_the_table_of_contents_imports_the_command_late() -> None:
    assert not [name for name in reached_by_import("graphtrain") if within(name, "graphtrain.command")]
