"""G415: models are trained in training mode, and a body leaves the mode that it found.

An automaton as for gradients, of each model that some node puts into evaluation mode. Its state has, of each graph
around a point, whether an evaluation has begun there: one may run inside another, whose mode it puts back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from graphtrain.graph.problem import Problem
from graphtrain.plan.flow import Flow, FlowPoint, names_on
from graphtrain.plan.plan import optimizers_of

# Effect -> whether an evaluation has begun after it.
_EVALUATES = {"eval": True, "train": False}
_State = tuple[FlowPoint, tuple[bool, ...]]


def check_modes(flow: Flow) -> Iterator[Problem]:
    """Every backward pass in evaluation mode, and every body that leaves it on."""
    models = {point: _models(point) for point in flow.points if point.acts and point.kind is not None}
    for model in dict.fromkeys(
        name for point, names in models.items() if point.kind and point.kind.has_effect("eval") for name in names
    ):
        yield from _followed(flow, model, {point for point, names in models.items() if model in names})


def _models(point: FlowPoint) -> tuple[str, ...]:
    """What the slot `model` of a node holds, by the names of the resources."""
    if point.node is None or point.kind is None or point.node.body is not None or "model" not in point.kind.slots:
        return ()
    return optimizers_of(point.scope, point.node, "model")


def _followed(flow: Flow, model: str, acting: set[FlowPoint]) -> Iterator[Problem]:
    """The problems of one model: each node is reported once, and what follows is judged as if the mode was put back.

    Arguments:
        acting: the points whose slot `model` holds it.
    """
    start: _State = (flow.start, (False,))
    came_from: dict[_State, _State | None] = {start: None}
    reported: set[str] = set()
    waiting = deque([start])
    while waiting:
        at = point, state = waiting.popleft()
        if point.is_unknown:
            continue  # whatever comes after it is not judged
        message, place = "", point
        if point.opens is not None:
            state = (*state, False)
        elif point.acts and point.node is not None and point.node.body is not None:
            if state[-1]:
                place = _before(came_from[at])
                message = f"`{point.path}` can end after `{place.path}` with `{model}` in evaluation mode"
            state = state[:-1]
        elif point in acting and point.kind is not None:
            for action in point.kind.actions:
                if action.effect == "backward" and any(state):
                    message = f"`{point.path}` runs backward with `{model}` in evaluation mode"
                    state = (False,) * len(state)
                state = (*state[:-1], _EVALUATES.get(action.effect, state[-1]))
        if message and point.path not in reported and place.node is not None:
            reported.add(point.path)
            yield place.scope.problem(
                "G415",
                place.node.place,
                f"nodes.{place.node.name}",
                message,
                "route every path from where the evaluation begins through a node that puts the training mode back, "
                "such as `end_evaluation`",
                path=names_on(_way(came_from, at)),
            )
        for arrow in point.arrows:
            following = (arrow.target, state)
            if following not in came_from:
                came_from[following] = at
                waiting.append(following)


def _before(at: _State | None) -> FlowPoint:
    """The point of a state from which a body is left."""
    assert at is not None, "a body is entered before it is left"
    return at[0]


def _way(came_from: dict[_State, _State | None], at: _State | None) -> Iterator[FlowPoint]:
    """A shortest path to a state."""
    path: list[FlowPoint] = []
    while at is not None:
        path.append(at[0])
        at = came_from[at]
    return reversed(path)
