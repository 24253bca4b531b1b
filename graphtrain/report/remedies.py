"""What helps where a loss is not finite, in words."""

from __future__ import annotations

import shlex

from graphtrain.graph import Graph
from graphtrain.graph.elements import nodes_of


def remedy(loss: str, step: int, graph: Graph) -> str:
    """What leads to the batch with which a loss of a row is no longer finite; empty if the graph reports that itself.

    Arguments:
        loss: its name, as in "val/loss".
        step: that of the row.

    >>> remedy("loss", 50, Graph.load("fit"))
    '--overlay check_finite names the batch'
    >>> remedy("loss", 50, Graph.load("fit").overlay("check_finite"))
    ''
    >>> remedy("val/loss", 50, Graph.load("fit"))
    "graphtrain replay SCRIPT --run-dir RUN --to '50 steps' --node validate/eval_batch --pdb stops in that validation"
    """
    if options := replay_of_validation(loss, step, graph):
        return f"graphtrain replay SCRIPT --run-dir RUN {shlex.join(options)} stops in that validation"
    if not lacks_a_check(graph):
        return ""
    return "--overlay check_finite names the batch"


def lacks_a_check(graph: Graph) -> bool:
    """True if no node of the graph looks for losses that are not finite."""
    return all(node.use != "check_finite" for node in nodes_of(graph).values())


def replay_of_validation(loss: str, step: int, graph: Graph) -> list[str]:
    """The options of `graphtrain replay` that lead to the validation with this loss; none for a loss of training."""
    split = loss.rpartition("/")[0]
    evaluating = [path for path, node in nodes_of(graph).items() if node.use == "eval_batch"]
    path = next((path for path in evaluating if split and path.startswith(split)), None)
    return ["--to", f"{step} steps", "--node", path, "--pdb"] if path is not None else []
