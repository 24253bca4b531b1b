"""Runs in trackio."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, final

from graphtrain.report.logger import Beginning
from graphtrain.report.service import Service, kept_id, metrics_of


@final
class Trackio(Service):
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

    def __init__(self, project: str = "graphtrain", **settings: Any) -> None:
        super().__init__("trackio", {"project": project, "embed": False, **settings})

    def settings_of(self, beginning: Beginning) -> dict[str, Any]:
        """The name, by which trackio continues a run."""
        folder = beginning.run_dir.name if beginning.run_dir is not None else "run"
        return {"name": kept_id(beginning.run_dir, "trackio", lambda: f"{folder}-{uuid.uuid4().hex[:8]}")}

    def open(self, settings: Mapping[str, Any]) -> Any:
        """Open the run."""
        return self.package.init(**settings)

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        """Send a row."""
        self.run.log(metrics_of(metrics), step=step)
