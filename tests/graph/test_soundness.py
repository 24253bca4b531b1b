"""Promise 5: a graph that checks clean behaves: random graphs, run and watched by a simulator that knows no checker.

Some of the kinds are bypassed, act on two optimizers by slot, or act at times; some parameters and slots are
expressions; guards, expressions and clocks read paths into bodies.

What is watched: each visit is the one that the graph's text says; no reader, and no guard, meets a slot that nobody
wrote; no optimizer steps without fresh gradients, or loses some; and in a run that does not end, something that a guard
reads changes from round to round.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from graphtrain import Edge, Graph, GraphError, GraphtrainError, Node, Problem, Trainer, Trigger, node, progress
from tests.graph.corpus import bound, tiny
from tests.graph.machine import NAME, WORDS, Machine

MOST = 110  # transitions of a run; the loops of these graphs are a few nodes long
# Every problem of paths: a graph that has some is run all the same.
PATHS = tuple(f"G{code}" for code in (303, 304, 307, 309, *range(401, 416), *range(501, 506), 601, 602))

# --- kinds that do nothing but say so ---------------------------------------------------------------------------------

missed: list[str] = []  # slots that were read and that nobody had written


class Tick:
    """Count visits."""

    ticks: int = progress(0)

    def __call__(self) -> None:
        self.ticks += 1


class TickAtTimes(Tick):
    every: Trigger = Trigger("2 batches")


class TickWithLimit(Tick):  # without one it is bypassed
    limit: int | None = None


class Gate(Tick):  # beside a number that the graph may compute
    limit: int = 2


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


def read_value(value: Any) -> None:
    if value is None:
        missed.append("value")


EFFECTS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("backward", "clip", "step", "zero_grad", "use", "exchange", "scale")},
    "inner": ("backward inner", "use inner", "zero_grad inner", "backward"),
}
KINDS: dict[str, Any] = {
    "tick": node(name="s_tick")(Tick),
    "at_times": node(name="s_at_times")(TickAtTimes),
    "fetch": node(name="s_fetch")(Fetch),
    "write": node(name="s_write", writes="value")(Write),
    "read": node(name="s_read")(read_value),
    "gate": node(name="s_gate", varying="limit")(Gate),
    "idle": node(name="s_idle", optional="limit")(TickWithLimit),
    "absent": node(name="s_absent", optional="extra")(type("TickWithExtra", (Tick,), {})),
    "accumulate": "accumulate",  # the shipped one
    **{name: node(name=f"s_{name}", effects=effects)(lambda: None) for name, effects in EFFECTS.items()},
}
ACTING = (*EFFECTS, "accumulate")

# --- graphs -----------------------------------------------------------------------------------------------------------

# What people put in a row, and what they put there by mistake; a letter is a slot or an optimizer.
ROWS = """\
fetch | tick | at_times | write a, read a | write b, tick, read b | backward p, step p, zero_grad p
backward q, clip q, step q, zero_grad q | zero_grad p, backward p, clip p, step p
backward q, accumulate q, step q, zero_grad q, tick | backward p, use p, zero_grad p
backward p, exchange p, scale p, clip p, step p, zero_grad p | inner q, step q, zero_grad q
tick, idle | absent, tick | gate, read = | tick, gate"""
MISTAKES = """\
backward p, step p, clip p, zero_grad p | backward q, clip q, backward q, step q, zero_grad q
backward p, zero_grad p, backward p, step p, zero_grad p | zero_grad q, step q | tick, write c, tick
backward p, step p, step p, zero_grad p | backward p, scale p, exchange p, step p, zero_grad p
backward q, exchange q, backward q, step q, zero_grad q | backward q, scale q, scale q, step q, zero_grad q"""


def drawn_from(text: str) -> st.SearchStrategy[list[str]]:
    return st.sampled_from([row.split(", ") for row in text.replace("\n", " | ").split(" | ")])


@st.composite
def graphs(draw: st.DrawFn, prefix: str = "") -> Graph:
    """Rows of nodes one after the other and round again, with a few slips and short cuts."""
    rows = draw(st.lists(drawn_from(ROWS), min_size=1, max_size=2 if prefix else 4, unique_by=tuple))
    if draw(st.integers(0, 4)) == 0:
        rows.insert(draw(st.integers(0, len(rows))), draw(drawn_from(MISTAKES)))
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
        nodes[name] = Node(name, f"s_{kind}", {}, reads, writes)
    nodes = {name: replace(node, reads={**node.reads, **draw(computed(name, nodes))}) for name, node in nodes.items()}
    fetched = [field for field in fields_of(nodes) if field.endswith(".batches")]
    units = {"batches": draw(st.sampled_from(fetched))} if fetched else {}
    if not units:  # no clock to count by: the node is always due
        nodes = {name: replace(one, use="s_tick") if one.use == "s_at_times" else one for name, one in nodes.items()}
    elif draw(st.booleans()):
        every = {"every": "2 batches"}
        nodes = {name: one if one.body is None else replace(one, parameters=every) for name, one in nodes.items()}
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
    return with_kinds(Graph("random", names[0], nodes, edges, guards, units))


def with_kinds(graph: Graph) -> Graph:
    """The graph with the kinds above for its nodes."""
    for name, one in graph.nodes.items():
        if one.body is None:
            graph = graph.set(name, use=KINDS[one.use.removeprefix("s_")])
    return graph


def _of_kind(nodes: dict[str, Node], kind: str) -> list[str]:
    return [name for name, node in nodes.items() if node.use == f"s_{kind}"]


def fields_of(nodes: dict[str, Node]) -> list[str]:
    """The counters of nodes, and of those in their bodies, by path."""
    found = []
    for name, one in nodes.items():
        if one.body is not None:
            found += [f"{name}/{field}" for field in fields_of(dict(one.body.nodes))]
        elif one.use in COUNTED:
            found.append(f"{name}.{COUNTED[one.use]}")
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


# --- watching ---


class Gradients:
    """For each optimizer, what was done with every backward pass that its gradients hold."""

    def __init__(self) -> None:
        self.held: dict[str, list[set[str]]] = {}
        self.faults: list[str] = []
        self.apart = False  # of several ranks, the weights would part

    def act(self, effect: str, optimizer: str) -> None:
        held = self.held.setdefault(optimizer, [])
        unused = [each for each in held if "used" not in each]
        done: set[str] = set().union(*unused)
        if effect == "backward":
            if len(unused) < len(held):
                self.faults.append("added to used")
            if done:
                self.faults.append("added to clipped" if "clip" in done else "added to exchanged or scaled")
            held.append(set())
        elif effect == "zero_grad":
            if unused:
                self.faults.append("cleared unused")
            held.clear()
        elif effect in ("exchange", "scale", "clip"):
            if held and not unused:
                self.faults.append("changed after the step")
            elif effect != "clip" and done - ({"exchange"} if effect == "scale" else set()):
                self.faults.append("exchanged or scaled out of order")
            for each in held:
                each.add(effect)
        else:
            if effect == "step" and not unused:
                self.faults.append("stepped twice" if held else "stepped without")
            self.apart |= effect == "step" and any("exchange" not in each for each in unused)
            for each in held:
                each.add("used")

    def end(self) -> None:
        if any("used" not in each for held in self.held.values() for each in held):
            self.faults.append("ended with unused")


@dataclass
class Watched:
    """What a run did: its faults, how long it was, and whether it ended; and the problems of its graph."""

    graph: Graph
    problems: Sequence[Problem]
    faults: set[str]
    length: int
    ended: bool
    apart: bool

    @property
    def is_refused(self) -> bool:
        return any(problem.severity == "error" for problem in self.problems)


def watched(graph: Graph) -> Watched:
    """Run a graph, whatever its problems of paths are, and watch it."""
    trainer = Trainer(replace(graph, allow=PATHS), seed=None, device="cpu", notify=lambda line: None)
    nodes, asked = flat(graph), asked_at(graph)
    machine = Machine(graph, trainer.read, [path for path, one in nodes.items() if one.use in ("s_idle", "s_absent")])
    everything = sorted({one for read in asked.values() for one in read})
    gradients, faults = Gradients(), set[str]()
    answers: list[tuple[str, tuple[str, ...]]] = []  # where the run was, and what the guards there have read
    seen: set[tuple[str, ...]] = set()
    missed.clear()
    while trainer.position != "end" and len(answers) < MOST:
        position = trainer.position
        here = (position, *(read(trainer, one) for one in everything))
        if here in seen:
            faults.add("goes round forever")
            break
        seen.add(here)
        runs = trainer.read(f"{position}.runs")
        try:
            trainer.advance()
        except GraphtrainError:  # a guard compared nothing with a number, or it was added to one
            faults.add("unwritten")
            break
        machine.advance()
        assert machine.position == trainer.position, (position, graph.to_toml())
        answers.append((position, tuple(read(trainer, one) for one in sorted(asked.get(position, ())))))
        one = nodes[position]
        if one.body is None and trainer.read(f"{position}.runs") > runs:
            for effect in EFFECTS.get(one.use.removeprefix("s_"), ()):
                name, _, slot = effect.partition(" ")
                gradients.act(name, str(one.reads[slot or "optimizer"]))
            if one.use == "s_fetch":
                seen.clear()
    ended = trainer.position == "end"
    if ended:
        gradients.end()
    # The guards of every node read the same at each visit: so they will at the next.
    late = answers[MOST // 2 :]
    if len(answers) == MOST and not ended and len(set(late)) == len({position for position, _ in late}):
        faults.add("goes round forever")
    faults |= {*gradients.faults, *("unwritten" for _ in missed)}
    return Watched(graph, graph.check(), faults, len(answers), ended, gradients.apart)


def flat(graph: Graph, prefix: str = "") -> dict[str, Node]:
    found: dict[str, Node] = {}
    for name, one in graph.nodes.items():
        found[prefix + name] = one
        if one.body is not None:
            found |= flat(one.body, f"{prefix}{name}/")
    return found


def read(trainer: Trainer, path: str) -> str:
    """A field; or a slot, which may be that of the graph around."""
    try:
        return repr(trainer.read(path))
    except KeyError:
        return read(trainer, path.rpartition("/")[2]) if "/" in path else "nothing"


def asked_at(graph: Graph, path: str = "") -> dict[str, set[str]]:
    """The fields and slots that the guards on the edges of each node read, from their texts."""
    found: dict[str, set[str]] = {}
    for name, leaving in graph.edges.items():
        guards = [graph.guards[edge.when] for edge in leaving if edge.when is not None]
        found[path + name] = {one for guard in guards for one in read_by(graph, path, guard)}
        body = graph.nodes[name].body
        found |= asked_at(body, f"{path}{name}/") if body is not None else {}
    return found


def read_by(graph: Graph, path: str, text: str) -> set[str]:
    """What decides the value of an expression; of what is due, how far its clock is and how often it fired."""
    found: set[str] = set()
    for word in re.findall(NAME, text):
        name, _, field = word.partition(".")
        if word in WORDS:
            continue
        if word in graph.guards:
            found |= read_by(graph, path, graph.guards[word])
            continue
        found.add(path + word)
        for computed in (graph.nodes[name].reads.get(field),) if name in graph.nodes else ():
            found |= read_by(graph, path, str(computed)) if computed is not None else set()
        if field == "due":
            found |= {f"{path}{name}.runs", *(path + unit for unit in graph.units.values())}
        elif field == "full":
            found |= {f"{path}{name}.count", f"{path}{name}.window"} | read_by(graph, path, f"{name}.every")
        if "/" in name:  # what a body counts starts from zero when it is entered, so each of its visits changes it
            found.add(f"{path}{name.partition('/')[0]}.runs")
    return found


# --- the property ---------------------------------------------------------------------------------------------------


def collected(number: int) -> list[Watched]:
    """Random graphs whose names are right, each with what its run did."""
    found: list[Watched] = []

    @seed(0)
    @settings(max_examples=number, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(graphs())
    def collect(graph: Graph) -> None:
        if any(problem.code < "G3" for problem in graph.check()):
            return
        try:
            run = watched(graph)
        except GraphError as error:  # a slot that nobody writes at all is a resource, and nobody supplies it
            assert {problem.code for problem in error.problems} == {"G301"}
            return
        assert run.problems or not run.faults, (run.faults, graph.to_toml())
        found.append(run)

    collect()
    return found


FAULTS = ("unwritten", "goes round forever", "added to used", "added to clipped", "changed after the step",
          "stepped twice", "stepped without", "cleared unused", "ended with unused", "added to exchanged or scaled",
          "exchanged or scaled out of order")  # fmt: skip


@pytest.mark.full
@pytest.mark.second(1)
@pytest.mark.parametrize("number", [100, 1_000])
def test_a_graph_that_checks_clean_does_no_harm(number: int) -> None:
    runs = collected(number)
    clean = [run for run in runs if not run.problems]
    assert len(clean) > 0.2 * len(runs) > 0.05 * number
    counted = {
        "ended": sum(run.ended for run in clean),
        "long": sum(run.length > 20 for run in clean),
        "with a body": sum(any(one.body is not None for one in run.graph.nodes.values()) for run in clean),
        "training": sum(any(one.use == "s_step" for one in run.graph.nodes.values()) for run in clean),
    }
    assert min(counted.values()) > 0.01 * number, counted
    refused = [run for run in runs if run.is_refused]
    assert sum(bool(run.faults) for run in refused) > 0.5 * len(refused), "most would have done harm"
    if number == 1_000:
        seen = Counter(fault for run in runs for fault in run.faults)
        assert all(seen[fault] for fault in FAULTS), seen
    apart = [run for run in clean if run.apart]
    for run in clean:
        codes = {problem.code for problem in run.graph.check(ranks=True)}
        assert not run.apart or "G702" in codes, "the weights of ranks would part"
        assert run.apart or not codes & {"G703", "G704", "G412"}, "what one process does in order, ranks do"
    assert len(apart) > 0.01 * number


# --- what is met too rarely among them, and that the watch sees it --------------------------------------------------


def by_hand(kinds: dict[str, str], edges: str, guards: dict[str, str], **more: Any) -> Graph:
    graph = tiny({name: KINDS[kind] for name, kind in kinds.items()}, edges, guards, **more)
    return bound("p " + " ".join(name for name, kind in kinds.items() if kind in ACTING))(graph)


RARE: dict[str, tuple[Graph, str]] = {
    "a guard is read twice, and answers otherwise: a reader comes before the writer": (by_hand(
        {"first": "tick", "second": "tick", "early": "read", "writer": "write", "late": "read"},
        "first: second if new, end; second: writer if new, early; early writer late end",
        {"new": "second.ticks == 0"}), "unwritten"),
    "a guard reads a slot before it is written": (by_hand(
        {"first": "tick", "writer": "write"}, "first: end if large, writer; writer first",
        {"large": "value > 2"}), "unwritten"),
    "a node waits for its own visits, and is not due": (by_hand(
        {"fetch": "fetch", "wait": "at_times"}, "fetch wait; wait: end if waited, wait", {"waited": "wait.ticks >= 3"},
        units={"batches": "fetch.batches"}), "goes round forever"),
    "a window is cleared after each pass, and the end waits for two": (by_hand(
        {"first": "backward", "window": "accumulate", "step": "step", "clear": "zero_grad"},
        "first window step clear; clear: end if two, first", {"two": "window.count > 1"}), "goes round forever"),
}  # fmt: skip


@pytest.mark.parametrize(("graph", "fault"), RARE.values(), ids=RARE)
def test_what_does_harm_is_refused(graph: Graph, fault: str) -> None:
    run = watched(graph)
    assert fault in run.faults and run.is_refused
