"""What `graphtrain export` does: the weights of a run in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import safetensors
import safetensors.torch
import torch

from graphtrain.command.set_up import SUFFIX
from graphtrain.errors import UsageError
from graphtrain.names import quoted, suggestion
from graphtrain.storage.checkpoint import Checkpoint, read_checkpoint
from graphtrain.storage.named import checkpoint_folder, newest_in
from graphtrain.storage.regular import replace_file
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER


def export_weights(run: Path, path: Path, model: str | None, notify: Callable[[str], None]) -> str:
    """Write the weights of the models in a checkpoint to one file; returns a line about it.

    Arguments:
        run: a run directory, whose newest checkpoint is taken, or a checkpoint.
        model: the name of one. Default: all.
        notify: receives a line for every checkpoint that is skipped.

    Raises:
        UsageError: there is no such run or model, or the file exists.
    """
    if path.suffix != SUFFIX:
        raise UsageError(f"`{path}`: the name of a file of weights must end in {SUFFIX}", "as in weights.safetensors")
    if path.exists():
        raise UsageError(f"`{path}` exists; a file is never overwritten", "choose another name")
    folder = checkpoint_folder(run, notify=notify)
    if not folder.is_dir():
        raise UsageError(f"there is no run `{folder}`", "name a run directory, or a checkpoint in one")
    is_run = (folder / CHECKPOINTS_FOLDER).is_dir()
    newest = newest_in(folder, read_checkpoint, notify, finite_first=True) if is_run else None
    checkpoint = newest or read_checkpoint(folder)
    weights = weights_of(checkpoint, model)
    try:
        replace_file(path, safetensors.torch.save(weights, {"format": "pt"}), flush=True)
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {error.strerror}") from None
    count = sum(tensor.numel() for tensor in weights.values())
    return f"wrote {path}: {len(weights)} tensors, {count:,} numbers, of {checkpoint.path.name}"


def weights_of(checkpoint: Checkpoint, model: str | None = None) -> dict[str, torch.Tensor]:
    """The tensors in the state of each model, by name, after the name of the model if there are several.

    Raises:
        UsageError: there is no such model, or none at all.
    """
    states = {name: checkpoint.sections["resources"].get(name, {}) for name in checkpoint.sections["modules"]}
    if not states:
        raise UsageError(f"`{checkpoint.path}` has no model", "its run has none")
    if model is not None and model not in states:
        hint = suggestion(model, states) or f"there are: {quoted(states)}"
        raise UsageError(f"--model: the run has no model `{model}`", hint)
    chosen = [model] if model is not None else [*states]
    return {
        name if len(chosen) == 1 else f"{owner}.{name}": tensor.detach().cpu().contiguous().clone()
        for owner in chosen
        for name, tensor in states[owner].items()
        if isinstance(tensor, torch.Tensor)
    }
