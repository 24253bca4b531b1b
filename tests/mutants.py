"""How strong the first tier is: `make mutants` changes the source in one place, and runs the tests that enter it.

A sample for each package, fixed by a seed: a comparison, condition, number, operator, returned value or statement is
another one or gone. One that no test notices is a missing assertion, or code that does nothing.
"""

from __future__ import annotations

import argparse
import ast
import copy
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.bugs import ROOT, copied
from tests.tiers import FIRST

ENTERED = "GRAPHTRAIN_ENTERED"  # a file that receives which test enters which functions
SECONDS = 300
PACKAGES = ("graph", "kind", "language", "plan", "checks", "program", "state", "storage", "resume", "data", "ranks",
            "nodes", "trainer", "report", "proof", "viz", "command")  # fmt: skip
EQUIVALENT: dict[str, str] = {}  # changes that change nothing that matters, each with why
_PAIRS = ("Lt LtE", "Gt GtE", "Eq NotEq", "Is IsNot", "In NotIn", "And Or", "Add Sub", "FloorDiv Mult", "Mod Add")
_OTHER = {getattr(ast, one): getattr(ast, two) for pair in _PAIRS for one, two in [pair.split(), pair.split()[::-1]]}


def changed(node: Any) -> ast.AST | None:
    """The node with one change; None where it has none."""
    other = copy.deepcopy(node)
    match other:
        case ast.Compare(ops=[operator]) if type(operator) in _OTHER:
            other.ops = [_OTHER[type(operator)]()]
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in _OTHER:
            other.op = _OTHER[type(operator)]()
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool(value) | int(value)):
            other.value = not value if isinstance(value, bool) else value + 1
        case ast.IfExp(test=test):
            other.test = ast.UnaryOp(ast.Not(), test)
        case ast.Return(value=ast.expr()):
            other.value = ast.Constant(None)
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            return ast.Pass()
        case _:
            return None
    return other


def places(tree: ast.Module) -> Iterator[tuple[Any, int]]:
    """What can be changed inside of functions, and the first line of the function around it."""
    for function in [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]:
        inner = {id(each) for other in ast.walk(function) if other is not function
                 and isinstance(other, ast.FunctionDef) for each in ast.walk(other)}  # fmt: skip
        for statement in function.body:
            # Neither annotations nor the parts of f-strings, whose places in the text are not right.
            parts = [part.annotation if isinstance(part, ast.AnnAssign) else part for part in ast.walk(statement)
                     if isinstance(part, ast.AnnAssign | ast.JoinedStr)]  # fmt: skip
            left_out = inner | {id(each) for part in parts for each in ast.walk(part)}
            for each in ast.walk(statement):
                if id(each) not in left_out and changed(each) is not None:
                    yield each, min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def mutants(package: str, number: int, seed: str) -> Iterator[tuple[str, str, str, int]]:
    """A sample: file, a name for the change, the text of the file with it, and the first line of its function."""
    folder = ROOT / package if package in ("nodes", "viz") else ROOT / "graphtrain" / package
    found = [(file, *each) for file in sorted(folder.rglob("*.py")) for each in places(ast.parse(file.read_text()))]
    for file, node, function in random.Random(f"{seed} {package}").sample(found, min(number, len(found))):
        lines, begin, end = file.read_text().splitlines(keepends=True), node.col_offset, node.end_col_offset
        new = ast.unparse(ast.fix_missing_locations(changed(node) or node))
        new = f"({new})" if isinstance(node, ast.expr) else new.replace("\n", "\n" + " " * begin)
        before, after = lines[node.lineno - 1].encode()[:begin], lines[node.end_lineno - 1].encode()[end:]
        lines[node.lineno - 1 : node.end_lineno] = [before.decode() + new + after.decode()]
        name = f"{file.relative_to(ROOT)}:{node.lineno} `{ast.unparse(node).splitlines()[0]}` -> `{new}`"
        yield str(file.relative_to(ROOT)), name, "".join(lines), function


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """With `-p tests.mutants`: write down the functions that a test enters, in threads too."""
    entered: set[tuple[str, int]] = set()
    for begin in (sys.setprofile, threading.setprofile):
        begin(lambda frame, event, _: entered.add((frame.f_code.co_filename, frame.f_code.co_firstlineno)))
    yield
    for end in (sys.setprofile, threading.setprofile):
        end(None)  # type: ignore[arg-type]
    places = [[os.path.realpath(file), line] for file, line in [*entered] if file.startswith(str(ROOT))]
    with Path(os.environ[ENTERED]).open("a") as record:
        record.write(json.dumps([item.nodeid, places]) + "\n")


def run_tests(root: Path, *words: str, record: Path | None = None) -> bool:
    """Whether tests pass in a copy of the checkout; False too where they take too long."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", FIRST, *words]
    environment = {**os.environ, "PYTHONPATH": str(root), ENTERED: str(record)}
    try:
        return not subprocess.run(command, cwd=root, capture_output=True, timeout=SECONDS, env=environment).returncode
    except subprocess.TimeoutExpired:
        return False


def of_package(package: str, number: int, seed: str) -> tuple[str, int, int]:
    """Print those that survive of a sample; the package, how many there were, and how many were found."""
    sample, found = [*mutants(package, number, seed)], 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:  # noqa: S108
        root, record, tests = copied(ROOT, Path(folder)), Path(folder) / "entered", defaultdict(list)
        run_tests(root, "-p", "tests.mutants", f"tests/{package}", record=record)
        for nodeid, entered in map(json.loads, record.read_text().splitlines()):
            for file, line in entered:
                tests[str(Path(file).relative_to(root)), line].append(nodeid)
        for file, name, text, function in sample:
            original, chosen = (root / file).read_text(), tests[file, function][:60]
            (root / file).write_text(text)
            if name in EQUIVALENT or (chosen and not run_tests(root, *chosen)):
                found += 1
            else:
                print(f"survives: {name}", flush=True)
            (root / file).write_text(original)
    return package, len(sample), found


def main() -> None:
    """Print the survivors, and a table: package, mutants, found, share."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    parser.add_argument("--each", type=int, default=25, help="mutants of a package. Default: 25")
    parser.add_argument("--seed", default=f"{datetime.date.today()}", help="Default: the date")
    arguments = parser.parse_args()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        table = [*pool.map(lambda name: of_package(name, arguments.each, arguments.seed), arguments.packages)]
    for package, count, found in [*table, ("together", sum(row[1] for row in table), sum(row[2] for row in table))]:
        print(f"{package:<10}{count:>5}{found:>5}{100 * found / max(count, 1):>6.0f} %")


if __name__ == "__main__":
    main()
