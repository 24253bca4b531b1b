"""Checking a graph of 1,000 nodes, against `import networkx`, which every check needs.

    python tools/benchmarks/check.py --rounds 5

The graphs: `fit` with a thousand additional nodes around `decide`, a training loop with a thousand nodes in sequence,
and a hundred training loops in sequence, each with a nested validation. Every measurement builds its graph again, so
that nothing is cached. Beside them stands what it takes to add overlays to a graph.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

from measure import arguments, comparison, rounds, seconds, show

from graphtrain import Edge, Graph, Node
from graphtrain.checks import check_graph

SIZE = 1_000

OVERLAYS = ("carry", "check_finite", "early_stop", "ema", "gradient_norm", "plateau")


def hub() -> Graph:
    """Activities that the hub of `fit` leads to when they are due."""
    fit = Graph.load("fit")
    nodes, edges, guards = dict(fit.nodes), dict(fit.edges), dict(fit.guards)
    for number in range(SIZE - len(nodes)):
        name = f"log_{number}"
        nodes[name] = Node(name, "log", {"every": f"{number + 1} steps"})
        guards[f"{name}_due"] = f"{name}.due"
        edges["decide"] = (Edge(name, f"{name}_due"), *edges["decide"])
        edges[name] = (Edge("decide"),)
    return replace(fit, nodes=nodes, edges=edges, guards=guards)


def row() -> Graph:
    """Nodes one after the other between two steps."""
    fit = Graph.load("fit")
    nodes, edges = dict(fit.nodes), dict(fit.edges)
    last = "step"
    for number in range(SIZE - len(nodes)):
        name = f"pause_{number}"
        nodes[name] = Node(name, "choice")
        edges[last], last = (Edge(name),), name
    edges[last] = (Edge("zero_grad"),)
    return replace(fit, nodes=nodes, edges=edges)


def nested() -> Graph:
    """Trainings one after the other, each with a validation inside: about a thousand nodes in all."""
    fit = Graph.load("fit")
    names = [f"train_{number}" for number in range(SIZE // (len(fit.nodes) + 5))]
    nodes = {name: Node(name, "nested", body=fit) for name in names}
    edges = {name: (Edge(after),) for name, after in zip(names, [*names[1:], "end"], strict=True)}
    return Graph("nested", names[0], nodes, edges)


def checked(graph: Graph) -> float:
    begun = time.perf_counter()
    problems = check_graph(graph)
    assert not problems, problems[0]
    return time.perf_counter() - begun


def composed() -> float:
    """Eight shipped overlays, added to `fit`: read, applied, and compared with each other."""
    begun = time.perf_counter()
    Graph.load("fit").overlay(*OVERLAYS)
    return time.perf_counter() - begun


def importing() -> float:
    """A process that imports networkx, less one that does nothing."""
    bare = seconds(lambda: subprocess.run([sys.executable, "-c", ""], check=True))
    return seconds(lambda: subprocess.run([sys.executable, "-c", "import networkx"], check=True)) - bare


def main() -> None:
    options = arguments(__doc__, rounds=5)
    times = rounds(
        {
            "import networkx": importing,
            "fit": lambda: checked(Graph.load("fit")),
            "1,000 nodes at a hub": lambda: checked(hub()),
            "1,000 nodes in a row": lambda: checked(row()),
            "1,000 nodes in nested graphs": lambda: checked(nested()),
            "not checked: eight overlays added to fit": composed,  # at most 5 ms each
        },
        options.rounds,
    )
    show("seconds to check a graph", comparison(times, against="import networkx"), options.json)


if __name__ == "__main__":
    main()
