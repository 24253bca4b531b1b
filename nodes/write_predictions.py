"""Writing predictions to a file."""

from __future__ import annotations

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
    complete. A resumed run goes on from the samples of its checkpoint. With several ranks, rank 0 writes for all.

    Reads:
        predictions: one for each sample of the batch, as the kind `predict_batch` returns them.
        samples: number of samples in the batch.
        predictions_file: a path. One that ends in ``.jsonl`` is a file with a line of JSON for each sample; any other a
            folder with a file of tensors for each batch, such as ``000000000032.safetensors``, the number of samples
            before it: by name, `predictions` if there is only one, with the samples as their first dimension.

    Writes:
        written: the number of samples so far, for `end_prediction`.

    Guard fields:
        samples: written so far.

    Raises:
        UsageError: the path exists, has another suffix, or was changed in the meantime; or the predictions are not one
            for each sample, or cannot be stored.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("predict").set("checkpoint", every="1000 batches")
    >>> graph.check()
    []
    """

    samples: int = progress(0)
    size: int = progress(0)  # of the lines, in bytes

    _file: Predictions
    _ranks: Agreement | None
    _is_open: bool

    def setup(self, predictions_file: str | Path, ranks: Agreement | None = None) -> None:
        self._file, self._ranks, self._is_open = files.Predictions(predictions_file), ranks, False

    def __call__(self, predictions: Any, samples: int) -> int:
        encode = _as_lines if self._file.are_lines else _as_tensors
        # None: this is a rank without a batch in this round.
        batch = [samples, encode(predictions, samples)] if predictions is not None else None
        batches = self._ranks.gather(batch) if self._ranks is not None else [batch]
        self._open()
        for count, content in filter(None, batches):
            if self._ranks is None or self._ranks.rank == 0:
                self._file.append(self.samples, content)
            self.samples, self.size = self.samples + count, self.size + len(content)
        return self.samples

    def _open(self) -> None:
        if not self._is_open:

            def cut_back() -> None:
                self._file.open(self.samples, self.size)

            cut_back() if self._ranks is None else self._ranks.lead(cut_back)
            self._is_open = True


def _as_lines(predictions: Any, samples: int) -> bytes:
    """A line of JSON for each sample.

    >>> _as_lines({"label": torch.tensor([1, 2]), "text": ["a", "b"]}, 2)
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
    return "".join(lines).encode()


def _as_tensors(predictions: Any, samples: int) -> bytes:
    """A file of tensors.

    Raises:
        UsageError: there is not one prediction for each sample, or it is no tensor.
    """
    tensors = {}
    for name, value in _named(predictions).items():
        if isinstance(value, numpy.ndarray):
            value = torch.from_numpy(value)
        if not isinstance(value, torch.Tensor) or value.dtype not in value_types.TYPES:
            what = f"a tensor of {value.dtype}" if isinstance(value, torch.Tensor) else described(value)
            raise UsageError(
                f"a prediction called `{name}` is {what}, which a file of tensors cannot hold",
                "write predictions to a file that ends in .jsonl",
            )
        _expect(name, value, samples)
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    return tensor_files.save(tensors)


def _named(predictions: Any) -> Mapping[str, Any]:
    return predictions if isinstance(predictions, Mapping) else {_ONLY: predictions}


def _values(name: str, value: Any, samples: int) -> list[Any]:
    """One plain value for each sample."""
    _expect(name, value, samples)
    if isinstance(value, torch.Tensor | numpy.ndarray):
        return list(value.tolist())
    return [part.tolist() if isinstance(part, torch.Tensor | numpy.ndarray) else part for part in value]


def _expect(name: str, value: Any, samples: int) -> None:
    has_samples = value.ndim > 0 if isinstance(value, torch.Tensor | numpy.ndarray) else isinstance(value, list | tuple)
    if not has_samples:
        raise UsageError(
            f"a prediction called `{name}` is {described(value)}, with no samples to tell apart",
            "return a tensor or a list whose first dimension is the samples of the batch",
        )
    if len(value) != samples:
        raise UsageError(
            f"there are {len(value)} predictions called `{name}` for a batch of {samples} samples",
            "return one for each sample; how many a batch holds, `batch_size(batch)` tells where it is not its first "
            "dimension",
        )
