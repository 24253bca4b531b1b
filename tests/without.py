"""The house without one of its parts: `make test-without NAME` deletes it in a copy and runs the tests of what is left.

What goes is data: `WITHOUT` in `tests/test_layers.py` for the parts, and for each kind and procedure that `fit` and
`evaluate` do not need its own files and those that name it. A test is left out if it, or a function of the tests that
it calls, imports what has gone or names it; every other test of the suite has to pass.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from tests.shipped import GRAPHS, KINDS, OVERLAYS, PROCEDURES, ROOT

ALWAYS_THERE = ("fit", "evaluate", "predict", "test")
ALL_KINDS = "kinds"  # every kind and procedure that can be taken away, at once

# Tests of the house as a whole: what it lists, what it measures and what is built of it.
OF_THE_WHOLE = ("tests/test_layers.py", "tests/test_figures.py", "tests/test_wheel.py", "tests/docs/")


# In a copy: what has gone, and the modules of tests that are left out whole.
LIST, WHOLE = ROOT / "without.json", ROOT / "without.txt"

# What every Python of a copy does first: an editable installation would give it the packages that have gone.
ALONE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]
"""


@dataclass(frozen=True)
class Removal:
    """What goes with a part.

    Arguments:
        files: patterns, from the top of the checkout.
        words: by which tests and pages name the part.
        takes: the kinds, overlays and procedures that cannot be without it. Default: none.
    """

    files: tuple[str, ...]
    words: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()


def optional_kinds() -> list[str]:
    """The kinds that no shipped graph needs, procedures aside."""
    needed = "\n".join(GRAPHS[name].read_text(encoding="utf-8") for name in ALWAYS_THERE if name in GRAPHS)
    return [name for name, file in KINDS.items() if file.parent.name == "nodes" and not _named(name, needed)]


