"""Where a run is kept: a directory that was named, a fresh one, or one forked from another run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.names import nearest
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER, STATUS_FILE
from graphtrain.storage.saved_graph import saved_graph
from graphtrain.storage.store import FolderStore

SAVED = "saved"  # the graph that is in the checkpoint


@contextlib.contextmanager
def claimed_directory(given: Path | None, stem: str) -> Iterator[Path]:
    """The directory of the run. A fresh one is gone again if what is done in the block fails."""
    if given is not None:
        yield given
        return
    fresh = _fresh_directory(stem)
    try:
        yield fresh
    except BaseException:
        for empty in (fresh / CHECKPOINTS_FOLDER, fresh, fresh.parent):
            with contextlib.suppress(OSError):
                empty.rmdir()
        raise


def _fresh_directory(stem: str) -> Path:
    """The first of runs/STEM-001, -002, ... that was free; made here, so that no run started beside gets it too."""
    for number in range(1, 1000):
        path = Path("runs") / f"{stem}-{number:03d}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(
                f"the run directory `{path}` cannot be made: {error.strerror}", "name a directory with --run-dir"
            ) from None
        return path
    raise UsageError(f"runs/{stem}-001 to -999 exist", "name a directory with --run-dir")


def check_resume(resume: str, run_dir: Path | None) -> None:
    """Refuse what cannot be gone on from, before anything is written.

    Raises:
        UsageError: "never", and the directory holds a run; or a checkpoint that does not exist.
    """
    if resume == "auto":
        return
    if resume == "never":
        if run_dir is not None and (run_dir / STATUS_FILE).exists():
            raise UsageError(
                f"--resume never: `{run_dir}` holds a run already", "choose another run directory, or resume the run"
            )
        return
    checkpoints = run_dir / CHECKPOINTS_FOLDER if run_dir is not None else Path()
    if Path(resume).is_dir() or (checkpoints / resume).is_dir():
        return
    there = sorted(one.name for one in checkpoints.iterdir()) if run_dir is not None and checkpoints.is_dir() else []
    close = nearest(resume, there)
    hint = f"did you mean {close}?" if close else f"there are: {', '.join(there)}" if there else ""
    raise UsageError(f"--resume: there is no checkpoint `{resume}`", hint or "auto, never, or the path of a checkpoint")


def graph_to_go_on_in(run_dir: Path | None, resume: str, notify: Callable[[str], None]) -> Graph:
    """The graph that is saved in the checkpoint which is gone on from.

    Raises:
        UsageError: there is none.
        CheckpointError: the one that was named is not sound.
    """
    if resume == "never" or (resume == "auto" and run_dir is None):
        raise UsageError("--graph saved: nothing is gone on with", "name the directory of a run with --run-dir")
    if resume == "auto" or run_dir is None or Path(resume).is_dir():
        return saved_graph(run_dir if resume == "auto" and run_dir is not None else resume, notify)
    return saved_graph(run_dir / CHECKPOINTS_FOLDER / resume, notify)


def forked_checkpoint(source: Path, run_dir: Path | None, resume: str, notify: Callable[[str], None]) -> str:
    """What to go on from when a run is forked: the newest sound checkpoint of `source`.

    The second time, when the run directory holds a run of its own, that one goes on.

    Raises:
        UsageError: `source` has no checkpoint, is the run directory itself, or something else is to be resumed too.
    """
    if resume != "auto":
        raise UsageError("--fork and --resume exclude each other", "--fork begins from the newest checkpoint of a run")
    if run_dir is not None and run_dir.resolve() == source.resolve():
        raise UsageError("--fork: the run directory is the one to fork from", "name a new one with --run-dir")
    if run_dir is not None and (run_dir / STATUS_FILE).exists():
        return resume
    newest = FolderStore(source / CHECKPOINTS_FOLDER, notify).newest()
    if newest is None:
        raise UsageError(f"--fork: there is no checkpoint in `{source}`", "name the directory of a run")
    return str(newest.path)
