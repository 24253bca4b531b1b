"""How strong the first tier is: `make mutants` changes the source in one place, and runs the tests that enter it.

One of a sample, fixed by a seed, that no test notices is a missing assertion, or code that does nothing.
"""

from __future__ import annotations

import argparse
import ast
import copy
import ctypes
import datetime
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.entered import ENTERED, read_entered
from tests.simulation.bugs import ROOT, copied
from tests.tiers import FIRST

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108
MOST_SECONDS, MOST_TESTS = 300.0, 150
PACKAGES = ("graph", "kind", "plan", "checks", "program", "state", "storage", "resume", "data", "ranks",
            "nodes", "trainer", "report", "proof", "viz", "command")  # fmt: skip
_SET_DEATH_SIGNAL, _PRCTL = 1, getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)  # of Linux
EQUIVALENT = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))  # name without line -> why
_PAIRS = ("Lt LtE", "Gt GtE", "Eq NotEq", "Is IsNot", "In NotIn", "And Or", "Add Sub", "FloorDiv Mult", "Mod Add")
_OTHER = {getattr(ast, one): getattr(ast, two) for pair in _PAIRS for one, two in [pair.split(), pair.split()[::-1]]}


def changed(node: Any) -> ast.AST | None:
    """The node with one change; None where it has none."""
    other = copy.deepcopy(node) if isinstance(node, ast.expr | ast.Return | ast.Expr | ast.AugAssign) else None
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
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
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
            # Neither annotations nor the parts of f-strings, whose places in the text are not right; nor `strict=True`.
            parts = [part.annotation if isinstance(part, ast.AnnAssign) else part for part in ast.walk(statement)
                     if isinstance(part, ast.AnnAssign | ast.JoinedStr)
                     or (isinstance(part, ast.keyword) and part.arg == "strict")]  # fmt: skip
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


def run_tests(root: Path, *words: str, seconds: float | None = MOST_SECONDS, folder: str = "") -> bool:
    """Whether tests pass in a copy of the checkout; False too where they take too long. They end with this process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", FIRST, *words]
    with subprocess.Popen(
        command, cwd=root, env={**os.environ, "PYTHONPATH": str(root), ENTERED: folder}, stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=lambda: _PRCTL(_SET_DEATH_SIGNAL, signal.SIGKILL),
    ) as process:  # fmt: skip
        try:
            return not process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return False


def tests_of_functions() -> dict[tuple[str, int], list[str]]:
    """File and first line of a function -> the tests of the first tier that enter it."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = copied(ROOT, Path(folder))
        run_tests(root, "-p", "tests.entered", "-n", str(os.cpu_count()), seconds=None, folder=folder)
        return read_entered(Path(folder), root)


def found_by(package: str, number: int, seed: str, tests: Mapping[tuple[str, int], Sequence[str]]) -> list[Any]:
    """Print the survivors of a sample; the package, how many there were, and how many were found."""
    sample, found = [*mutants(package, number, seed)], 0
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = copied(ROOT, Path(folder))
        for file, name, text, function in sample:
            (root / file).write_text(text)
            if re.sub(r":\d+ ", " ", name, count=1) in EQUIVALENT or is_found(root, tests.get((file, function), ())):
                found += 1
            else:
                print(f"survives: {name}", flush=True)
            (root / file).write_text((ROOT / file).read_text())
    return [package, len(sample), found]


def is_found(root: Path, tests: Sequence[str]) -> bool:
    """Whether one of the tests fails in a changed checkout: of many, every so manieth, and then those between."""
    some = [*dict.fromkeys(tests[each * len(tests) // MOST_TESTS] for each in range(MOST_TESTS) if tests)]
    others = [test for test in tests if test not in {*some}]
    others = [*dict.fromkeys(others[each * len(others) // MOST_TESTS] for each in range(MOST_TESTS) if others)]
    return any(chosen and not run_tests(root, "-x", *chosen) for chosen in (some, others))


def main() -> None:
    """Print the survivors, and a table: package, mutants, found, share."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("packages", nargs="*", default=PACKAGES)
    parser.add_argument("--each", type=int, default=25, help="mutants of a package. Default: 25")
    parser.add_argument("--seed", default=f"{datetime.date.today()}", help="Default: the date")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # at once, and with it all tests
    tests = tests_of_functions()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        table = [*pool.map(lambda name: found_by(name, arguments.each, arguments.seed, tests), arguments.packages)]
    for name, count, found in [*table, ["together", *(sum(row[1:][i] for row in table) for i in range(2))]]:
        print(f"{name:<10}{count:>5}{found:>5}{100 * found / max(count, 1):>6.0f} %")


if __name__ == "__main__":
    main()
