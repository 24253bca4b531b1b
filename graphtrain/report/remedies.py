"""What helps where a loss is not finite, in words."""

from __future__ import annotations

from graphtrain.graph import EditableGraph
from graphtrain.graph.elements import nodes_of


def lacks_a_check(graph: EditableGraph) -> bool:
    """True if no node of the graph looks for losses that are not finite."""
    return all(node.use != "check_finite" for node in nodes_of(graph).values())


def replay_of_validation(loss: str, step: int, graph: EditableGraph) -> list[str]:
    """The options of `graphtrain replay` that lead to the validation with this loss; none for a loss of training."""
    split = loss.rpartition("/")[0]
    evaluating = [path for path, node in nodes_of(graph).items() if node.use == "eval_batch"]
    path = next((path for path in evaluating if split and path.startswith(split)), None)
    return ["--to", f"{step} steps", "--node", path, "--pdb"] if path is not None else []
