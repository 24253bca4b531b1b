"""Alternation: one optimizer takes several steps for each step of another."""

from __future__ import annotations

from typing import Annotated

from graphtrain import Above, node


@node(family="choice")
def alternate(*, every: Annotated[int, Above(0)] = 1) -> None:
    """Count visits; a guard tells whether it is the other's turn: ``alternate.runs % alternate.every == 0``.

    The graph `gan` trains its generator after every n-th step of its critic.

    Arguments:
        every: visits per turn of the other optimizer. Default: 1, they alternate.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").insert("alternate", after="zero_grad", every=5)
    >>> graph.check()
    []
    >>> more_at_first = "100 if generator_step.steps < 25 else 5"
    >>> Graph.load("gan").set("alternate", reads={"every": more_at_first}).check()
    []
    """
