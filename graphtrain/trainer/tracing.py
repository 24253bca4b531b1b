"""Why a transition took its edge, determined afterwards: a guard is a pure function of saved state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

from graphtrain.errors import GuardError
from graphtrain.graph.elements import END
from graphtrain.kind.trigger import decimal
from graphtrain.language.closures import Cell, Read, compile_guard
from graphtrain.language.syntax import FieldOf, Name
from graphtrain.plan.scope import Scope
from graphtrain.printable import one_line
from graphtrain.program.bind import ProgramNode
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Loop, Transition
from graphtrain.program.table import Compiler

_EXACT_DENOMINATOR = 10**6

# The name of a guard, its value, and the names that it read with their values, in order.
Asked = tuple[str, Any, tuple[tuple[str, Any], ...]]


@final
@dataclass(frozen=True, repr=False)
class Explanation:
    """Why a run took its last transition; it prints as a line with the moment before it.

    Attributes:
        node: the path of the node that ran; empty if it is not known, and `note` says why.
        next: the path of the node that runs next, or "end"; "?" if the run failed.
        guards: those that were evaluated, in order: name, value (None if it raised), and what it read, as a pair of a
            name and its value each. The edge of the first that holds was taken. If the edge ended a nested graph, the
            guards of the enclosing node follow.
        where: the moment, in the words of the clock, after the node had run: ``"step 12, epoch 1.50, batch 5/10"``.
        note: what happened otherwise: "not due", "bypassed", "entered", or what was raised.
    """

    node: str
    next: str
    guards: tuple[Asked, ...] = ()
    where: str = ""
    note: str = ""

    @property
    def line(self) -> str:
        """All of it but the moment, such as ``accumulate -> decide  reached=False (accumulate.count=1)``."""
        words = []
        for name, value, reads in self.guards:
            values = dict.fromkeys(f"{read}={shown(found)}" for read, found in reads)
            words.append(f"{name}={shown(value)}" + (f" ({' '.join(values)})" if values else ""))
        transition = f"{self.node} -> {self.next}  " if self.node else ""
        return one_line((transition + " ".join(filter(None, [*words, self.note]))).rstrip())

    def __repr__(self) -> str:
        return f"{self.where}: {self.line}" if self.node and self.where else self.line


Trace = Callable[[Explanation], Any]


@final
class Explainer:
    """Explains each transition right after it.

    Arguments:
        notify: called once if `trace` raises.

    Attributes:
        trace: called with each explanation. One that raises does not end the run: it is not called again.
        last: the explanation of the last transition seen; None before.
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self.trace: Trace | None = None
        self._compiled: CompiledGraph | None = None  # the graph of these transitions: making them takes 0.1 ms
        self._transitions: list[Transition] = []
        self.last: Explanation | None = None

    def transitions(self, compiled: CompiledGraph) -> list[Transition]:
        """The transitions of a graph, each explained right after it."""
        if self._compiled is not compiled:
            self._compiled = compiled
            pairs = zip(compiled.program.nodes, compiled.compiler.transitions, strict=True)
            self._transitions = [self._explained(compiled, node, transition) for node, transition in pairs]
        return self._transitions

    def _explained(self, compiled: CompiledGraph, node: ProgramNode, visit: Transition) -> Transition:
        # The transition that ends a body also chooses among the edges of the enclosing node.
        nodes = [node, *reversed(compiled.program.nodes_around(node.scope))]

        def explained() -> int:
            runs = [each.instance.runs for each in nodes]
            try:
                position = visit()
            except BaseException as error:
                self._keep(_explanation(compiled, nodes, runs, node.index, error))
                raise
            self._keep(_explanation(compiled, nodes, runs, position))
            return position

        return explained

    def _keep(self, explanation: Explanation) -> None:
        self.last = explanation
        if self.trace is None:
            return
        try:
            self.trace(explanation)
        except Exception as error:
            self.trace = None
            if not isinstance(error, OSError):  # a closed terminal
                self._notify(f"transitions are no longer traced: that raised {type(error).__name__}: {error}")


