"""Predictions, written as they come."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphtrain.kind import node, progress
from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    from graphtrain.nodes import _predictions as encoding
    from graphtrain.program.agreement import Agreement
    from graphtrain.storage import predictions as files
    from graphtrain.storage.predictions import PredictionsFile
else:
    encoding = lazy_import("graphtrain.nodes._predictions")
    files = lazy_import("graphtrain.storage.predictions")


@node(writes="written", synchronises=True, family="saving")
class WritePredictions:
    """Write the predictions of a batch behind those before them, each sample exactly once, and in order.

    While it is written the file has other names, with ``.part`` at their ends; it is complete once it has its own. A
    run that is resumed cuts them back to what its checkpoint knows. Of several ranks, rank 0 writes for all.

    Reads:
        predictions: for each sample of the batch one, as the kind `predict_batch` returns them.
        samples: how many samples the batch has.
        predictions_file: a path. ``.safetensors`` holds tensors by name, `predictions` where there is only one, with
            the samples as their first dimension; ``.jsonl`` has a line of JSON for each sample.

    Writes:
        written: what is known of what was written, for `end_prediction`.

    Guard fields:
        samples: written so far.

    Raises:
        UsageError: the file exists, has another suffix, or was changed since; or there is not one prediction for each
            sample, of the same form as those before, that the file can hold.

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
        encode = encoding.as_tensors if self._file.holds_tensors else encoding.as_lines
        # None: this is a rank without a batch in this round.
        batch: Any = {"samples": samples, "columns": encode(predictions, samples)} if predictions is not None else None
        batches = self._ranks.gather(batch) if self._ranks is not None else [batch]
        self._open()
        for each in batches:
            if each is not None:
                self.columns = encoding.added(self.columns, each["columns"])
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
