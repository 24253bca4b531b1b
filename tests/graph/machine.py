"""Promises 1 and 3: the executable meaning of a graph, for tests that compare a run with it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from graphtrain import Graph

NAME = r"\b[a-z_]\w*(?:/\w+)*(?:\.\w+)?"  # of a field, by path; of a guard or a slot
WORDS = ("and", "or", "not", "if", "else", "min", "max")


class Machine:
    """The executable meaning of a graph. It shares nothing with the engine but the graph and the values it reads.

    Arguments:
        idle: nodes that the engine leaves out, since they would do nothing; the machine passes through them, after the
            first.
        read: the value of ``"node.field"`` or of a slot by path, now, as `Trainer.read` answers it.
    """

    def __init__(self, graph: Graph, read: Callable[[str], Any], idle: Collection[str] = ()) -> None:
        self.graph, self.read, self.idle, self.position = graph, read, idle, graph.start

    def advance(self) -> None:
        self._advance()
        self._settle()

    def _settle(self) -> None:
        passed = 0
        while self.position in self.idle and passed < 100:  # those may go round forever
            self._advance()
            passed += 1

    def _advance(self) -> None:
        graphs = self._around(self.position)
        graph, path, name = graphs[-1]
        body = graph.nodes[name].body
        if body is not None and self.read(f"{self.position}.due"):
            self.position = f"{self.position}/{body.start}"
            return
        while True:  # where a body ends, the edges of the node around it lead on
            graph, path, name = graphs.pop()
            edges = graph.edges[name]
            target = next(edge.target for edge in edges if edge.when is None or self._holds(graph, path, edge.when))
            if target != "end" or not graphs:
                self.position = path + target if target != "end" else "end"
                return

    def _around(self, position: str) -> list[tuple[Graph, str, str]]:
        """The graphs around a node, from the outermost on, each with its path and its node on the way there."""
        names = position.split("/")
        found: list[tuple[Graph, str, str]] = []
        graph: Graph | None = self.graph
        for index, name in enumerate(names):
            assert graph is not None
            found.append((graph, "".join(f"{part}/" for part in names[:index]), name))
            graph = graph.nodes[name].body
        return found

    def _holds(self, graph: Graph, path: str, guard: str) -> bool:
        def value(name: str) -> Any:
            if name in graph.guards:
                return self._holds(graph, path, name)
            try:
                return self.read(path + name)
            except KeyError:  # a slot of the graph around it
                return self.read(name)

        text = re.sub(NAME, lambda found: found[0] if found[0] in WORDS else f"READ('{found[0]}')",
                      " ".join(graph.guards[guard].split()))  # fmt: skip
        return bool(eval(text, {"READ": value, "__builtins__": {}}))  # noqa: S307 - a text of our own
