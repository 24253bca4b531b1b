"""Runs in Weights and Biases."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, final

from graphtrain.lazy import imported
from graphtrain.plain import json_value
from graphtrain.report.guarded import kept_id, metrics_of
from graphtrain.report.logger import Beginning, Histogram, Image, RunLogger, Shown, Text


@final
class WandB(RunLogger):
    """A logger for Weights and Biases, also offline: ``mode="offline"``, or ``WANDB_MODE``; ``wandb sync`` sends later.

    A resume continues the run. Every row is sent once; rows that a resume repeats with other values stay beside them,
    since the service takes none back. Curves are over `step`. A thread of its own calls it, and what fails is one line
    on the screen.

    Arguments:
        project: what the run belongs to. Default: "graphtrain".
        settings: what else ``wandb.init`` is given, such as `name`, `tags`, `group`, `mode`.

    Raises:
        UsageError: wandb is not installed.

    >>> WandB("digits", tags=["small"])  # doctest: +SKIP
    """

    in_background = True

    def __init__(self, project: str = "graphtrain", **settings: Any) -> None:
        self._wandb: Any = imported("wandb")
        self._given = {"project": project, **settings}
        self._settings: dict[str, Any] = {}
        self._run: Any = None

    def begin(self, beginning: Beginning) -> None:
        """Continue the run of this directory, or begin one."""
        self.close()
        run_id = kept_id(beginning.run_dir, "wandb", lambda: uuid.uuid4().hex[:16])
        config = {name: json_value(value) for name, value in beginning.hyper_parameters.items()}
        folder = {"dir": str(beginning.run_dir)} if beginning.run_dir is not None else {}
        self._settings = {"id": run_id, "resume": "allow", "config": config, **folder, **self._given}
        self._opened()

    def _opened(self) -> Any:
        if self._run is None:
            self._run = self._wandb.init(**self._settings)
            self._run.define_metric("*", step_metric="step")
        return self._run

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        """Send a row."""
        self._opened().log({"step": step, **metrics_of(metrics)})

    def show(self, name: str, value: Shown, step: int) -> None:
        """Send a text, an image or a histogram."""
        match value:
            case Text(text):
                sent = text
            case Image(pixels):
                sent = self._wandb.Image(pixels)
            case Histogram(values):
                sent = self._wandb.Histogram(values.flatten().tolist())
        self._opened().log({"step": step, name: sent})

    def ended(self, state: str, error: BaseException | None) -> None:
        """A run that has failed is shown as such."""
        if self._run is not None:
            self._run.finish(exit_code=int(state == "failed"))
            self._run = None

    def close(self) -> None:
        """Finish the run; a later row continues it."""
        if self._run is not None:
            self._run.finish()
            self._run = None
