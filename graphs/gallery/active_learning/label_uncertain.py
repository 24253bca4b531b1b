"""Labels are asked for where a model is least sure: the choice of active learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from graphtrain import Above, UsageError, node

Count = Annotated[int, Above(0)]
Chosen = Sequence[tuple[float, int]] | None
Numbers = Sequence[int] | None


@node(writes=("labelled", "chosen"), synchronises=True, family="data")
def label_uncertain(
    samples: int, seen: int, pool_data: Any, scores: Any = None, indices: Numbers = None, chosen: Chosen = None,
    ranks: Any = None, *, count: Count = 10,
) -> tuple[list[int], Chosen]:  # fmt: skip
    """Choose the samples of a pool with the highest scores that have no label so far, while the pool is gone through.

    Uncertainty sampling: the score of a sample is how unsure the model is of it, such as the entropy of its prediction.
    Of several ranks, each scores its own batches, and all choose the same.
    Source: Settles, "Active learning literature survey", 2009. The graph `active_learning` has it.

    Reads:
        samples: how many samples the batch has; none where the rank has no batch in this round.
        seen: how many samples of the pool were scored, those of the batch included.
        pool_data: a `graphtrain.Loader` of the pool, in its order: the number of a sample is its place.
        scores: of each sample of the batch, a tensor with one dimension; ``eval_batch`` writes it where `pool_step`
            returns it by that name. Default: no batch was scored.
        indices: the numbers that have a label already. Default: none has.
        chosen: what the batches before have led to. Default: this is the first one.

    Arguments:
        count: how many more samples are labelled at the end of the pool, or all that are left. Default: 10.

    Writes:
        labelled: `indices`, and the numbers with the highest scores so far.
        chosen: these, each behind its score.

    Raises:
        UsageError: `pool_data` is empty or in no known order, or there is not one score for each sample.

    >>> import torch
    >>> from graphtrain import Graph, Loader
    >>> pool_data = Loader(torch.rand(3, 2), batch_size=1)
    >>> def pool_step(model, batch):
    ...     return {"unsure": batch.mean(), "scores": batch.mean(1)}
    >>> graph = Graph.load("active_learning").set("query/label_uncertain", count=1).remove("renew")  # one model
    >>> graph.check()
    []
    """
    if getattr(pool_data, "shuffle", True) or pool_data.sampler is not None or not len(pool_data):
        raise UsageError("`pool_data` has no samples in a known order", "pass a graphtrain.Loader of some, unshuffled")
    if samples and scores.shape != (samples,):
        raise UsageError(f"`scores` has the shape {list(scores.shape)} for {samples} samples", "return one for each")
    values = scores.tolist() if samples else []
    new = [score for part in (ranks.gather(values) if ranks is not None else [values]) for score in part]
    scored = dict(enumerate(new, seen - len(new)))
    added = ((scored[number], number) for number in scored.keys() - {*(indices or ())})
    chosen = sorted([*(chosen or ()), *added], reverse=True)[:count]
    return [*(indices or ()), *(number for _, number in chosen)], chosen
