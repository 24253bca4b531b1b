"""Lightning's Trainer over a loader that keeps its own position: torchdata's, which Lightning saves and restores."""

from __future__ import annotations

import functools
from typing import Any

from torch.utils.data import RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.resume.peers import with_lightning
from tests.resume.peers.setup import loader_of


def stateful(data: Any) -> Any:
    """The row's loader as a StatefulDataLoader."""
    loader = loader_of(data)
    return StatefulDataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        shuffle=isinstance(loader.sampler, RandomSampler),
        generator=loader.generator,
        collate_fn=loader.collate_fn,
    )


train = functools.partial(with_lightning.train, made=stateful)
