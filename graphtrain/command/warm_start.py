"""`--init`: load weights from a safetensors file before the run begins. This is not a resume."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from graphtrain.errors import UsageError
from graphtrain.names import suggestion
from graphtrain.state.weights import misfits
from graphtrain.storage.named import checkpoint_folder

_PICKLED = {".pt", ".pth", ".bin", ".ckpt", ".pkl"}


def warm_start(resources: Mapping[str, Any], texts: Iterable[str]) -> list[str]:
    """Load every ``NAME=FILE`` into the module `NAME`, strictly; returns a line of text for each.

    Raises:
        UsageError: there is no such module or file, the file is not safetensors, or names or shapes do not match.
    """
    return [_load(resources, *split(text)) for text in texts]


def split(text: str) -> tuple[str, Path]:
    """The name and the file of ``NAME=FILE``; of a checkpoint, ``RUN/best`` and ``RUN/newest`` among them, its own.

    Raises:
        UsageError: it has another form, or there is no such file.
    """
    name, equals, file = text.partition("=")
    if not equals or not name.isidentifier() or not file:
        raise UsageError(f"--init: expected NAME=FILE, got `{text}`", "as in --init model=weights.safetensors")
    path = checkpoint_folder(Path(file))
    if path.is_dir() and (path / f"{name}.safetensors").is_file():
        path = path / f"{name}.safetensors"  # of a checkpoint
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
                digest.update(_dtype_and_shape(tensor).encode())
                flat = tensor.reshape(-1)
                number = flat.numel()
                if number:
                    digest.update(repr(flat[[0, number // 2, number - 1]].tolist()).encode())
    return digest.hexdigest()[:16]


def _dtype_and_shape(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
