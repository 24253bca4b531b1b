"""A graph that checks clean behaves: random graphs, run by the engine, watched by a simulator that knows no checker.

Some of the kinds are bypassed, act on two optimizers by slot, or report whether they ran backward; some parameters and
slots are expressions; guards, expressions and clocks read paths into bodies.

What is watched: no reader, and no guard, meets a slot that nobody wrote; no optimizer steps without fresh gradients, or
loses some; and in a run that does not end, something that a guard reads changes from round to round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import graphtrain.checks
import graphtrain.checks.data_flow
import graphtrain.checks.gradients
import graphtrain.checks.loops
import graphtrain.plan.flow
import graphtrain.plan.plan
import graphtrain.plan.slots
from graphtrain import Edge, Graph, Node, Problem, Trainer, Trigger, progress
from graphtrain.checks import check_graph
from graphtrain.checks.codes import CODES
from graphtrain.errors import DataError, ExpressionError, GraphError, GuardError
from graphtrain.kind import Kind
from graphtrain.language.syntax import FieldOf, Name, walk
from graphtrain.nodes.accumulate import Accumulate
from graphtrain.plan.scope import FieldTarget, Scope, leaves, slots_of
from graphtrain.trainer.serving import serve
from tests.checks.corpus import undeclared

MOST = 160  # transitions of a run; the loops of these graphs are a few nodes long
EXAMPLES = 600

# --- kinds that do nothing but say so ---------------------------------------------------------------------------------

missed: list[str] = []  # slots that were read and that nobody had written


class Tick:
    """Count visits."""

    ticks: int = progress(0)

    def __call__(self) -> None:
        self.ticks += 1


class TickAtTimes(Tick):
    """Count visits, when due."""

    every: Trigger = Trigger("2 batches")

    def __call__(self) -> None:
        self.ticks += 1


class Fetch:
    """Consume data."""

    batches: int = progress(0)

    def __call__(self) -> None:
        self.batches += 1


class Write:
    """Write a number that is another each time."""

    written: int = progress(0)

    def __call__(self) -> int:
        self.written += 1
        return self.written


def _read(value: Any) -> None:
    if value is None:
        missed.append("value")


def _nothing() -> None: ...


def _again() -> None: ...


def _clip() -> None: ...


def _step() -> None: ...


def _clear() -> None: ...


def _use() -> None: ...


def _exchange() -> None: ...


def _scale() -> None: ...


def _inner() -> None: ...


class TickWithLimit(Tick):
    """Count visits, if there is a limit: without one it is bypassed."""

    limit: int | None = None


class TickWithExtra(Tick):
    """Count visits, if there is a resource that nobody supplies."""


class Gate(Tick):
    """Count visits, beside a number that the graph may compute."""

    limit: int = 2


KINDS: dict[str, Kind] = {
    "tick": undeclared("s_tick", Tick),
    "at_times": undeclared("s_at_times", TickAtTimes),
    "fetch": undeclared("s_fetch", Fetch),
    "write": undeclared("s_write", Write, writes="value"),
    "read": undeclared("s_read", _read),
    "backward": undeclared("s_backward", _nothing, effects="backward"),
    "clip": undeclared("s_clip", _clip, effects="clip"),
    "step": undeclared("s_step", _step, effects="step"),
    "zero_grad": undeclared("s_zero_grad", _clear, effects="zero_grad"),
    "use": undeclared("s_use", _use, effects="use"),
    "exchange": undeclared("s_exchange", _exchange, effects="exchange"),
    "scale": undeclared("s_scale", _scale, effects="scale"),
    "inner": undeclared("s_inner", _inner, effects=("backward inner", "use inner", "zero_grad inner", "backward")),
    "gate": undeclared("s_gate", Gate, varying="limit"),
    "idle": undeclared("s_idle", TickWithLimit, optional="limit"),
    "absent": undeclared("s_absent", TickWithExtra, optional="extra"),
    "accumulate": undeclared(
        "s_accumulate", type("Accumulate", (Accumulate,), dict(vars(Accumulate))), varying="every"
    ),
}

ACTING = (
    "backward", "inner", "exchange", "scale", "clip", "step", "zero_grad", "use", "accumulate",
)  # fmt: skip

# --- graphs -----------------------------------------------------------------------------------------------------------

# What people put in a row; a letter is a slot or an optimizer.
ROWS = (
    ("fetch",),
    ("tick",),
    ("at_times",),
    ("write a", "read a"),
    ("write b", "tick", "read b"),
    ("backward p", "step p", "zero_grad p"),
    ("backward q", "clip q", "step q", "zero_grad q"),
    ("zero_grad p", "backward p", "clip p", "step p"),
    ("backward q", "accumulate q", "step q", "zero_grad q", "tick"),
    ("backward p", "use p", "zero_grad p"),
    ("backward p", "exchange p", "scale p", "clip p", "step p", "zero_grad p"),
    ("inner q", "step q", "zero_grad q"),
    ("tick", "idle"),
    ("absent", "tick"),
    ("gate", "read ="),
    ("tick", "gate"),
)
# And what they put there by mistake.
MISTAKES = (
    ("backward p", "step p", "clip p", "zero_grad p"),
    ("backward q", "clip q", "backward q", "step q", "zero_grad q"),
    ("backward p", "zero_grad p", "backward p", "step p", "zero_grad p"),
    ("zero_grad q", "step q"),
    ("backward p", "step p", "step p", "zero_grad p"),
    ("tick", "write c", "tick"),
    ("backward p", "scale p", "exchange p", "step p", "zero_grad p"),
    ("backward q", "exchange q", "backward q", "step q", "zero_grad q"),
    ("backward q", "scale q", "scale q", "step q", "zero_grad q"),
)


@st.composite
def graphs(draw: st.DrawFn, prefix: str = "") -> Graph:
    """Rows of nodes one after the other and round again, with a few slips and short cuts."""
    rows = draw(st.lists(st.sampled_from(ROWS), min_size=1, max_size=2 if prefix else 4, unique=True))
    if draw(st.integers(0, 4)) == 0:
        rows.insert(draw(st.integers(0, len(rows))), draw(st.sampled_from(MISTAKES)))
    row = [word for one in rows for word in one]
    if not prefix and draw(st.integers(0, 3)) == 0:
        row.insert(draw(st.integers(0, len(row))), "nested")
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
        place, slip = draw(st.integers(0, len(row) - 1)), draw(st.sampled_from(("swap", "drop", "twice")))
        if slip == "swap":
            row[place - 1], row[place] = row[place], row[place - 1]
        elif slip == "twice":
            row.insert(place, row[place])
        elif len(row) > 1:
            del row[place]
    row.append(draw(st.sampled_from(("tick", "tick", "fetch", "at_times"))))
    nodes: dict[str, Node] = {}
    for number, word in enumerate(row):
        kind, _, letter = word.partition(" ")
        name = f"{prefix}{kind}_{number}"
        if kind == "nested":
            nodes[name] = Node(name, "nested", body=draw(graphs("in_")))
            continue
        reads: dict[str, str] = {}
        if kind in ACTING:
            reads = {"optimizer": letter, **({"inner": "r"} if kind == "inner" else {})}
        elif kind == "read" and letter != "=":
            reads = {"value": letter}
        writes = {"value": letter} if kind == "write" else {}
        nodes[name] = Node(name, KINDS[kind].name, {}, reads, writes, kind=KINDS[kind])
    nodes = {name: replace(node, reads={**node.reads, **draw(computed(name, nodes))}) for name, node in nodes.items()}
    fetched = [field for field in fields_of(nodes) if field.endswith(".batches")]
    units = {"batches": draw(st.sampled_from(fetched))} if fetched else {}
    if not units:  # no clock to count by: the node is always due
        nodes = {
            name: replace(one, use="s_tick", kind=KINDS["tick"]) if one.use == "s_at_times" else one
            for name, one in nodes.items()
        }
    guards: dict[str, str] = {}
    edges: dict[str, tuple[Edge, ...]] = {}
    names = list(nodes)
    for number, name in enumerate(names):
        following = names[number + 1] if number + 1 < len(names) else names[0]
        leaving = [Edge(following)]
        if nodes[name].use == "s_accumulate" and draw(st.integers(0, 3)):
            guards[f"open_{name}"] = f"{name}.count < 2" if draw(st.booleans()) else f"not {name}.count > 0"
            target = names[-1] if draw(st.integers(0, 2)) else draw(st.sampled_from(names))
            leaving.insert(0, Edge(target, f"open_{name}"))
        elif number + 1 < len(names) and draw(st.sampled_from((False,) * 5 + (True,))):
            guard = draw(st.sampled_from([f"leave_{name}", *guards]))
            if guard not in guards:
                guards[guard] = draw(expressions(nodes))
            leaving.insert(0, Edge(draw(st.sampled_from([*names, "end"])), guard))
            if draw(st.integers(0, 3)) == 0:  # wait here until it may go on
                leaving[1] = Edge(name)
        edges[name] = tuple(leaving)
    guards["done"] = draw(expressions(nodes, ending=draw(st.integers(0, 3)) > 0))
    edges[names[-1]] = (Edge("end", "done"), Edge(names[0]))
    return Graph("random", names[0], nodes, edges, guards, units)


def _of_kind(nodes: dict[str, Node], kind: str) -> list[str]:
    return [name for name, node in nodes.items() if node.use == f"s_{kind}"]


def fields_of(nodes: dict[str, Node]) -> list[str]:
    """The counters of nodes, and of those in their bodies, by path."""
    found = []
    for name, node in nodes.items():
        if node.body is not None:
            found += [f"{name}/{field}" for field in fields_of(dict(node.body.nodes))]
        elif node.use in COUNTED:
            found.append(f"{name}.{COUNTED[node.use]}")
    return found


COUNTED = {"s_tick": "ticks", "s_fetch": "batches", "s_at_times": "ticks", "s_gate": "ticks"}


@st.composite
def computed(draw: st.DrawFn, name: str, nodes: dict[str, Node]) -> dict[str, str]:
    """Expressions for what a node reads: a parameter, or a slot."""
    node, fields = nodes[name], fields_of(nodes)
    slot = {"s_gate": "limit", "s_accumulate": "every", "s_read": "value"}.get(node.use)
    needed = node.use == "s_read" and "value" not in node.reads
    if slot is None or not fields or (slot in node.reads) or (not needed and draw(st.booleans())):
        return {"value": "1 + 1"} if needed else {}
    field = draw(st.sampled_from(fields))
    ways = [f"1 if {field} < 3 else 2", f"1 + min(2, {field})", f"1 + {field} % 2", f"3 - min(2, {field} // 2)"]
    written = [node.writes["value"] for node in nodes.values() if node.use == "s_write"]
    if slot == "value":
        ways += [f"{letter} + {field}" for letter in written]
    return {slot: draw(st.sampled_from(ways))}


@st.composite
def expressions(draw: st.DrawFn, nodes: dict[str, Node], *, ending: bool = False) -> str:
    """A guard on counters, triggers, counts of passes or slots."""
    counted = {"tick": "ticks", "fetch": "batches", "at_times": "ticks", "idle": "ticks", "absent": "runs"}
    if ending:  # an end that only a node without work could bring about is drawn more rarely
        counted = dict(list(counted.items())[: draw(st.sampled_from((3, 3, 3, 5)))])
    ways = [f"{name}.{field} >= 3" for kind, field in counted.items() for name in _of_kind(nodes, kind)]
    ways += [f"{field} >= 3" for field in fields_of(nodes)]
    ways += [f"{name}.ticks >= {name}.limit" for name in _of_kind(nodes, "gate")]
    if not ending:
        ways += [f"{name}.{field} % 2 == 1" for kind, field in counted.items() for name in _of_kind(nodes, kind)]
        ways += [f"{name}.due" for name in _of_kind(nodes, "at_times")]
        ways += [f"{name}.count {test}" for name in _of_kind(nodes, "accumulate") for test in ("> 0", "== 0", "> 1")]
        ways += [f"{node.writes['value']} > 2" for node in nodes.values() if node.use == "s_write"]
        ways += [f"{name}.{test}" for name in _of_kind(nodes, "accumulate") for test in ("every > 1", "full")]
        ways += [f"{name}.limit {test}" for name in _of_kind(nodes, "gate") for test in ("> 1", "== 2", "< 3")]
        ways += [f"{field} % 2 == 1" for field in fields_of(nodes) if "/" in field]
    first = draw(st.sampled_from(sorted(set(ways))))
    return first if draw(st.booleans()) else f"{first} and {draw(st.sampled_from(sorted(set(ways))))}"


# --- watching -------------------------------------------------------------------------------------------------------


class Gradients:
    """The backward passes that each optimizer's gradients hold, by number; and what was done with each."""

    def __init__(self) -> None:
        self.passes = 0
        self.held: dict[str, list[int]] = {}
        self.exchanged: set[int] = set()
        self.scaled: set[int] = set()
        self.clipped: set[int] = set()
        self.used: set[int] = set()
        self.faults: list[str] = []
        self.apart = False  # of several ranks, the weights would part

    def act(self, effect: str, optimizer: str) -> None:
        held = self.held.setdefault(optimizer, [])
        unused = [one for one in held if one not in self.used]
        match effect:
            case "backward":
                if len(unused) < len(held):
                    self.faults.append("added to used")
                if self.clipped & set(unused):
                    self.faults.append("added to clipped")
                elif (self.exchanged | self.scaled) & set(unused):
                    self.faults.append("added to exchanged or scaled")
                self.passes += 1
                held.append(self.passes)
            case "exchange" | "scale":
                done = self.exchanged if effect == "exchange" else self.scaled
                before = self.scaled | self.clipped if effect == "exchange" else self.clipped
                if held and not unused:
                    self.faults.append("exchanged or scaled after the step")
                elif (done | before) & set(unused):
                    self.faults.append("exchanged or scaled out of order")
                done.update(held)
            case "clip":
                if held and not unused:
                    self.faults.append("clipped after the step")
                self.clipped.update(held)
            case "step":
                if not unused:
                    self.faults.append("stepped twice" if held else "stepped without")
                self.apart |= not self.exchanged.issuperset(unused)
                self.used.update(held)
            case "use":
                self.used.update(held)
            case "zero_grad":
                if unused:
                    self.faults.append("cleared unused")
                held.clear()

    def end(self) -> None:
        if any(one not in self.used for held in self.held.values() for one in held):
            self.faults.append("ended with unused")


