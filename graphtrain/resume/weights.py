"""Load the weights of a checkpoint or of other files into models, and nothing else of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from graphtrain.errors import UsageError
from graphtrain.names import suggestion
from graphtrain.program.resources import SHARDED
from graphtrain.resume.session import Session
from graphtrain.state.objects import MISFITS
from graphtrain.state.weights import fitting
from graphtrain.storage.manifest import read_manifest
from graphtrain.storage.named import checkpoint_folder
from graphtrain.storage.run_files import RunFiles
from graphtrain.storage.weight_files import StoredTensor, stored_weights


def load_weights(
    session: Session, files: RunFiles | None, named: str | Path, sources: Mapping[str, str], only: Sequence[str]
) -> Path:
    """Load the weights of a checkpoint into the models; if one of them does not fit, nothing is changed.

    Arguments:
        named, only: as for `Trainer.load`. The checkpoint must have all models that were supplied.
        sources: model -> the name of the model in the checkpoint, if that is another one.
    """
    objects = session.compiled.state.objects
    path = Path(session.world.on_rank_0(lambda: str(checkpoint_folder(named, files and files.folder))))
    if files is not None and (files.checkpoints / path.name).is_dir():
        path = files.checkpoints / path.name  # where this rank sees the run directory
    sections, stored = stored_weights(path, read_manifest(path))
    saved = {name: sections["resources"].get(name) for name in sections["modules"]}
    if unknown := next((name for name in sources if name not in objects.modules), None):
        raise UsageError(f"there is no model `{unknown}`", suggestion(unknown, objects.modules))
    states = {}
    for name, module in objects.modules.items():
        source = sources.get(name, name)
        if (state := saved.get(source)) is None:
            if source == name and not isinstance(session.resources.get(name), torch.nn.Module):
                continue  # it is part of another resource
            raise UsageError(f"`{path}` has no model `{source}`", suggestion(source, saved))
        tensors = {key: tensor for key, value in state.items() if (tensor := stored(value)) is not None}
        states[name] = {} if only else {key: value for key, value in state.items() if key not in tensors}
        states[name] |= read_fitting(module, tensors, only, session.world.rank, f"`{path}` does not match `{name}`:")
    for name, state in states.items():
        try:
            objects.load(name, state, strict=False)  # strict except for the other names of tied parameters
        except MISFITS as error:  # of a `load_state_dict` of the user's
            raise UsageError(f"`{path}` does not match `{name}`: {error}", "build it as in the saved run") from None
    return path


def read_fitting(
    module: torch.nn.Module, stored: Mapping[str, StoredTensor], only: Sequence[str], rank: int, heading: str
) -> dict[str, torch.Tensor]:
    """Read the weights that fit a module, by name, as for `fitting`; of its sharded tensors, the parts of this rank."""
    names = fitting(module, {key: tensor.like for key, tensor in stored.items()}, only, heading)
    if hasattr(type(module), SHARDED):
        from graphtrain.resume.sharded import read_as_sharded  # which few runs need

        saved = read_as_sharded({key: stored[key] for key in names}, module, rank)
    else:
        saved = {key: stored[key].read() for key in names}
    fitting(module, saved, only, heading)  # tied weights have to have equal values
    return saved
