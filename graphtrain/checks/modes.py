"""G415: models are trained in training mode, and a body restores the mode.

An automaton as for gradients, for each model that some node sets to evaluation mode. Its state holds, for each graph
around a point, what the nodes wrote with which an evaluation began there, None if none has: one may run inside another,
whose mode it restores. One that writes these slots again saves the evaluation mode as that of training.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphtrain.graph.elements import Problem
from graphtrain.plan.flow import Flow, FlowPoint
from graphtrain.plan.plan import optimizers_of
from graphtrain.plan.solve import Ways

_Begun = tuple[frozenset[str] | None, ...]
_State = tuple[FlowPoint, _Begun]


def check_modes(flow: Flow) -> Iterator[Problem]:
    """Every backward pass in evaluation mode, and every body that leaves it on."""
    models = {  # the resources in the slot `model` of a node, by name
        point: optimizers_of(point.scope, point.node, "model")
        for point in flow.points
        if point.acts and point.kind is not None and "model" in point.kind.slots
        if point.node is not None and point.node.body is None
    }
    for model in dict.fromkeys(
        name for point, names in models.items() if point.kind and point.kind.has_effect("eval") for name in names
    ):
        yield from _followed(flow, model, {point for point, names in models.items() if model in names})


def _followed(flow: Flow, model: str, acting: set[FlowPoint]) -> Iterator[Problem]:
    """The problems of one model: each node is reported once, and what follows is judged as if the mode was restored.

    Arguments:
        acting: the points whose slot `model` holds it.
    """

    def following(at: _State) -> Iterator[_State]:
        state, _ = _after(at, is_acting=at[0] in acting)
        return ((arrow.target, state) for arrow in at[0].arrows)

    start: _State = flow.start, (None,)
    ways = Ways([start], following)
    first: dict[str, _State] = {}
    for at in ways:
        if _after(at, is_acting=at[0] in acting)[1]:
            first.setdefault(at[0].path, at)
    for at in first.values():
        point = at[0]
        way = [each for each, _ in ways.to(at)]
        message, place = f"`{point.path}` runs backward with `{model}` in evaluation mode", point
        if point.node is not None and point.node.body is not None:
            place = way[-2]
            message = f"`{point.path}` can end after `{place.path}` with `{model}` in evaluation mode"
        elif point.kind is not None and not point.kind.has_effect("backward"):
            message = f"`{point.path}` saves the evaluation mode of `{model}` as the mode of its training"
        if place.node is not None:
            yield place.problem(
                "G415",
                message,
                "route every path from where the evaluation begins through a node that restores the training mode, "
                "such as `end_evaluation`",
                path=way,
            )


def _after(at: _State, *, is_acting: bool) -> tuple[_Begun, bool]:
    """The state after a visit, and True if its action is wrong in the state before.

    Arguments:
        is_acting: True if the node has the model.
    """
    point, state = at
    if point.opens is not None:
        return (*state, None), False
    if point.acts and point.node is not None and point.node.body is not None:
        return state[:-1], state[-1] is not None
    is_wrong = False
    for action in point.kind.actions if is_acting and point.kind is not None else ():
        if action.effect == "backward" and state.count(None) < len(state):
            state, is_wrong = (None,) * len(state), True
        elif action.effect == "eval" and point.node is not None:
            saved, written = state[-1] or frozenset(), frozenset(point.scope.written_by(point.node))
            state, is_wrong = (*state[:-1], saved | written), is_wrong or not saved.isdisjoint(written)
        elif action.effect == "train":
            state = (*state[:-1], None)
    return state, is_wrong
