from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphtrain.graph import Graph
from graphtrain.viz.dot import to_dot
from graphtrain.viz.picture import picture
from graphtrain.viz.render import RenderError, draw

MAGIC = {"svg": b"<?xml", "png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF-"}


def program(folder: Path, text: str) -> None:
    """An executable named `dot`, the only program on PATH."""
    file = folder / "dot"
    file.write_text(f"#!{sys.executable}\nimport sys\n{text}\n")
    file.chmod(0o755)


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("format", MAGIC)
def test_pygraphviz_draws_where_there_is_no_dot(only: Path, format: str, fit: Graph) -> None:
    assert draw(to_dot(picture(fit)), format).startswith(MAGIC[format])


def test_a_system_dot_is_preferred(only: Path) -> None:
    program(only, "sys.stdout.write(repr((sys.argv[1:], sys.stdin.read())))")
    assert draw("digraph { a }", "png") == b"(['-Tpng'], 'digraph { a }')"


@pytest.mark.parametrize(
    "fault", ["sys.exit('Format: \"pdf\" not recognized')", "pass"], ids=["refuses", "draws nothing"]
)
def test_a_dot_that_cannot_draw_is_replaced_by_pygraphviz(only: Path, fault: str) -> None:
    program(only, fault)
    assert draw("digraph { a }", "pdf").startswith(MAGIC["pdf"])


def test_where_nothing_can_draw_every_reason_is_reported(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(only, "sys.exit('line of detail\\nno such plugin')")
    monkeypatch.setattr(sys, "executable", str(only / "no_python"))
    with pytest.raises(RenderError) as caught:
        draw("digraph { a }", "svg")
    assert "could not be drawn as svg" in caught.value.message
    assert "no such plugin" in caught.value.message and "no_python" in caught.value.message
    assert "pygraphviz" in caught.value.hint


def test_a_program_that_hangs_is_given_up(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(only, "import time; time.sleep(60)")
    monkeypatch.setattr(sys.modules[draw.__module__], "TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(RenderError, match="timed out"):
        draw("digraph { a }", "svg")


def test_broken_dot_text_is_an_error_of_ours(only: Path) -> None:
    with pytest.raises(RenderError, match="could not be drawn"):
        draw("digraph { a -> ", "svg")


@pytest.mark.full
def test_nothing_reaches_the_terminal() -> None:
    program = "from graphtrain.viz.render import draw; draw('digraph { a [label=<<b>x</b>>] }', 'png')"
    environment = {**os.environ, "PATH": "/nonexistent", "PYTHONWARNINGS": "error"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
