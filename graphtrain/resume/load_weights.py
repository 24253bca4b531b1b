"""The weights of a checkpoint loaded into the models of a trainer, which is no resume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from graphtrain.errors import UsageError
from graphtrain.names import quoted, suggestion
from graphtrain.state.objects import MISFITS, SavedObjects
from graphtrain.state.weights import misfits
from graphtrain.storage.checkpoint import Checkpoint

_OTHER_MODEL = "make the model as its run has made it, or name a checkpoint of this run"


def load_weights(
    objects: SavedObjects, resources: Mapping[str, Any], checkpoint: Checkpoint, sources: Mapping[str, str]
) -> None:
    """Load them; nothing is changed where one of them does not fit.

    Arguments:
        objects: the models among them are loaded.
        resources: those that were supplied: the checkpoint must have all models among them.
        sources: of a model that is given the weights of another one, that one's name in the checkpoint.

    Raises:
        UsageError: a model is not in the checkpoint, or has other tensors.
    """
    saved = {name: checkpoint.sections["resources"].get(name) for name in checkpoint.sections["modules"]}
    states = {}
    for name in sources:
        if name not in objects.modules:
            raise UsageError(f"there is no model `{name}`", _alternatives(name, objects.modules))
    for name, module in objects.modules.items():
        source = sources.get(name, name)
        state = saved.get(source)
        if state is None:
            if source == name and not isinstance(resources.get(name), torch.nn.Module):
                continue  # inside something else that was supplied, and found there
            raise UsageError(f"`{checkpoint.path}` has no model `{source}`", _alternatives(source, saved))
        if problems := misfits(module, {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}):
            raise UsageError(f"`{checkpoint.path}` does not match `{name}`:\n{problems}", _OTHER_MODEL)
        states[name] = state
    for name, state in states.items():
        try:
            objects.load(name, state)
        except MISFITS as error:  # of a `load_state_dict` of the user's
            raise UsageError(f"`{checkpoint.path}` does not match `{name}`: {error}", _OTHER_MODEL) from None


def _alternatives(name: str, names: Mapping[str, Any]) -> str:
    return suggestion(name, names) or (f"there are: {quoted(names)}" if names else "there is none")
