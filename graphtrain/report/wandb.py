"""Runs in Weights and Biases."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, final

from graphtrain.lazy import imported
from graphtrain.plain import json_value
from graphtrain.report.logger import Beginning, Histogram, Image, RunLogger, Shown, Text
from graphtrain.storage.files import replace_file


@final
class WandB(RunLogger):
    """A logger for Weights and Biases, also offline: ``mode="offline"``, or ``WANDB_MODE``; ``wandb sync`` sends later.

    A resume continues the run. Its step at the service is the number of the row, so only missing rows are sent: a row
    that a resume repeats with other values stays as it was first sent. Curves are over `step`.

    Arguments:
        project: the project of the run. Default: "graphtrain".
        settings: other arguments of ``wandb.init``, such as `name`, `tags`, `group`, `mode`.

    Raises:
        UsageError: wandb is not installed.

    >>> WandB("digits", tags=["small"])  # doctest: +SKIP
    """

    def __init__(self, project: str = "graphtrain", **settings: Any) -> None:
        self._wandb: Any = imported("wandb")
        self._arguments = {"project": project, **settings}  # of wandb.init, above those of a run
        self._settings: dict[str, Any] = {}
        self._run: Any = None
        self._rows = self._exit_code = 0

    def begin(self, beginning: Beginning) -> None:
        """Continue the run whose id the run directory holds, or start one; send the missing rows."""
        self.close()
        config = {name: json_value(value) for name, value in beginning.hyper_parameters.items()}
        self._settings = {"id": uuid.uuid4().hex, "resume": "allow", "config": config}
        if beginning.run_dir is not None:
            if not (file := beginning.run_dir / "wandb.id").exists():
                replace_file(file, self._settings["id"].encode())
            self._settings |= {"id": file.read_text().strip(), "dir": str(beginning.run_dir)}
        self._rows = self._exit_code = 0
        self._log({})
        for row in beginning.rows:
            self(row, int(row["step"]))

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        """Send a row, unless the run has it."""
        self._rows += 1
        self._log(dict(metrics))

    def show(self, name: str, value: Shown, step: int) -> None:
        """Send a text, an image or a histogram, with the row before it."""
        match value:
            case Text(text):
                sent = text
            case Image(pixels):
                sent = self._wandb.Image(pixels)
            case Histogram(values):
                sent = self._wandb.Histogram(values.flatten().tolist())
        self._log({"step": step, name: sent})

    def ended(self, state: str, error: BaseException | None) -> None:
        """Report a failed run to the service as failed."""
        self._exit_code = int(state == "failed")

    def close(self) -> None:
        """Finish the run; a later row continues it."""
        run, self._run = self._run, None
        if run is not None:
            run.finish(exit_code=self._exit_code)

    def _log(self, values: dict[str, Any]) -> None:
        if self._run is None:
            self._run = self._wandb.init(**{**self._settings, **self._arguments})
            self._run.define_metric("*", step_metric="step")
            self._first = self._run.step  # the service takes nothing for an earlier one
        if values and self._rows >= self._first:
            self._run.log(values, step=self._rows)
