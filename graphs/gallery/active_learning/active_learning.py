"""Active learning on scikit-learn's handwritten digits: 150 labels, chosen where the network is least sure.

    graphtrain run graphs/gallery/active_learning/active_learning.py query/label_uncertain.count=15 \
        fit/finish.after='200 steps' fit/validate.every='200 steps' fit/checkpoint.every=never

In each of ten rounds, a new network is trained with all labels so far; then 15 of 1,437 images are labelled, for which
the probabilities of the two most likely digits are closest.
"""

from typing import Annotated, Any

from graphtrain import Above, UsageError, lazy_import, node

datasets = lazy_import("sklearn.datasets")
torch = lazy_import("torch")
nn = lazy_import("torch.nn")

graph = "active_learning"


@node(writes=("labelled", "chosen"), synchronises=True, family="data")
def label_uncertain(
    samples: int, seen: int, pool_data: Any, scores: Any = None, indices: Any = None, chosen: Any = None,
    ranks: Any = None, *, count: Annotated[int, Above(0)] = 10,
) -> tuple[list[int], list[tuple[float, int]]]:  # fmt: skip
    """Choose the unlabelled samples of a pool with the highest scores, batch by batch.

    Uncertainty sampling: the score of a sample is how unsure the model is of it, such as the entropy of its prediction.
    With several ranks, each scores its own batches, and all choose the same samples.
    Source: Settles, "Active learning literature survey", 2009.

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
        raise UsageError("`pool_data` is empty or shuffled", "supply an unshuffled graphtrain.Loader with samples")
    if samples and scores.shape != (samples,):
        raise UsageError(f"`scores` has the shape {list(scores.shape)} for {samples} samples", "return one for each")
    values = scores.tolist() if samples else []
    new = [score for part in (ranks.gather(values) if ranks is not None else [values]) for score in part]
    scored = dict(enumerate(new, seen - len(new)))
    added = ((scored[number], number) for number in scored.keys() - {*(indices or ())})
    chosen = sorted([*(chosen or ()), *added], reverse=True)[:count]
    return [*(indices or ()), *(number for _, number in chosen)], chosen


def setup() -> dict[str, Any]:
    """The resources of the run."""
    from graphtrain import Loader

    pixels, digits = datasets.load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    labels = torch.tensor(digits)
    train, val = torch.randperm(1797, generator=torch.Generator().manual_seed(0)).split([1437, 360])

    def pool_step(model: Any, batch: Any) -> dict[str, Any]:
        likely = model(batch[0]).softmax(1).topk(2).values
        unsure = likely[:, 1] - likely[:, 0]
        return {"unsure": unsure.mean(), "scores": unsure}

    convolution = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    model = nn.Sequential(convolution, nn.Dropout(0.3), nn.Linear(256, 10))
    pool = torch.utils.data.TensorDataset(images[train], labels[train])
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=5e-3),
        "train_data": Loader(pool, 16, shuffle=True),
        "pool_data": Loader(pool, 500),
        "val_data": [(images[val], labels[val])],
        "training_step": lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        "validation_step": lambda model, batch: {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()},
        "pool_step": pool_step,
    }
