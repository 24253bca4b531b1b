"""The size of the house, as `make figures` prints it and `tests/test_figures.py` holds it: measured, never remembered.

What the smallest run enters is counted in a process of its own: functions, lambdas and generator expressions that are
called (a comprehension is part of the function around it), classes of which a method is called, modules that are run.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import graphtrain
from graphtrain import progress
from graphtrain.kind.declaration import Declared
from tests.test_layers import MODULES, against_the_order, imports, lines_of, rooms, walked, within

TESTS = Path(__file__).parent
ROOT = TESTS.parent
LINES, FILE_LINES, FUNCTION_LINES, CLASS_METHODS, TRAINER_LINES, DECLARATIONS = 37_650, 500, 60, 20, 550, 20
FUNCTIONS, CLASSES, RUN_MODULES = 980, 110, 190
TEST_LINES, INNER_SHARE = 48_000, 5  # of the tests at most a fifth is in modules that import inner ones


def lines_by_module() -> dict[str, int]:
    """Module -> its physical lines, those of the gallery's examples included."""
    return {name: lines_of(name) for name in MODULES}


def lines_by_room() -> dict[str, int]:
    """Room -> its lines; `ground` is what stands directly under `graphtrain/`."""
    by_package: Counter[str] = Counter()
    for module, lines in lines_by_module().items():
        by_package[module.partition(".")[0]] += lines
    listed = {room: by_package.pop(room, 0) for room in rooms()}
    return {**listed, "ground": sum(by_package.values())}


def long_functions() -> Iterator[tuple[str, int]]:
    """Those that are longer than a page, with their lines, docstrings aside."""
    for module, tree in MODULES.items():
        for each in walked(tree):
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.end_lineno is not None:
                text = each.body[0] if ast.get_docstring(each) is not None else None
                lines = each.end_lineno - each.lineno + 1 - (text.end_lineno - text.lineno + 1 if text else 0)
                if lines > FUNCTION_LINES:
                    yield f"{module}.{each.name}", lines


def large_classes() -> Iterator[tuple[str, int]]:
    """Those that have many methods, with their number."""
    for module, tree in MODULES.items():
        for each in walked(tree):
            if isinstance(each, ast.ClassDef):
                methods = sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in each.body)
                if methods > CLASS_METHODS:
                    yield f"{module}.{each.name}", methods


def declarations() -> list[str]:
    """What a kind can declare: arguments of `@node` and `progress`, and names that the engine looks for in it."""
    progress_arguments = inspect.signature(progress).parameters.values()
    named = [f"node({name})" for name in Declared.__annotations__]
    named += [f"progress({each.name})" for each in progress_arguments if each.kind is each.KEYWORD_ONLY]
    looked_for = {
        ast.literal_eval(call.args[1])
        for tree in MODULES.values()
        for call in walked(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("getattr", "hasattr")
        if len(call.args) > 1
        and isinstance(call.args[1], ast.Constant)
        and ".implementation" in ast.unparse(call.args[0])
    }
    return [*named, *sorted(looked_for)]


def lines_of_tests() -> dict[Path, int]:
    """Every module of the tests -> its physical lines."""
    return {file: len(file.read_text(encoding="utf-8").splitlines()) for file in sorted(TESTS.rglob("*.py"))}


def inner_modules(file: Path) -> set[str]:
    """What a test imports or replaces that users do not: not the package itself, adapters or procedures."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    named = {name for name in imports(tree) if name.startswith("graphtrain.")}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(("setattr", "import_module")):
            values = [part.value for part in call.args if isinstance(part, ast.Constant)]
            named |= {text for text in values if isinstance(text, str) and text.startswith("graphtrain.")}
    public = {f"graphtrain.{name}" for name in dir(graphtrain)}
    return {name for name in named - public if not name.startswith(("graphtrain.adapters", "graphtrain.graphs"))}


def deep_helpers() -> dict[str, set[str]]:
    """Helpers of a folder of tests that stand on other helpers than those directly under `tests/`.

    An `__init__` that lists the modules of its folder is one helper with them.
    """
    found = {}
    for file in TESTS.rglob("*.py"):
        if file.parent != TESTS and not file.name.startswith(("test_", "conftest")):
            named = {name for name in imports(ast.parse(file.read_text(encoding="utf-8"))) if within(name, "tests")}
            modules = {name for name in named if (ROOT / name.replace(".", "/")).with_suffix(".py").exists()}
            own = ".".join(file.relative_to(ROOT).parent.parts) if file.name == "__init__.py" else "none"
            if deep := {name for name in modules if name.count(".") > 1 and not within(name, own)}:
                found[str(file.relative_to(TESTS))] = deep
    return found


def smallest_run() -> dict[str, int]:
    """What a run of three weights and four batches enters: its functions, classes and modules."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(__file__).with_name("smallest_run.py")
        path = {**os.environ, "PYTHONPATH": str(ROOT)}
        result = subprocess.run(
            [sys.executable, str(script)], cwd=folder, env=path, capture_output=True, text=True, check=True
        )
    counted: dict[str, int] = json.loads(result.stdout.splitlines()[-1])
    return counted


def figures() -> list[tuple[str, int, int]]:
    """What is measured, how much of it there is, and the most that there should be."""
    by_module, run, tests = lines_by_module(), smallest_run(), lines_of_tests()
    inner = sum(lines for file, lines in tests.items() if inner_modules(file))
    return [
        ("lines of source", sum(by_module.values()), LINES),
        (f"files above {FILE_LINES} lines", len([lines for lines in by_module.values() if lines > FILE_LINES]), 0),
        (f"functions above {FUNCTION_LINES} lines", len([*long_functions()]), 0),
        (f"classes above {CLASS_METHODS} methods", len([*large_classes()]), 0),
        ("lines of trainer/trainer.py", by_module["trainer.trainer"], TRAINER_LINES),
        ("declarations of a kind", len(declarations()), DECLARATIONS),
        ("imports against the order", len(against_the_order(MODULES)), 0),
        ("functions that the smallest run enters", run["functions"], FUNCTIONS),
        ("classes that it enters", run["classes"], CLASSES),
        ("modules that it runs", run["modules"], RUN_MODULES),
        ("lines of tests", sum(tests.values()), TEST_LINES),
        ("lines of tests that import inner modules", inner, sum(tests.values()) // INNER_SHARE),
        ("helpers of tests on other helpers", len(deep_helpers()), 0),
    ]


def main() -> None:
    """Print all of it."""
    for name, number, most in figures():
        print(f"{name:<42}{number:>8,}  of at most {most:,}")
    print("\nlines by room")
    for room, lines in lines_by_room().items():
        print(f"  {room:<12}{lines:>8,}")
    for title, found in (("long functions", long_functions()), ("large classes", large_classes())):
        print(f"\n{title}")
        for name, number in found:
            print(f"  {name} {number}")


if __name__ == "__main__":
    main()