@dataclass
class Run:
    """What a run did: its faults, how long it was, and whether it ended; and the problems of its graph."""

    faults: set[str]
    length: int
    ended: bool
    apart: bool = False
    problems: Sequence[Problem] = ()


def watched(graph: Graph, elsewhere: Random | None = None) -> Run:
    """Run a graph, whatever its problems of paths are, and watch it.

    Arguments:
        elsewhere: after the first visit, chooses where the run goes on, with which progress and parameters. Default:
            where the graph says.
    """
    trainer = Trainer(replace(graph, allow=tuple(CODES)), seed=None, device="cpu", notify=lambda line: None)
    nodes = _flat(graph)
    asked = _asked(graph)
    guards = _asked_at(graph)
    answers: list[tuple[str, tuple[str, ...]]] = []  # where the run was, and what the guards there have read
    gradients = Gradients()
    faults: set[str] = set()
    missed.clear()
    seen: set[tuple[Any, ...]] = set()
    length = 0
    ended = False
    most = MOST if elsewhere is None else 4 * MOST
    while not ended and length < most:
        position = trainer.position
        here = (position, *(repr(trainer.read(one)) for one in asked))
        if here in seen:
            faults.add("goes round forever")
            break
        seen.add(here)
        runs = trainer.read(f"{position}.runs")
        node = nodes[position]
        try:
            _advance(trainer)
        except DataError:  # it ended without a batch of `next_batch`
            ended = True
        except (GuardError, ExpressionError):  # a guard compared nothing with a number, or it was added to one
            faults.add("unwritten")
            break
        length += 1
        if elsewhere is not None and length == 1 and trainer.position != "end":
            _go_elsewhere(trainer, elsewhere)
            continue
        answers.append((position, tuple(repr(trainer.read(field)) for field in guards.get(position, ()))))
        if node.body is None and trainer.read(f"{position}.runs") > runs:
            assert node.kind is not None
            for effect in node.kind.effects:
                name, _, slot = effect.removesuffix("?").partition(" ")
                if not effect.endswith("?") or trainer.read(f"{position}.passes") % 2 == 1:
                    gradients.act(name, str(node.reads[slot or "optimizer"]))
            if node.use == "s_fetch":
                seen.clear()
        ended = ended or trainer.position == "end"
    if ended:
        gradients.end()
    elif length == most and (elsewhere is not None or _stand_still(answers[MOST // 2 :])):
        faults.add("goes round forever")
    return Run(faults | set(gradients.faults) | {"unwritten" for _ in missed}, length, ended, gradients.apart)


def _advance(trainer: Trainer) -> None:
    """One transition, from the second on as within a run: what `Trainer.advance` does around it takes longer."""
    run, requests = trainer._run, trainer._run.requests
    if not run.has_run:
        trainer.advance()
        return
    requests.post("pause")
    trainer._session.loop.drive(
        run.transitions(None), lambda: (requests.pending == {"pause"} and requests.take("pause")) or serve(run)
    )


def _go_elsewhere(trainer: Trainer, choose: Random) -> None:
    program = trainer._session.compiled.program
    for bound in program.nodes:
        for field in ("runs", *COUNTED.values(), "count", "window"):
            if isinstance(vars(bound.instance).get(field), int):
                setattr(bound.instance, field, choose.randrange(5))
    program.slots[:] = [choose.randrange(5) if value is None else value for value in program.slots]
    trainer._session.loop.position = choose.randrange(len(program.nodes))


def can_go_round_forever(graph: Graph) -> bool:
    """True if a run that goes on anywhere, with any progress and parameters, may not end."""
    choices = map(Random, range(300))
    return any("goes round forever" in watched(_with_parameters(graph, by), by).faults for by in choices)


def _with_parameters(graph: Graph, choose: Random) -> Graph:
    """The graph with other numbers for the parameters that guards read."""
    nodes = dict(graph.nodes)
    for name, node in nodes.items():
        parameter = {"s_accumulate": "every", "s_gate": "limit"}.get(node.use)
        if node.body is not None:
            nodes[name] = replace(node, body=_with_parameters(node.body, choose))
        elif parameter is not None and parameter not in node.reads:
            nodes[name] = replace(node, parameters={parameter: choose.randrange(1, 4)})
    return replace(graph, nodes=nodes)


def _stand_still(answers: list[tuple[str, tuple[str, ...]]]) -> bool:
    """True if the guards of every node read the same at each visit: so they will at the next."""
    return len(set(answers)) == len({position for position, _ in answers})


def _asked_at(graph: Graph) -> dict[str, list[str]]:
    """The fields and slots that the guards on the edges of each node read."""
    found: dict[str, list[str]] = {}
    for scope in Scope(graph).with_inner():
        for name, leaving in scope.graph.edges.items():
            guards = {edge.when: scope.graph.guards[edge.when] for edge in leaving if edge.when is not None}
            found[scope.path + name] = _asked(replace(scope.graph, guards=guards), scope)
    return found


def _flat(graph: Graph, prefix: str = "") -> dict[str, Node]:
    found: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        found[prefix + name] = node
        if node.body is not None:
            found |= _flat(node.body, f"{prefix}{name}/")
    return found


def _asked(graph: Graph, within: Scope | None = None) -> list[str]:
    """Every field and slot that a guard reads; of what is due, how far its clock is and when it last fired.

    Arguments:
        within: where the graph is, to ask its own guards alone. Default: those of the graphs inside too.
    """
    found: set[str] = set()
    for scope in Scope(graph).with_inner() if within is None else [within]:
        for text in (scope.graph if within is None else graph).guards.values():
            for one in walk(scope.parse(text)):
                if isinstance(one, Name):
                    found.update(slots_of([scope.resolve(one.name)]))
                elif isinstance(one, FieldOf):
                    found |= _read_by(scope, one)
    return sorted(found)


def _read_by(scope: Scope, read: FieldOf) -> set[str]:
    """What decides the value of a field; of an expression, what it reads."""
    targets = [*leaves(scope.field(read.node, read.field))]
    found = {f"{scope.path}{read.node}.{read.field}", *slots_of(targets)}
    found |= {f"{target.node}.{target.field}" for target in targets if isinstance(target, FieldTarget)}
    if read.field == "due":
        found |= {f"{scope.path}{read.node}.runs", *(scope.path + unit for unit in scope.graph.units.values())}
    elif read.field == "full":
        found |= {f"{scope.path}{read.node}.{field}" for field in ("count", "window")}
        found |= _read_by(scope, FieldOf(read.node, "every"))
    # What a body counts starts from zero when it is entered, so each of its visits changes it.
    bodies = {name.removeprefix(scope.path).partition("/") for name in found if name.startswith(scope.path)}
    return found | {f"{scope.path}{body}.runs" for body, slash, _ in bodies if slash}


# --- the property ---------------------------------------------------------------------------------------------------


def collected(number: int, first: int) -> list[tuple[Graph, Run]]:
    """Random graphs whose names are right, each with what its run did."""
    found: list[tuple[Graph, Run]] = []

    @seed(first)
    @settings(max_examples=number, database=None, suppress_health_check=list(HealthCheck))
    @given(graphs())
    def collect(graph: Graph) -> None:
        problems = check_graph(graph)
        if any(problem.code < "G3" for problem in problems):
            return
        try:
            run = watched(graph)
        except GraphError as error:  # a slot that nobody writes at all is a resource, and nobody supplies it
            assert {problem.code for problem in error.problems} == {"G301"}
            return
        assert problems or not run.faults, (run, graph.to_toml())
        found.append((graph, replace(run, problems=problems)))

    collect()
    return found


@pytest.fixture(scope="module")
def examples() -> list[tuple[Graph, Run]]:
    """Random graphs, and four that are met too rarely among them."""
    rare = asked_again(), asked_too_early(), waiting(), never_two()
    return [*collected(EXAMPLES, 0), *((graph, replace(watched(graph), problems=check_graph(graph))) for graph in rare)]


@pytest.mark.sweep
def test_2000_further_graphs_that_check_clean_do_no_harm_and_do_not_stand_still() -> None:
    runs = collected(2_000, 1)
    for graph, run in runs:
        is_refused = any(problem.code.startswith("G5") for problem in run.problems)
        assert is_refused or "goes round forever" not in run.faults, graph.to_toml()
        assert not (is_refused and run.ended) or can_go_round_forever(graph), graph.to_toml()
    assert sum(not run.problems for _, run in runs) > 300
    assert sum("goes round forever" in run.faults for _, run in runs) > 100


def by_hand(kinds: dict[str, str], **more: Any) -> Graph:
    """A graph of the kinds above."""
    nodes = {name: Node(name, KINDS[kind].name, kind=KINDS[kind]) for name, kind in kinds.items()}
    return Graph("by_hand", next(iter(kinds)), nodes, **more)


def asked_again() -> Graph:
    """A guard that is asked twice, and answers otherwise the second time: a reader is met before the writer."""
    return by_hand(
        {"first": "tick", "second": "tick", "early": "read", "writer": "write", "late": "read"},
        edges={
            "first": (Edge("second", "new"), Edge("end")),
            "second": (Edge("writer", "new"), Edge("early")),
            "early": (Edge("writer"),),
            "writer": (Edge("late"),),
            "late": (Edge("end"),),
        },
        guards={"new": "second.ticks == 0"},
    )


def asked_too_early() -> Graph:
    """A guard that reads a slot before it is written."""
    return by_hand(
        {"first": "tick", "writer": "write"},
        edges={"first": (Edge("end", "large"), Edge("writer")), "writer": (Edge("first"),)},
        guards={"large": "value > 2"},
    )


def waiting() -> Graph:
    """A node that waits for its own visits, and is not due."""
    return by_hand(
        {"fetch": "fetch", "wait": "at_times"},
        edges={"fetch": (Edge("wait"),), "wait": (Edge("end", "waited"), Edge("wait"))},
        guards={"waited": "wait.ticks >= 3"},
        units={"batches": "fetch.batches"},
    )


def never_two() -> Graph:
    """A window that is cleared after each pass, so that its count is never what the end asks for."""
    graph = by_hand(
        {"first": "backward", "window": "accumulate", "step": "step", "clear": "zero_grad"},
        edges={
            "first": (Edge("window"),),
            "window": (Edge("step"),),
            "step": (Edge("clear"),),
            "clear": (Edge("end", "two"), Edge("first")),
        },
        guards={"two": "window.count > 1"},
    )
    return replace(graph, nodes={name: replace(one, reads={"optimizer": "p"}) for name, one in graph.nodes.items()})


@pytest.mark.full
def test_a_graph_that_checks_clean_does_no_harm(examples: list[tuple[Graph, Run]]) -> None:
    seen: Counter[str] = Counter()
    for graph, run in examples:
        problems = run.problems
        assert problems or not run.faults
        seen["clean"] += not problems
        seen["clean and ended"] += not problems and run.ended
        seen["clean and long"] += not problems and run.length > 20
        seen["clean with a body"] += not problems and any(node.body is not None for node in graph.nodes.values())
        seen["clean and training"] += not problems and any(node.use == "s_step" for node in graph.nodes.values())
        for fault in run.faults:
            seen[fault] += 1
    assert seen["clean"] > 0.2 * len(examples) > 40, seen
    assert min(seen[word] for word in ("clean and ended", "clean and long", "clean with a body")) > 15, seen
    assert seen["clean and training"] > 40, seen
    faults = ("unwritten", "goes round forever", "added to used", "added to clipped", "clipped after the step",
              "stepped twice", "stepped without", "cleared unused", "ended with unused", "added to exchanged or scaled",
              "exchanged or scaled out of order")  # fmt: skip
    assert all(seen[fault] for fault in faults), seen


@pytest.mark.full
def test_most_that_is_refused_would_have_done_harm(examples: list[tuple[Graph, Run]]) -> None:
    """Warnings aside; the rest could do harm on a path that this run did not take."""
    refused = [run for _, run in examples if any(problem.severity == "error" for problem in run.problems)]
    assert sum(bool(run.faults) for run in refused) > 0.5 * len(refused)


def parting(examples: list[tuple[Graph, Run]]) -> tuple[int, int]:
    """How many runs without a fault stepped without an exchange in graphs that check clean for ranks, and in others."""
    apart = [
        any(problem.code == "G702" for problem in check_graph(graph, ranks=True))
        for graph, run in examples
        if run.apart and not run.faults and not check_graph(graph)
    ]
    return apart.count(False), apart.count(True)


@pytest.mark.sweep
def test_weights_part_in_no_graph_that_checks_clean_for_ranks(
    examples: list[tuple[Graph, Run]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clean, refused = parting(examples)
    assert clean == 0 and refused > 20
    key: Any = ("step", "fresh")
    monkeypatch.setitem(graphtrain.checks.gradients.RULES_OF_RANKS, key, ("used", None))
    assert parting(examples)[0] > 20, "the rule is what finds it"
    exchanged = [(graph, run) for graph, run in examples if not run.apart and not check_graph(graph)]
    codes = [problem.code for graph, _ in exchanged for problem in check_graph(graph, ranks=True)]
    assert not {"G703", "G704", "G412"} & set(codes), "what one process does in order, ranks do"


# What a mutation of the checks does, and the faults that then come through.
Patch = Callable[[pytest.MonkeyPatch], None]


def _no_rule(effect: str, *states: str) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        rules = graphtrain.checks.gradients.RULES
        for state in states:
            key: Any = (effect, state)
            monkeypatch.setitem(rules, key, (rules[key][0], None))

    return patch


def _attribute(thing: Any, name: str, value: Any) -> Patch:
    return lambda monkeypatch: monkeypatch.setattr(thing, name, value)


def _never(*arguments: Any, **more: Any) -> list[Any]:
    return []


MUTATIONS: dict[str, tuple[Patch, str]] = {
    "a step without gradients": (_no_rule("step", "clean"), "stepped without"),
    "a second step": (_no_rule("step", "used"), "stepped twice"),
    "adding to used": (_no_rule("backward", "used"), "added to used"),
    "adding to clipped": (_no_rule("backward", "clipped"), "added to clipped"),
    "clearing unused": (_no_rule("zero_grad", "fresh", "clipped"), "cleared unused"),
    "clipping late": (_no_rule("clip", "used"), "clipped after the step"),
    "no automaton": (_attribute(graphtrain.checks.gradients._Automaton, "problems", _never), "ended with unused"),
    "no data flow": (_attribute(graphtrain.checks.data_flow, "_unwritten", _never), "unwritten"),
    "guards read no slots": (
        _attribute(graphtrain.plan.slots.Slots, "_guards", lambda *_: 0), "unwritten"),
    "no loops": (_attribute(graphtrain.checks, "check_loops", _never), "goes round forever"),
    "counting is progress": (
        _attribute(graphtrain.checks.loops._Search, "_add_known_counts", lambda *_: None), "goes round forever"),
    "no node is skipped": (
        _attribute(graphtrain.plan.plan.PlanNode, "can_be_skipped", False), "goes round forever"),
    "nothing is forgotten": (_attribute(graphtrain.plan.flow, "changers", lambda *_: set()), "unwritten"),
}  # fmt: skip


@pytest.mark.sweep
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_check_that_lacks_a_rule_is_found_out(
    name: str, examples: list[tuple[Graph, Run]], monkeypatch: pytest.MonkeyPatch
) -> None:
    patch, fault = MUTATIONS[name]
    patch(monkeypatch)
    through = [run for graph, run in examples if run.faults and not check_graph(graph)]
    assert any(fault in run.faults for run in through)
