"""The graph that a run was saved with: from a run directory or a checkpoint, without torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from graphtrain.errors import CheckpointError, GraphtrainError, UsageError
from graphtrain.graph import Graph
from graphtrain.storage.manifest import MANIFEST_FILE, Manifest, check_files, read_manifest
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER, checkpoint_folder, is_named, newest_checkpoint


def holds_a_graph(path: Path) -> bool:
    """True for a run directory, and for a checkpoint: its folder, or ``RUN/best`` and ``RUN/newest``."""
    # Not by `Path`, which raises for names that are too long.
    folder, manifest = os.path.join(path, CHECKPOINTS_FOLDER), os.path.join(path, MANIFEST_FILE)
    return os.path.isdir(folder) or os.path.isfile(manifest) or is_named(path)


def saved_graph(
    path: str | Path, notify: Callable[[str], None] = lambda line: None, *, contained: bool = False
) -> Graph:
    """The graph of a checkpoint, or that of the newest sound one in a run directory; as `saved_manifest` reads it."""
    return graph_of(*saved_manifest(path, notify, contained=contained))


def saved_manifest(
    path: str | Path, notify: Callable[[str], None] = lambda line: None, *, contained: bool = False
) -> tuple[Path, Manifest]:
    """A checkpoint, or the newest sound one in a run directory, and its manifest. All its files are read.

    Arguments:
        notify: receives a line for every checkpoint that is skipped.
        contained: True refuses checkpoints that are elsewhere, by a link. Default: that may be.

    Raises:
        UsageError: there is no checkpoint, or it is elsewhere.
        CheckpointError: the one that was named is not sound.
    """
    path = Path(path)
    run = path.parent if is_named(path) else path
    if contained and not (run / CHECKPOINTS_FOLDER).resolve().is_relative_to(run.resolve()):
        folder = run / CHECKPOINTS_FOLDER
        raise UsageError(f"`{folder}` leads out of the run directory, in which the graph is to be contained")
    path = checkpoint_folder(path, notify)
    if (path / MANIFEST_FILE).is_file():
        checkpoint = path.resolve() if path.is_symlink() else path  # a person may name a link
        manifest = read_manifest(checkpoint)
        check_files(checkpoint, manifest)
        return path, manifest

    def accept(checkpoint: Path, manifest: Manifest) -> tuple[Path, Manifest]:
        graph_of(checkpoint, manifest)
        return checkpoint, manifest

    newest = newest_checkpoint(path / CHECKPOINTS_FOLDER, accept, notify)
    if newest is None:
        raise UsageError(f"there is no checkpoint in `{path}`", "name the directory of a run, or a checkpoint in it")
    return newest


def graph_of(path: Path, manifest: Manifest) -> Graph:
    """The graph in a manifest; `path` is that of its checkpoint, for the message.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        return Graph.from_json(manifest.graph)
    except (ValueError, GraphtrainError) as error:
        raise CheckpointError(f"{path}: its graph cannot be read: {error}") from None
