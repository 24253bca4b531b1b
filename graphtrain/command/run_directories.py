"""The run directory: named by the user, new, or forked from another run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.graph.read_toml import overlay_name
from graphtrain.names import quoted
from graphtrain.storage.checkpoint import read_checkpoint
from graphtrain.storage.named import checkpoint_folder, existing_checkpoint, holds_a_graph, newest_in, saved_graph
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER, STATUS_FILE, is_status
from graphtrain.storage.run_files import Lead

SAVED = "saved"  # as --graph: the graph in the checkpoint
_RUNS = Path("runs")


@contextlib.contextmanager
def named_or_new_directory(named: Path | None, stem: str, lead: Lead) -> Iterator[Path]:
    """The directory of the run. A new directory is removed if the block fails and left it empty.

    Arguments:
        lead: makes a call on rank 0, and returns its result on all ranks.
    """
    if named is not None:
        yield named
        return
    made: list[Path] = []

    def make() -> str:
        made.extend([] if os.path.lexists(_RUNS) else [_RUNS])
        run_dir = _new_directory(stem)
        made[:0] = [run_dir / CHECKPOINTS_FOLDER, run_dir]
        return str(run_dir)

    try:
        yield Path(lead(make))
    except BaseException:
        for folder in made:
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()
        raise


def _new_directory(stem: str) -> Path:
    """The first free one of runs/STEM-001, -002, ...; created here, so that no concurrent run gets it too."""
    for number in range(1, 1000):
        path = _RUNS / f"{stem}-{number:03d}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(
                f"cannot create the run directory `{path}`: {error.strerror}", "name a directory with --run-dir"
            ) from None
        return path
    raise UsageError(f"runs/{stem}-001 to -999 exist", "name a directory with --run-dir")


def check_resume(resume: str, run_dir: Path | None) -> None:
    """Refuse what cannot be resumed, before anything is written.

    Raises:
        UsageError: `resume` is "never" and the directory has a run, or names a checkpoint that does not exist.
    """
    if resume == "never":
        if run_dir is not None and is_status(run_dir / STATUS_FILE):
            raise UsageError(
                f"--resume never: `{run_dir}` holds a run already", "choose another run directory, or resume the run"
            )
    elif resume != "auto":
        known = "auto, never, best, newest, or the path of a checkpoint"
        existing_checkpoint(resume, run_dir / CHECKPOINTS_FOLDER if run_dir is not None else None, "--resume", known)


def graph_to_resume(run_dir: Path | None, resume: str, notify: Callable[[str], None]) -> Graph:
    """The graph in the checkpoint that is resumed.

    Raises:
        UsageError: there is none.
        CheckpointError: the named checkpoint is damaged.
    """
    if resume == "never" or (resume == "auto" and run_dir is None):
        raise UsageError("--graph saved: no run is resumed", "name the directory of a run with --run-dir")
    if resume == "auto" and run_dir is not None:
        return saved_graph(run_dir, notify)
    return saved_graph(checkpoint_folder(resume, run_dir / CHECKPOINTS_FOLDER if run_dir is not None else None), notify)


def expect_overlays(overlays: Sequence[str], run_dir: Path | None, resume: str, notify: Callable[[str], None]) -> None:
    """Refuse overlays that the run which is resumed was made without: what they need was not kept from its beginning.

    Raises:
        UsageError: it was.
    """
    if not overlays or run_dir is None or resume == "never" or not holds_a_graph(run_dir):
        return
    try:
        names = graph_to_resume(run_dir, resume, notify).layers.names
    except UsageError:  # there is no checkpoint so far
        return
    for overlay in overlays:
        if (name := overlay_name(Graph, overlay)) not in names:
            made = f"with {quoted(names)}" if names else "without an overlay"
            raise UsageError(
                f"--overlay {overlay}: the run in `{run_dir}` was made {made}, and is resumed without `{name}`",
                f"leave --overlay {overlay} out; or begin another run with it, in a new directory: from this one with "
                f"--fork {run_dir}",
            )


def forked_checkpoint(source: Path, run_dir: Path | None, resume: str, notify: Callable[[str], None]) -> str:
    """The checkpoint to start a fork from: the newest valid checkpoint of `source`.

    If the run directory has a run already, because the same command was run before, that run is resumed instead.

    Raises:
        UsageError: `source` has no checkpoint, is the run directory itself, or `resume` is given too.
    """
    if resume != "auto":
        raise UsageError("--fork and --resume are mutually exclusive", "--fork starts from a run's newest checkpoint")
    if run_dir is not None and run_dir.resolve() == source.resolve():
        raise UsageError("--fork: the run directory is the one to fork from", "name a new directory with --run-dir")
    if run_dir is not None and is_status(run_dir / STATUS_FILE):
        return resume
    return str(newest_in(source, read_checkpoint, notify, "--fork: ", finite_first=True).path)
