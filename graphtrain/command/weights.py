"""What `graphtrain export` does: the weights of a run in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from graphtrain.errors import UsageError
from graphtrain.names import quoted, suggestion
from graphtrain.storage.manifest import SavedCheckpoint, read_manifest
from graphtrain.storage.named import checkpoint_folder, newest_in
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER
from graphtrain.storage.value_types import TYPES
from graphtrain.storage.weight_files import stored_weights, write_weights


def export_weights(run: Path, path: Path, model: str | None, notify: Callable[[str], None]) -> str:
    """Write the weights of the models in a checkpoint, or of one, to a file; returns a line about it.

    Arguments:
        run: a run directory, whose newest checkpoint is taken, or a checkpoint.
        notify: receives a line for every checkpoint that is skipped.

    Raises:
        UsageError: there is no such run or model, or the file exists.
    """
    if path.suffix != ".safetensors":
        raise UsageError(f"`{path}`: the name must end in .safetensors", "as in weights.safetensors")
    if path.exists():
        raise UsageError(f"`{path}` exists; a file is never overwritten", "choose another name")
    folder = checkpoint_folder(run, notify=notify, hint="name a run directory, or a checkpoint in one")
    if (folder / CHECKPOINTS_FOLDER).is_dir():
        folder = newest_in(folder, SavedCheckpoint.verified, notify).path
    sections, stored = stored_weights(folder, read_manifest(folder))
    states = {name: sections["resources"].get(name, {}) for name in sections["modules"]}
    if not states or (model is not None and model not in states):
        hint = suggestion(model or "", states) or f"there are: {quoted(states)}"
        raise UsageError(f"`{folder}` has no model{f' `{model}`' if model is not None else ''}", hint)
    chosen = [model] if model is not None else [*states]
    tensors = {}
    for owner in chosen:
        for name, value in states[owner].items():
            full_name = name if len(chosen) == 1 else f"{owner}.{name}"
            if (tensor := stored(value)) is None:
                continue
            like, tensors[full_name] = tensor.like, tensor
            if like.layout is not torch.strided or like.dtype not in TYPES:
                kind = like.dtype if like.layout is torch.strided else like.layout
                raise UsageError(f"`{full_name}` is of {kind}, which no file of safetensors can hold")
    try:
        write_weights(path, tensors)
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {error.strerror}") from None
    count = sum(tensor.like.numel() for tensor in tensors.values())
    return f"wrote {path}: {len(tensors)} tensors, {count:,} numbers, of {folder.name}"
