"""How strong the first tier is: `make mutants` changes the source in one place, and runs the tests that enter it.

A random sample of changes for each package, fixed by a seed: a comparison, a condition, a number, an operator, a
returned value or a statement is another one or gone. One that no test of the package notices is a missing assertion, or
code that does nothing. `EQUIVALENT` lists those that change nothing that matters, each with why.
"""

from __future__ import annotations

import argparse
import ast
import copy
import datetime
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiers import FIRST

ROOT = Path(__file__).parent.parent
ENTERED = "GRAPHTRAIN_ENTERED"  # a file that receives which test enters which functions
SECONDS = 300
PACKAGES = ("graph", "kind", "language", "plan", "checks", "program", "state", "storage", "resume", "data", "ranks",
            "nodes", "trainer", "report", "proof", "viz", "command")  # fmt: skip
EQUIVALENT: dict[str, str] = {}
_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
}  # fmt: skip


def changed(node: ast.AST) -> ast.AST | None:
    """The node with one change; None where it has none."""
    other = copy.deepcopy(node)
    match other:
        case ast.Compare(ops=[operator]) if type(operator) in _OTHER:
            other.ops = [_OTHER[type(operator)]()]  # type: ignore[list-item]
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in _OTHER:
            other.op = _OTHER[type(operator)]()  # type: ignore[assignment]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool(value)):
            other.value = not value
        case ast.Constant(value=int(value)):
            other.value = value + 1
        case ast.IfExp(test=test):
            other.test = ast.UnaryOp(ast.Not(), test)
        case ast.Return(value=ast.expr()):
            other.value = ast.Constant(None)
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            return ast.Pass()
        case _:
            return None
    return other


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, int]]:
    """What can be changed inside of functions, annotations aside, and the first line of the function around it."""
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    for function in functions:
        inner = {id(each) for other in ast.walk(function) if other is not function
                 and isinstance(other, ast.FunctionDef) for each in ast.walk(other)}  # fmt: skip
        for statement in function.body:
            parts = [part.annotation if isinstance(part, ast.AnnAssign) else part for part in ast.walk(statement)
                     if isinstance(part, ast.AnnAssign | ast.JoinedStr)]  # fmt: skip
            notes = {id(each) for part in parts for each in ast.walk(part)}  # whose places in the text are not right
            for each in ast.walk(statement):
                if id(each) not in inner | notes and changed(each) is not None:
                    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
                    yield each, first


def mutants(package: str, number: int, seed: str) -> Iterator[tuple[str, str, str, int]]:
    """A sample: file, a name for the change, the text of the file with it, and the first line of its function."""
    choose = random.Random(f"{seed} {package}")
    folder = ROOT / package if package in ("nodes", "viz") else ROOT / "graphtrain" / package
    found = [
        (file, *each) for file in sorted(folder.rglob("*.py")) for each in places(ast.parse(file.read_text("utf-8")))
    ]
    for file, node, function in choose.sample(found, min(number, len(found))):
        lines, other = file.read_text("utf-8").splitlines(keepends=True), changed(node)
        first, last = node.lineno - 1, node.end_lineno - 1  # type: ignore[attr-defined]
        begin, end = node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
        new = ast.unparse(ast.fix_missing_locations(other))  # type: ignore[type-var]
        new = f"({new})" if isinstance(node, ast.expr) else new.replace("\n", "\n" + " " * begin)
        text = lines[first].encode()[:begin].decode() + new + lines[last].encode()[end:].decode()
        name = f"{file.relative_to(ROOT)}:{first + 1} `{ast.unparse(node).splitlines()[0]}` -> `{new}`"
        yield str(file.relative_to(ROOT)), name, "".join([*lines[:first], text, *lines[last + 1 :]]), function


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """With `-p tests.mutants`: write down the functions that a test enters."""
    entered: set[tuple[str, int]] = set()
    sys.setprofile(lambda frame, event, _: entered.add((frame.f_code.co_filename, frame.f_code.co_firstlineno)))
    yield
    sys.setprofile(None)
    places = [[os.path.realpath(file), line] for file, line in entered if file.startswith(str(ROOT))]
    with Path(os.environ[ENTERED]).open("a", encoding="utf-8") as record:
        record.write(json.dumps([item.nodeid, places]) + "\n")


def run_tests(root: Path, *words: str, record: Path | None = None) -> bool:
    """Whether tests pass in a copy of the checkout; False too where they take too long."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", FIRST, *words]
    environment = {**os.environ, "PYTHONPATH": str(root), **({ENTERED: str(record)} if record else {})}
    try:
        return not subprocess.run(command, cwd=root, capture_output=True, timeout=SECONDS, env=environment).returncode
    except subprocess.TimeoutExpired:
        return False


def main() -> int:
    """Print the survivors, and a table: package, mutants, found, share."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    parser.add_argument("--each", type=int, default=25, help="mutants of a package. Default: 25")
    parser.add_argument("--seed", default=datetime.date.today().isoformat(), help="Default: the date")
    arguments = parser.parse_args()
    table = []
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:  # noqa: S108
        root = Path(folder) / "copy"
        shutil.copytree(ROOT, root, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv*", "__pycache__"))
        for package in arguments.packages:
            record, tests = Path(folder) / package, defaultdict(list)
            run_tests(root, "-p", "tests.mutants", f"tests/{package}", record=record)
            for nodeid, entered in map(json.loads, record.read_text("utf-8").splitlines()):
                for file, line in entered:
                    tests[str(Path(file).relative_to(root.resolve())), line].append(nodeid)
            found = total = 0
            for file, name, text, function in mutants(package, arguments.each, arguments.seed):
                original = (root / file).read_text("utf-8")
                (root / file).write_text(text, "utf-8")
                chosen = tests[file, function][:60] or [f"tests/{package}"]
                is_found = name in EQUIVALENT or not run_tests(root, *chosen)
                (root / file).write_text(original, "utf-8")
                found, total = found + is_found, total + 1
                if not is_found:
                    print(f"survives: {name}", flush=True)
            table.append((package, total, found))
            print(f"{package:<10}{total:>5}{found:>5}{100 * found / max(total, 1):>6.0f} %", flush=True)
    total, found = (sum(row[part] for row in table) for part in (1, 2))
    print(f"{'together':<10}{total:>5}{found:>5}{100 * found / max(total, 1):>6.0f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
