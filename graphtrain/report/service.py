"""Runs in services: what the loggers for them have in common."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from graphtrain.lazy import imported
from graphtrain.plain import json_value
from graphtrain.report.logger import Beginning, RunLogger
from graphtrain.storage.regular import parsed_json, replace_file


class Service(RunLogger):
    """A logger for a package that opens runs, which have ``finish``.

    A run is continued after a resume, and opened again by a row that comes after `close`.

    Arguments:
        package: the name of the package.
        settings: with what a run is opened, besides what `settings_of` returns.

    Raises:
        UsageError: it is not installed.
    """

    in_background = True

    def __init__(self, package: str, settings: Mapping[str, Any]) -> None:
        self.package: Any = imported(package)
        self._given, self._settings = settings, dict[str, Any]()
        self._run: Any = None

    @abstractmethod
    def settings_of(self, beginning: Beginning) -> dict[str, Any]:
        """What a run is opened with so that the service continues it."""

    @abstractmethod
    def open(self, settings: Mapping[str, Any]) -> Any:
        """Open a run of the service."""

    @property
    def run(self) -> Any:
        """The run of the service, which is open."""
        if self._run is None:
            self._run = self.open(self._settings)
        return self._run

    def begin(self, beginning: Beginning) -> None:
        """Continue the run of this directory, or begin one."""
        self.close()
        config = {name: json_value(value) for name, value in beginning.hyper_parameters.items()}
        self._settings = {"config": config, "resume": "allow", **self.settings_of(beginning), **self._given}
        _ = self.run  # opened here, where a wrong setting is noticed before the first row

    def close(self) -> None:
        """Finish the run; a later row continues it."""
        self.finish()

    def finish(self, **how: Any) -> None:
        """Finish the run if it is open."""
        run, self._run = self._run, None
        if run is not None:
            run.finish(**how)


def kept_id(run_dir: Path | None, name: str, make: Callable[[], str]) -> str:
    """What a service calls a run, which is kept in its directory: the same in every process of the run.

    Arguments:
        name: of the file, without its suffix.
        make: gives a new one.
    """
    if run_dir is None:
        return make()
    file = run_dir / f"{name}.json"
    try:
        return str(parsed_json(file.read_bytes())["id"])
    except (OSError, ValueError, TypeError, KeyError):
        made = make()
        replace_file(file, json.dumps({"id": made}).encode())
        return made


def metrics_of(row: Mapping[str, float]) -> dict[str, float]:
    """The metrics of a row, without its step."""
    return {name: value for name, value in row.items() if name != "step"}
