"""Resolve names and paths to checkpoints, and read the graphs saved there; without torch.

A checkpoint is named by its path, or by ``RUN/best``, ``RUN/best:NODE`` (as that node ranks them), ``RUN/newest`` or
``RUN/NAME``, where NAME is that of its folder; inside a run directory, the bare name is enough. A run directory alone
stands for its newest sound checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from graphtrain.errors import CheckpointError, GraphtrainError, LaterFormatError, UsageError
from graphtrain.graph import Graph
from graphtrain.storage.manifest import MANIFEST_FILE, Manifest, check_files, checkpoint_paths, read_manifest
from graphtrain.storage.retention import manifests_in, rankings_of
from graphtrain.storage.run_directory import BEST, CHECKPOINTS_FOLDER

T = TypeVar("T")

NEWEST = "newest"
_MOST_NAMES = 10


def _ignore(*ignored: object) -> None:
    pass


def _run_and_name(path: Path) -> tuple[Path, str]:
    """The run and the name of a checkpoint: ``RUN`` and ``best:stage/checkpoint``, in which the path of a node is."""
    run, best, node = path.as_posix().rpartition(f"{BEST}:")
    if best and (not run or run.endswith("/")):
        return Path(run), f"{best}{node}"
    return path.parent, path.name


def _is_named(run: Path, name: str) -> bool:
    """True for the names of checkpoints of a run."""
    folder = os.path.join(run, CHECKPOINTS_FOLDER)  # by text: `Path` raises for names that are too long
    if name == NEWEST or name.partition(":")[0] == BEST:
        return os.path.isdir(folder)
    return bool(name) and os.path.isfile(os.path.join(folder, name, MANIFEST_FILE))


def checkpoint_folder(name: str | Path, folder: Path | None = None, notify: Callable[[str], None] = _ignore) -> Path:
    """The path that a name stands for, which may not exist; a path that is not a name is returned as it is.

    Arguments:
        folder: the folder of the checkpoints of a run, whose names are known too. Default: none.
        notify: receives a line for every checkpoint that is skipped. Default: nothing is reported.

    Raises:
        UsageError: the run has no best or newest checkpoint.

    >>> print(checkpoint_folder("runs/net/checkpoints/000003-step-9"))
    runs/net/checkpoints/000003-step-9
    """
    path = Path(name)
    if path.is_dir():
        return path.resolve() if path.is_symlink() else path  # a link by the user, outside of any run directory
    run, name = _run_and_name(path)
    if folder is not None and run == Path():
        run = folder.parent
    if not _is_named(run, name):
        return path
    if name == NEWEST:
        return newest_in(run, _checked, notify, option=f"`{path}`: ")
    best, _, node = name.partition(":")
    if best != BEST:
        return run / CHECKPOINTS_FOLDER / name
    rankings = rankings_of(manifests_in(run / CHECKPOINTS_FOLDER))
    if node and node not in rankings:
        known = ", ".join(f"{BEST}:{ranks}" for ranks in rankings)
        raise UsageError(f"`{path}`: no node `{node}` ranks checkpoints of the run", f"there are: {known}")
    ranking = rankings[node] if node else next(iter(rankings.values()), None)
    if ranking is None or ranking.name is None:
        raise UsageError(
            f"`{path}`: the run in `{run}` has no best checkpoint, because none was ranked by a metric",
            f"train with checkpoint.best='val/loss', or use `{run / NEWEST}`",
        )
    return run / CHECKPOINTS_FOLDER / ranking.name


def existing_checkpoint(name: str | Path, folder: Path | None = None, option: str = "", known: str = "") -> Path:
    """The folder that a name stands for, as for `checkpoint_folder`, if it exists.

    Arguments:
        option: the option that names it, for the message.
        known: the hint if the run has no checkpoint.

    Raises:
        UsageError: there is none.
    """
    path = checkpoint_folder(name, folder)
    if path.is_dir():
        return path
    folder = Path(name).parent / CHECKPOINTS_FOLDER if len(Path(name).parts) > 1 else folder  # in RUN/NAME
    names = [each.name for each in checkpoint_paths(folder)] if folder is not None else []
    hint = f"there are: {', '.join(names[-_MOST_NAMES:])}" if names else known
    raise UsageError(f"{option}: " * bool(option) + f"there is no checkpoint `{name}`", hint)


def newest_in(
    run: Path,
    read: Callable[[Path, Manifest], T],
    notify: Callable[[str], None],
    why_not: Callable[[Manifest], str] = lambda manifest: "",
    damaged: Callable[[Path], None] = _ignore,
    *,
    option: str = "",
) -> T:
    """Read the newest sound checkpoint of a run. One with weights that are not finite only if no other can be read.

    Arguments:
        read: reads a checkpoint, given its manifest; a CheckpointError that it raises skips it.
        notify: receives a line for every checkpoint that is skipped.
        why_not: given a manifest, the reason to skip it; empty if there is none. Default: none is skipped.
        damaged: called with each that is permanently damaged. Default: nothing is called.
        option: the beginning of the message if there is none.

    Raises:
        UsageError: there is none.
        LaterFormatError: a checkpoint that would be read was written by a later version.
    """
    not_finite: dict[Path, str] = {}
    paths = checkpoint_paths(run / CHECKPOINTS_FOLDER)[::-1]
    count = len(paths)
    for path in paths:  # those that are tried last are appended
        try:
            manifest = read_manifest(path)
            if reason := why_not(manifest):
                notify(f"skipped {path}: {reason}")
            elif manifest.not_finite and path not in not_finite:
                not_finite[path] = f"`{manifest.not_finite}` is not finite; --resume {path.name} resumes from it anyway"
                paths.append(path)
            else:
                checkpoint = read(path, manifest)
                for passed, why in not_finite.items() if path not in not_finite else ():
                    notify(f"passed over {passed}: {why}")
                return checkpoint
        except LaterFormatError:
            raise
        except CheckpointError as error:
            if not isinstance(error.__cause__, OSError | MemoryError):  # which may be temporary
                damaged(path)
            notify(f"skipped a damaged checkpoint: {error.message}")
    if count:
        raise UsageError(
            f"{option}`{run}` holds {count} checkpoints, none of which can be resumed",
            "fix the problems reported above, fork from another run, or use another run directory",
        )
    raise UsageError(f"{option}there is no checkpoint in `{run}`", "name the directory of a run that has saved")


def _checked(path: Path, manifest: Manifest) -> Path:
    """The path of a checkpoint, after its files were verified."""
    check_files(path, manifest)
    return path


# ---- the graph that was saved


def holds_a_graph(path: Path) -> bool:
    """True for a run directory, and for a checkpoint: its folder, or its name in a run."""
    folder, manifest = os.path.join(path, CHECKPOINTS_FOLDER), os.path.join(path, MANIFEST_FILE)
    return os.path.isdir(folder) or os.path.isfile(manifest) or _is_named(*_run_and_name(path))


def saved_graph(path: str | Path, notify: Callable[[str], None] = _ignore) -> Graph:
    """The graph of a checkpoint, or of the newest sound one in a run directory, whose files are verified.

    Arguments:
        notify: receives a line for every checkpoint that is skipped.

    Raises:
        UsageError: there is no checkpoint.
        CheckpointError: the named one is not sound.
    """

    def read(checkpoint: Path, manifest: Manifest) -> Graph:
        check_files(checkpoint, manifest)
        return graph_of(checkpoint, manifest)

    path = checkpoint_folder(path, notify=notify)
    return read(path, read_manifest(path)) if (path / MANIFEST_FILE).is_file() else newest_in(path, read, notify)


def graph_of(path: Path, manifest: Manifest) -> Graph:
    """The graph in a manifest; `path` is that of its checkpoint, for the message.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        return Graph.from_json(manifest.graph)
    except (ValueError, GraphtrainError) as error:
        raise CheckpointError(f"{path}: its graph cannot be read: {error}") from None
