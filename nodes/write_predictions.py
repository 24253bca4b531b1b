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
    import torch

    from graphtrain.program.agreement import Agreement
    from graphtrain.storage import encoding
    from graphtrain.storage import predictions as files
    from graphtrain.storage.predictions import PredictionsFile
else:
    numpy = lazy_import("numpy")
    torch = lazy_import("torch")
    files = lazy_import("graphtrain.storage.predictions")
    encoding = lazy_import("graphtrain.storage.encoding")

Columns = Mapping[str, tuple[str, list[int], bytes]]
"""Name -> type and shape of a sample, and the bytes of all that are appended to the file."""

_ONLY = "predictions"
_SAME = "return the same form for every batch; predictions of any form can be written to a file that ends in .jsonl"


@node(writes="written", synchronises=True, family="saving")
class WritePredictions:
    """Append the predictions of a batch to the file, in order and each sample exactly once.

    While they are being written, the files have the suffix ``.part``; the file is complete once it has its final name.
    A resumed run truncates them to the state of its checkpoint. With several ranks, rank 0 writes for all.

    Reads:
        predictions: one for each sample of the batch, as the kind `predict_batch` returns them.
        samples: number of samples in the batch.
        predictions_file: a path. ``.safetensors`` holds tensors by name, `predictions` if there is only one, with the
            samples as their first dimension; ``.jsonl`` has a line of JSON for each sample.

    Writes:
        written: the state of the file, for `end_prediction`.

    Guard fields:
        samples: written so far.

    Raises:
        UsageError: the file exists, has another suffix, or was changed in the meantime; or the predictions are not one
            for each sample, have a different form than before, or cannot be stored in the file.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("predict").set("checkpoint", every="1000 batches")
    >>> graph.check()
    []
    """

    samples: int = progress(0)
    # What is written: name -> type and shape of a sample, how many bytes, and their checksum.
    columns: dict[str, Any] = progress({})

    _file: PredictionsFile
    _ranks: Agreement | None
    _is_open: bool

    def setup(self, predictions_file: str | Path, ranks: Agreement | None = None) -> None:
        self._file, self._ranks, self._is_open = files.PredictionsFile(predictions_file), ranks, False

    def __call__(self, predictions: Any, samples: int) -> dict[str, Any]:
        encode = _as_tensors if self._file.holds_tensors else _as_lines
        # None: this is a rank without a batch in this round.
        batch: Any = {"samples": samples, "columns": encode(predictions, samples)} if predictions is not None else None
        batches = self._ranks.gather(batch) if self._ranks is not None else [batch]
        self._open()
        for each in batches:
            if each is not None:
                self.columns = _added(self.columns, each["columns"])
                self.samples += each["samples"]
                if self._ranks is None or self._ranks.rank == 0:
                    self._file.append([each["columns"][name][2] for name in self.columns])
        return {"columns": self.columns, "samples": self.samples}

    def _open(self) -> None:
        if not self._is_open:

            def cut_back() -> None:
                self._file.open(self.columns)

            cut_back() if self._ranks is None else self._ranks.lead(cut_back)
            self._is_open = True


def _as_lines(predictions: Any, samples: int) -> Columns:
    """A line of JSON for each sample.

    >>> _as_lines({"label": torch.tensor([1, 2]), "text": ["a", "b"]}, 2)[""][2]
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


def _as_tensors(predictions: Any, samples: int) -> Columns:
    """Tensors by name, the bytes of each.

    Raises:
        UsageError: there is not one prediction for each sample, or it is no tensor.
    """
    columns = {}
    for name, value in _named(predictions).items():
        if isinstance(value, numpy.ndarray):
            value = torch.from_numpy(value)
        if not isinstance(value, torch.Tensor) or value.dtype not in encoding.TYPES:
            what = f"a tensor of {value.dtype}" if isinstance(value, torch.Tensor) else described(value)
            raise UsageError(
                f"a prediction called `{name}` is {what}, which a file of safetensors cannot hold",
                "write it to a file that ends in .jsonl",
            )
        _expect(name, value.shape[0] if value.ndim else None, value, samples)
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        columns[name] = encoding.TYPES[value.dtype], list(value.shape[1:]), content
    return columns


def _added(columns: Mapping[str, Any], batch: Columns) -> dict[str, Any]:
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
        now[name] = files.grown(known, content)
    return now


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
