"""A run on the disk, as a value: what its run directory tells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.plain import of_text
from graphtrain.printable import one_line
from graphtrain.report.recorded import Recorded, html_of
from graphtrain.report.snapshot import Snapshot
from graphtrain.storage.manifest import own_checkpoint_paths, read_manifest
from graphtrain.storage.named import graph_of
from graphtrain.storage.run_directory import (
    CHECKPOINTS_FOLDER,
    METRICS_FILE,
    TEXTS_FILE,
    MetricsFile,
    present_status,
    read_starts,
)


@final
class Run(Recorded):
    """A run that is over, or is running in another process: its files are read each time, and nothing is written.

    Arguments:
        run_dir: its run directory.

    Raises:
        UsageError: there is no run, or a file cannot be read; here, and where it is read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "status.json").write_text('{"state": "finished", "place": "step 2", "position": "end"}')
    ...     _ = Path(folder, "metrics.jsonl").write_text('{"step": 2, "epoch": 1.0, "loss": 0.5}\\n')
    ...     run = Run(folder)
    ...     run, run.status["state"], run.metrics
    (<Run ...: finished, step 2>, 'finished', [{'step': 2, 'epoch': 1.0, 'loss': 0.5}])
    """

    def __init__(self, run_dir: str | Path) -> None:
        self.path = Path(run_dir)
        present_status(self.path)

    def __getattr__(self, name: str) -> Any:
        hint = f': write trainer.load("{self.path}/best"), which loads its weights into the model' * (name == "best")
        raise AttributeError(f"`Run` has no `{name}`{hint}", name=name, obj=self)

    @property
    def status(self) -> dict[str, Any]:
        """The last status, as ``graphtrain status --json`` prints it; that of a killed run is `interrupted`."""
        return present_status(self.path)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The rows recorded so far, oldest first."""
        return MetricsFile(self.path / METRICS_FILE).complete_rows()

    @property
    def texts(self) -> list[dict[str, Any]]:
        """The texts that ``recorder.show`` has kept, oldest first, with step and epoch."""
        return MetricsFile(self.path / TEXTS_FILE, are_texts=True).complete_rows()

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `setup` at the last start; empty where no command has started it."""
        abouts = [start["about"] for start in read_starts(self.path) if isinstance(start.get("about"), dict)]
        arguments = abouts[-1].get("arguments") if abouts else None
        return {name: of_text(value) for name, value in arguments.items()} if isinstance(arguments, dict) else {}

    @property
    def graph(self) -> Graph:
        """The procedure, as in the newest checkpoint.

        Raises:
            CheckpointError, UsageError: there is none, or it cannot be read.
        """
        newest = own_checkpoint_paths(self.path / CHECKPOINTS_FOLDER)[-1:]
        if not newest:
            raise UsageError(f"`{self.path}` has no checkpoint yet, which would have the graph")
        return graph_of(newest[0], read_manifest(newest[0]))

    @property
    def _clocks(self) -> Sequence[str]:
        return tuple(self.snapshot().clocks)

    def snapshot(self) -> Snapshot:
        """The status as a value: what can be read of it."""
        return Snapshot.from_plain(self.status)

    def __repr__(self) -> str:
        try:
            status = self.status
        except UsageError as error:  # it was removed since
            return f"<Run {self.path}: {error.message}>"
        place = one_line(str(status.get("place") or ""))
        return f"<Run {self.path}: {', '.join(filter(None, [one_line(str(status.get('state'))), place]))}>"

    def _repr_html_(self) -> str:
        return html_of(self)
