"""The metric objects that a user supplies: what they have to be, and which of them a graph does not update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from graphtrain.errors import UsageError
from graphtrain.names import quoted
from graphtrain.report.values import described

if TYPE_CHECKING:
    from graphtrain.program.bind import Program

_METHODS = ("update", "compute", "reset")
_EPOCH = "epoch/"
_USUAL = ("val/", "test/")  # of graphs that the same `setup` may serve as well


def checked(objects: Any) -> Mapping[str, Any]:
    """The metric objects of a run.

    Raises:
        UsageError: they are no mapping of objects with `update`, `compute` and `reset`, or one has two names.
    """
    if not isinstance(objects, Mapping) or not all(isinstance(name, str) for name in objects):
        hint = 'give each object a name, as in metric_objects={"val/f1": F1Score(...)}'
        raise UsageError(f"`metric_objects` must be a mapping of names; got {described(objects)}", hint)
    names: dict[int, str] = {}
    for name, value in objects.items():
        if isinstance(value, type) or not all(callable(getattr(value, method, None)) for method in _METHODS):
            raise UsageError(
                f"`metric_objects` has `{name}`, {described(value)}",
                "pass an object with `update`, `compute` and `reset`, as a metric of torchmetrics has them",
            )
        if (other := names.setdefault(id(value), name)) != name:
            raise UsageError(
                f"`{other}` and `{name}` are one metric object, which would mix what both have seen",
                "make two: `clone()` of torchmetrics, or copy.deepcopy",
            )
    return objects


def not_updated(objects: Mapping[str, Any], program: Program) -> Iterator[str]:
    """A line about the metric objects that no node of a graph updates, if there are any."""
    nodes = [node for node in program.plan.nodes if node.kind.records]
    splits = {f"{node.parameters[node.kind.records]}/" for node in nodes}
    training = {node.metric_prefix for node in program.nodes if node.is_set_up_with("metric_prefix")}
    starts = {*training, *(f"{_EPOCH}{prefix}" for prefix in training)}
    unknown = [
        name
        for name in objects
        if not name.startswith((*splits, *_USUAL))
        and not any(name.startswith(start) and "/" not in name.removeprefix(start) for start in starts)
    ]
    if unknown:
        known = quoted(sorted({*splits, *starts} - {""}))
        yield f"nothing updates the metric objects {quoted(unknown)}: names begin with {known}, or have no slash"
