"""DOT text laid out and drawn: by a system ``dot`` where there is one, otherwise by pygraphviz."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from graphtrain.errors import GraphtrainError
from graphtrain.viz.wording import one_line

TIMEOUT_SECONDS = 60.0


class RenderError(GraphtrainError, RuntimeError):
    """A picture that could not be drawn; it never stops a run."""


def draw(dot_text: str, format: Literal["svg", "png", "pdf"]) -> bytes:
    """The drawing of a DOT text.

    Arguments:
        dot_text: what `to_dot` wrote.
        format: ``"svg"``, ``"png"`` or ``"pdf"``.

    Raises:
        RenderError: neither a system ``dot`` nor pygraphviz could draw it; the message has the reason of each.

    >>> draw("digraph { a -> b }", "svg")[:5]
    b'<?xml'
    """
    reasons = []
    for name, command in _programs(format):
        try:
            return _output(command, dot_text.encode())
        except (OSError, subprocess.SubprocessError) as error:
            reasons.append(f"{name}: {_reason(error)}")
    raise RenderError(
        f"the picture could not be drawn as {format} ({'; '.join(reasons) or 'no program to draw it'})",
        "install Graphviz (https://graphviz.org/download) or pygraphviz; .dot and .mmd are written without them",
    )


def _programs(format: str) -> Iterator[tuple[str, list[str]]]:
    dot = shutil.which("dot")
    if dot is not None:
        yield dot, [dot, f"-T{format}"]
    if sys.executable:
        # -P keeps the names of the modules beside the program (`layout`, `picture`) out of its imports.
        yield "pygraphviz", [sys.executable, "-P", str(Path(__file__).with_name("pygraphviz_dot.py")), format]


def _output(command: list[str], text: bytes) -> bytes:
    # S603: the command is `dot` or this interpreter, with a format of ours; a stranger's text arrives as input only.
    done = subprocess.run(command, input=text, capture_output=True, timeout=TIMEOUT_SECONDS, check=True)  # noqa: S603
    if not done.stdout:
        raise subprocess.SubprocessError("it drew nothing")
    return done.stdout


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        last_line = one_line(error.stderr.decode(errors="replace").strip().rpartition("\n")[2], 200)
        return last_line or f"exit status {error.returncode}"
    return one_line(str(error), 200)
