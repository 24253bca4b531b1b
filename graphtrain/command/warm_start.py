"""`--init`: weights from a safetensors file, before the run begins. It is a beginning, and no resume."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from graphtrain.errors import UsageError
from graphtrain.names import suggestion

_PICKLED = {".pt", ".pth", ".bin", ".ckpt", ".pkl"}


def warm_start(resources: Mapping[str, Any], texts: Iterable[str]) -> list[str]:
    """Load ``NAME=FILE`` into the module `NAME`, strictly; what was done, in words.

    Raises:
        UsageError: there is no such module or file, the file is no safetensors file, or the names or shapes differ.
    """
    return [_load(resources, *split(text)) for text in texts]


def split(text: str) -> tuple[str, Path]:
    """The name and the file of ``NAME=FILE``.

    Raises:
        UsageError: it has another form, or there is no such file.
    """
    name, equals, file = text.partition("=")
    if not equals or not name.isidentifier() or not file:
        raise UsageError(f"--init: expected NAME=FILE, got `{text}`", "as in --init model=weights.safetensors")
    path = Path(file)
    if path.is_dir() and (path / f"{name}.safetensors").is_file():
        path = path / f"{name}.safetensors"  # a checkpoint
    if path.suffix in _PICKLED:
        raise UsageError(
            f"--init: `{file}` is a pickled file, and those can run any code when they are read",
            "write it with safetensors: safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')",
        )
    if not path.is_file():
        raise UsageError(f"--init: there is no file `{file}`")
    return name, path


def _load(resources: Mapping[str, Any], name: str, path: Path) -> str:
    modules = {key: one for key, one in resources.items() if isinstance(one, torch.nn.Module)}
    if name not in modules:
        raise UsageError(f"--init: there is no module `{name}`", suggestion(name, modules))
    try:
        saved = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise UsageError(f"--init: `{path}` cannot be read as safetensors: {error}") from None
    wanted = modules[name].state_dict()
    # Of tied parameters a file may hold one name only.
    places = {key: one.data_ptr() for key, one in wanted.items() if isinstance(one, torch.Tensor) and one.numel()}
    given = {places[key] for key in saved if key in places}
    missing = [key for key in wanted if key not in saved and places.get(key) not in given]
    shaped = {key: one for key, one in wanted.items() if isinstance(one, torch.Tensor)}
    missing = [key for key in missing if key in shaped]  # an extra state is no weight, and no such file holds it
    problems = [
        *(f"missing in the file: {key}" for key in missing),
        *(f"unknown to the module: {key}" for key in saved if key not in wanted),
        *(
            f"{key}: {_form(one)} in the file, {_form(shaped[key])} in the module"
            for key, one in saved.items()
            if key in shaped and not _fits(one, shaped[key])
        ),
    ]
    if problems:
        shown = "\n".join(f"    {one}" for one in problems[:10])
        more = f"\n    ... and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise UsageError(f"--init: `{path}` does not fit `{name}`:\n{shown}{more}")
    modules[name].load_state_dict(saved, strict=False)  # strict but for the other names of tied parameters
    return f"--init: `{name}` has the weights of {path}, unless the run goes on from a checkpoint"


def _fits(saved: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Of one shape; and whole numbers, such as quantised weights, are not taken for fractions."""
    return saved.shape == wanted.shape and saved.is_floating_point() == wanted.is_floating_point()


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
