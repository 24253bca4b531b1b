"""The end of an evaluation: its metrics are recorded, and the state of training is restored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from graphtrain.kind import node
from graphtrain.lazy import lazy_import
from graphtrain.names import plainly_named

if TYPE_CHECKING:
    from torch.nn import Module

    from graphtrain.nodes import _metric_objects as objects_of
    from graphtrain.program.agreement import Agreement
    from graphtrain.report.recorder import Recorder
    from graphtrain.state import generators as random
else:
    random = lazy_import("graphtrain.state.generators")
    objects_of = lazy_import("graphtrain.nodes._metric_objects")

# Separates the name of a loader from that of its metric, among the means; names that people choose do not contain it.
_OF_LOADER = "\x1f"


@node(writes="metrics", effects="train", synchronises=True)
def end_evaluation(
    model: Any,
    split: str,
    training_state: dict[str, Any],
    recorder: Recorder,
    notify: Callable[[str], None] | None = None,
    metric_objects: Mapping[str, Any] | None = None,
    ranks: Agreement | None = None,
) -> dict[str, float]:
    """Record the means, and restore the training modes and the random states.

    With several loaders, the means of each loader are recorded under its name, together with their unweighted mean. An
    evaluation without metrics, for example because the data is empty, records no row; this is reported once.

    Reads:
        metric_objects: the values of those updated by `eval_batch`, over all ranks, are recorded in the same row.
            Default: none.

    Writes:
        metrics: a mapping from names to means over samples, as Python numbers: ``{"val/loss": 0.31}``.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("evaluate")
    >>> graph.outputs
    ('metrics',)
    """
    means = _over_loaders(recorder.means(split).take("whole"))
    metrics = {f"{split}/{name}": value for name, value in means.items()}
    if metric_objects:
        metrics |= objects_of.recorded(metric_objects, split, recorder, ranks, metrics)
    put_back(model, training_state)
    if metrics:
        recorder.row(metrics)
    elif notify is not None:
        notify(f"nothing was recorded as `{split}/...`: there was no batch to evaluate, or it gave no metrics")
    return metrics


def put_back(model: Module, training_state: Mapping[str, Any]) -> None:
    """Restore what `begin_evaluation` has saved: training modes, buffers and random states.

    Call it in your own kind that replaces `end_evaluation`.

    Arguments:
        model: the module that was evaluated.
        training_state: the slot that `begin_evaluation` has written.

    >>> from graphtrain import Graph
    >>> @node(writes="metrics", effects="train", synchronises=True)
    ... def end_quietly(model, training_state):
    ...     put_back(model, training_state)
    ...     return {}
    >>> Graph.load("evaluate").replace("end_evaluation", end_quietly).check()
    []
    """
    buffers = training_state.get("buffers", {})
    for name, buffer in plainly_named(model.named_buffers()):
        if name in buffers and buffers[name].shape == buffer.shape:  # a cache may have grown
            buffer.detach().copy_(buffers[name])
    momenta = training_state.get("momentum", {})  # of layers whose statistics were recomputed
    for name, module in plainly_named(model.named_modules()):
        module.training = training_state["modes"].get(name, True)
        if name in momenta:
            module.momentum = momenta[name]
    random.restore_random(training_state["random"])


def of_loader(loader: str, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metrics of one of several loaders, under names that begin with the name of the loader."""
    return {f"{loader}{_OF_LOADER}{name}": value for name, value in metrics.items()}


def _over_loaders(means: Mapping[str, float]) -> dict[str, float]:
    """The means as they are recorded: those of each loader, and their mean over the loaders.

    >>> _over_loaders(of_loader("clean", {"loss": 1.0}) | of_loader("noisy", {"loss": 3.0, "f1/macro": 0.5}))
    {'clean/loss': 1.0, 'noisy/loss': 3.0, 'noisy/f1/macro': 0.5, 'loss': 2.0, 'f1/macro': 0.5}
    """
    recorded, values = {}, dict[str, list[float]]()
    for text, value in means.items():
        loader, mark, name = text.rpartition(_OF_LOADER)
        recorded[f"{loader}/{name}" if mark else text] = value
        if mark:
            values.setdefault(name, []).append(value)
    return recorded | {name: sum(of_loaders) / len(of_loaders) for name, of_loaders in values.items()}
