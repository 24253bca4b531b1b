"""Promises 1 and 3: every visit of a run is the one that the graph's text says: its edges in order, read by Python."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphtrain import DataError, Edge, Graph, Node, Trainer, Trigger, node, progress
from tests.world import World, small_fit, world


class Machine:
    """The executable meaning of a graph. It shares nothing with the engine but the graph and the values it reads.

    Arguments:
        read: the value of ``"node.field"`` or of a slot by path, now, as `Trainer.read` answers it.
    """

    def __init__(self, graph: Graph, read: Callable[[str], Any]) -> None:
        self.graph, self.read, self.position = graph, read, graph.start

    def advance(self) -> None:
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

        text = re.sub(r"\b[a-z_]\w*(\.\w+)?", lambda found: found[0] if found[0] in WORDS else f"READ('{found[0]}')",
                      " ".join(graph.guards[guard].split()))  # fmt: skip
        return bool(eval(text, {"READ": value, "__builtins__": {}}))  # noqa: S307 - a text of our own


WORDS = ("and", "or", "not", "if", "else")


def visits(trainer: Trainer, idle: Collection[str] = (), most: int = 2_000) -> list[str]:
    """The nodes that the engine visits up to the end, each compared with the machine.

    Arguments:
        idle: nodes that the engine leaves out, since they would do nothing; the machine passes through them.
    """
    machine = Machine(trainer.graph, trainer.read)
    found: list[str] = []
    while trainer.position != "end" and len(found) < most:
        position = trainer.position
        assert machine.position == position, found[-10:]
        runs, is_at_the_end = trainer.read(f"{position}.runs"), False
        try:
            trainer.advance()
        except DataError:  # to come there without a batch is an error
            is_at_the_end = True
        machine.advance()
        while machine.position in idle:
            machine.advance()
        assert trainer.read(f"{position}.runs") - runs <= 1
        found.append(position)
        if is_at_the_end:
            assert machine.position == "end" and trainer.read("next_batch.empty")
            return found
    assert machine.position == trainer.position
    return found


WORLDS: dict[str, World] = {
    "everything": world(),
    "windows of three": world(small_fit(accumulate=3, validate_every="2 batches", epochs=2.5, save_every="3 batches")),
    "carried windows": world(small_fit(accumulate=4, validate_every="2 epoch_batches", overlays="carry")),
    "dropped windows": world(small_fit(accumulate=4, validate_every=["2 steps", "7 samples"], overlays="drop")),
    "no length": world(data="unsized"),
    "a limit": world(small_fit(train_batches=2, validate_batches=1)),
    "never": world(small_fit(validate_every="never", epochs=1, steps=5)),
    "no batch": world(data=lambda: []),
}


@pytest.mark.first(4)
@pytest.mark.parametrize("name", WORLDS)
def test_a_training_goes_where_its_graph_says(name: str) -> None:
    found = visits(WORLDS[name].trainer(), idle={"exchange"})
    assert {"decide", "finish"} <= set(found)
    trains, validates = name != "no batch", name not in ("no batch", "never")
    assert ({"train_batch", "clip", "step", "zero_grad", "schedule", "log"} <= set(found)) == trains
    assert ({"validate", "validate/eval_batch", "validate/end_evaluation"} <= set(found)) == validates


@pytest.mark.full
@pytest.mark.parametrize("name", list(WORLDS)[:6])
def test_what_has_nothing_to_do_is_left_out(name: str) -> None:
    made = WORLDS[name].but(WORLDS[name].graph.set("clip", max_norm=float("inf")), val_data=lambda made: None)
    found = visits(made.but(scheduler=lambda made: None).trainer(), idle={"exchange", "clip"})
    assert "step" in found and not {"clip", "schedule", "validate", "validate/eval_batch"} & set(found)


def test_an_evaluation_goes_where_its_graph_says() -> None:
    made = world(Graph.load("evaluate"))
    each = ["next_batch", "eval_batch"] * 3
    assert visits(made.trainer()) == ["begin_evaluation", *each, "end_evaluation"]
    empty = made.but(val_data=lambda made: [])
    assert visits(empty.trainer()) == ["begin_evaluation", "next_batch", "end_evaluation"]


# ---- small graphs at random


class Tick:
    """Count a little further at every visit."""

    by: int = 1

    count: int = progress(0)
    high: bool = progress(False)

    def __call__(self) -> None:
        self.count += self.by
        self.high = self.count % 4 > 1


class Tell(Tick):
    """Count, and write a number that guards read."""

    def __call__(self) -> int:  # type: ignore[override]
        super().__call__()
        return self.count % 3


class TickAtTimes(Tick):
    """Count, but only when it is due."""

    every: Trigger = Trigger("2 ticks")

    def __call__(self, seen: int = 0) -> None:  # type: ignore[override]
        super().__call__()
        self.high = self.high or seen == 1


KINDS: dict[str, Any] = {
    "tick": node(name="machine_tick")(Tick),
    "tell": node(name="machine_tell", writes="number")(Tell),
    "at_times": node(name="machine_tick_at_times")(TickAtTimes),
}
EVERY = ("1 ticks", "2 ticks", "2.5 ticks", ["3 ticks", "7/2 visits"], "never")


@st.composite
def graphs(draw: st.DrawFn, path: tuple[str, ...] = ()) -> Graph:
    """A graph in which every node is reached, and most loops are left by a guard on progress in them."""
    depth = len(path)
    # The start of every graph writes a number, which guards read there and inside.
    slots = ["_".join(("number", *path[:length])) for length in range(depth + 1)]
    names = [f"n{index}" for index in range(draw(st.integers(2, 5 if depth == 0 else 3)))]
    made: dict[str, dict[str, Any]] = {}
    read = {slots[-1]}
    for index, name in enumerate(names):
        form = draw(st.sampled_from(("tick", "at_times", *(("nested",) * (2 - depth))))) if index else "tell"
        made[name] = {"every": draw(st.sampled_from(EVERY))} if form == "at_times" or draw(st.booleans()) else {}
        if form == "nested":
            made[name] |= {"graph": draw(graphs((*path, name)))}
            continue
        made[name] = {**(made[name] if form == "at_times" else {}), "use": KINDS[form], "by": draw(st.integers(1, 3))}
        if form == "tell":
            made[name] |= {"writes": {"number": slots[-1]}}
        elif form == "at_times":
            made[name] |= {"reads": {"seen": draw(st.sampled_from(slots))}}
            read |= {*made[name]["reads"].values()}
    ticking = [name for name in names if "graph" not in made[name]]
    guards: dict[str, str] = {}
    edges: dict[str, tuple[Edge, ...]] = {}
    for index, name in enumerate(names):
        leave = f"leave_{name}"
        guards[leave] = f"{name}.runs >= {draw(st.integers(2, 7))} or n0.runs >= {draw(st.integers(8, 15))}"
        following = names[index + 1] if index + 1 < len(names) else "end"
        leaving = [Edge(following, leave)]
        for number in range(draw(st.integers(0, 2))):
            guard = f"from_{name}_{number}"
            guards[guard] = draw(expressions(ticking, names, draw(st.sampled_from(sorted(read)))))
            leaving.append(Edge(draw(st.sampled_from([*names, "end"])), guard))
        edges[name] = (*draw(st.permutations(leaving)), Edge(draw(st.sampled_from([following, *names]))))
    units = {"ticks": "n0.count", "visits": "n0.runs"}
    # Some go round forever where a trigger is not due any more; they are compared as far as they are followed.
    graph = Graph("random", "n0", {name: Node(name, "choice") for name in names}, edges, guards, units)
    for name, what in made.items():
        graph = graph.set(name, **what)
    return replace(graph, allow=("G501", "G502"))


@st.composite
def expressions(draw: st.DrawFn, ticking: list[str], names: list[str], slot: str) -> str:
    """A guard on counters: arithmetic, comparisons, chains, and logic."""
    counter = st.one_of(
        st.sampled_from(ticking).map(lambda name: f"{name}.count"),
        st.sampled_from(names).map(lambda name: f"{name}.runs"),
    )
    forms = ["{slot} == {n}", "{a} % 3 == {n}", "{a} > {b}", "{n} <= {a} < {b} + 2", "{f}.high", "not {f}.high"]
    first = draw(st.sampled_from(forms)).format(
        slot=slot, a=draw(counter), b=draw(counter), n=draw(st.integers(0, 2)), f=draw(st.sampled_from(ticking))
    )
    if draw(st.booleans()):
        return first
    other = f"({draw(counter)} + {draw(counter)} * 2) // 3 % 2 == {draw(st.integers(0, 1))}"
    return f"{first} {draw(st.sampled_from(['and', 'or']))} {other}"


@pytest.mark.parametrize(
    "examples", [pytest.param(15, marks=pytest.mark.full), pytest.param(100, marks=pytest.mark.sweep)]
)
def test_small_graphs_at_random(examples: int) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=examples, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(graphs())
    def compare(graph: Graph) -> None:
        if any(problem.severity == "error" for problem in graph.check()):
            return
        found = visits(Trainer(graph, device="cpu", notify=lambda line: None), most=300)
        seen["sound"] += 1
        seen["long"] += len(found) > 20
        seen["entered"] += any("/" in position for position in found)
        seen["entered twice"] += any(position.count("/") == 2 for position in found)
        seen["reads a number"] += any("number" in guard for guard in graph.guards.values())

    compare()
    assert seen["sound"] >= 0.3 * examples, seen
    assert min(seen[word] for word in ("long", "entered", "entered twice", "reads a number")) >= 0.05 * examples, seen
