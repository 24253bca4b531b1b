"""Why a transition took its edge. Guards are evaluated again afterwards, which gives the same values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

from graphtrain.graph.closures import Cell, Getter, compile_guard
from graphtrain.graph.elements import END
from graphtrain.graph.syntax import FieldOf, Name
from graphtrain.kind.trigger import decimal
from graphtrain.plan.scope import Scope
from graphtrain.printable import one_line
from graphtrain.program.bind import ProgramNode
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Loop, Transition
from graphtrain.program.table import Compiler


@final
@dataclass(frozen=True, repr=False)
class Explanation:
    """Why a run took its last transition; it prints as one line, which begins with the moment.

    Attributes:
        node: the path of the node that ran; empty if it is not known, and `note` says why.
        next: the path of the node that runs next, or "end".
        guards: the guards that were evaluated, in order: name, value, and the (name, value) pairs that it read. The
            edge of the first true one was taken. If it ended a nested graph, the guards of the enclosing node follow.
        where: the position on the clock, after the node had run: ``"step 12, epoch 1.50, batch 5/10"``.
        note: what happened otherwise: "not due", "bypassed" or "entered".
    """

    node: str
    next: str
    guards: tuple[tuple[str, Any, tuple[tuple[str, Any], ...]], ...] = ()
    where: str = ""
    note: str = ""

    @property
    def line(self) -> str:
        """The explanation without the moment, such as ``accumulate -> decide  reached=False (accumulate.count=1)``."""
        words = [f"{self.node} -> {self.next} "] if self.node else []
        for name, value, reads in self.guards:
            values = " ".join(dict.fromkeys(f"{name_read}={_shown(value_read)}" for name_read, value_read in reads))
            words.append(f"{name}={_shown(value)}" + (f" ({values})" if values else ""))
        return one_line(" ".join([*words, self.note]).rstrip())

    def __repr__(self) -> str:
        return f"{self.where}: {self.line}" if self.node and self.where else self.line


def explained(compiled: CompiledGraph, index: int, keep: Callable[[Explanation], Any]) -> Transition:
    """The transition of a node, which passes an explanation to `keep` each time."""
    first = compiled.program.nodes[index]
    # The transition that ends a body also chooses among the edges of the enclosing node.
    nodes = [first, *reversed(compiled.program.nodes_around(first.scope))]
    visit, start = compiled.compiler.transitions[index], compiled.program.start_of(first.body) if first.body else None

    def transition() -> int:
        runs = [node.instance.runs for node in nodes]
        position = visit()
        following, where = compiled.program.nodes[position].path, compiled.run_clock.describe()
        if start is not None and position == compiled.compiler.position(start):
            keep(Explanation(first.path, following, (), where, "entered"))
            return position
        note = ("bypassed" if first.bypassed else "not due") if first.instance.runs == runs[0] else ""
        asked, target = list[Any](), END
        for node, before in zip(nodes, runs, strict=True):
            if node is first or (target == END and node.instance.runs != before):
                target = _leave(compiled.compiler, node, asked)
        keep(Explanation(first.path, END if target == END else following, tuple(asked), where, note))
        return position

    return transition


def explain_end(compiled: CompiledGraph, loop: Loop) -> Explanation:
    """An explanation of the transition that ended the run; of others, a note that they were not traced."""
    node, asked = compiled.program.nodes[loop.position], list[Any]()
    if loop.ended and _leave(compiled.compiler, node, asked) == END:  # another graph may not end here
        return Explanation(node.path, END, tuple(asked), compiled.run_clock.describe())
    note = "no transition was traced: call advance(), or run(trace=print)"
    return Explanation("", END if loop.ended else node.path, note=note)


def _leave(compiler: Compiler, node: ProgramNode, asked: list[Any]) -> str:
    """Append the guards of the edges of a node, evaluated in order; returns the target of the edge that is taken."""
    for edge in node.scope.graph.edges[node.node.name]:
        if edge.when is None:
            return edge.target
        reads: list[tuple[str, Any]] = []
        value = _recording(compiler, node.scope, edge.when, reads)()
        asked.append((edge.when, value, tuple(reads)))
        if value:
            return edge.target
    raise AssertionError("the last edge is always taken")


def _recording(compiler: Compiler, scope: Scope, guard: str, reads: list[tuple[str, Any]]) -> Getter:
    """A guard, compiled as for the transition table, that appends each name it reads, with its value, to `reads`."""

    def cell_of(expression: Name | FieldOf) -> Cell:
        name = expression.name if isinstance(expression, Name) else f"{expression.node}.{expression.field}"
        if name in scope.graph.guards:
            return Cell(_recording(compiler, scope, name, reads))
        read = compiler.cells.named(scope, expression).read

        def recorded() -> Any:
            reads.append((name, value := read()))
            return value

        return Cell(recorded)

    return compile_guard(scope.parse(scope.graph.guards[guard]), cell_of)


def _shown(value: Any) -> str:
    """A value for a line: exact fractions as decimals, text in quotes."""
    return decimal(value) if isinstance(value, Fraction) else repr(value)
