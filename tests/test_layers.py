"""Imports point one way, as data: the packages from the bottom to the top."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import networkx
import pytest

import graphtrain
from tests.shipped import KINDS, ROOT, module_of

PACKAGE = Path(graphtrain.__file__).parent
LINKED = ("nodes", "graphs", "viz")


def rooms() -> list[str]:
    """The rooms, from the bottom to the top, as docs/architecture.md has them."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return [row.split("|")[1].strip() for row in page.partition("| room |")[2].partition("\n\n")[0].splitlines()[2:]]


# A module imports what comes before it in this order, never what comes after. The modules directly under
# `graphtrain/` are the ground on which everything stands.
GROUND = ("errors", "lazy", "names", "outcome", "plain", "printable", "version")
ORDER = tuple(rooms())

# The table of contents, and the way in for `python -m`: they name everything, and nothing of ours names them.
DOORS = ("", "__main__")

# Its procedures, and adapters, are what users could write, with what users can import.
GALLERY = "graphs.gallery"
ADAPTERS = "adapters"

# What can be read, edited, checked and drawn without torch, whose import takes a second.
WITHOUT_TORCH = (*GROUND, "kind", "graph", "plan", "checks", "graphs", "viz", "")

# The share of the source that one package may hold, tests and examples aside.
LARGEST_SHARE = 0.15


def name_of(file: Path) -> str:
    """The name of a module below `graphtrain`, from its file there."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Trees(Mapping[str, ast.Module]):
    """Every module of the package, folders behind links included: name below `graphtrain` -> syntax tree.

    A file is parsed when its tree is asked for: parsing all of them takes three seconds.
    """

    def __init__(self) -> None:
        folders = (PACKAGE, *(PACKAGE / name for name in LINKED))  # a search does not follow links
        self._files = {name_of(file): file for folder in folders for file in folder.rglob("*.py")}
        self._trees: dict[str, ast.Module] = {}

    def __getitem__(self, name: str) -> ast.Module:
        if name not in self._trees:
            file = self._files[name]
            self._trees[name] = ast.parse(file.read_text(encoding="utf-8"), str(file))
        return self._trees[name]

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


MODULES = Trees()


def lines_of(module: str) -> int:
    """How many lines a module has, by its name below `graphtrain`."""
    file = PACKAGE.joinpath(*module.split("."))
    path = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    return len(path.read_text(encoding="utf-8").splitlines())


def package_of(module: str) -> str:
    """``"run"`` for ``"trainer.trainer"``; a module directly under `graphtrain/` is its own."""
    return module.partition(".")[0]


def rank(module: str) -> int:
    """How high a module stands: 0 for the ground, then as in `ORDER`."""
    package = package_of(module)
    if package in GROUND:
        return 0
    return ORDER.index(package) + 1


def walked(tree: ast.AST) -> list[ast.AST]:
    """All nodes of a tree, which keeps them: five questions are asked of each module."""
    if "walked" not in vars(tree):
        vars(tree)["walked"] = [*ast.walk(tree)]
    return vars(tree)["walked"]  # type: ignore[no-any-return]


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module a tree imports, inside functions too; `from a import b` counts as a and as a.b."""
    for statement in walked(tree):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            assert statement.level == 0, "imports are absolute"
            assert statement.module is not None
            yield statement.module
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)


