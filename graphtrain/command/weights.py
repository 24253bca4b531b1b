"""Weights in files: `graphtrain export` writes those of a run, and `--init` loads some before the run begins."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from graphtrain.command.run_directories import newest_in
from graphtrain.errors import UsageError
from graphtrain.names import quoted, suggestion
from graphtrain.state.weights import dtype_and_shape, misfits
from graphtrain.storage.checkpoint import Checkpoint
from graphtrain.storage.regular import replace_file
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER, checkpoint_folder
from graphtrain.storage.run_files import named_checkpoint

_SUFFIX = ".safetensors"
_PICKLED = {".pt", ".pth", ".bin", ".ckpt", ".pkl"}


def export_weights(run: Path, path: Path, model: str | None, notify: Callable[[str], None]) -> str:
    """Write the weights of the models in a checkpoint to one file; returns a line about it.

    Arguments:
        run: a run directory, whose newest checkpoint is taken, or a checkpoint.
        model: the name of one. Default: all.
        notify: receives a line for every checkpoint that is skipped.

    Raises:
        UsageError: there is no such run or model, or the file exists.
    """
    if path.suffix != _SUFFIX:
        raise UsageError(f"`{path}`: the name of a file of weights must end in {_SUFFIX}", "as in weights.safetensors")
    if path.exists():
        raise UsageError(f"`{path}` exists; a file is never overwritten", "choose another name")
    checkpoint = _checkpoint(checkpoint_folder(run, notify), notify)
    weights = weights_of(checkpoint, model)
    try:
        replace_file(path, safetensors.torch.save(weights, {"format": "pt"}), flush=True)
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {error.strerror}") from None
    count = sum(tensor.numel() for tensor in weights.values())
    return f"wrote {path}: {len(weights)} tensors, {count:,} numbers, of {checkpoint.path.name}"


def _checkpoint(run: Path, notify: Callable[[str], None]) -> Checkpoint:
    if not run.is_dir():
        raise UsageError(f"there is no run `{run}`", "name a run directory, or a checkpoint in one")
    if not (run / CHECKPOINTS_FOLDER).is_dir():
        return named_checkpoint(run)
    return newest_in(run, notify)


def weights_of(checkpoint: Checkpoint, model: str | None = None) -> dict[str, torch.Tensor]:
    """The tensors in the state of each model, by their names there, behind that of the model if there are several.

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


# ---- --init


def warm_start(resources: Mapping[str, Any], texts: Iterable[str]) -> list[str]:
    """Load every ``NAME=FILE`` into the module `NAME`, strictly; returns a line of text for each. It is not a resume.

    Raises:
        UsageError: there is no such module or file, the file is not safetensors, or names or shapes do not match.
    """
    return [_load(resources, *named_weights(text)) for text in texts]


def named_weights(text: str) -> tuple[str, Path]:
    """The name and the file of ``NAME=FILE``; of a checkpoint, ``RUN/best`` and ``RUN/newest`` among them, its own.

    Raises:
        UsageError: it has another form, or there is no such file.
    """
    name, equals, file = text.partition("=")
    if not equals or not name.isidentifier() or not file:
        raise UsageError(f"--init: expected NAME=FILE, got `{text}`", "as in --init model=weights.safetensors")
    path = checkpoint_folder(Path(file))
    # In a checkpoint of several processes it is a part, which an export joins with the others.
    if path.is_dir() and (path / f"{name}{_SUFFIX}").is_file() and not any(path.glob(f"{name}.[0-9]*{_SUFFIX}")):
        path = path / f"{name}{_SUFFIX}"
    if path.suffix in _PICKLED:
        raise UsageError(
            f"--init: `{file}` is a pickled file, which can run any code when it is loaded",
            "save it with safetensors: safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')",
        )
    if not path.is_file():
        hint = f"graphtrain export {path} weights.safetensors writes the weights of a run to a file"
        raise UsageError(f"--init: there is no file `{file}`", hint if path.is_dir() else "")
    return name, path


def _load(resources: Mapping[str, Any], name: str, path: Path) -> str:
    modules = {key: module for key, module in resources.items() if isinstance(module, torch.nn.Module)}
    if name not in modules:
        raise UsageError(f"--init: there is no module `{name}`", suggestion(name, modules))
    try:
        saved = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise UsageError(f"--init: `{path}` cannot be read as safetensors: {error}") from None
    if problems := misfits(modules[name], saved):
        raise UsageError(f"--init: `{path}` does not match `{name}`:\n{problems}")
    modules[name].load_state_dict(saved, strict=False)  # strict except for the other names of tied parameters
    return f"--init: `{name}` has the weights of {path}, unless the run continues from a checkpoint"


def fingerprints(resources: Mapping[str, Any]) -> dict[str, str]:
    """Module -> the beginning of a hash of a few elements of each of its tensors: other weights, another fingerprint.

    >>> fingerprints({"model": torch.nn.Linear(2, 1), "lr": 0.1}).keys()
    dict_keys(['model'])
    """
    return {name: _fingerprint(value) for name, value in resources.items() if isinstance(value, torch.nn.Module)}


def _fingerprint(module: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    with torch.no_grad():
        for key, tensor in module.state_dict().items():
            digest.update(key.encode())
            with suppress(Exception):  # a tensor of a class of its own, or one without values yet
                digest.update(dtype_and_shape(tensor).encode())
                flat = tensor.reshape(-1)
                if number := flat.numel():
                    digest.update(repr(flat[[0, number // 2, number - 1]].tolist()).encode())
    return digest.hexdigest()[:16]
