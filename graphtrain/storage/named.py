"""Checkpoints by name: `RUN/best` and `RUN/newest` stand for one of the run in `RUN`. Without torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from graphtrain.errors import CheckpointError, UsageError
from graphtrain.storage.manifest import (
    Manifest,
    SkippedCheckpoints,
    check_files,
    checkpoint_paths,
    holds_a_checkpoint,
    own_checkpoint_paths,
    read_manifest,
)
from graphtrain.storage.ranking import BEST_FILE, Ranking
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER

T = TypeVar("T")

BEST, NEWEST = "best", "newest"


def is_named(path: Path) -> bool:
    """True for ``RUN/best`` and ``RUN/newest`` of a run directory; a file or folder of that name is what it is."""
    is_name = path.name in (BEST, NEWEST) and not os.path.lexists(path)
    return is_name and os.path.isdir(os.path.join(path.parent, CHECKPOINTS_FOLDER))


def checkpoint_folder(path: Path, notify: Callable[[str], None] = lambda line: None) -> Path:
    """The folder of the checkpoint that ``RUN/best`` or ``RUN/newest`` stands for; any other path as it is.

    Arguments:
        notify: receives a line for every checkpoint that is skipped. Default: nobody is told.

    Raises:
        UsageError: the run has no such checkpoint.
    """
    if not is_named(path):
        return path
    run = path.parent
    if path.name == BEST:
        folder = run / CHECKPOINTS_FOLDER
        names = {each.name for each in own_checkpoint_paths(folder)}
        for name in Ranking.read(run / BEST_FILE).values:
            if name in names and holds_a_checkpoint(folder / name):
                return folder / name
        raise UsageError(
            f"`{path}`: no checkpoint of the run in `{run}` is the best, because none was ranked by a metric",
            f"train with checkpoint.best='val/loss', or take `{run / NEWEST}`",
        )
    newest = newest_checkpoint(run / CHECKPOINTS_FOLDER, lambda folder, manifest: folder, notify)
    if newest is None:
        raise UsageError(f"`{path}`: there is no checkpoint in `{run}`", "name the directory of a run that has saved")
    return newest


def newest_checkpoint(folder: Path, accept: Callable[[Path, Manifest], T], notify: Callable[[str], None]) -> T | None:
    """What is made of the newest sound checkpoint in a folder of them; None where there is none. All files are read.

    Arguments:
        accept: is given the path and the manifest; a CheckpointError that it raises skips the checkpoint.
        notify: receives a line for every checkpoint that is skipped.
    """
    skipped = SkippedCheckpoints(notify)
    try:
        for path in reversed(checkpoint_paths(folder)):
            try:
                manifest = read_manifest(path)
                check_files(path, manifest)
                return accept(path, manifest)
            except CheckpointError as error:
                skipped.add(path, error.message, f"skipped a damaged checkpoint: {error.message}")
    finally:
        skipped.report()
    return None
