"""The minibatches for one epoch over a rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from graphtrain import Above, lazy_import, node

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Rollout = dict[str, Tensor]
else:
    torch = lazy_import("torch")


Count = Annotated[int, Above(0)]


@node(writes="minibatches", family="data")
def shuffle_rollout(rollout: Rollout, *, batch_size: Count = 64) -> list[Rollout]:
    """Divide a rollout into minibatches, shuffled at each visit; `next_batch` reads them as its data.

    The graph `ppo` uses this kind.

    Reads:
        rollout: a mapping of tensors whose first dimension is the samples, as `collect_rollout` writes it.

    Arguments:
        batch_size: samples per minibatch; the last one may have fewer. Default: 64.

    Writes:
        minibatches: a list of such mappings, one for each minibatch.

    >>> import torch
    >>> from graphtrain import Graph
    >>> rollout = {"advantages": torch.rand(5, 2)}
    >>> def training_step(model, batch):
    ...     return model.training_step(batch["advantages"])
    >>> def validation_step(model, batch):
    ...     return model.training_step(batch)
    >>> graph = Graph.load("fit").insert("shuffle_rollout", before="next_batch", batch_size=2)
    >>> graph = graph.set("next_batch", reads={"train_data": "minibatches"})
    >>> graph.check()
    []
    """
    order = torch.randperm(len(next(iter(rollout.values()))))
    return [{name: column[part] for name, column in rollout.items()} for part in torch.split(order, batch_size)]
