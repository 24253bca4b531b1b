"""A transition between nodes that do nothing, in graphs of 10, 100 and 1,000 nodes, in a real `Trainer.run`.

    python tools/benchmarks/transition.py --rounds 11

* A *straight ring*: every node leads to the next. At every size, one node in ten also has a guarded edge, whose guard
  is false until the run ends.
* A *guarded ring*: every node has that guarded edge, and one without a guard.
* *10 of 1,000 nodes*: the straight ring of ten, with 990 more nodes behind its guarded edge, which are not reached
  before the end.

A transition runs the node, counts the run, and selects the next node. It is compared with a Python loop over as many
closures that only return the next position, and with a machine of the package `transitions` for the same graph.

The case "10 of 1,000 nodes" shows, and its target requires, that the cost does not depend on the size of the graph. A
ring of 1,000 nodes that are all visited costs more for another reason: the memory of one lap does not fit into the
fastest cache of the processor. The same holds for the closures, as their rows show; a node touches more memory than a
closure.

The start of a run is not included: the first transition is made before the measurement. Its end is included, some
tenths of a millisecond in 200,000 transitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import repeat
from typing import Any

from measure import Target, arguments, comparison, rounds, show, spread
from transitions import Machine

from graphtrain import Edge, Graph, Node, Trainer, node
from graphtrain.graph.closures import compile_guard, constant
from graphtrain.graph.elements import END
from graphtrain.graph.syntax import parse
from graphtrain.kind import kind_of

TRANSITIONS = 200_000
OF_MACHINE = 2_000  # it is some fifty times slower
SIZES = (10, 100, 1_000)


@node
def idle() -> None:
    """Do nothing."""


def ring(size: int, guarded_every: int, reached: int | None = None) -> Graph:
    """Nodes in a circle, left by a guarded edge once its node has run often enough.

    Arguments:
        guarded_every: one in this many nodes has a guarded edge.
        reached: how many nodes the circle has; the others are behind the guarded edges. Default: all.
    """
    circle = size if reached is None else reached
    laps = TRANSITIONS // circle
    names = [f"idle_{number}" for number in range(size)]
    nodes = {name: Node(name, "idle", kind=kind_of(idle)) for name in names}
    guards, edges = {}, {}
    for number, name in enumerate(names):
        after = names[(number + 1) % (circle if number < circle else size)]
        edges[name] = (Edge(after),)
        if number % guarded_every == guarded_every - 1 or number == circle:
            # Behind the circle the first node leads on to the end.
            counted = name if number < circle else names[guarded_every - 1]
            guards[f"{name}_done"] = f"{counted}.runs >= {laps}"
            target = names[circle] if number < circle < size else "end"
            edges[name] = (Edge(target, f"{name}_done"), Edge(after))
    return Graph("ring", names[0], nodes, edges, guards)


@node
def scaled(*, factor: float = 1.0) -> None:
    """Do nothing with a factor."""


def scaled_ring(size: int, expression: str = "") -> Graph:
    """The circle of nodes that take a parameter: a number, or what an expression of the node's runs gives."""
    graph = ring(size, 10)
    for name in graph.nodes:
        given = {"reads": {"factor": expression.format(f"{name}.runs")}} if expression else {"factor": 2.0}
        graph = graph.replace(name, scaled, **given)
    return graph


def run(graph: Graph) -> Callable[[], float]:
    """A case: microseconds for one transition of a run."""

    def case() -> float:
        trainer = Trainer(graph, seed=None, display=None, notify=lambda line: None)
        trainer.advance(1)
        begun = time.perf_counter()
        trainer.run()
        spent = time.perf_counter() - begun
        return 1e6 * spent / sum(fields["runs"] for fields in trainer.progress.values())

    return case


def closures(size: int) -> Callable[[], float]:
    """A case: microseconds for one call of a closure that returns the next position."""

    def leading_to(position: int) -> Callable[[], int]:
        return lambda: position

    table = [leading_to((number + 1) % size) for number in range(size)]

    def case() -> float:
        position = 0
        begun = time.perf_counter()
        for _ in repeat(None, TRANSITIONS):
            position = table[position]()
        return 1e6 * (time.perf_counter() - begun) / TRANSITIONS

    return case


class _Model:
    """What a machine moves."""

    state: str


def machine(graph: Graph) -> Callable[[], float]:
    """A case: microseconds for one transition of the machine of a graph; its guards read a constant."""
    model: Any = _Model()
    machine = Machine(model, states=[END, *graph.nodes], initial=graph.start, auto_transitions=False)
    for source, leaving in graph.edges.items():
        for edge in leaving:
            guards = [compile_guard(parse(graph.guards[edge.when]), lambda part: constant(0))] if edge.when else []
            machine.add_transition("advance", source, edge.target, conditions=guards)

    def case() -> float:
        begun = time.perf_counter()
        for _ in repeat(None, OF_MACHINE):
            model.advance()
        return 1e6 * (time.perf_counter() - begun) / OF_MACHINE

    return case


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, rounds=11)
    straight, guarded = "straight ring, {:,} nodes", "guarded ring, {:,} nodes"
    part = "straight ring, 10 of 1,000 nodes"
    cases = {f"closures, {size:,}": closures(size) for size in SIZES}
    cases |= {straight.format(size): run(ring(size, 10)) for size in SIZES}
    cases[part] = run(ring(1_000, 10, reached=10))
    cases |= {guarded.format(size): run(ring(size, 1)) for size in SIZES}
    number, varying = "straight ring, a parameter each, 10 nodes", "straight ring, an expression each, 10 nodes"
    cases[number] = run(scaled_ring(10))
    cases[varying] = run(scaled_ring(10, "1.0 / (1 + {})"))
    cases["`transitions`, straight ring, 10 nodes"] = machine(ring(10, 10))
    cases["`transitions`, guarded ring, 10 nodes"] = machine(ring(10, 1))
    times = rounds(cases, options.rounds)
    rows = [
        {
            "case": row["case"],
            "median us": row["median"],
            "least": row["least"],
            "most": row["most"],
            "of 10 closures": row["ratio"],
            "of the straight ring, 10 nodes": other["ratio"],
        }
        for row, other in zip(
            comparison(times, against="closures, 10"), comparison(times, against=straight.format(10)), strict=True
        )
    ]
    named = {row["case"]: row for row in rows}
    targets = [
        Target(f"{case}, us", named[case]["median us"], 0.3)
        for case in [ring.format(size) for ring in (straight, guarded) for size in SIZES]
    ]
    evaluating = named[varying]["median us"] - named[number]["median us"]
    targets.append(Target("an expression of two operators, us", evaluating, 0.3))
    noise = spread(times, part, against=straight.format(10))
    targets.append(Target(f"{part}, over 10 of 10", named[part]["of the straight ring, 10 nodes"], 1.0, noise))
    show("microseconds a transition", rows, options.json, targets)


if __name__ == "__main__":
    main()
