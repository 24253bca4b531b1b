"""What every test starts from: no kinds but the shipped ones, and folders that are in memory."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from graphtrain.kind import DECLARED
from tests import once, tiers

_MEMORY = Path("/dev/shm")  # noqa: S108 - each run of the tests makes a folder of its own there
_ENOUGH_BYTES = 2 << 30

# A package of somebody else, which `test_wheel.py` installs: imported here, its kind would be known to all tests.
collect_ignore = ["company/lookahead"]

# Before torch is imported: its threads wait for one another by spinning, which is most of the time of a small tensor.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What is too slow for the first tier."""
    tiers.report(terminalreporter)


def pytest_configure(config: pytest.Config) -> None:
    """Folders of tests are in memory where that can be: most of the time would go into flushes of checkpoints.

    Those of a sweep are on the disk. Setting TMPDIR, or `--basetemp`, chooses another place.
    """
    config.pluginmanager.register(tiers)  # as a plug-in: hooks of this file are not asked about modules of the package
    hypothesis.settings.register_profile("of tests", deadline=None)  # a machine may be busy
    hypothesis.settings.load_profile("of tests")
    # A shell starts what runs in its background with interrupts ignored, `nohup` with hang-ups; tests send both.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if "TMPDIR" in os.environ or config.getoption("markexpr") == "sweep" or not os.access(_MEMORY, os.W_OK):
        return
    if shutil.disk_usage(_MEMORY).free >= _ENOUGH_BYTES:
        os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Without the collection of garbage, of which there is little: it takes a second of fifteen."""
    gc.disable()
    yield
    gc.enable()


def pytest_collection_finish() -> None:
    """From now on no code is cached: tests change scripts within the second by which a cache tells them apart."""
    once.begin()
    DECLARED.clear()  # those of test modules, for doctests too
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"


@pytest.fixture(autouse=True)
def no_kinds_of_other_tests() -> Iterator[None]:
    """Kinds that a test declares are gone after it; those that test modules declare are not found by name."""
    before = dict(DECLARED)
    DECLARED.clear()
    yield
    DECLARED.clear()
    DECLARED.update(before)


@pytest.fixture(autouse=True)
def threads_of_the_process() -> Iterator[None]:
    """The number of threads is that of the process and kept with every checkpoint: no test leaves another behind."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else None
    yield
    if torch is not None and torch.get_num_threads() != before:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def short_start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run does at its start is done once in the process, except where that is tested."""
    if request.node.get_closest_marker("whole_start") is None:
        once.start_once(monkeypatch.setattr)
