"""What a run does at its start, and small runs of one process need once: it is a third of the time of their tests.

Modules that test the start itself are marked: `pytestmark = pytest.mark.whole_start`.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphtrain import Graph
from graphtrain.checks import checked_graph
from graphtrain.kind import DECLARED, Kind

SOUND: set[str] = set()  # hashes of graphs that were checked, with what they were checked for
KNOWN: dict[str, Kind] = {}  # kinds that are not shipped, and are the same as long as the process lives


def begin() -> None:
    """What was imported stays, and is not looked through again at each collection of garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def start_once(set_attribute: Callable[[Any, str, Any], None]) -> None:
    """Check a graph of shipped kinds once (15 ms), and ask git once for what the tests themselves are (60 ms).

    Arguments:
        set_attribute: `setattr`, or that of a `MonkeyPatch`, which puts back what was there.
    """
    for name in ("trainer.trainer", "command.training", "command.rebuild"):
        if (module := sys.modules.get(f"graphtrain.{name}")) is not None:
            set_attribute(module, "checked_graph", _checked_once)
    if (environment := sys.modules.get("graphtrain.resume.environment")) is not None:
        look_up = environment.provenance
        set_attribute(
            environment, "provenance", lambda script=None: look_up(script) if script is not None else of_tests(look_up)
        )


def _checked_once(source: Graph | str | Path, **about: Any) -> Graph:
    """What `checked_graph` returns; arguments are named as there."""
    if not isinstance(source, Graph) or not all(map(_is_known, DECLARED.values())) or not _has_known_kinds(source):
        return checked_graph(source, **about)
    supplied = about.get("supplied")
    about_it = f"{source.to_json()} {bool(about.get('ranks'))} {None if supplied is None else sorted(supplied)}"
    key = hashlib.sha256(about_it.encode()).hexdigest()
    if key not in SOUND:
        checked_graph(source, **about)
        SOUND.add(key)
    return source


@functools.cache
def of_tests(look_up: Callable[[], Any]) -> Any:
    """The provenance of this process, looked up once."""
    return look_up()


def _is_known(kind: Kind) -> bool:
    return KNOWN.get(kind.name) is kind


def _has_known_kinds(graph: Graph) -> bool:
    return all(
        (node.kind is None or _is_known(node.kind)) and (node.body is None or _has_known_kinds(node.body))
        for node in graph.nodes.values()
    )
