"""A run cut at transitions and resumed in new trainers equals the run that was never cut."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import torch

from graphtrain import Trainer

MakeTrainer = Callable[..., Trainer]


def assert_cuts_are_exact(make: MakeTrainer, cuts: Iterable[int]) -> Trainer:
    """Compare digests and weights; the trainer that was never cut.

    Arguments:
        make: a trainer of one and the same run; takes `run_dir`.
        cuts: how many transitions come before each cut.
    """
    whole = make(run_dir=None)
    whole.run()
    for cut in cuts:
        with tempfile.TemporaryDirectory() as folder:
            first = make(run_dir=folder)
            first.advance(cut)
            first.save()
            second = make(run_dir=folder)
            second.run()
            assert second.digest() == whole.digest(), f"cut before {first.position}"
            assert_same(weights(second), weights(whole))
    return whole


def weights(trainer: Trainer) -> dict[str, Any]:
    """The weights of the model, copied."""
    return {name: value.detach().clone() for name, value in trainer.resources["model"].state_dict().items()}


def assert_same(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Equal to the last bit."""
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name
