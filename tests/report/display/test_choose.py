"""Which display is chosen where, and what that imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from graphtrain.report.display.choose import PlainLines, display_for, introduce
from graphtrain.report.display.live import Live
from graphtrain.report.display.notebook import Notebook
from graphtrain.report.display.summary import Activity, Summary
from tests.report.display.terminal import Terminal

SUMMARY = Summary("fit", {}, [Activity("finish", "after", "10 epochs")])


class Stream:
    def __init__(self, answer: bool) -> None:
        self._answer = answer

    def isatty(self) -> bool:
        return self._answer


@pytest.mark.parametrize(
    ("stream", "term", "chosen"),
    [
        (Stream(True), "xterm", Live),
        (Stream(True), "dumb", PlainLines),
        (Stream(False), "xterm", PlainLines),
        (None, "xterm", PlainLines),
    ],
)
def test_a_terminal_or_not(stream: Any, term: str, chosen: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stderr", stream)
    assert type(display_for(print)) is chosen


def test_a_closed_stream_is_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "closed", "w") as closed:
        pass
    monkeypatch.setattr(sys, "stderr", closed)
    assert type(display_for(print)) is PlainLines


@pytest.mark.parametrize(
    ("shell", "chosen"), [(SimpleNamespace(kernel=1), Notebook), (SimpleNamespace(), Live), (None, Live)]
)
def test_a_kernel_or_a_prompt(shell: Any, chosen: type, monkeypatch: pytest.MonkeyPatch) -> None:
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Stream(True))
    assert type(display_for(print)) is chosen


def test_a_worker_that_shares_the_terminal_prints_lines(tmp_path: Path) -> None:
    script = """
import multiprocessing
from graphtrain.report.display.choose import display_for
def choose():
    print(type(display_for(print)).__name__, flush=True)
choose()
worker = multiprocessing.get_context("fork").Process(target=choose)
worker.start()
worker.join()
"""
    assert Terminal(script, tmp_path).end().shown == ["Live", "PlainLines"]


def test_an_introduction_is_printed_a_line_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    said: list[str] = []
    introduce(SUMMARY, said.append)
    assert said == ["graph fit", "  finish  after 10 epochs"]


@pytest.mark.full
def test_an_introduction_on_a_terminal(tmp_path: Path) -> None:
    script = """
from graphtrain.report.display.choose import introduce
from tests.report.display.test_choose import SUMMARY
introduce(SUMMARY, lambda line: sys.exit("said"))
"""
    assert Terminal(script, tmp_path).end().shown == ["graph fit", "  finish  after 10 epochs"]


def test_the_package_imports_little() -> None:
    code = (
        "import sys, graphtrain.report.display.choose, graphtrain.report.display.live\n"
        "import graphtrain.report.display.notebook\n"
        "print('\\n'.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    assert "graphtrain.report.display.live" in imported and "rich.console" in imported
    unwanted = (
        "torch",
        "IPython",
        "numpy",
        *(f"graphtrain.{name}" for name in ("program", "run", "command", "nodes", "viz")),
    )
    assert [name for name in imported if name.startswith(unwanted)] == []
