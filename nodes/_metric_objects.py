"""Metric objects, such as those of torchmetrics: updated with each batch, computed when a row is recorded."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, final

from graphtrain.errors import UsageError
from graphtrain.lazy import lazy_import
from graphtrain.names import quoted
from graphtrain.report.values import Sum, described, is_number

if TYPE_CHECKING:
    import torch
    from safetensors import torch as safetensors

    from graphtrain.program import resources
    from graphtrain.program.agreement import Agreement
    from graphtrain.report.recorder import Means, Recorder
    from graphtrain.storage import encoding
else:
    torch = lazy_import("torch")
    safetensors = lazy_import("safetensors.torch")
    resources = lazy_import("graphtrain.program.resources")
    encoding = lazy_import("graphtrain.storage.encoding")

LOG, EPOCH = "log", "epoch"  # when the objects of the training are recorded
_KEPT = "loss"  # a returned value that remains the loss of the batch, even if an object takes it
_WHOLE = "whole"


@final
class MetricObjects:
    """The metric objects that one node updates, chosen by the prefixes of their names."""

    def __init__(self, objects: Mapping[str, Any], prefixes: Mapping[str, str], recorder: Recorder) -> None:
        inputs = {name: inputs_of(value) for name, value in objects.items()}
        self._inputs = {name for names in inputs.values() for name in names} - {_KEPT}
        self._updated: list[tuple[str, Any, Mapping[str, bool], Means]] = []
        for name, value in objects.items():
            for prefix, owner in sorted(prefixes.items(), reverse=True):  # "epoch/" before ""
                inner = name.removeprefix(prefix)
                if name.startswith(prefix) and (owner not in (LOG, EPOCH) or "/" not in inner):
                    self._updated.append((name, value, inputs[name], updates_of(recorder, owner)))
                    break

    def update(self, result: Any, function: str) -> Any:
        """Update the objects with a result of `function`; returns the result without the values that objects take."""
        returned = result if isinstance(result, Mapping) else {}
        for name, value, inputs, updates in self._updated:
            if missing := [each for each, is_required in inputs.items() if is_required and each not in returned]:
                got = quoted(map(str, returned)) if returned else described(result)
                raise UsageError(
                    f"the metric object `{name}` is updated with {quoted(missing)}; `{function}` returned {got}",
                    "return what its `update` takes, by name, besides the loss",
                )
            with torch.no_grad():
                value.update(**{each: resources.detached(returned[each]) for each in inputs if each in returned})
            updates.add({name: Sum(1)}, 1)
        return self.drop_inputs(result)

    def drop_inputs(self, result: Any) -> Any:
        """A result without the values that objects take, whichever node updates them."""
        if not isinstance(result, Mapping):
            return result
        return {name: value for name, value in result.items() if name not in self._inputs}


def updates_of(recorder: Recorder, owner: str) -> Means:
    """The number of updates of each object since its values were last recorded."""
    return recorder.means(f"updates of {owner}", (_WHOLE,))


def recorded(
    objects: Mapping[str, Any],
    owner: str,
    recorder: Recorder,
    ranks: Agreement | None,
    other_names: Collection[str] = (),
    *,
    ends: bool = True,
) -> dict[str, float]:
    """The values of all objects of `LOG`, `EPOCH` or an evaluation that were updated since they were last recorded.

    `other_names` are the other metrics of the row, whose names must differ; `ends` resets the objects.
    """
    updated = updates_of(recorder, owner).take(_WHOLE, ends=ends)
    chosen = {name: value for name, value in objects.items() if name in updated}
    whole = joined(chosen, ranks) if chosen and ranks is not None else chosen
    metrics: dict[str, float] = {}
    for name, value in whole.items():
        for metric, number in named_values(name, value.compute()):
            if metric in metrics or metric in other_names:
                raise UsageError(
                    f"two metrics are called `{metric}`: one is from the metric object `{name}`",
                    "give one of them another name",
                )
            metrics[metric] = number
    for value in chosen.values() if ends else ():
        value.reset()
    return metrics


def named_values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The metrics in what an object has computed: a number, a vector of numbers, or a mapping of these.

    >>> dict(named_values("f1", {"macro": 0.5, "each": [0.25, 0.75]}))
    {'f1/macro': 0.5, 'f1/each/0': 0.25, 'f1/each/1': 0.75}
    """
    is_prefix = not name or name.endswith("/")
    is_vector = isinstance(value, torch.Tensor) and value.ndim == 1 and value.numel() > 1
    if is_vector or (isinstance(value, list | tuple) and value and all(map(is_number, value))):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from named_values(f"{name}{key}" if is_prefix else f"{name}/{key}", inner)
    elif is_prefix or not is_number(value):
        raise UsageError(
            f"the metric object `{name}` computed {described(value)}; expected a number, a vector or a mapping",
            "use a name that does not end in a slash" if is_prefix else "wrap it in a subclass with another `compute`",
        )
    else:
        yield name, value


