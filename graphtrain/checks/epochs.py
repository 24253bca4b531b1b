"""G506: the epoch of several sources of batches is closed by what its own batches say."""

from __future__ import annotations

from collections.abc import Iterator

from graphtrain.graph.problem import Problem
from graphtrain.language.syntax import Expression, FieldOf, walk
from graphtrain.plan.flow import Flow, FlowPoint
from graphtrain.plan.solve import Ways


def check_epochs(flow: Flow) -> Iterator[Problem]:
    """Every source that closes epochs, and may be asked in one for the last batch that it gave in the one before."""
    for begin in flow.points:
        if not (begin.acts and begin.kind is not None and begin.kind.begins_epoch and begin.node is not None):
            continue
        runs = FieldOf(begin.node.name, "runs")
        for name, kind in begin.scope.kinds.items():
            if kind is None or (fields := kind.epoch_fields) is None:
                continue
            last, epoch = FieldOf(name, fields.last), FieldOf(name, fields.epoch)
            asked = [guard for point in flow.points if point.scope is begin.scope for guard in _guards(point)]
            closing = any({last, runs} <= {*walk(guard)} for guard in asked)
            way = _asked_before(begin, name, last, epoch) if closing else None
            if way is None:
                continue
            path, guard_name = way
            message = (
                f"the guard `{guard_name}` reads `{name}.{last.field}` before `{name}` has fetched a batch of the "
                "epoch: it is about the epoch before, whose end would close this one too"
            )
            hint = (
                f"let `{begin.node.name}` lead to `{name}` first, and take the other turns after that; or ask whose "
                f"epoch it is, as in `{name}.{last.field} and {name}.{epoch.field} == end_epoch.runs`"
            )
            yield path[-1].problem("G506", message, hint, thing="edges", path=path)


def _guards(point: FlowPoint) -> Iterator[Expression]:
    return (arrow.guard for arrow in point.arrows if arrow.guard is not None)


def _asked_before(begin: FlowPoint, source: str, last: FieldOf, epoch: FieldOf) -> tuple[list[FlowPoint], str] | None:
    """A shortest path from the beginning of an epoch, past no visit of a source, to a guard that asks for its last."""

    def following(point: FlowPoint) -> Iterator[FlowPoint]:
        for target in (arrow.target for arrow in point.arrows):
            if not (target.scope is begin.scope and target.node is not None and target.node.name == source):
                yield target

    ways = Ways([begin], following)
    for point in ways:
        for arrow in point.arrows:
            parts = {*walk(arrow.guard)} if arrow.guard is not None and point.scope is begin.scope else set()
            if last in parts and epoch not in parts:
                return ways.to(point), arrow.asks[0]
    return None
