"""What a user's step function may return."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from graphtrain.errors import UsageError
from graphtrain.kind.declaration import Ask
from graphtrain.lazy import lazy_import
from graphtrain.report.values import check_metric, check_names, described, detached

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


def without_ask(result: Any, asks: Callable[[Ask], None] | None) -> Any:
    """What a step function returned beside STOP or END_EPOCH, which is asked for; the result itself where it has none.

    Arguments:
        asks: by which it asks. None: by a kind that is called outside of a run.
    """
    if isinstance(result, Ask):
        result = (None, result)
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Ask)):
        return result
    if asks is not None:
        asks(result[1])
    return result[0]


def loss_and_metrics(result: Any, function: str) -> tuple[torch.Tensor, Mapping[str, Any]]:
    """The loss of a step function's result, and its other metrics.

    Raises:
        UsageError: the result is neither a scalar tensor nor a mapping with a scalar tensor `loss`.
    """
    if isinstance(result, torch.Tensor) and result.ndim == 0:
        return result, {}
    if isinstance(result, Mapping):
        loss = result.get("loss")
        if isinstance(loss, torch.Tensor) and loss.ndim == 0:
            metrics = {name: value for name, value in result.items() if name != "loss"}
            check_names(metrics, f"`{function}` returned")
            return loss, metrics_of(metrics, function)
        returned = (
            "a mapping without `loss`" if "loss" not in result else f"a mapping whose `loss` is {described(loss)}"
        )
    elif isinstance(result, Ask):
        raise UsageError(f"`{function}` returned {result!r} alone", f"return the loss too: return loss, {result!r}")
    else:
        returned = described(result)
    raise UsageError(
        f"`{function}` must return a scalar loss, or a mapping with `loss`; it returned {returned}",
        "set train_batch.skip_none = true if batches for which it returns None are to be skipped"
        if result is None
        else "",
    )


def count_and_metrics(result: Mapping[str, Any], name: str, samples: int, function: str) -> tuple[Any, dict[str, Any]]:
    """How many the loss of a result is a sum over, a number or a scalar tensor, and what else it holds.

    Arguments:
        name: that of the count; "samples" is `samples` where the result does not have it.

    Raises:
        UsageError: there is no count, or it cannot be one.
    """
    rest = dict(result)
    count = rest.pop(name, samples if name == "samples" else None)
    if count is None:
        raise UsageError(
            f"`{function}` returned no `{name}`, over which its loss is a sum",
            f'return it too, as in {{"loss": loss, "{name}": ...}}; or set per = "samples", which needs nothing',
        )
    if isinstance(count, torch.Tensor):
        return detached(count).reshape(()), rest
    if not 0 <= count < math.inf:
        raise UsageError(f"`{function}` returned {name} = {count}", "it is how many the loss is a sum over")
    return count, rest


def metrics_of(result: Mapping[str, Any], function: str) -> Mapping[str, Any]:
    """The metrics of a step function's result, which they all are.

    Raises:
        UsageError: one is neither a number nor a scalar tensor; raised at the first batch, not when a mean is taken.
    """
    for name, value in result.items():
        check_metric(name, value, f"`{function}` returned")
    return result
