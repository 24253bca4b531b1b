"""A logger that raises is off from then on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

from graphtrain.errors import GraphtrainError
from graphtrain.report.logger import Beginning, Logger, RunLogger, Shown


@final
class Guarded(RunLogger):
    """A logger whose exceptions end it, and not the run; one line says so.

    What a `RunLogger` raises when a run begins is raised: nothing is trained yet.

    Arguments:
        logger: what is called, of any kind.
        notify: takes the line.
    """

    def __init__(self, logger: Logger, notify: Callable[[str], Any]) -> None:
        self._logger, self._run_logger = logger, logger if isinstance(logger, RunLogger) else None
        self._name, self._notify, self._is_off = getattr(logger, "__name__", type(logger).__name__), notify, False

    def begin(self, beginning: Beginning) -> None:
        self._is_off = False
        if self._run_logger is not None:
            self._run_logger.begin(beginning)

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        self._safely(self._logger, metrics, step)

    def show(self, name: str, value: Shown, step: int) -> None:
        if self._run_logger is not None:
            self._safely(self._run_logger.show, name, value, step)

    def flush(self) -> None:
        if self._run_logger is not None:
            self._safely(self._run_logger.flush)

    def ended(self, state: str, error: BaseException | None) -> None:
        if self._run_logger is not None:
            self._safely(self._run_logger.ended, state, error)

    def close(self) -> None:
        if self._run_logger is not None:
            self._safely(self._run_logger.close)

    def _safely(self, call: Callable[..., None], *arguments: Any) -> None:
        if self._is_off:
            return
        try:
            call(*arguments)
        except Exception as error:
            self._is_off = True
            said = error.message if isinstance(error, GraphtrainError) else f"{type(error).__name__}: {error}"
            self._notify(f"the logger {self._name} is off: {' '.join(said.split())}; the run continues without it")