def _named(word: str, text: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None


def along_with(name: str) -> Removal:
    """A kind or a procedure, and the kinds, overlays and procedures that cannot be without it."""
    texts = {**OVERLAYS, **GRAPHS}
    naming = {each: "\n".join(_values(tomllib.loads(file.read_text("utf-8")))) for each, file in texts.items()}
    for kind, file in KINDS.items():
        imported = re.findall(r"^from graphtrain\.nodes\.(\w+) ", file.read_text("utf-8"), re.MULTILINE)
        naming[kind] = "\n".join((naming.get(kind, ""), *imported))
    gone = {name}
    while more := {
        other for other in naming.keys() - gone if any(_named(each, naming[other]) for each in gone)
    }:  # fmt: skip
        gone |= more
    files: list[str] = []
    for each in gone:
        if each in PROCEDURES:
            files.append(f"graphs/gallery/{each}")
        elif each in texts:
            files.append(str(texts[each].relative_to(ROOT)))
        if each in KINDS:
            files.append(str(KINDS[each].relative_to(ROOT)))
        files += [f"tests/*/test_{each}.py", f"docs/pictures/{each}.svg"]
    words = {*gone, *(kind for kind, file in KINDS.items() if file.parent.name in gone & {*PROCEDURES})}
    return Removal(tuple(files), tuple(sorted(words)), tuple(sorted(gone - {name})))


def _values(value: Any) -> list[str]:
    """The texts in the text of a graph, but for its description, and the names of its tables."""
    if isinstance(value, dict):
        return [text for key, each in value.items() if key != "description" for text in (key, *_values(each))]
    if isinstance(value, list):
        return [text for each in value for text in _values(each)]
    return [value] if isinstance(value, str) else []


def removal(name: str, parts: dict[str, Removal]) -> Removal:
    """What goes with a part, a kind or a procedure. Raises KeyError for another name."""
    if name in parts:
        return parts[name]
    if name == ALL_KINDS:
        return together(along_with(each) for each in (*optional_kinds(), *PROCEDURES))
    if name in removable(()):
        return along_with(name)
    raise KeyError(name)


def together(removals: Iterable[Removal]) -> Removal:
    """All of them at once."""
    listed = list(removals)
    parts = zip(*((each.files, each.words, each.takes) for each in listed), strict=True)
    return Removal(*(tuple(sorted({one for part in of_all for one in part})) for of_all in parts))


def removable(parts: Iterable[str]) -> list[str]:
    """The names of everything that can be taken away."""
    return [*parts, *PROCEDURES, *optional_kinds()]


# ---- which tests are left out


class Gone:
    """What has been deleted from a copy of the house, asked by its tests."""

    def __init__(self, root: Path, files: Iterable[str], words: Iterable[str]) -> None:
        self.root = root
        self.modules = {_module(file) for file in files if file.endswith(".py")}
        self._word = re.compile("|".join(rf"(?<![\w-]){re.escape(word)}(?![\w-])" for word in words) or r"(?!)")
        self._functions = cache(self._of_module)

    def names(self, text: str) -> bool:
        """Whether a text names what has gone."""
        return self._word.search(text) is not None

    def imports(self, tree: ast.AST) -> bool:
        """Whether a module has gone that this imports."""
        for each in ast.walk(tree):
            if isinstance(each, ast.Import) and any(alias.name in self.modules for alias in each.names):
                return True
            if isinstance(each, ast.ImportFrom):
                names = (each.module, *(f"{each.module}.{alias.name}" for alias in each.names))
                if any(name in self.modules for name in names):
                    return True
        return False

    def _of_module(self, file: Path) -> tuple[dict[str, ast.stmt], dict[str, tuple[Path, str]]]:
        """What a module of the tests defines at its top, and what it takes from other modules of the tests."""
        defined: dict[str, ast.stmt] = {}
        taken: dict[str, tuple[Path, str]] = {}
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                defined[statement.name] = statement
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                defined |= {target.id: statement for target in targets if isinstance(target, ast.Name)}
            elif isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("tests"):
                other = self.root.joinpath(*str(statement.module).split(".")).with_suffix(".py")
                if other.is_file():
                    taken |= {alias.asname or alias.name: (other, alias.name) for alias in statement.names}
        return defined, taken

    def reached(self, file: Path, name: str, seen: set[tuple[Path, str]] | None = None) -> bool:
        """Whether a definition of the tests, or what it uses, names or imports what has gone."""
        seen = set() if seen is None else seen
        if (file, name) in seen:
            return False
        seen.add((file, name))
        defined, taken = self._functions(file)
        if name in taken:
            return self.reached(*taken[name], seen)
        if name not in defined:
            return False
        statement = defined[name]
        parts: list[ast.AST] = [statement]
        if isinstance(statement, ast.FunctionDef):  # its decorators list the rows: each row is looked at by itself
            parts = [*statement.body, *statement.args.args, *statement.args.defaults]
        if any(self.imports(part) or self.names(ast.unparse(part)) for part in parts):
            return True
        used = {each.id for part in parts for each in ast.walk(part) if isinstance(each, ast.Name)}
        used |= {each.arg for part in parts for each in ast.walk(part) if isinstance(each, ast.arg)}
        return any(self.reached(file, each, seen) for each in used)

    def value(self, value: object) -> bool:
        """Whether an argument of a row names what has gone: by itself, in its text, or in the page that it is."""
        if isinstance(value, FunctionType):
            file = Path(value.__code__.co_filename)
            return file.is_relative_to(self.root) and self.reached(file, value.__name__)
        if isinstance(value, Path):
            return self.names(value.name) or (
                value.suffix in (".md", ".toml", ".py") and value.is_file() and self.names(value.read_text("utf-8"))
            )
        if isinstance(value, str) and value.endswith(".md") and (self.root / value).is_file():
            return self.names((self.root / value).read_text("utf-8"))
        with suppress(Exception):  # objects of a test may have no `repr`
            return self.names(repr(value))
        return False


def _module(file: str) -> str:
    return (
        (file if file.startswith("tests/") else f"graphtrain/{file.removeprefix('graphtrain/')}")
        .removesuffix(".py")
        .removesuffix("/__init__")
        .replace("/", ".")
    )


@cache
def _gone() -> Gone | None:
    """What has gone from this copy, where it is one."""
    if not LIST.exists():
        return None
    listed = json.loads(LIST.read_text(encoding="utf-8"))
    return Gone(ROOT, listed["files"], listed["words"])


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """A module of tests that cannot be imported without what has gone is left out."""
    gone = _gone()
    if gone is None or not collection_path.name.startswith("test_"):
        return None
    try:
        importlib.import_module(".".join(collection_path.relative_to(ROOT).with_suffix("").parts))
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        imports = [(module, "from {} import {}".format(*module.rpartition(".")[::2])) for module in gone.modules]
        if gone.names(text) or any(text_of in text for both in imports for text_of in both):
            with WHOLE.open("a", encoding="utf-8") as list_of_modules:
                list_of_modules.write(f"{collection_path.relative_to(ROOT)}\n")
            return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of what has gone are not run, and not counted as passed."""
    gone = _gone()
    if gone is not None:
        out = [item for item in items if _is_of(gone, item)]
        items[:] = [item for item in items if item not in {*out}]
        config.hook.pytest_deselected(items=out)


def _is_of(gone: Gone, item: pytest.Item) -> bool:
    if item.nodeid.startswith(OF_THE_WHOLE) or gone.names(item.name):
        return True
    if isinstance(item, pytest.DoctestItem):
        return item.dtest is not None and gone.names(item.dtest.docstring or "")
    callspec = getattr(item, "callspec", None)
    if callspec is not None and any(gone.value(value) for value in callspec.params.values()):
        return True
    return gone.reached(item.path, item.nodeid.split("::")[1].partition("[")[0])


# ---- a copy, and the tests in it


def copy_without(name: str, folder: Path, parts: dict[str, Removal]) -> tuple[list[str], list[str]]:
    """A copy of the checkout in a folder, in which a part is not: the files that have gone, and their names."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for file in filter(None, listed.stdout.split("\0")):
        if (ROOT / file).exists() or (ROOT / file).is_symlink():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, folder / file, follow_symlinks=False)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    going = removal(name, parts)
    deleted: list[str] = []
    for pattern in going.files:
        for path in list(folder.glob(pattern)):
            deleted += [str(each.relative_to(folder)) for each in ([path] if path.is_file() else path.rglob("*.py"))]
            if path.is_dir():
                deleted.append(str(path.relative_to(folder)) + "/__init__.py")
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return deleted, [*going.words, *_exported(deleted)]


def _exported(deleted: Iterable[str]) -> list[str]:
    """The names that `graphtrain` exports from modules that have gone."""
    import graphtrain

    modules = {_module(file) for file in deleted}
    return [name for name, module in graphtrain._LATE.items() if module in modules]


def main(arguments: list[str]) -> int:
    from tests.test_layers import WITHOUT

    names = [*removable(WITHOUT), ALL_KINDS]
    if not arguments or arguments[0] not in names:
        print(f"make test-without NAME, where NAME is one of {', '.join(names)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        files, words = copy_without(arguments[0], root, WITHOUT)
        takes = removal(arguments[0], WITHOUT).takes
        print(f"without {arguments[0]}" + (f", and so without {', '.join(takes)}" if takes else ""), flush=True)
        (root / "sitecustomize.py").write_text(ALONE, encoding="utf-8")
        (root / LIST.name).write_text(json.dumps({"files": files, "words": words}), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "tests.without",
            "-m",
            "not full and not sweep",
            *arguments[1:],
        ]
        code = subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, check=False).returncode
        if (root / WHOLE.name).exists():
            whole = sorted({*(root / WHOLE.name).read_text("utf-8").split()})
            print(f"modules of tests that are left out whole: {', '.join(whole)}")
        return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
