"""Which samples of a data set an epoch has: the numbers that a graph, or `setup`, gives."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from graphtrain.errors import DataError
from graphtrain.names import quoted


def selection_of(indices: Any, length: int, what: str) -> torch.Tensor:
    """The numbers in `indices` as a tensor of their own.

    Arguments:
        indices: whole numbers: a list, a tuple, a range, or a tensor or an array with one dimension.
        length: of what they are numbers in.
        what: it is called, for messages.

    Raises:
        DataError: they are no such numbers, there are none, or one is out of range.

    >>> selection_of(range(2, 8, 3), 8, "samples")
    tensor([2, 5])
    >>> selection_of([2, 8], 8, "samples")
    Traceback (most recent call last):
        ...
    graphtrain.errors.DataError: `indices`: there are 8 samples, with the numbers 0 to 7; got 8
      hint: give numbers in the data set as it is supplied; numbers chosen for another one need as many samples
    """
    if isinstance(indices, torch.Tensor | numpy.ndarray):
        array = torch.as_tensor(indices)
        if array.dtype == torch.bool:
            raise _refused(f"a mask of shape {tuple(array.shape)}", what, "mask.nonzero().flatten() are the numbers")
        if array.dim() != 1:
            raise _refused(f"a tensor of shape {tuple(array.shape)}", what)
        if array.is_floating_point() or array.is_complex():
            raise _refused(f"a tensor of {array.dtype}", what)
        numbers = array.detach().to("cpu", torch.int64, copy=True)
    elif isinstance(indices, list | tuple | range):
        others = {type(each).__name__ for each in (indices if type(indices) is not range else ())} - {"int"}
        others -= {name for name in others if name.startswith(("int", "uint"))}  # NumPy's
        if others:
            raise _refused(f"a {type(indices).__name__} with {quoted(sorted(others))}", what)
        numbers = torch.tensor([int(each) for each in indices], dtype=torch.int64)
    else:
        raise _refused("nothing" if indices is None else f"a {type(indices).__name__}", what)
    if not len(numbers):
        raise DataError(
            f"`indices` is empty: an epoch needs at least one of the {length} {what}",
            "end the graph before `next_batch` where nothing is selected; None selects everything",
        )
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= length:
        raise DataError(
            f"`indices`: there are {length} {what}, with the numbers 0 to {length - 1}; got {low if low < 0 else high}",
            f"give numbers in the data set as it is supplied; numbers chosen for another one need as many {what}",
        )
    return numbers


def _refused(
    received: str, what: str, hint: str = "as in [0, 4, 7], or a tensor of integers with one dimension"
) -> DataError:
    return DataError(f"`indices` must be whole numbers of {what}; got {received}", hint)
