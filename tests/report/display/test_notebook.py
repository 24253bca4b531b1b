"""The display of a notebook: one output that is renewed, HTML that holds no HTML of others."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from types import ModuleType
from typing import Any

import pytest

from graphtrain.report.display.notebook import Notebook, as_html
from graphtrain.report.display.panel import parts
from tests.report.display.runs import snapshot


class Words(HTMLParser):
    """The text of some HTML, and its tags, which must be closed as they were opened."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.tags: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


class Cell:
    """Stands for the part of IPython that displays values."""

    def __init__(self) -> None:
        self.outputs: list[list[Any]] = []

    def display(self, content: Any, display_id: bool) -> Any:
        assert display_id
        output = [content]
        self.outputs.append(output)
        handle = ModuleType("handle")
        handle.update = output.append  # type: ignore[attr-defined]
        return handle


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    cell = Cell()
    module = ModuleType("IPython.display")
    module.display = cell.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return cell


def test_one_output_is_renewed(cell: Cell) -> None:
    display = Notebook()
    display.end(snapshot())
    display.show(snapshot())
    assert cell.outputs == []
    for run in range(2):
        display.begin()
        for step in range(3):
            display.show(snapshot(step=step))
        display.end(snapshot(step=3, state="finished"))
        display.show(snapshot())
        assert len(cell.outputs) == run + 1 and len(cell.outputs[run]) == 4
        assert "finished" in cell.outputs[run][-1]._repr_html_()
    assert display.interval_seconds >= 0.5


def test_a_console_without_html_gets_text(cell: Cell) -> None:
    display = Notebook()
    display.begin()
    display.show(snapshot())
    text = repr(cell.outputs[0][0])
    assert "loss 0.04231" in text and "epoch 3/10 ━" in text


def test_the_html_says_what_the_panel_says() -> None:
    said = parts(snapshot())
    words = Words(as_html(snapshot())).text
    pieces = [*said.facts, *said.pace, *said.host_time, *(f"{name} {value}" for name, value in said.metrics), "21 %"]
    assert all(piece in words for piece in pieces)
    assert 'value="0.2125"' in as_html(snapshot())
    assert "progress" not in Words(as_html(snapshot(done=None, batch=None))).tags


def test_html_of_others_stays_text() -> None:
    nasty = "<script>alert('x')</script>&amp;\"\x1b"

    def html(text: str) -> str:
        tables: dict[str, Any] = {"metrics": {text: 1.0}, "rates": {text: 1.0}, "seconds": {text: 1.0}}
        return as_html(snapshot(end=(text,), state=text, device=text, **tables))

    plain = Words(html("a"))
    words = Words(html(nasty))
    assert words.tags == plain.tags
    assert words.text.count("<script>alert('x')</script>&amp;\"\\x1b") == 6 and "\x1b" not in words.text
