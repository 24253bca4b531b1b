"""What an evaluation would change, set aside and put back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from graphtrain.metrics.recorder import Recorder
from graphtrain.program.agreement import Agreement
from graphtrain.state.random import capture_random, restore_random, seed_everything

# What stands between the name of a loader and that of its metric, among the means; names that people give have none.
_OF_LOADER = "\x1f"


def of_loader(loader: str, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    """Metrics of one of several loaders, under names that tell so."""
    return {f"{loader}{_OF_LOADER}{name}": value for name, value in metrics.items()}


def set_aside(
    model: torch.nn.Module, recorder: Recorder, split: str, seed: int, ranks: Agreement | None = None
) -> dict[str, Any]:
    """Put `model` into evaluation mode and seed the random numbers; returns the modes and numbers of the training.

    With `ranks` all of them get the buffers of rank 0, and those that the others had are returned too.
    """
    modes = {name: module.training for name, module in model.named_modules()}
    training_state: dict[str, Any] = {"modes": modes, "random": capture_random()}
    if ranks is not None:
        buffers = dict(model.named_buffers())
        training_state["buffers"] = {name: each.detach().clone() for name, each in buffers.items() if ranks.rank}
        ranks.exchange((), buffers)
    model.eval()
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
    """Put back what `set_aside` returned, and record the means, which are returned.

    Of several loaders those of each are recorded under its name, and their mean, in which each loader counts alike.
    """
    taken = recorder.means(split).take("whole")
    means = _over_loaders(taken)
    metrics = {f"{split}/{name}": value for name, value in means.items()}
    if notify is not None and (of_several := [text.split(_OF_LOADER) for text in taken if _OF_LOADER in text]):
        loaders, names = (list(dict.fromkeys(parts)) for parts in zip(*of_several, strict=True))
        means_of_all = ", ".join(f"{split}/{name}" for name in names)
        notify(f"{means_of_all}: the mean over the loaders {', '.join(loaders)}, in which each counts alike")
    put_back_modes(model, training_state)
    if metrics:
        recorder.row(metrics)
    elif notify is not None:
        notify(f"nothing was recorded as `{split}/...`: there was no batch to evaluate, or it gave no metrics")
    return metrics


def put_back_modes(model: torch.nn.Module, training_state: Mapping[str, Any]) -> None:
    """Put back the modes, buffers and random numbers of the training, and the momentum of batch normalization."""
    own = training_state.get("buffers", {})
    for name, buffer in model.named_buffers():
        if name in own and own[name].shape == buffer.shape:  # a cache may have grown
            buffer.detach().copy_(own[name])
    momenta = training_state.get("momentum", {})  # where statistics were computed
    for name, module in model.named_modules():
        module.training = training_state["modes"].get(name, True)
        if name in momenta:
            module.momentum = momenta[name]
    restore_random(training_state["random"])


def _over_loaders(means: Mapping[str, float]) -> dict[str, float]:
    """The means as they are recorded.

    >>> _over_loaders(of_loader("clean", {"loss": 1.0}) | of_loader("noisy", {"loss": 3.0, "f1/macro": 0.5}))
    {'clean/loss': 1.0, 'noisy/loss': 3.0, 'noisy/f1/macro': 0.5, 'loss': 2.0, 'f1/macro': 0.5}
    """
    recorded, values = {}, dict[str, list[float]]()
    for text, value in means.items():
        loader, mark, name = text.rpartition(_OF_LOADER)
        recorded[f"{loader}/{name}" if mark else text] = value
        if mark:
            values.setdefault(name, []).append(value)
    return recorded | {name: sum(of_loaders) / len(of_loaders) for name, of_loaders in values.items()}
