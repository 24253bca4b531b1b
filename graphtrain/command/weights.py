"""What `graphtrain export` does: the weights of a run in a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from graphtrain.command.set_up import SUFFIX
from graphtrain.errors import UsageError
from graphtrain.names import quoted, suggestion
from graphtrain.storage.manifest import Manifest, read_manifest
from graphtrain.storage.named import checkpoint_folder, newest_in
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER
from graphtrain.storage.state_files import Sections
from graphtrain.storage.value_types import TYPES
from graphtrain.storage.weight_files import StoredTensor, stored_weights, write_weights

Stored = Callable[[Any], StoredTensor | None]


def export_weights(run: Path, path: Path, model: str | None, notify: Callable[[str], None]) -> str:
    """Write the weights of the models in a checkpoint to a file, one after the other; returns a line about it.

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
    folder = checkpoint_folder(run, notify=notify, hint="name a run directory, or a checkpoint in one")
    is_run = (folder / CHECKPOINTS_FOLDER).is_dir()
    checkpoint, sections, stored = newest_in(folder, _read, notify) if is_run else _read(folder, read_manifest(folder))
    tensors = _named_weights(checkpoint, sections, stored, model)
    other = next((name for name, tensor in tensors.items() if tensor.like.dtype not in TYPES), None)
    if other is not None:
        raise UsageError(f"`{other}` is of {tensors[other].like.dtype}, which no file of safetensors can hold")
    try:
        write_weights(path, tensors)
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {error.strerror}") from None
    count = sum(tensor.like.numel() for tensor in tensors.values())
    return f"wrote {path}: {len(tensors)} tensors, {count:,} numbers, of {checkpoint.name}"


def _read(path: Path, manifest: Manifest) -> tuple[Path, Sections, Stored]:
    return path, *stored_weights(path, manifest)


def _named_weights(path: Path, sections: Sections, stored: Stored, model: str | None) -> dict[str, StoredTensor]:
    """The tensors in the state of each model, by name, after the name of the model if there are several."""
    states = {name: sections["resources"].get(name, {}) for name in sections["modules"]}
    if not states:
        raise UsageError(f"`{path}` has no model", "its run has none")
    if model is not None and model not in states:
        hint = suggestion(model, states) or f"there are: {quoted(states)}"
        raise UsageError(f"--model: the run has no model `{model}`", hint)
    chosen = [model] if model is not None else [*states]
    weights = {}
    for owner in chosen:
        for name, value in states[owner].items():
            full_name = name if len(chosen) == 1 else f"{owner}.{name}"
            if isinstance(value, torch.Tensor) and value.layout is not torch.strided:
                raise UsageError(
                    f"`{full_name}` is of {value.layout}, which no file of weights can hold", "make it dense"
                )
            if (tensor := stored(value)) is not None:
                weights[full_name] = tensor
    return weights
