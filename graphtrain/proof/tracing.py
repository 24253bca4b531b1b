"""Why the last transition went the way it did: asked once it is made, of the state that it left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from graphtrain.errors import GuardError
from graphtrain.graph.elements import END
from graphtrain.language.closures import Read
from graphtrain.language.syntax import Name, walk
from graphtrain.program.bind import BoundNode
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Loop, Transition
from graphtrain.program.triggers import Every
from graphtrain.proof.explanation import Choice, Event, Explanation
from graphtrain.proof.recording import Outside, choice_at, error_text, trigger_reading

Trace = Callable[[Explanation], Any]

_UNTRACED = (
    "`run` keeps no trace of its transitions, as that takes time: run(trace=print) does, and so does"
    " advance(), after which explain() tells of the last one"
)
_IMPURE = (
    "asked again after the transition, the guards lead elsewhere than it went: "
    "one of them reads something that is not saved state"
)


@final
class Explainer:
    """Explains each transition right after it.

    Arguments:
        notify: called once if `trace` raises.

    Attributes:
        trace: called with each explanation. One that raises does not end the run: it is not called again.
        last: why the last transition that it has seen went the way it did; None before.
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self.trace: Trace | None = None
        self._compiled: CompiledGraph | None = None  # the graph whose transitions those are: making them takes 0.1 ms
        self._transitions: list[Transition] = []
        self.last: Explanation | None = None

    def transitions(self, compiled: CompiledGraph) -> list[Transition]:
        """The transitions of a graph, each explained right after it."""
        if self._compiled is not compiled:
            self._compiled = compiled
            self._transitions = compiled.wrapped(self)
        return self._transitions

    def wrap(self, bound: BoundNode, visit: Transition) -> Transition:
        """The transition of a node, which is explained right after it."""
        assert self._compiled is not None, "noted before"
        observation = _Observation(self._compiled, bound)

        def explained() -> int:
            observation.begin()
            try:
                position = visit()
            except BaseException as error:
                self._keep(observation.explain(bound.index, error))
                raise
            self._keep(observation.explain(position))
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
            if not isinstance(error, OSError):  # a terminal that has gone away
                self._notify(f"transitions are not traced any more: that raised {type(error).__name__}: {error}")


def explain_untraced(
    compiled: CompiledGraph, loop: Loop, failure: BaseException | None, *, has_run: bool, is_rewired: bool
) -> Explanation:
    """What is known of a transition that nothing has traced.

    Guards are asked again at the end of a run and where one raised: nothing has changed there since.

    Arguments:
        failure: by which the run has failed; None if it has not.
        has_run: False if nothing has run yet in this process.
        is_rewired: True if the run came here in another graph.
    """
    bound, error = compiled.program.nodes[loop.position], ""
    event: Event | None = None
    if isinstance(failure, GuardError) and failure.node in compiled.program.by_path:
        bound, event = compiled.program.by_path[failure.node], "asked again"
    elif failure is not None:
        event, error = "failed", error_text(failure)
    elif loop.ended and not is_rewired:
        event = "asked again"
    if event is not None:
        return _explanation(compiled, [choice_at(compiled.compiler, bound, event)], bound.index, error=error)
    position = "the run is over" if loop.ended else f"`{bound.path}` is next"
    note = _UNTRACED if has_run else "nothing has run yet in this process"
    return _explanation(compiled, [], bound.index, note=f"{note}; {position}")


@final
class _Observation:
    """A transition of one node: what it changes is noted before it, and what its guards read is asked after it."""

    def __init__(self, compiled: CompiledGraph, bound: BoundNode) -> None:
        self._compiled = compiled
        # The transition that ends a body chooses among the edges of the node around it too.
        self._nodes = [bound]
        self._due = compiled.compiler.cells.due(bound)
        while (outer := self._nodes[-1].scope.outer) is not None:
            self._nodes.append(outer)
        self._outside_reads = {
            (node.scope.prefix, name): compiled.compiler.cells.named(node.scope, Name(name)).read
            for node in self._nodes
            for name in _names_of_outside(node)
        }

    def begin(self) -> None:
        """Note what the transition may change."""
        bound = self._nodes[0]
        is_triggered = isinstance(bound.trigger, Every)
        self._trigger = trigger_reading(self._compiled.compiler, bound) if is_triggered else None
        self._is_due = not is_triggered or bool(self._due())
        self._runs = [node.instance.runs for node in self._nodes]
        # The end of a body changes what its guards read of the graph around it: `runs`, `due` and what it writes there.
        self._outside: Outside = {key: _value_or_error(read) for key, read in self._outside_reads.items()}

    def explain(self, position: int, error: BaseException | None = None) -> Explanation:
        """The transition that led to a position, or raised."""
        compiled, compiler, bound = self._compiled, self._compiled.compiler, self._nodes[0]
        event: Event = "entered" if error is None else "failed"
        if bound.bypassed:
            event = "bypassed"
        elif bound.instance.runs > self._runs[0]:
            event = "ran"
        elif not self._is_due:
            event = "not due"
        choices = [choice_at(compiler, bound, event, self._outside, self._trigger)]
        node, taken = bound, choices[0].taken
        for outer, runs in zip(self._nodes[1:], self._runs[1:], strict=True):
            if taken is None or taken.target != END or outer.instance.runs == runs:
                break
            choices.append(choice_at(compiler, outer, "body ended", self._outside))
            node, taken = outer, choices[-1].taken
        if error is not None:
            is_told = any(edge.answer == "raised" for choice in choices for edge in choice.edges)
            return _explanation(compiled, choices, position, error="" if is_told else error_text(error))
        target = node.scope.nodes.get(taken.target) if taken is not None else None
        expected = compiler.position(target) if target is not None else node.index
        is_pure = position == expected if taken is not None else choices[-1].event == "entered"
        return _explanation(compiled, choices, position, note="" if is_pure else _IMPURE)


def _explanation(
    compiled: CompiledGraph, choices: list[Choice], position: int, *, note: str = "", error: str = ""
) -> Explanation:
    """Choices with the moment and what comes next."""
    clock = compiled.run_clock
    steps, epochs, batch = (clock.count(unit) for unit in ("steps", "epochs", "epoch_batches"))
    taken = choices[-1].taken if choices else None
    is_over = taken is not None and taken.target == END and "/" not in choices[-1].node
    return Explanation(
        tuple(choices),
        END if is_over else compiled.path(position),
        clock.describe(),
        int(steps) if steps is not None else None,
        float(epochs) if epochs is not None and clock.epochs_move() else None,
        int(batch) if batch is not None else None,
        note,
        error,
    )


def _names_of_outside(bound: BoundNode) -> set[str]:
    """The names in the guards on the edges of a node that mean something in the graph around its own."""
    scope = bound.scope
    guards = [scope.names.guards[edge.when] for edge in scope.graph.edges[bound.node.name] if edge.when is not None]
    names = {part.name for guard in guards for part in walk(guard) if isinstance(part, Name)}
    return names - scope.names.written if scope.outer is not None else set()


def _value_or_error(read: Read) -> Any:
    try:
        return read()
    except Exception as error:
        return error
