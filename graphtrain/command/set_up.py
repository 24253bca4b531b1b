"""A script set up: its `setup` called with the seed and the arguments of a run, and weights loaded by `--init`."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from graphtrain.command.settings import RUN_ARGUMENT, arguments_in_force
from graphtrain.errors import UsageError
from graphtrain.names import plain_name, suggestion
from graphtrain.program.whole_run import PlannedRun
from graphtrain.ranks import current_ranks
from graphtrain.resume.weights import read_fitting
from graphtrain.state.generators import seed_everything
from graphtrain.state.weights import load_weights, uncompiled
from graphtrain.storage.manifest import MANIFEST_FILE
from graphtrain.storage.named import checkpoint_folder, holds_a_graph
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER
from graphtrain.storage.weight_files import open_weights, weights_of_model
from graphtrain.trainer.graph import Graph

SUFFIX = ".safetensors"  # of files of weights
_PICKLED = {".pt", ".pth", ".bin", ".ckpt", ".pkl"}


@dataclass
class SetUp:
    """What a setup has returned.

    Attributes:
        arguments: those of the call, defaults included, as text.
        resources: without the two that follow.
        loggers: as they were returned.
        not_state: the paths of values that are not training state.
    """

    arguments: dict[str, str]
    resources: dict[str, Any]
    loggers: Any
    not_state: list[str]


def set_up(
    setup: Callable[..., Any],
    arguments: Mapping[str, Any],
    name: str,
    graph: Graph,
    seed: int,
    device: str | torch.device = "auto",
) -> SetUp:
    """Seed Python, NumPy and torch, call a setup, with the run if it takes it, and check what it returns.

    Arguments:
        arguments: as `setup_arguments` returns them.
        name: of the setup, in messages.
        graph: the one that is run.
        device: where it is.

    Raises:
        UsageError: it does not return a mapping from names to resources, or `not_state` is not a list of texts.
    """
    in_force = arguments_in_force(setup, arguments)  # before a default that is mutable is changed
    seed_everything(seed)
    asks_for_run = RUN_ARGUMENT in inspect.signature(setup).parameters
    resources = setup(**arguments, **({RUN_ARGUMENT: PlannedRun(graph, device)} if asks_for_run else {}))
    example = 'as in `return {"model": model, "optimizer": optimizer, "train_data": train_data}`'
    if not isinstance(resources, Mapping):
        returned = "nothing" if resources is None else f"a value of type {type(resources).__name__}"
        raise UsageError(f"{name} must return a mapping of resources, it returned {returned}", example)
    for key in resources:
        if not isinstance(key, str):
            raise UsageError(
                f"{name} must return a mapping from names to resources, it returned the key {key!r}", example
            )
    resources = dict(resources)
    loggers, not_state = resources.pop("loggers", ()), resources.pop("not_state", ())
    if not isinstance(not_state, list | tuple) or not all(isinstance(path, str) for path in not_state):
        raise UsageError(
            f"{name} returns `not_state` with {not_state!r}",
            'return a list of paths, as in `"not_state": ["task.started_at"]`',
        )
    return SetUp(in_force, resources, loggers, [*not_state])


# ---- --init


def warm_start(resources: Mapping[str, Any], texts: Iterable[str], only: Sequence[str] = ()) -> list[str]:
    """Load every ``NAME=FILE`` into the module `NAME`, strictly; returns a line of text for each. It is not a resume.

    Of a sharded module, every rank reads its parts alone.

    Arguments:
        only: patterns of the names that are loaded. Default: all.

    Raises:
        UsageError: there is no such module or file, the file has no weights, or names, shapes or patterns do not match.
    """
    return [_load(resources, *named_weights(text), only) for text in texts]


def named_weights(text: str) -> tuple[str, Path]:
    """The name and the file or folder of ``NAME=FILE``.

    ``RUN/best`` is the checkpoint that it names now.

    Raises:
        UsageError: it has another form, or there is no such file.
    """
    name, equals, file = text.partition("=")
    if not equals or not name.isidentifier() or not file:
        raise UsageError(f"--init: expected NAME=FILE, got `{text}`", "as in --init model=weights.safetensors")
    path = Path(file)
    if path.is_dir() or holds_a_graph(path):
        path = checkpoint_folder(path)
    if path.suffix in _PICKLED:
        raise UsageError(
            f"--init: `{file}` is a pickled file, which can run any code when it is loaded",
            "save it with safetensors: safetensors.torch.save_file(model.state_dict(), 'weights.safetensors')",
        )
    if not path.exists() or (path / CHECKPOINTS_FOLDER).is_dir():
        hint = f"graphtrain export {shlex.quote(str(path))} weights.safetensors writes the weights of a run to a file"
        raise UsageError(f"--init: there is no file `{file}`", hint if path.is_dir() else "")
    return name, path


def _load(resources: Mapping[str, Any], name: str, path: Path, only: Sequence[str]) -> str:
    modules = {key: module for key, module in resources.items() if isinstance(module, torch.nn.Module)}
    if name not in modules:
        raise UsageError(f"--init: there is no module `{name}`", suggestion(name, modules))
    module, what = uncompiled(modules[name]), f"--init: `{path}` does not match `{name}`:"
    try:
        stored = weights_of_model(path, name) if (path / MANIFEST_FILE).is_file() else open_weights(path)
        stored = {plain_name(key): tensor for key, tensor in stored.items()}
        saved = read_fitting(module, stored, only, current_ranks().rank, what)
    except UsageError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--init: `{path}` {reason}") from None
    load_weights(module, saved, strict=False)  # strict except for the other names of tied parameters
    part = f"{len(saved)} of {len(stored)} tensors" if only else "the weights"
    return f"--init: `{name}` has {part} of {path}, unless the run continues from a checkpoint"
