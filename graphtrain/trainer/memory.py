"""The memory of a run: how much is in use, whether it grows, and what to say where it runs out."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import Any, final

import torch

from graphtrain.data.batch import tensors_of
from graphtrain.report.numbers import size

_MOST_SAMPLES = 64
_LEAST_SAMPLES = 16
_LEAST_BATCHES = 1_000
_LEAST_BYTES = 64 << 20
_LEAST_SHARE = 0.05  # of what there was at first
_LEAST_PART = 0.15  # of the growth, in each quarter of the time: a jump is no growth

_MOST_TENSORS = 4
_OF_HOST = ("can't allocate memory", "not enough memory")


def memory_bytes(device: torch.device) -> int | None:
    """Memory in use: what torch has allocated on a CUDA device, what is resident of this process on a host.

    None where the system does not tell.
    """
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None  # not Linux


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


@final
class MemoryTrend:
    """Looks at the memory in use now and then, and tells once that it grows.

    >>> trend = MemoryTrend()
    >>> lines = [trend.add(100 * number, (500 << 20) + number * (10 << 20)) for number in range(20)]
    >>> [line for line in lines if line]
    ['memory grows by 100.0 MiB per 1,000 batches, from 500.0 MiB to ... MiB since batch 0: something is kept ...']
    """

    def __init__(self) -> None:
        self._samples: list[tuple[int, int]] = []
        self._is_told = False

    def add(self, batches: int, memory: int | None) -> str:
        """A line for a person, where it is known now that memory grows; else empty.

        Arguments:
            batches: how many were trained on so far.
            memory: bytes in use; None where the system does not tell.
        """
        samples = self._samples
        span = samples[-1][0] - samples[0][0] if samples else 0
        least_distance = max(1.0, 2 * span / _MOST_SAMPLES)  # as far apart as those that were kept
        if self._is_told or memory is None or (samples and batches - samples[-1][0] < least_distance):
            return ""
        samples.append((batches, memory))
        if len(samples) > _MOST_SAMPLES:
            del samples[1::2]
        begin, span = samples[0][0], batches - samples[0][0]
        if len(samples) < _LEAST_SAMPLES or span < _LEAST_BATCHES:
            return ""
        # The least of each quarter of the time: what is freed in between, as after a validation, is no growth.
        quarters: list[list[tuple[int, int]]] = [[], [], [], []]
        for sample in samples:
            quarters[min(3, 4 * (sample[0] - begin) // span)].append(sample)
        if not all(quarters):
            return ""
        least = [min(quarter, key=lambda sample: sample[1]) for quarter in quarters]
        (first, low), (last, high) = least[0], least[-1]
        growth = high - low
        if growth < max(_LEAST_BYTES, _LEAST_SHARE * low):
            return ""
        if any(later[1] - earlier[1] < _LEAST_PART * growth for earlier, later in itertools.pairwise(least)):
            return ""
        self._is_told = True
        rate = growth / max(last - first, 1) * 1000
        return (
            f"memory grows by {size(rate)} per 1,000 batches, from {size(low)} to {size(high)} since "
            f"batch {first}: something is kept from batch to batch, such as a loss that is not detached"
        )
