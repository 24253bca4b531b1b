"""Chooses a display: a terminal, a notebook, or plain lines."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from graphtrain.report.display.plain_lines import PlainLines
from graphtrain.report.display.summary import Summary
from graphtrain.report.snapshot import Display


def display_for(notify: Callable[[str], Any], metrics: Sequence[str] | None = None) -> Display:
    """A panel on a terminal, an output that is updated in a notebook, plain lines everywhere else.

    Arguments:
        notify: takes a plain line.
        metrics: names of the metrics to show. Default: all.

    >>> type(display_for(print)).__name__ in ("Live", "Notebook", "PlainLines")
    True
    """
    if in_notebook():
        from graphtrain.report.display.notebook import Notebook

        return Notebook(metrics)
    if on_terminal():
        from graphtrain.report.display.live import Live

        return Live(metrics)
    return PlainLines(notify, metrics=metrics)


def introduce(summary: Summary, notify: Callable[[str], Any]) -> None:
    """Show the summary of a run, in the place where `display_for` would show the run.

    Arguments:
        notify: takes a plain line.

    >>> introduce(Summary("fit", {}, ()), print)
    graph fit
    """
    if in_notebook():
        importlib.import_module("IPython.display").display(summary)
    elif on_terminal():
        Console(file=sys.stderr, force_jupyter=False, highlight=False).print(summary)
    else:
        for line in str(summary).splitlines():
            notify(line)


def in_notebook() -> bool:
    """True inside the kernel of a notebook, not at the prompt of IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell is not None and hasattr(shell, "kernel")


def can_be_drawn_on(stream: Any) -> bool:
    """True for a terminal that can move its cursor."""
    try:
        return bool(stream.isatty()) and os.environ.get("TERM") not in ("dumb", "unknown")
    except (AttributeError, ValueError):  # None under pythonw, closed
        return False


def on_terminal() -> bool:
    """True if standard error is a terminal to draw on, and this process did not get it from another."""
    return multiprocessing.parent_process() is None and can_be_drawn_on(sys.stderr)
