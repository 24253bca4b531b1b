"""A graph whose nested graph trains a new model for each fold, and that judges each of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from graphtrain import Graph

FOLDS = 3


def folds_of(before: Mapping[str, str], after: Mapping[str, str] | None = None) -> Graph:
    """For each of three folds: `begin_fold`, what comes before the training, `fit`, what comes after it, `judge`.

    Arguments:
        before: nodes by name, each as it is written in a file.
        after: the same. Default: none.
    """
    around = {"begin_fold": "{}", **before, **(after or {}), "judge": "{}", "checkpoint": '{ every = "never" }'}
    chain = ["begin_fold", *before, "fit", *(after or {}), "judge", "checkpoint"]
    nodes = "\n".join(f"{name} = {settings}" for name, settings in around.items())
    edges = "\n".join(f'{name} = ["{target}"]' for name, target in itertools.pairwise(chain))
    return Graph.loads(
        f"""
        format = 1
        name = "folds"
        start = "begin_fold"
        [nodes]
        {nodes}
        [nodes.fit.graph]
        name = "inner"
        start = "next_batch"
        [nodes.fit.graph.nodes]
        next_batch = {{}}
        train_batch = {{ reads = {{ window = "accumulate.every" }} }}
        accumulate = {{ every = 2 }}
        step = {{}}
        schedule = {{ every = "1 steps" }}
        zero_grad = {{}}
        decide = {{ use = "choice" }}
        [nodes.fit.graph.guards]
        open = "accumulate.count < accumulate.every and not next_batch.last"
        done = "next_batch.epochs >= 2 and accumulate.count == 0"
        [nodes.fit.graph.edges]
        next_batch = ["train_batch"]
        train_batch = ["accumulate"]
        accumulate = ["decide if open", "step"]
        step = ["schedule"]
        schedule = ["zero_grad"]
        zero_grad = ["decide"]
        decide = ["end if done", "next_batch"]
        [nodes.fit.graph.clock]
        steps = "step.steps"
        batches = "next_batch.batches"
        [guards]
        finished = "begin_fold.folds >= {FOLDS}"
        [edges]
        {edges}
        checkpoint = ["end if finished", "begin_fold"]
        [clock]
        folds = "begin_fold.folds"
        """
    )
