"""Runs in MLflow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, final

from graphtrain.lazy import imported
from graphtrain.report.logger import Beginning, RunLogger, Shown, Text
from graphtrain.report.service import kept_id, metrics_of

_MOST_CHARACTERS = 500  # of a parameter, in every version of the service
_STATES = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


@final
class MLflow(RunLogger):
    """A logger for MLflow: a server, or a file by ``tracking_uri="sqlite:///mlflow.db"``.

    A resume continues the run. Every row is sent once; rows that a resume repeats with other values stay beside them,
    since the service takes none back. Hyper-parameters are those of the first start, which the service does not let
    change. A text is an artifact; images and histograms are left out. A thread of its own calls it, and what fails is
    one line on the screen.

    Arguments:
        experiment: what the run belongs to. Default: "graphtrain".
        run_name: Default: the name of the run directory, or "graphtrain".
        tracking_uri: of the service. Default: that of MLflow itself, as by ``MLFLOW_TRACKING_URI``.

    Raises:
        UsageError: mlflow is not installed.

    >>> MLflow("digits", tracking_uri="sqlite:///mlflow.db")  # doctest: +SKIP
    """

    in_background = True

    def __init__(
        self, experiment: str = "graphtrain", run_name: str | None = None, tracking_uri: str | None = None
    ) -> None:
        self._mlflow: Any = imported("mlflow")
        self._experiment, self._run_name, self._uri = experiment, run_name, tracking_uri
        self._client: Any = None
        self._run_id = ""

    def begin(self, beginning: Beginning) -> None:
        """Continue the run of this directory, or begin one."""
        self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        folder = beginning.run_dir.name if beginning.run_dir is not None else "graphtrain"
        made: list[str] = []

        def make() -> str:
            found = self._client.get_experiment_by_name(self._experiment)
            experiment = found.experiment_id if found is not None else self._client.create_experiment(self._experiment)
            run = self._client.create_run(experiment, run_name=self._run_name or folder)
            made.append(str(run.info.run_id))
            return made[0]

        self._run_id = kept_id(beginning.run_dir, "mlflow", make)
        if made:
            for name, value in beginning.hyper_parameters.items():
                self._client.log_param(self._run_id, _plain_name(name), str(value)[:_MOST_CHARACTERS])
        self._client.update_run(self._run_id, status="RUNNING")

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        """Send a row."""
        now, make = int(time.time() * 1000), self._mlflow.entities.Metric
        sent = [make(_plain_name(name), float(value), now, step) for name, value in metrics_of(metrics).items()]
        self._client.log_batch(self._run_id, metrics=sent)

    def show(self, name: str, value: Shown, step: int) -> None:
        """Send a text."""
        if isinstance(value, Text):
            self._client.log_text(self._run_id, value.text, f"{_plain_name(name)}/{step}.txt")

    def ended(self, state: str, error: BaseException | None) -> None:
        """Note how the run has ended."""
        self._client.set_terminated(self._run_id, _STATES[state])

    def close(self) -> None:
        """Nothing is open."""


def _plain_name(name: str) -> str:
    """A name of the letters that the service takes.

    >>> _plain_name("val/recall of [2]")
    'val/recall of _2_'
    """
    return "".join(letter if letter.isalnum() or letter in "_-. :/" else "_" for letter in name)
