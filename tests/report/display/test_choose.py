"""Which display is chosen where, and what that imports."""

from __future__ import annotations

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
