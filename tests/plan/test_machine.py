"""Every visit of the compiled engine against a `transitions` machine, the executable meaning of a graph."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphtrain import DataError, Edge, Graph, Node, Trainer, Trigger, node, progress
from graphtrain.kind import Kind, kind_of
from tests.plan.reference_machine import to_machine
from tests.program.oracle import Setting, graph_of, trainer_of


def visits(trainer: Trainer, idle: Collection[str] = (), most: int = 2_000) -> list[str]:
    """The nodes that the engine visits up to the end, each compared with the state of the machine.

    Arguments:
        idle: nodes that the engine leaves out, since they would do nothing; the machine passes through them.
    """
    machine = to_machine(trainer.graph, trainer.read)

    def settle() -> None:
        while machine.model.state in idle:
            machine.model.advance()

    settle()
    found: list[str] = []
    while trainer.position != "end" and len(found) < most:
        position = trainer.position
        assert machine.model.state == position, found[-10:]
        runs = trainer.read(f"{position}.runs")
        is_at_the_end = False
        try:
            trainer.advance()
        except DataError:  # to come there without a batch is an error
            is_at_the_end = True
        assert machine.model.advance()
        settle()
        assert trainer.read(f"{position}.runs") - runs <= 1
        found.append(position)
        if is_at_the_end:
            assert machine.model.state == "end" and trainer.read("next_batch.empty")
            return found
    assert machine.model.state == trainer.position
    return found


# The shipped graphs

SETTINGS = [
    Setting(),
    Setting(accumulate=3, validate=("2 batches",), checkpoint=("3 batches",), after=("2.5 epochs",)),
    Setting(accumulate=4, validate=("2 epoch_batches",), claim=None, window="carry"),
    Setting(accumulate=4, validate=("2 steps",), claim=3, window="drop", val_length=0),
    Setting(lengths=(3, 0), claim=-2, validate=("7 samples", "1 epochs"), val_claim=2, limit=2),
    Setting(lengths=(0,)),
    Setting(validate=("never",), checkpoint=("never",), after=("1 epochs", "5 steps")),
]


class Scheduler:
    """A learning-rate scheduler that does nothing."""

    def step(self) -> None:
        pass


@pytest.mark.second(9)
@pytest.mark.first(1)
@pytest.mark.parametrize("setting", SETTINGS, ids=range(len(SETTINGS)))
@pytest.mark.parametrize("busy", [True, False])
def test_fit(setting: Setting, busy: bool) -> None:
    if busy:  # every node has work to do
        graph = graph_of(setting).set("clip", max_norm=1.0).set("log", every="2 batches")
        found = visits(trainer_of(setting, [], graph=graph, scheduler=Scheduler()), idle={"exchange"})
    else:  # no clipping, no scheduler, nothing to validate on
        found = visits(trainer_of(setting, [], val_data=None), idle={"exchange", "clip"})
    assert {"decide", "finish"} <= set(found)
    if setting.lengths[0]:
        assert {"train_batch", "step", "zero_grad"} <= set(found)
    trained = bool(setting.lengths[0])
    assert ("schedule" in found) == ("clip" in found) == ("log" in found) == (busy and trained)
    validated = busy and trained and setting.validate != ("never",)
    assert ("validate" in found) == ("validate/end_evaluation" in found) == validated
    assert ("validate/eval_batch" in found) == (validated and setting.val_length > 0)


def evaluation(data: Any) -> Trainer:
    return Trainer(
        "evaluate",
        seed=0,
        model=torch.nn.Linear(1, 1),
        val_data=data,
        validation_step=lambda model, batch: batch.mean(),
        device="cpu",
        notify=lambda line: None,
    )


def test_evaluate() -> None:
    assert visits(evaluation([torch.ones(2)] * 2)) == [
        "begin_evaluation",
        *["next_batch", "eval_batch"] * 2,
        "end_evaluation",
    ]
    assert visits(evaluation([])) == ["begin_evaluation", "next_batch", "end_evaluation"]


# Small graphs at random


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


@functools.cache
def kinds() -> dict[str, Kind]:
    """The stand-ins, by what they do; the graphs hold the kinds themselves, so nothing stays declared."""
    return {
        "tick": kind_of(node(name="machine_tick")(Tick)),
        "tell": kind_of(node(name="machine_tell", writes="number")(Tell)),
        "at_times": kind_of(node(name="machine_tick_at_times")(TickAtTimes)),
    }


EVERY = ("1 ticks", "2 ticks", "2.5 ticks", ["3 ticks", "7/2 visits"], "never")


@st.composite
def graphs(draw: st.DrawFn, path: tuple[str, ...] = ()) -> Graph:
    """A graph in which every node is reached, and most loops are left by a guard on progress in them."""
    depth = len(path)
    # The start of every graph writes a number, which guards read there and inside.
    slots = ["_".join(("number", *path[:length])) for length in range(depth + 1)]
    names = [f"n{index}" for index in range(draw(st.integers(2, 5 if depth == 0 else 3)))]
    nodes: dict[str, Node] = {}
    for index, name in enumerate(names):
        choices = ("tick", "at_times", *(("nested",) * (2 - depth)))
        form = draw(st.sampled_from(choices)) if index else "tell"
        parameters = {"every": draw(st.sampled_from(EVERY))} if form == "at_times" or draw(st.booleans()) else {}
        if form == "nested":
            nodes[name] = Node(name, "nested", parameters, body=draw(graphs((*path, name))))
            continue
        parameters = {**(parameters if form == "at_times" else {}), "by": draw(st.integers(1, 3))}
        writes = {"number": slots[-1]} if form == "tell" else {}
        reads = {"seen": draw(st.sampled_from(slots))} if form == "at_times" else {}
        nodes[name] = Node(name, kinds()[form].name, parameters, reads, writes, kind=kinds()[form])
    ticking = [name for name in names if nodes[name].body is None]
    read = sorted({slots[-1], *(str(slot) for one in nodes.values() for slot in one.reads.values())})
    guards: dict[str, str] = {}
    edges: dict[str, tuple[Edge, ...]] = {}
    for index, name in enumerate(names):
        leave = f"leave_{name}"
        guards[leave] = f"{name}.runs >= {draw(st.integers(2, 7))} or n0.runs >= {draw(st.integers(8, 15))}"
        following = names[index + 1] if index + 1 < len(names) else "end"
        leaving = [Edge(following, leave)]
        for number in range(draw(st.integers(0, 2))):
            guard = f"from_{name}_{number}"
            guards[guard] = draw(expressions(ticking, names, draw(st.sampled_from(read))))
            leaving.append(Edge(draw(st.sampled_from([*names, "end"])), guard))
        leaving.append(Edge(draw(st.sampled_from([following, *names]))))
        # The guarded way out need not be asked first.
        leaving[:-1] = draw(st.permutations(leaving[:-1]))
        edges[name] = tuple(leaving)
    units = {"ticks": "n0.count", "visits": "n0.runs"}
    # Some go round forever where a trigger is not due any more; they are compared as far as they are followed.
    return Graph("random", "n0", nodes, edges, guards, units, allow=("G501", "G502"))


@st.composite
def expressions(draw: st.DrawFn, ticking: list[str], names: list[str], slot: str) -> str:
    """A guard on counters: arithmetic, comparisons, chains, and logic."""
    counter = st.one_of(
        st.sampled_from(ticking).map(lambda name: f"{name}.count"),
        st.sampled_from(names).map(lambda name: f"{name}.runs"),
    )
    form = draw(
        st.sampled_from(
            ["{slot} == {n}", "{a} % 3 == {n}", "{a} > {b}", "{n} <= {a} < {b} + 2", "{f}.high", "not {f}.high"]
        )
    )
    first = form.format(
        slot=slot, a=draw(counter), b=draw(counter), n=draw(st.integers(0, 2)), f=draw(st.sampled_from(ticking))
    )
    if draw(st.booleans()):
        return first
    other = f"({draw(counter)} + {draw(counter)} * 2) // 3 % 2 == {draw(st.integers(0, 1))}"
    return f"{first} {draw(st.sampled_from(['and', 'or']))} {other}"


@pytest.mark.sweep
def test_small_graphs_at_random() -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=100, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(graphs())
    def compare(graph: Graph) -> None:
        if any(problem.severity == "error" for problem in graph.check()):
            seen["unsound"] += 1
            return
        found = visits(Trainer(graph, device="cpu", notify=lambda line: None), most=300)
        seen["sound"] += 1
        seen["long"] += len(found) > 20
        seen["entered"] += any("/" in position for position in found)
        seen["entered twice"] += any(position.count("/") == 2 for position in found)
        seen["reads a number"] += any("number" in guard for guard in graph.guards.values())

    compare()
    assert seen["sound"] >= 30, seen
    assert min(seen[word] for word in ("long", "entered", "entered twice", "reads a number")) >= 5, seen
