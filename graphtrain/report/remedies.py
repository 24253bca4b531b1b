"""What helps where a loss is not finite, in words."""

from __future__ import annotations

from graphtrain.graph import Graph
from graphtrain.graph.elements import nodes_of


def remedy(loss: str, step: int, graph: Graph) -> str:
    """What leads to the batch with which a loss of a row is no longer finite; empty if the graph reports that itself.

    Arguments:
        loss: its name, as in "val/loss".
        step: that of the row.

    >>> remedy("loss", 50, Graph.load("fit"))
    '--overlay check_finite names the batch, and --overlay skip_not_finite leaves such batches out'
    >>> remedy("loss", 50, Graph.load("fit").overlay("check_finite"))
    ''
    >>> remedy("val/loss", 50, Graph.load("fit"))
    "graphtrain replay --to '50 steps' --node validate/eval_batch --pdb stops in that validation"
    """
    kinds = {path: node.use for path, node in nodes_of(graph).items()}
    split = loss.rpartition("/")[0]
    evaluating = [path for path, kind in kinds.items() if split and kind == "eval_batch" and path.startswith(split)]
    if evaluating:
        return f"graphtrain replay --to '{step} steps' --node {evaluating[0]} --pdb stops in that validation"
    if {"check_finite", "train_finite_batch"} & {*kinds.values()}:
        return ""
    return "--overlay check_finite names the batch, and --overlay skip_not_finite leaves such batches out"
