"""A script set up: its `setup` called with the seed and the arguments of a run, and weights loaded by `--init`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from graphtrain.command.settings import RUN_ARGUMENT, arguments_in_force, pairs
from graphtrain.errors import UsageError
from graphtrain.names import plain_name, suggestion
from graphtrain.program.whole_run import PlannedRun
from graphtrain.ranks import current_ranks
from graphtrain.resume.weights import read_fitting
from graphtrain.state.generators import seed_everything
from graphtrain.state.weights import load_weights, uncompiled
from graphtrain.storage.manifest import MANIFEST_FILE
from graphtrain.storage.named import NEWEST, checkpoint_folder, holds_a_graph
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER
from graphtrain.storage.weight_files import open_weights, weights_of_model
from graphtrain.trainer.graph import Graph


def set_up(
    setup: Callable[..., Any],
    arguments: Mapping[str, Any],
    name: str,
    graph: Graph,
    seed: int,
    device: str | torch.device,
    notify: Callable[[str], None],
) -> tuple[dict[str, str], dict[str, Any]]:
    """Seed all random generators and call a setup; returns all of its arguments, as text, and the resources.

    Arguments:
        name: of the setup, in messages.
        graph, device, notify: those of the run, which a setup may take.

    Raises:
        UsageError: it does not return a mapping from names to resources.
    """
    in_force = arguments_in_force(setup, arguments)  # before a default that is mutable is changed
    seed_everything(seed)
    asks_for_run = RUN_ARGUMENT in inspect.signature(setup).parameters
    resources = setup(**arguments, **({RUN_ARGUMENT: PlannedRun(graph, device, notify)} if asks_for_run else {}))
    if not isinstance(resources, Mapping) or not all(isinstance(key, str) for key in resources):
        returned = "nothing" if resources is None else f"a value of type {type(resources).__name__}"
        raise UsageError(
            f"{name} must return a mapping from names to resources, it returned {returned}",
            'as in `return {"model": model, "optimizer": optimizer, "train_data": train_data}`',
        )
    return in_force, dict(resources)


# ---- --init


def weights_named(texts: Iterable[str]) -> dict[str, Path]:
    """The files or folders of ``NAME=FILE``, by name; a run, or ``RUN/best``, stands for a checkpoint of it.

    Raises:
        UsageError: a text has another form, or there is no such checkpoint.
    """
    return {name: checkpoint_of(Path(file)) for name, file in pairs(texts, "--init NAME=FILE").items()}


def checkpoint_of(path: Path) -> Path:
    """The checkpoint that a path names: of a run its newest; any other path is returned as it is.

    Raises:
        UsageError: the run has none.
    """
    named = path / NEWEST if (path / CHECKPOINTS_FOLDER).is_dir() else path
    return checkpoint_folder(named) if holds_a_graph(named) else path


def warm_start(resources: Mapping[str, Any], weights: Mapping[str, Path], notify: Callable[[str], None]) -> None:
    """Load weights into modules, strictly; it is not a resume. Every rank reads only its parts of a sharded module.

    Arguments:
        weights: files, by the name of the module, or by ``model.body.*`` where only names of that pattern are loaded.
        notify: called with a line for each.

    Raises:
        UsageError: there is no such module, a file has no weights, or names, shapes or patterns do not match.
    """
    modules = {key: module for key, module in resources.items() if isinstance(module, torch.nn.Module)}
    for named, path in weights.items():
        name, _, pattern = named.partition(".")
        if name not in modules:
            raise UsageError(f"--init: there is no module `{name}`", suggestion(name, modules))
        module, problem = uncompiled(modules[name]), f"--init: `{path}` does not match `{name}`:"
        try:
            stored = weights_of_model(path, name) if (path / MANIFEST_FILE).is_file() else open_weights(path)
            stored = {plain_name(key): tensor for key, tensor in stored.items()}
            saved = read_fitting(module, stored, [pattern] if pattern else [], current_ranks().rank, problem)
        except UsageError:
            raise
        except (OSError, ValueError) as error:
            why = f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else error
            raise UsageError(f"--init: `{path}` {why}", "name a file or folder of safetensors, or RUN/best") from None
        load_weights(module, saved, strict=False)  # strict except for the other names of tied parameters
        part = f"{len(saved)} of {len(stored)} tensors" if pattern else "the weights"
        notify(f"--init: `{name}` has {part} of {path}, unless the run continues from a checkpoint")
