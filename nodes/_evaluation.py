"""What an evaluation would change, set aside and put back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from graphtrain.metrics.recorder import Recorder
from graphtrain.state.random import capture_random, restore_random, seed_everything


def set_aside(model: torch.nn.Module, recorder: Recorder, split: str, seed: int | None) -> dict[str, Any]:
    """Put `model` into evaluation mode and seed the random numbers; returns the modes and numbers of the training."""
    modes = {name: module.training for name, module in model.named_modules()}
    training_state = {"modes": modes, "random": capture_random()}
    model.eval()
    if seed is not None:
        seed_everything(seed)
    recorder.means(split, ("whole",)).clear()
    return training_state


def put_back(
    model: torch.nn.Module,
    split: str,
    training_state: Mapping[str, Any],
    recorder: Recorder,
    notify: Callable[[str], None] | None,
) -> dict[str, float]:
    """Put back what `set_aside` returned, and record the means, which are returned."""
    metrics = {f"{split}/{name}": value for name, value in recorder.means(split).take("whole").items()}
    put_back_modes(model, training_state)
    if metrics:
        recorder.row(metrics)
    elif notify is not None:
        notify(f"nothing was recorded as `{split}/...`: there was no batch to evaluate, or it gave no metrics")
    return metrics


def put_back_modes(model: torch.nn.Module, training_state: Mapping[str, Any]) -> None:
    """Put back the modes and the random numbers that `set_aside` returned."""
    for name, module in model.named_modules():
        module.training = training_state["modes"].get(name, True)
    restore_random(training_state["random"])
