"""Active learning: choose the samples to label that the model is least sure of."""

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
    """Choose the unlabelled samples of a pool with the highest scores, batch by batch.

    Uncertainty sampling: the score of a sample is how unsure the model is of it, such as the entropy of its prediction.
    With several ranks, each scores its own batches, and all choose the same samples.
    Source: Settles, "Active learning literature survey", 2009. The graph `active_learning` uses this kind.

    Reads:
        samples: number of samples in the batch; None on a rank without a batch in this round.
        seen: number of samples of the pool scored so far, including this batch.
        pool_data: a `graphtrain.Loader` of the pool, not shuffled, so that samples can be identified by their index.
        scores: the scores of the samples of the batch, a 1-D tensor; ``eval_batch`` writes it if `pool_step` returns it
            under that name. Default: no batch was scored.
        indices: indices of the samples that already have a label. Default: none.
        chosen: the result for the previous batches. Default: this is the first batch.

    Arguments:
        count: number of samples to label at the end of the pool, or all that are left. Default: 10.

    Writes:
        labelled: `indices`, followed by the indices with the highest scores so far.
        chosen: pairs of a score and such an index.

    Raises:
        UsageError: `pool_data` is empty or shuffled, or there is not one score for each sample.

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
