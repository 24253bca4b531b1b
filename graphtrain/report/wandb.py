"""Runs in Weights and Biases."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, final

from graphtrain.report.logger import Beginning, Histogram, Image, Shown, Text
from graphtrain.report.service import Service, kept_id, metrics_of


@final
class WandB(Service):
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

    def __init__(self, project: str = "graphtrain", **settings: Any) -> None:
        super().__init__("wandb", {"project": project, **settings})

    def settings_of(self, beginning: Beginning) -> dict[str, Any]:
        """The id, by which the service continues a run, and where files go."""
        folder = {"dir": str(beginning.run_dir)} if beginning.run_dir is not None else {}
        return {"id": kept_id(beginning.run_dir, "wandb", lambda: uuid.uuid4().hex[:16]), **folder}

    def open(self, settings: Mapping[str, Any]) -> Any:
        """Open the run, whose curves are over `step`."""
        run = self.package.init(**settings)
        run.define_metric("*", step_metric="step")
        return run

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        """Send a row."""
        self.run.log({"step": step, **metrics_of(metrics)})

    def show(self, name: str, value: Shown, step: int) -> None:
        """Send a text, an image or a histogram."""
        match value:
            case Text(text):
                sent = text
            case Image(pixels):
                sent = self.package.Image(pixels)
            case Histogram(values):
                sent = self.package.Histogram(values.flatten().tolist())
        self.run.log({"step": step, name: sent})

    def ended(self, state: str, error: BaseException | None) -> None:
        """A run that has failed is shown as such."""
        self.finish(exit_code=int(state == "failed"))
