"""Runs in trackio."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, final

from graphtrain.lazy import imported
from graphtrain.plain import json_value
from graphtrain.report.guarded import kept_id, metrics_of
from graphtrain.report.logger import Beginning, RunLogger


@final
class Trackio(RunLogger):
    """A logger for trackio, which keeps runs in files of this machine; ``trackio show`` shows them.

    A resume continues the run. Every row is sent once; rows that a resume repeats with other values stay beside them,
    since the service takes none back. Texts, images and histograms are left out. A thread of its own calls it, and what
    fails is one line on the screen.

    Arguments:
        project: what the run belongs to. Default: "graphtrain".
        settings: what else ``trackio.init`` is given, such as `group` or `space_id`.

    Raises:
        UsageError: trackio is not installed.

    >>> Trackio("digits")  # doctest: +SKIP
    """

    in_background = True

    def __init__(self, project: str = "graphtrain", **settings: Any) -> None:
        self._trackio: Any = imported("trackio")
        self._given = {"project": project, "embed": False, **settings}
        self._settings: dict[str, Any] = {}
        self._run: Any = None

    def begin(self, beginning: Beginning) -> None:
        """Continue the run of this directory, or begin one."""
        self.close()
        folder = beginning.run_dir.name if beginning.run_dir is not None else "run"
        name = kept_id(beginning.run_dir, "trackio", lambda: f"{folder}-{uuid.uuid4().hex[:8]}")
        config = {name: json_value(value) for name, value in beginning.hyper_parameters.items()}
        self._settings = {"name": name, "config": config, "resume": "allow", **self._given}
        self._opened()

    def _opened(self) -> Any:
        if self._run is None:
            self._run = self._trackio.init(**self._settings)
        return self._run

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        """Send a row."""
        self._opened().log(metrics_of(metrics), step=step)

    def close(self) -> None:
        """Finish the run; a later row continues it."""
        if self._run is not None:
            self._run.finish()
            self._run = None
