"""What is predicted for the samples of a batch, as the bytes that are appended to a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy
import torch

from graphtrain.errors import UsageError
from graphtrain.metrics.values import described
from graphtrain.plain import json_value
from graphtrain.storage.predictions import grown
from graphtrain.storage.tensor_files import TYPES

Batch = Mapping[str, tuple[str, list[int], bytes]]
"""Name -> type and shape of a sample, and the bytes of all."""

_ONLY = "predictions"


def as_lines(predictions: Any, samples: int) -> Batch:
    """A line of JSON for each sample.

    >>> as_lines({"label": torch.tensor([1, 2]), "text": ["a", "b"]}, 2)[""][2]
    b'{"label": 1, "text": "a"}\\n{"label": 2, "text": "b"}\\n'

    Raises:
        UsageError: there is not one prediction for each sample.
    """
    is_named = isinstance(predictions, Mapping)
    columns = {name: _values(name, value, samples) for name, value in _named(predictions).items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    try:
        lines = [json.dumps(json_value(row if is_named else row[_ONLY])) + "\n" for row in rows]
    except TypeError as error:
        raise UsageError(
            f"predictions cannot be written as JSON: {error}", "return numbers, texts or tensors"
        ) from None
    return {"": ("", [], "".join(lines).encode())}


def as_tensors(predictions: Any, samples: int) -> Batch:
    """Tensors by name, the bytes of each.

    Raises:
        UsageError: there is not one prediction for each sample, or it is no tensor.
    """
    columns = {}
    for name, value in _named(predictions).items():
        if isinstance(value, numpy.ndarray):
            value = torch.from_numpy(value)
        if not isinstance(value, torch.Tensor) or value.dtype not in TYPES:
            what = f"a tensor of {value.dtype}" if isinstance(value, torch.Tensor) else described(value)
            raise UsageError(
                f"a prediction called `{name}` is {what}, which a file of safetensors cannot hold",
                "write it to a file that ends in .jsonl",
            )
        _expect(name, value.shape[0] if value.ndim else None, value, samples)
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        columns[name] = TYPES[value.dtype], list(value.shape[1:]), content
    return columns


def added(columns: Mapping[str, Any], batch: Batch) -> dict[str, Any]:
    """What is known of all predictions, with those of one batch more.

    Raises:
        UsageError: they have another form than those before.
    """
    if columns and columns.keys() != batch.keys():
        raise UsageError(f"predictions were called {', '.join(columns)}, and now {', '.join(batch)}", _SAME)
    now = {}
    for name in columns or batch:
        dtype, shape, content = batch[name]
        known = columns.get(name, {"type": dtype, "shape": shape})
        if (known["type"], known["shape"]) != (dtype, list(shape)):
            raise UsageError(
                f"`{name}` was {known['type']} of the shape {known['shape']} for each sample before, and is {dtype} of "
                f"the shape {list(shape)} now",
                _SAME,
            )
        now[name] = grown(known, content)
    return now


_SAME = "return the same form for every batch; predictions of any form can be written to a file that ends in .jsonl"


def _named(predictions: Any) -> Mapping[str, Any]:
    return predictions if isinstance(predictions, Mapping) else {_ONLY: predictions}


def _values(name: str, value: Any, samples: int) -> list[Any]:
    """One plain value for each sample."""
    if isinstance(value, torch.Tensor | numpy.ndarray):
        _expect(name, value.shape[0] if value.ndim else None, value, samples)
        return list(value.tolist())
    if not isinstance(value, list | tuple):
        _expect(name, None, value, samples)
    _expect(name, len(value), value, samples)
    return [part.tolist() if isinstance(part, torch.Tensor | numpy.ndarray) else part for part in value]


def _expect(name: str, count: int | None, value: Any, samples: int) -> None:
    if count is None:
        raise UsageError(
            f"a prediction called `{name}` is {described(value)}, with no samples to tell apart",
            "return a tensor or a list whose first dimension is the samples of the batch",
        )
    if count != samples:
        raise UsageError(
            f"there are {count} predictions called `{name}` for a batch of {samples} samples",
            "return one for each sample; how many a batch holds, `batch_size(batch)` tells where it is not its first "
            "dimension",
        )
