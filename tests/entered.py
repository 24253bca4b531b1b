"""Which functions does each test enter: a plug-in (`pytest -p tests.entered`) that writes it into a folder."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ENTERED = "GRAPHTRAIN_ENTERED"  # the folder
_ROOT = str(Path(__file__).parent.parent.resolve())
_entered: dict[str, list[int]] = {}  # test -> the numbers of the functions
_failed: set[str] = set()  # tests that fail as the source is
_numbers: dict[tuple[str, int], int] = {}  # file and first line of a function -> its number


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the functions of the checkout that a test enters, in threads too."""
    entered: set[tuple[str, int]] = set()
    for begin in (sys.setprofile, threading.setprofile):
        begin(lambda frame, event, _: entered.add((frame.f_code.co_filename, frame.f_code.co_firstlineno)))
    yield
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
    own = [(os.path.realpath(file), line) for file, line in [*entered] if file.startswith(_ROOT)]
    _entered[item.nodeid] = [_numbers.setdefault(place, len(_numbers)) for place in own]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """A test that fails anyway notices nothing."""
    if report.failed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Each process of the tests has a file of its own."""
    for test in _failed:
        _entered.pop(test, None)
    (Path(os.environ[ENTERED]) / f"{os.getpid()}.json").write_text(json.dumps([[*_numbers], _entered]))


def read_entered(folder: Path, root: Path) -> dict[tuple[str, int], list[str]]:
    """File, relative to the root, and first line of a function -> its tests, those that enter few functions first."""
    tests = defaultdict(list)
    written = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    rows = [(len(entered), test, entered, places) for places, own in written for test, entered in own.items()]
    for _, test, entered, places in sorted(rows, key=lambda row: row[:2]):
        for file, line in [places[number] for number in entered]:
            tests[str(Path(file).relative_to(root)), line].append(test)
    return tests
