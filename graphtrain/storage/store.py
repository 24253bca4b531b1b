"""The checkpoints of one run: numbered, the newest sound one found, the oldest let go."""

from __future__ import annotations

import contextlib
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from graphtrain.errors import CheckpointError
from graphtrain.storage.checkpoint import Checkpoint, read_checkpoint, write_checkpoint

_NAME = re.compile(r"(\d{6,})-step-(\d+)")


class Store(ABC):
    """Where checkpoints go."""

    @abstractmethod
    def save(self, tree: Mapping[str, Mapping[str, Any]], manifest: Mapping[str, Any], *, step: int, keep: int) -> Path:
        """Write a checkpoint, then let all but the `keep` newest go."""

    @abstractmethod
    def newest(self, fits: Callable[[Mapping[str, Any]], bool] | None = None) -> Checkpoint | None:
        """The newest sound checkpoint whose manifest fits; unsound ones are reported and passed over."""


@final
class FolderStore(Store):
    """Checkpoints as folders ``000003-step-120`` under one folder; the first number counts saves.

    Arguments:
        say: told of every checkpoint that is passed over.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder = folder
        self._say = say

    def save(self, tree: Mapping[str, Mapping[str, Any]], manifest: Mapping[str, Any], *, step: int, keep: int) -> Path:
        existing = self.paths()
        number = _number(existing[-1]) + 1 if existing else 1
        path = self.folder / f"{number:06d}-step-{step}"
        write_checkpoint(path, tree, manifest)
        for old in self.paths()[: -max(keep, 1)]:
            self._remove(old)
        return path

    def newest(self, fits: Callable[[Mapping[str, Any]], bool] | None = None) -> Checkpoint | None:
        for path in reversed(self.paths()):
            try:
                checkpoint = read_checkpoint(path)
                if fits is None or fits(checkpoint.manifest):
                    return checkpoint
                self._say(f"passed over {path}: the run was gone on with from an earlier checkpoint")
            except CheckpointError as error:
                self._say(f"passed over an unsound checkpoint: {error.message}")
        return None

    def paths(self) -> list[Path]:
        """The checkpoints there are, oldest first, sound or not."""
        if not self.folder.is_dir():
            return []
        return sorted((one for one in self.folder.iterdir() if _NAME.fullmatch(one.name)), key=_number)

    def remove_leftovers(self) -> None:
        """Remove what an interrupted save or removal left behind."""
        if self.folder.is_dir():
            for one in self.folder.glob(".*.tmp"):
                shutil.rmtree(one, ignore_errors=True)

    def _remove(self, path: Path) -> None:
        # Renamed first: a removal cut short must not leave half a checkpoint under a valid name.
        doomed = path.with_name(f".{path.name}.removed.tmp")
        with contextlib.suppress(OSError):
            path.rename(doomed)
            shutil.rmtree(doomed)


def _number(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    assert found is not None
    return int(found.group(1))
