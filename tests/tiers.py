"""The three tiers of the tests, by what they cost: `make test`, `make test-all` and `make sweep`.

A test is in the first one unless it is marked: `full` and `cuda` put it into the second, `first(n)` puts all but its
first n rows there, `sweep` puts it into the third, `second(n)` puts all but its first n rows there. In the first tier a
row takes at most a second of processor time, those of `slow.toml` aside: a run with a slower one fails.
"""

from __future__ import annotations

import functools
import os
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

FIRST = "not sweep and not full"
MOST_SECONDS = 1.0  # of processor time, which grows by a half where another process shares the core
SLOW = Path(__file__).with_name("slow.toml")

# What is in the second tier as a whole: merely to import a library for it takes seconds. Named, it is run by itself.
ROOT = Path(__file__).parent.parent
HEAVY = (
    ROOT / "graphtrain" / "adapters",
    ROOT / "tests" / "company",
    ROOT / "tests" / "training" / "test_metric_objects.py",
)

_SECONDS_OF_A_LOOP = 0.06  # of `_slowness`, on a machine where a row takes at most `MOST_SECONDS`
_began = 0.0
_slow: list[tuple[float, str]] = []


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run of the whole first tier does not look into what is heavy; one on a device, into what needs none."""
    if config.getoption("markexpr") == "cuda" and collection_path.suffix == ".py":
        text = collection_path.read_text(encoding="utf-8")
        return None if "mark.cuda" in text or "from tests.devices import DEVICES" in text else True
    is_whole = config.getoption("markexpr") == FIRST and [*map(str, config.args)] == config.getini("testpaths")
    return True if is_whole and collection_path in HEAVY else None


@functools.cache
def _has_device() -> bool:
    import torch  # which the modules of such tests have imported

    return torch.cuda.is_available()


def _slowness() -> float:
    """How many times as long as it should take a loop takes: a slow machine has slow rows."""
    begin = time.process_time()
    sum(number * number % 7 for number in range(1_000_000))
    return max(1.0, (time.process_time() - begin) / _SECONDS_OF_A_LOOP)


def _processor_seconds() -> float:
    """Of this process and the children that it has waited for."""
    return sum(os.times()[:4])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All but the first rows of a test that is marked `first` or `second` are in the tier after it.

    What needs a CUDA device is in the second tier, and is skipped where there is none.
    """
    for item in items:
        if item.get_closest_marker("cuda") is not None:
            item.add_marker("full")
            if not _has_device():
                item.add_marker(pytest.mark.skip(reason="there is no CUDA device"))
    rows: Counter[str] = Counter()
    for item in items:
        function = item.nodeid.partition("[")[0]
        rows[function] += 1
        for mark, tier in (("first", "full"), ("second", "sweep")):
            limit = item.get_closest_marker(mark)
            if limit is not None and rows[function] > limit.args[0]:
                item.add_marker(tier)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    global _began
    _began = _processor_seconds()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """The time of a row goes to the process that reports, with its last phase."""
    if call.when == "teardown":
        item.user_properties.append(("processor_seconds", _processor_seconds() - _began))
    yield


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seconds = dict(report.user_properties).get("processor_seconds", 0.0)
    if report.when == "teardown" and isinstance(seconds, float) and seconds > MOST_SECONDS:
        _slow.append((seconds, report.nodeid))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run of the first tier fails if a row without a reason in `slow.toml` takes twice as long as it may."""
    reasons = tomllib.loads(SLOW.read_text(encoding="utf-8"))
    is_first_tier = session.config.getoption("markexpr") == FIRST and not hasattr(session.config, "workerinput")
    _slow[:] = [row for row in _slow if is_first_tier and row[1].partition("[")[0] not in reasons]
    most = 2 * MOST_SECONDS * _slowness() if _slow else 0.0
    if any(seconds > most for seconds, _ in _slow) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def report(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the rows of the first tier that are slow."""
    for seconds, row in sorted(_slow, reverse=True):
        terminalreporter.line(f"{row} took {seconds:.1f} s: mark it `full`, or give the reason in tests/slow.toml")
