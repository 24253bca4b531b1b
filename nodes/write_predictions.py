"""Writing predictions to a file."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphtrain.errors import UsageError
from graphtrain.kind import node, progress
from graphtrain.lazy import lazy_import
from graphtrain.plain import json_value
from graphtrain.report.values import described

if TYPE_CHECKING:
    import numpy
    import safetensors.torch as tensor_files
    import torch

    from graphtrain.program.agreement import Agreement
    from graphtrain.storage import predictions as files
    from graphtrain.storage import value_types
    from graphtrain.storage.predictions import Predictions
else:
    numpy = lazy_import("numpy")
    tensor_files = lazy_import("safetensors.torch")
    torch = lazy_import("torch")
    files = lazy_import("graphtrain.storage.predictions")
    value_types = lazy_import("graphtrain.storage.value_types")

_ONLY = "predictions"


@node(writes="written", synchronises=True, family="saving")
class WritePredictions:
    """Write the predictions of a batch, in order and each sample exactly once.

    While they are being written, the file or folder has the suffix ``.part``; it has its final name once it is
    complete. A resumed run continues after the samples of its checkpoint. With several ranks, rank 0 writes for all.

    Reads:
        predictions: one for each sample of the batch, as the kind `predict_batch` returns them.
        samples: number of samples in the batch.
        predictions_file: a path. If it ends in ``.jsonl``, a file with a line of JSON for each sample; otherwise a
            folder with a file of tensors for each batch, named by the samples before it: ``000000000032.safetensors``.

    Writes:
        written: the number of samples so far, for `end_prediction`.

    Guard fields:
        samples: written so far.

    Raises:
        UsageError: the path exists, has another suffix, or was changed in the meantime; or the number of predictions
            is not that of the samples, or they cannot be stored.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("predict").set("checkpoint", every="1000 batches")
    >>> graph.check()
    []
    """

    samples: int = progress(0)
    size: int = progress(0)  # bytes written

    _file: Predictions
    _ranks: Agreement | None
    _is_open: bool

    def setup(self, predictions_file: str | Path, ranks: Agreement | None = None) -> None:
        self._file, self._ranks, self._is_open = files.Predictions(predictions_file), ranks, False

    def __call__(self, predictions: Any, samples: int) -> int:
        encode = _as_lines if self._file.are_lines else _as_tensors
        # None on a rank without a batch in this round.
        batch = [samples, encode(predictions, samples)] if predictions is not None else None
        batches = self._ranks.gather(batch) if self._ranks is not None else [batch]
        if not self._is_open:
            self._is_open = True
            open_file = functools.partial(self._file.open, self.samples, self.size)
            open_file() if self._ranks is None else self._ranks.on_rank_0(open_file)
        for count, content in filter(None, batches):
            if self._ranks is None or self._ranks.rank == 0:
                self._file.append(self.samples, content)
            self.samples, self.size = self.samples + count, self.size + len(content)
        return self.samples


def _as_lines(predictions: Any, samples: int) -> bytes:
    """A line of JSON for each sample.

    >>> _as_lines({"label": torch.tensor([1, 2]), "text": ["a", "b"]}, 2)
    b'{"label": 1, "text": "a"}\\n{"label": 2, "text": "b"}\\n'
    """
    columns = {name: _plain(value) for name, value in _columns(predictions, samples).items()}
    rows: list[Any] = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if not isinstance(predictions, Mapping):
        rows = columns[_ONLY]
    try:
        lines = [json.dumps(json_value(row)) + "\n" for row in rows]
    except TypeError as error:
        raise UsageError(f"predictions cannot be JSON: {error}", "return numbers, strings or tensors") from None
    return "".join(lines).encode()


def _plain(value: Any) -> list[Any]:
    """A list with a plain value for each sample, from a tensor, an array, or a list of anything."""
    if isinstance(value, torch.Tensor | numpy.ndarray):
        return list(value.tolist())
    return [part.tolist() if isinstance(part, torch.Tensor | numpy.ndarray) else part for part in value]


def _as_tensors(predictions: Any, samples: int) -> bytes:
    """The content of a safetensors file."""
    tensors = {}
    for name, value in _columns(predictions, samples).items():
        tensor = torch.from_numpy(value) if isinstance(value, numpy.ndarray) else value
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in value_types.TYPES:
            got = f"a tensor of {tensor.dtype}" if isinstance(tensor, torch.Tensor) else described(tensor)
            raise UsageError(
                f"a prediction called `{name}` is {got}, which a file of tensors cannot hold",
                "write predictions to a file that ends in .jsonl",
            )
        tensors[name] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return tensor_files.save(tensors)


def _columns(predictions: Any, samples: int) -> Mapping[str, Any]:
    """The predictions by name, each checked to have a value for every sample."""
    columns: Mapping[str, Any] = predictions if isinstance(predictions, Mapping) else {_ONLY: predictions}
    for name, value in columns.items():
        is_array = isinstance(value, torch.Tensor | numpy.ndarray)
        count = len(value) if (is_array and value.ndim) or isinstance(value, list | tuple) else None
        if count != samples:
            raise UsageError(
                f"a prediction called `{name}` is {described(value)}, for a batch of {samples} samples",
                "return a tensor or a list with one item for each sample; supply `batch_size(batch)` if the number of "
                "samples is not the first dimension of the batch",
            )
    return columns