def explain_untraced(
    compiled: CompiledGraph, loop: Loop, failure: BaseException | None, *, has_run: bool
) -> Explanation:
    """What is known about a transition that was not traced: how the run ended, since nothing has changed since.

    Arguments:
        failure: the failure of the run; None if it has not failed.
        has_run: False if nothing has run yet in this process.
    """
    node, asked = compiled.program.nodes[loop.position], list[Asked]()
    if failure is not None:
        path = failure.node if isinstance(failure, GuardError) else node.path
        return Explanation(path, "?", (), compiled.run_clock.describe(), _raised(failure))
    if loop.ended and _leave(compiled.compiler, node, asked) == END:  # another graph may not end here
        return Explanation(node.path, END, tuple(asked), compiled.run_clock.describe())
    note = "`run` keeps no trace: call run(trace=print), or advance()" if has_run else "nothing has run yet"
    return Explanation("", END if loop.ended else node.path, note=note)


def _explanation(
    compiled: CompiledGraph,
    nodes: Sequence[ProgramNode],
    runs_before: Sequence[int],
    position: int,
    error: BaseException | None = None,
) -> Explanation:
    """Why a node has just led to a position, or raised: its guards are evaluated again.

    Arguments:
        nodes: the node, and those around it, the innermost first; with
        runs_before: how often they had run before.
    """
    first, compiler, where = nodes[0], compiled.compiler, compiled.run_clock.describe()
    if error is not None and not isinstance(error, GuardError):
        return Explanation(first.path, "?", (), where, _raised(error))
    following = compiled.program.nodes[position].path
    if first.body is not None and position == compiler.position(compiled.program.start_of(first.body)):
        return Explanation(first.path, following, (), where, "entered")
    asked: list[Asked] = []
    is_idle = first.instance.runs == runs_before[0]
    notes = ["bypassed" if first.bypassed else "not due"] * is_idle
    node, target = first, _leave(compiler, first, asked)
    for outer, runs in zip(nodes[1:], runs_before[1:], strict=True):
        if target == END and outer.instance.runs != runs:
            node, target = outer, _leave(compiler, outer, asked)
    if isinstance(target, Exception) or error is not None:
        following = "?"
        notes.append(_raised(target if isinstance(target, Exception) else error or Exception()))
    elif target == END:
        following = END
    elif position != compiler.position(compiled.program.by_path[f"{node.scope.path}{target}"]):
        notes.append("(but a guard answers otherwise now)")
    return Explanation(first.path, following, tuple(asked), where, " ".join(notes))


def _leave(compiler: Compiler, node: ProgramNode, asked: list[Asked]) -> str | Exception:
    """Ask the edges of a node, in order: the target of the one that is taken, or what a guard raised."""
    for edge in node.scope.graph.edges[node.node.name]:
        if edge.when is None:
            return edge.target
        reads: list[tuple[str, Any]] = []
        value: Any = None
        try:
            value = _recording(compiler, node.scope, edge.when, reads)()
        except Exception as error:
            return error
        finally:
            asked.append((edge.when, value, tuple(reads)))
        if value:
            return edge.target
    raise AssertionError("the last edge is always taken")


def _recording(compiler: Compiler, scope: Scope, guard: str, reads: list[tuple[str, Any]]) -> Read:
    """A guard compiled as for the transition table, so that it reads the same in the same order; it notes each read."""

    def cell_of(expression: Name | FieldOf) -> Cell:
        name = expression.name if isinstance(expression, Name) else f"{expression.node}.{expression.field}"
        if name in scope.graph.guards:
            return Cell(_recording(compiler, scope, name, reads))
        read = compiler.cells.named(scope, expression).read

        def recorded() -> Any:
            value = read()
            reads.append((name, value))
            return value

        return Cell(recorded)

    return compile_guard(scope.parse(scope.graph.guards[guard]), cell_of)


def _raised(error: BaseException) -> str:
    return " ".join(f"raised {type(error).__name__}: {error}".removesuffix(": ").split())


def shown(value: Any) -> str:
    """A value for a line: exact fractions as decimals, text in quotes.

    >>> shown(Fraction(1, 4)), shown(Fraction(1, 3)), shown(3), shown("a"), shown(True)
    ('0.25', '1/3', '3', "'a'", 'True')
    """
    if isinstance(value, Fraction):
        return decimal(value) if value.denominator <= _EXACT_DENOMINATOR else f"{float(value):.4g}"
    return repr(value)
