"""The length of an epoch of data, without fetching any of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from graphtrain.data.loaders import loaders_of
from graphtrain.data.samplers import samples_per_batch


class EpochLength(NamedTuple):
    """What one epoch of data holds.

    Attributes:
        batches: how many.
        samples: in each of them; None where that is not known.
        last: samples in the last one.
    """

    batches: int
    samples: int | None = None
    last: int | None = None


def epoch_length(data: Any) -> EpochLength | dict[str, EpochLength | None] | None:
    """The batches of an epoch, and the samples in them as far as that is known; None for data without a length.

    Of a mapping of loaders, those of each.

    >>> epoch_length([1, 2, 3])
    EpochLength(batches=3, samples=None, last=None)
    >>> from graphtrain import Loader
    >>> epoch_length(Loader(range(10), batch_size=4))
    EpochLength(batches=3, samples=4, last=2)
    """
    if loaders := loaders_of(data):
        return {name: _epoch_length(loader) for name, loader in loaders.items()}
    return _epoch_length(data)


def _epoch_length(data: Any) -> EpochLength | None:
    batches = length_of(data)
    if batches is None:
        return None
    size = samples_per_batch(data)
    samples = length_of(getattr(data, "sampler", None)) or length_of(getattr(data, "dataset", None))
    if size is None or samples is None or not batches:
        return EpochLength(batches)
    last = min(samples - size * (batches - 1), size)
    return EpochLength(batches, size, last) if last > 0 else EpochLength(batches)


def length_of(data: Any) -> int | None:
    """``len(data)``; None where it has none."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):
        return None
