"""Weights of sharded models in files of others, and how much of a file a rank reads; called in processes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from graphtrain.command.set_up import warm_start
from tests.ranks.sharded import Case, sharded_model, weights


def loaded_by_dcp(case: Case, folder: Path) -> dict[str, Any]:
    """The weights of a model after `dcp.load`, all of each."""
    import torch.distributed.checkpoint as dcp

    model = sharded_model(case)
    state = model.state_dict()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for tensor in state.values():
            tensor.zero_()
        dcp.load(state, checkpoint_id=folder, no_dist=not torch.distributed.is_initialized())
    return {name: tensor.tolist() for name, tensor in weights(model).items()}


def warm_started(case: Case, path: Path) -> tuple[dict[str, Any], float]:
    """The weights of a model after `--init`, all of each; and the bytes that this rank has read, per byte it holds."""
    from graphtrain.storage import weight_files

    model, counted, copy = sharded_model(case), [0], weight_files.copy_common

    def counting(target: torch.Tensor, box: Any, source: torch.Tensor, source_box: Any) -> int:
        count = copy(target, box, source, source_box)
        counted[0] += count * source.shape[-1]
        return count

    weight_files.copy_common = counting
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
    warm_start({"model": model}, [f"model={path}"])
    weight_files.copy_common = copy
    held = sum(getattr(each, "_local_tensor", each).nbytes for each in model.state_dict().values())
    return {name: tensor.tolist() for name, tensor in weights(model).items()}, counted[0] / held