def inputs_of(value: Any) -> dict[str, bool]:
    """The names of the arguments of an object's `update`, and whether each is required.

    An `update` with ``**kwargs``, as of a collection, takes what the modules in the object take.
    """
    inputs: dict[str, bool] = {}
    parameters = inspect.signature(value.update).parameters.values()
    for each in parameters:
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            inputs[each.name] = each.default is each.empty
    if any(each.kind is each.VAR_KEYWORD for each in parameters) and isinstance(value, torch.nn.Module):
        for inner in value.children():
            inner_inputs = inputs_of(inner) if hasattr(inner, "update") else {}
            inputs |= {name: is_required or inputs.get(name, False) for name, is_required in inner_inputs.items()}
    return inputs


def joined(objects: Mapping[str, Any], ranks: Agreement) -> dict[str, Any]:
    """Copies of torchmetrics' objects with the states of all ranks, joined in the order of ranks.

    Their own synchronization aborts the process if a rank has seen no batch.
    """
    states: dict[str, Any] = {}
    for name, value in objects.items():
        metrics = _metrics_in(value)
        states[name] = {path: {"": metric.update_count, **metric.metric_state} for path, metric in metrics.items()}
        if not metrics:
            raise UsageError(
                f"the metric object `{name}`, a {type(value).__name__}, has seen only the batches of its own rank",
                "make it a subclass of torchmetrics.Metric, whose states are joined over ranks",
            )
    tensors = encoding.Tensors("states")
    data = encoding.pack(states, "metric_objects", tensors)
    named = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.named.items()}
    gathered = ranks.gather([data, safetensors.save(named)])
    of_ranks = [encoding.unpack(each, safetensors.load(saved)) for each, saved in gathered]
    whole = copy.deepcopy(dict(objects))
    for name, value in whole.items():
        value.reset()
        for path, metric in _metrics_in(value).items():
            metric.distributed_available_fn = None  # it must not gather again by itself
            # Ranks without an update have initial states, which the mean of a state would count.
            seen = [each[name][path] for each in of_ranks if each[name][path][""]]
            metric._update_count = sum(state[""] for state in seen)
            for state, reduction in metric._reductions.items():
                values = [each[state] for each in seen]
                if isinstance(metric._defaults[state], list):
                    lists = (value if isinstance(value, list) else [value] for value in values)
                    setattr(metric, state, [part.to(metric.device) for parts in lists for part in parts])
                elif values:
                    stacked = torch.stack([value.to(metric.device) for value in values])
                    setattr(metric, state, reduction(stacked) if reduction is not None else stacked)
    return whole


def _metrics_in(value: Any) -> dict[str, Any]:
    """The metrics of torchmetrics in an object, by their paths in it."""
    named = value.named_modules() if isinstance(value, torch.nn.Module) else ()
    return {path: module for path, module in named if hasattr(module, "_reductions")}
