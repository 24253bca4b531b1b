"""Loggers: any function that takes a row of metrics, or a class that also follows the start and end of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from graphtrain.errors import GraphtrainError
from graphtrain.graph import EditableGraph

Logger = Callable[[Mapping[str, float], int], None]


@dataclass(frozen=True)
class Text:
    """A text for loggers that accept it: ``recorder.show({"sample": Text("once upon")})``."""

    text: str


@dataclass(frozen=True)
class Image:
    """An image for loggers that accept it.

    Arguments:
        pixels: a tensor of shape (height, width), (1, height, width) or (3, height, width): whole numbers from 0 to
            255, or floating ones from 0 to 1.
    """

    pixels: Any


@dataclass(frozen=True)
class Histogram:
    """The values of a tensor of any shape, for loggers that draw their distribution."""

    values: Any


Shown = Text | Image | Histogram


@dataclass(frozen=True)
class Beginning:
    """What a `RunLogger` receives when a run begins, or when this process resumes one.

    Arguments:
        graph: the graph that is run.
        rows: the rows that are kept, oldest first: those before the checkpoint; later ones will be logged again.
        hyper_parameters: name -> plain value, such as ``{"optimizer.lr": 0.1, "accumulate.every": 4, "seed": 0}``.
        run_dir: the run directory. Default: None, the run has none.
        clocks: the columns of rows with the round of an outer graph, such as `fold`; in each, `step` restarts.
    """

    graph: EditableGraph
    rows: Sequence[Mapping[str, float]] = ()
    hyper_parameters: Mapping[str, Any] = field(default_factory=dict)
    run_dir: Path | None = None
    clocks: tuple[str, ...] = ()


class RunLogger(ABC):
    """A logger that follows a run across processes, so that its log has every row exactly once.

    `show`, `flush` and `ended` are optional. If a logger, of this class or a function, raises an exception during the
    run, it is switched off, one line reports it, and the run continues.

    >>> from graphtrain import Graph
    >>> class Count(RunLogger):
    ...     def begin(self, beginning):
    ...         self.rows = len(beginning.rows)
    ...     def __call__(self, metrics, step):
    ...         self.rows += 1
    ...     def close(self):
    ...         pass
    >>> count = Count()
    >>> count.begin(Beginning(Graph.load("fit"))); count({"step": 1, "epoch": 0.1, "loss": 0.5}, 1)
    >>> count.rows
    1
    """

    @abstractmethod
    def begin(self, beginning: Beginning) -> None:
        """Called when the run begins or is resumed by this process, and again when it continues with another graph."""

    @abstractmethod
    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        """Called with every row: `step`, `epoch` and values. The process may be killed at any moment after it."""

    @abstractmethod
    def close(self) -> None:
        """Called when the run stops: close files. A later row opens them again."""

    def show(self, name: str, value: Shown, step: int) -> None:  # noqa: B027
        """Called with the texts, images and histograms that kinds pass to ``recorder.show``. They are in no row."""

    def flush(self) -> None:  # noqa: B027
        """Called at every checkpoint, with all rows that it counts: flush them to permanent storage."""

    def ended(self, state: str, error: BaseException | None) -> None:  # noqa: B027
        """Called when the run stops, before `close`: "finished", "stopped" or "failed", and by which exception."""


@final
class Loggers:
    """Several loggers as one. One that raises is switched off until the next run begins, and one line reports it.

    An exception of a `RunLogger` when a run begins is raised: nothing is trained yet.
    """

    def __init__(self, loggers: Sequence[Logger], notify: Callable[[str], Any]) -> None:
        self._loggers, self._on, self._notify = [*loggers], [*loggers], notify

    def begin(self, beginning: Beginning) -> None:
        """A run begins or is resumed."""
        self._on = [*self._loggers]
        for logger in self._on:
            if isinstance(logger, RunLogger):
                logger.begin(beginning)

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        """A row was recorded."""
        self.call("__call__", metrics, step)

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of every logger that is on and has it: a function has `__call__`."""
        for logger in [*self._on]:
            try:
                if method == "__call__" or isinstance(logger, RunLogger):
                    getattr(logger, method)(*arguments)
            except Exception as error:
                self._on.remove(logger)
                name = getattr(logger, "__name__", type(logger).__name__)
                said = error.message if isinstance(error, GraphtrainError) else f"{type(error).__name__}: {error}"
                self._notify(f"the logger {name} is off: {' '.join(said.split())}; the run continues without it")