def imports_of_ours(tree: ast.AST) -> set[str]:
    """The modules of the package that a tree imports, by their names below `graphtrain`."""
    names = {name.removeprefix("graphtrain.") for name in imports(tree) if name.startswith("graphtrain.")}
    exact = {name for name in names if name in MODULES}
    # `from graphtrain import Graph` names no module; `from graphtrain.graph import Graph` names the package.
    return {name for name in exact if not any(other.startswith(f"{name}.") for other in exact)} | {
        name for name in exact if "." not in name
    }


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def statements_at_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported; those under ``if TYPE_CHECKING`` do not."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        statement = waiting.pop()
        if isinstance(statement, ast.If) and ast.unparse(statement.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            waiting += statement.orelse
            continue
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield statement
        for _, value in ast.iter_fields(statement):
            if isinstance(value, list):
                waiting += [inner for inner in value if isinstance(inner, ast.stmt)]


def imports_at_top(tree: ast.Module) -> set[str]:
    """The modules of ours that a module imports when it is imported, or, by `lazy_import`, at their first use."""
    at_first_use = {
        str(call.args[0].value).removeprefix("graphtrain.")
        for call in walked(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "lazy_import"
        and isinstance(call.args[0], ast.Constant)
    }
    return (at_first_use & MODULES.keys()).union(
        *(
            imports_of_ours(statement)
            for statement in statements_at_import(tree)
            if isinstance(statement, ast.Import | ast.ImportFrom)
        )
    )


def all_imports(module: str, tree: ast.Module) -> set[str]:
    """The other modules of ours that a module imports: at its top, inside functions, and for types."""
    return (imports_of_ours(tree) | imports_at_top(tree)) - {module, package_of(module)}


def against_the_order(trees: Mapping[str, ast.Module]) -> list[tuple[str, str]]:
    """Every import of a module that points to what stands above it."""
    return [
        (module, name)
        for module, tree in trees.items()
        if package_of(module) not in DOORS
        for name in sorted(all_imports(module, tree))
        if package_of(name) in DOORS or rank(name) > rank(module)
    ]


# ---- the order


def test_the_page_about_the_architecture_gives_every_package_a_room() -> None:
    assert {"trainer.trainer", "nodes.clip", "viz.dot", "graphs", "command.run"} <= set(MODULES)
    assert len(rooms()) == 18
    assert sorted([*GROUND, *ORDER, *DOORS]) == sorted({package_of(name) for name in MODULES})


def test_the_page_about_the_architecture_names_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z_/]+\.(?:py|toml|md))`", page)
    assert len(named) > 30
    assert [name for name in named if not any((folder / name).exists() for folder in (PACKAGE, ROOT))] == []


@pytest.mark.full
def test_imports_point_one_way() -> None:
    assert against_the_order(MODULES) == []


@pytest.mark.full
def test_the_files_of_a_run_are_read_through_run() -> None:
    """What writes them is in `storage`; a resume takes the notices of the process before along."""
    parsers = {"read_status", "read_starts", "RowsFile"}
    found = {
        module
        for module, tree in MODULES.items()
        if package_of(module) != "storage"
        for statement in ast.walk(tree)
        if isinstance(statement, ast.ImportFrom) and statement.module == "graphtrain.storage.run_directory"
        if parsers.intersection(alias.name for alias in statement.names)
    }
    assert found == {"report.run", "report.activity"}


def test_a_procedure_and_an_adapter_import_what_users_can_import() -> None:
    for module in sorted(name for name in MODULES if within(name, GALLERY) or name.startswith(f"{ADAPTERS}.")):
        folder = f"graphtrain.{module.rpartition('.')[0]}"
        outside = {name for name in imports(MODULES[module]) if within(name, "graphtrain") and not within(name, folder)}
        assert outside <= {"graphtrain", *(f"graphtrain.{name}" for name in dir(graphtrain))}, module


def test_the_engine_knows_no_name_of_a_kind() -> None:
    """Some words mean something else as well: effects, inputs, events, a method, a key."""
    names = {*KINDS} - {"exchange", "zero_grad", "step", "use", "finish", "end_epoch", "checkpoint"}
    rooms = [name for name in MODULES if package_of(name) in ("program", "trainer") and name != "trainer.graph"]
    constants = (part for name in rooms for part in ast.walk(MODULES[name]) if isinstance(part, ast.Constant))
    assert names.isdisjoint(part.value for part in constants)


@pytest.mark.full
def test_an_import_against_the_order_is_seen() -> None:
    """Between neighbours in the order: the test above would fail if the lower one imported the higher one."""
    pairs = [pair for pair in itertools.pairwise(ORDER) if {*pair} <= MODULES.keys()]
    for module, imported in [*pairs, ("errors", "plan"), ("names", "kind")]:
        inner = next(name for name in MODULES if within(name, module))
        target = next(name for name in MODULES if within(name, imported) and name != "")
        tree = ast.parse(f"import graphtrain.{target}\n" + ast.unparse(MODULES[inner]))
        assert (inner, target) in against_the_order({inner: tree})


def circles(imported: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other, directly or through others."""
    components = networkx.strongly_connected_components(networkx.DiGraph(imported))
    return [sorted(modules) for modules in components if len(modules) > 1]


@pytest.mark.full
def test_no_circle_of_modules() -> None:
    """Imports inside functions, and those for types, count as well."""
    imported = {name: all_imports(name, tree) for name, tree in MODULES.items() if package_of(name) not in DOORS}
    assert circles(imported) == []


def test_no_package_is_a_heap() -> None:
    lines: dict[str, int] = {}
    for module in MODULES:
        lines[package_of(module)] = lines.get(package_of(module), 0) + lines_of(module)
    largest = max(lines, key=lines.__getitem__)
    assert lines[largest] <= LARGEST_SHARE * sum(lines.values()), f"{largest}: {lines[largest]} lines"


@pytest.mark.full
def test_nobody_makes_a_second_copy() -> None:
    for module, tree in MODULES.items():
        for name in imports(tree):
            assert name.partition(".")[0] not in LINKED, f"{module} imports {name}"


# ---- what a room offers


def crossings(module: str) -> Iterator[tuple[str, str, str]]:
    """What a module imports from other rooms, also at its first use: room, module below it, name (empty for all)."""
    for each in walked(MODULES[module]):
        named: list[tuple[str, str]] = []
        if isinstance(each, ast.ImportFrom) and each.module:
            named = [(each.module, alias.name) for alias in each.names]
        elif isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in _LATE and each.args:
            named = [(str(ast.literal_eval(each.args[0])), "")] if isinstance(each.args[0], ast.Constant) else []
        for whole, name in named:
            package, _, below = whole.partition(".")
            below, name = (f"{below}.{name}", "") if f"{below}.{name}" in MODULES else (below, name)
            room, _, inner = below.partition(".")
            if package == "graphtrain" and room in ORDER and room != package_of(module):
                yield room, inner, name


_LATE = ("lazy_import", "imported")


def described(room: str) -> tuple[set[str], dict[str, set[str]]]:
    """What the docstring of a room says: on which rooms it stands, and what others use of each of its modules."""
    text = ast.get_docstring(MODULES[room]) or ""
    stands_on = re.search(r"^Stands on: ([^.]*)\.$", text, re.MULTILINE)
    _, _, listed = text.partition("\nOther rooms use:\n")
    rows = [row.partition(":") for row in re.sub(r"\n {8}", " ", listed).splitlines()]
    used = {module.strip(): {*names.replace(",", " ").split()} for module, _, names in rows}
    return {*re.split(r",\s+", stands_on[1])} if stands_on else set(), used


@pytest.mark.full
def test_a_room_says_on_what_it_stands_and_what_others_use_of_it() -> None:
    """Its `__init__` lists all that other rooms import of it, and nothing else; so does the table of contents."""
    below: dict[str, set[str]] = {room: set() for room in ORDER}
    used: dict[str, dict[str, set[str]]] = {room: {} for room in ORDER}
    for module in MODULES:
        if module != "__main__":
            for room, inner, name in crossings(module):
                below.get(package_of(module), set()).add(room)
                if inner:
                    used[room].setdefault(inner, set()).update({name} - {""})
    assert {room: described(room) for room in ORDER} == {room: (below[room], used[room]) for room in ORDER}


# ---- what is never done


FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "torch.load", "torch.save", "yaml.load", "marshal.loads"}
FORBIDDEN_MODULES = ("pickle", "dill", "cloudpickle", "marshal", "shelve", "yaml", "joblib")


def calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield ast.unparse(node.func)


@pytest.mark.full
def test_nothing_runs_what_it_reads() -> None:
    for module, tree in MODULES.items():
        for name in imports(tree):
            assert not any(within(name, bad) for bad in FORBIDDEN_MODULES), f"{module} imports {name}"
        for call in calls(tree):
            assert call not in FORBIDDEN_CALLS, f"{module} calls {call}"


@pytest.mark.full
def test_only_one_package_knows_the_collectives() -> None:
    for module, tree in MODULES.items():
        if package_of(module) != "ranks":
            assert not [name for name in imports(tree) if within(name, "torch.distributed")], module


# ---- what is not needed is not imported


def reached_by_import(*modules: str) -> dict[str, str]:
    """Every module that importing some imports, and which module of ours asks for it; by full names."""
    reached = {f"graphtrain.{module}".rstrip("."): "" for module in modules}
    waiting = [*modules]
    while waiting:
        current = waiting.pop()
        parts = current.split(".")
        parents = ["graphtrain", *(".".join(["graphtrain", *parts[:n]]) for n in range(1, len(parts)))]
        wanted = dict.fromkeys(parents if current else [], current)
        for statement in statements_at_import(MODULES[current]):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                wanted |= dict.fromkeys(imports(statement), current)
        for name, asker in wanted.items():
            if name not in reached:
                reached[name] = asker
                inner = name.removeprefix("graphtrain").removeprefix(".")
                if within(name, "graphtrain") and inner in MODULES:
                    waiting.append(inner)
    return reached


@pytest.mark.full
def test_what_is_declared_edited_and_drawn_needs_no_torch() -> None:
    """Kinds, graphs, checks and pictures, the procedures of the gallery aside."""
    kinds = [module_of(file).removeprefix("graphtrain.") for file in KINDS.values()]
    graphs = [name for name in MODULES if package_of(name) in WITHOUT_TORCH and not within(name, GALLERY)]
    for name, asker in reached_by_import(*kinds, *graphs).items():
        assert name.partition(".")[0] not in ("torch", "numpy", "safetensors"), f"{asker} imports {name}"
    for name, asker in reached_by_import(*graphs).items():
        assert not within(name, "graphtrain.nodes"), f"{asker} imports {name}"


@pytest.mark.full
def test_the_trainer_does_need_it() -> None:
    assert "torch" in reached_by_import("trainer.trainer"), "or the test above sees nothing"


def test_a_display_knows_snapshots_and_nothing_else() -> None:
    inside = [name for name in MODULES if within(name, "report.display")]
    assert "report.display.live" in inside
    for module in inside:
        assert imports_of_ours(MODULES[module]) <= {*GROUND, *inside, "report.snapshot", "report.numbers"}, module
        assert not [name for name in imports(MODULES[module]) if within(name, "torch")], module


def test_the_table_of_contents_imports_the_command_late() -> None:
    assert not [name for name in reached_by_import("") if within(name, "graphtrain.command")]


# Kinds bear the names of what they ask for.
OF_KINDS = {"Checkpoint", "Schedule"}


@pytest.mark.full
def test_no_two_public_classes_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for module, tree in MODULES.items():
        for statement in ast.walk(tree):
            if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
                places.setdefault(statement.name, []).append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1 and name not in OF_KINDS} == {}
