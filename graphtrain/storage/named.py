"""Resolve names and paths to checkpoints, and read the graphs saved there; without torch.

A checkpoint is named by its path, or by ``RUN/best``, ``RUN/best:NODE`` (as that node ranks them), ``RUN/newest`` or
``RUN/NAME``, where NAME is that of its folder; inside a run directory, the bare NAME is enough. A run directory alone
means its newest valid checkpoint.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from graphtrain.errors import CheckpointError, GraphtrainError, UsageError
from graphtrain.graph import EditableGraph
from graphtrain.storage.manifest import (
    MANIFEST_FILE,
    Manifest,
    SavedCheckpoint,
    checkpoint_number,
    checkpoint_paths,
    read_manifest,
)
from graphtrain.storage.retention import rankings_of
from graphtrain.storage.run_directory import BEST, CHECKPOINTS_FOLDER, METRICS_FILE, read_starts

T = TypeVar("T")
Notify = Callable[[str], None]

NEWEST = "newest"
_MOST_NAMES = 10


def _ignore(line: str) -> None:
    pass


# ---- the checkpoints of a run


def lineage_in(run: Path, notify: Notify = _ignore) -> Iterator[SavedCheckpoint]:
    """The checkpoints that a run came through, the newest first, as for `lineage_of`. Only their manifests are read.

    Arguments:
        notify: receives a message for every checkpoint that is skipped. Default: nothing is reported.

    Raises:
        UsageError: one was written by a later version.
    """
    paths = checkpoint_paths(run / CHECKPOINTS_FOLDER)  # before the rows: an active run adds some meanwhile
    metrics, newest = run / METRICS_FILE, math.inf
    length = metrics.stat().st_size if metrics.exists() else math.inf
    begun = {start.get("run") for start in read_starts(run)}
    for path in reversed(paths):
        try:
            manifest = read_manifest(path)
        except CheckpointError as error:
            notify(f"skipped a damaged checkpoint: {error.message}")
            continue
        if begun and manifest.run and manifest.run not in begun:
            notify(f"skipped {path}: it belongs to another run")
        # A run that is resumed from an earlier checkpoint truncates the rows of metrics at once.
        elif manifest.metrics_bytes > length or checkpoint_number(path) > newest:
            notify(f"skipped {path}: the run was resumed from an earlier checkpoint")
        else:
            newest = manifest.follows
            yield SavedCheckpoint(path, manifest)


def newest_in(run: Path, read: Callable[[Path, Manifest], T], notify: Notify = _ignore) -> T:
    """Read the newest valid checkpoint of a run; one with weights that are not finite only if no other can be read.

    Arguments:
        read: reads a checkpoint from its path and manifest; if it raises a CheckpointError, the next one is tried.
        notify: receives a message for every checkpoint that is skipped. Default: nothing is reported.

    Raises:
        UsageError: there is none, or one was written by a later version.
    """
    passed: list[SavedCheckpoint] = []
    for checkpoint in itertools.chain(lineage_in(run, notify), passed):
        if checkpoint.manifest.not_finite and checkpoint not in passed:
            passed.append(checkpoint)  # tried last
            continue
        try:
            result = read(*checkpoint)
        except CheckpointError as error:
            notify(f"skipped a damaged checkpoint: {error.message}")
            continue
        for path, manifest in () if checkpoint.manifest.not_finite else passed:
            why = f"`{manifest.not_finite}` is not finite; --resume {path.name} resumes from it anyway"
            notify(f"skipped {path}: {why}")
        return result
    if not (count := len(checkpoint_paths(run / CHECKPOINTS_FOLDER))):
        raise UsageError(f"there is no checkpoint in `{run}`", "name the directory of a run that has saved")
    hint = "fix the problems reported above, fork from another run, or use another run directory"
    raise UsageError(f"`{run}` holds {count} checkpoints, none of which can be resumed", hint)


# ---- names


def _named(path: Path) -> tuple[Path, str] | None:
    """The run and the name in ``RUN/NAME`` or ``RUN/best:stage/checkpoint``; None if there is no such checkpoint."""
    run, best, node = path.as_posix().rpartition(f"{BEST}:")
    run, name = (run or ".", best + node) if best and run[-1:] in ("", "/") else (str(path.parent), path.name)
    folder = os.path.join(run, CHECKPOINTS_FOLDER)  # by text: `Path` raises for names that are too long
    if name == NEWEST or name.partition(":")[0] == BEST:
        return (Path(run), name) if os.path.isdir(folder) else None
    return (Path(run), name) if name and os.path.isfile(os.path.join(folder, name, MANIFEST_FILE)) else None


def checkpoint_folder(name: str | Path, run: Path | None = None, notify: Notify = _ignore, *, hint: str = "") -> Path:
    """The folder of the checkpoint with this name or path; an existing folder is returned as it is.

    Arguments:
        run: a run directory, whose checkpoints may be named by their bare names. Default: none.
        notify: receives a message for every checkpoint that is skipped. Default: nothing is reported.
        hint: the remedy in the error if the run has no checkpoint. Default: none.

    Raises:
        UsageError: there is no such checkpoint.
    """
    path = Path(name)
    if path.is_dir():
        return path.resolve() if path.is_symlink() else path  # a link by the user, outside of any run directory
    named = (_named(run / path) if run is not None else None) or _named(path)
    if named is None:
        around = path.parent if run is None or len(path.parts) > 1 else run
        names = [each.name for each in checkpoint_paths(around / CHECKPOINTS_FOLDER)]
        hint = f"there are: {', '.join(names[-_MOST_NAMES:])}" if names else hint
        raise UsageError(f"there is no checkpoint `{path}`{f' in `{run}`' if run is not None else ''}", hint)
    run, name = named
    if name == NEWEST:
        return newest_in(run, SavedCheckpoint.verified, notify).path
    best, _, node = name.partition(":")
    if best != BEST:
        return run / CHECKPOINTS_FOLDER / name
    rankings = rankings_of([*lineage_in(run, notify)])
    ranking = rankings.get(node) if node else next(iter(rankings.values()), None)
    if ranking is None or ranking.best is None:
        known = f"there are: {', '.join(f'{BEST}:{each}' for each in rankings)}" if rankings else ""
        hint = known or f"train with checkpoint.best='val/loss', or use `{run / NEWEST}`"
        by = f"the node `{node}`" if node else "a metric"
        raise UsageError(f"`{path}`: no checkpoint of the run in `{run}` was ranked by {by}", hint)
    return run / CHECKPOINTS_FOLDER / str(ranking.best["checkpoint"])


# ---- the graph that was saved


def holds_a_graph(path: Path) -> bool:
    """True for a run directory, and for a checkpoint: its folder, or its name in a run."""
    folder, manifest = os.path.join(path, CHECKPOINTS_FOLDER), os.path.join(path, MANIFEST_FILE)
    return os.path.isdir(folder) or os.path.isfile(manifest) or _named(path) is not None


def saved_graph(path: str | Path, notify: Notify = _ignore) -> EditableGraph:
    """The graph of a checkpoint, or of the newest valid one in a run directory. Its files are verified.

    Arguments:
        notify: receives a message for every checkpoint that is skipped. Default: nothing is reported.

    Raises:
        UsageError: there is no checkpoint.
        CheckpointError: the named checkpoint is damaged.
    """
    path = checkpoint_folder(path, notify=notify, hint="name the directory of a run that has saved")
    is_run = not (path / MANIFEST_FILE).is_file()
    return graph_of(*(newest_in(path, SavedCheckpoint.verified, notify) if is_run else SavedCheckpoint.verified(path)))


def graph_of(path: Path, manifest: Manifest) -> EditableGraph:
    """The graph in a manifest; `path` is the checkpoint, for the message.

    Raises:
        CheckpointError: the graph cannot be read.
    """
    try:
        return EditableGraph.from_json(manifest.graph)
    except (ValueError, GraphtrainError) as error:
        raise CheckpointError(f"{path}: its graph cannot be read: {error}") from None
