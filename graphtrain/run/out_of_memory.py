"""What to say where memory runs out."""

from __future__ import annotations

import sys
from typing import Any

import torch

from graphtrain.data.batch import tensors_of
from graphtrain.display.numbers import size

_MOST_TENSORS = 4
_OF_HOST = ("can't allocate memory", "not enough memory")


def out_of_memory_note(error: BaseException, device: torch.device, batch: Any = None) -> str:
    """The peak of memory, what the batch was, and what to do; empty where an error is another one.

    Arguments:
        batch: that of the node that has raised it. Default: there was none.

    >>> error = torch.OutOfMemoryError("CUDA out of memory")
    >>> out_of_memory_note(error, torch.device("cpu"), [torch.zeros(32, 8), "a"])
    'out of memory on cpu: at most ... were in use; the batch has [32, 8] float32. ...'
    >>> out_of_memory_note(ValueError("no label"), torch.device("cpu"))
    ''
    """
    is_of_host = isinstance(error, RuntimeError) and any(words in str(error) for words in _OF_HOST)
    if not (is_of_host or isinstance(error, torch.OutOfMemoryError | MemoryError)):
        return ""
    peak = _peak_bytes(device)
    in_use = f": at most {size(peak)} were in use" if peak is not None else ""
    shapes = [f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for tensor in tensors_of(batch)]
    more = f" and {len(shapes) - _MOST_TENSORS} more tensors" if len(shapes) > _MOST_TENSORS else ""
    has = f"; the batch has {', '.join(shapes[:_MOST_TENSORS])}{more}" if shapes else ""
    return (
        f"out of memory on {device}{in_use}{has}. Half the batch size with twice the accumulate.every trains the same; "
        'so does train_batch.on_out_of_memory = "halve", without another start'
    )


def _peak_bytes(device: torch.device) -> int | None:
    """The most memory that torch had allocated on a CUDA device, or that was resident of this process on a host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
