"""What a run does at its start, and small runs of one process need once: it is a third of the time of their tests.

Modules that test the start itself are marked: `pytestmark = pytest.mark.whole_start`.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from graphtrain import Graph
from graphtrain.checks import checked_graph
from graphtrain.kind import DECLARED

if TYPE_CHECKING:
    from graphtrain.resume.provenance import Provenance

_SOUND: set[tuple[str, bool, frozenset[str] | None]] = set()


def begin() -> None:
    """What was imported stays, and is not looked through again at each collection of garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def start_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a graph of shipped kinds once (15 ms), and ask git once for what the tests themselves are (60 ms)."""
    for name in ("trainer.trainer", "command.training", "command.rebuild"):
        if (module := sys.modules.get(f"graphtrain.{name}")) is not None:
            monkeypatch.setattr(module, "checked_graph", _checked_once)
    if (environment := sys.modules.get("graphtrain.resume.environment")) is not None:
        look_up = environment.provenance
        monkeypatch.setattr(
            environment, "provenance", lambda script=None: look_up(script) if script is not None else _of_tests(look_up)
        )


def _checked_once(source: Graph | str | Path, **about: Any) -> Graph:
    """What `checked_graph` returns; arguments are named as there."""
    if not isinstance(source, Graph) or DECLARED or not _has_kinds_by_name(source):
        return checked_graph(source, **about)
    supplied = about.get("supplied")
    key = source.to_json(), bool(about.get("ranks")), None if supplied is None else frozenset(supplied)
    if key not in _SOUND:
        checked_graph(source, **about)
        _SOUND.add(key)
    return source


@functools.cache
def _of_tests(look_up: Callable[[], Provenance]) -> Provenance:
    return look_up()


def _has_kinds_by_name(graph: Graph) -> bool:
    return all(
        node.kind is None and (node.body is None or _has_kinds_by_name(node.body)) for node in graph.nodes.values()
    )
