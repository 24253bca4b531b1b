"""The files that graphtrain writes into a run directory: in one step, beside those of others, never through links."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

# What interrupted processes leave behind, each with its number.
_TEMPORARY_FILE = re.compile(r"\.(probe|status\.json|best\.json|source-[0-9a-f]+\.diff)\.\d+\.tmp")
_TEMPORARY_FOLDER = re.compile(r"\.\d{6,}-step-\d+(\.\d+\.\d+|\.removed(\.\d+)?)\.tmp")


def temporary_name(path: Path, number: int | None = None) -> Path:
    """The name beside a path under which this process writes or removes it.

    >>> temporary_name(Path("r/status.json")).name == f".status.json.{os.getpid()}.tmp"
    True
    """
    numbers = f"{os.getpid()}" if number is None else f"{os.getpid()}.{number}"
    return path.with_name(f".{path.name}.{numbers}.tmp")


def replace_file(path: Path, content: bytes, *, flush: bool = False) -> None:
    """Replace a file in one step, so that nobody sees half of it; a link in its place is replaced, not followed.

    Arguments:
        flush: True brings the content to the disk first. Default: the system does in its time.

    Raises:
        OSError: the disk refuses; then there is no trace.
    """
    temporary = temporary_name(path)
    try:
        try:
            file = temporary.open("xb", buffering=0)  # of no other: a link is no new file
        except FileExistsError:  # left by a process that had the same number
            temporary.unlink()
            file = temporary.open("xb", buffering=0)
        with file:
            file.write(content)
            if flush:
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def remove_leftovers(run_dir: Path, checkpoints: Path) -> None:
    """Remove what interrupted processes have left under names of their own; files of anybody else stay."""
    for path in _matching(run_dir, _TEMPORARY_FILE):
        with suppress(OSError):
            path.unlink()
    for path in _matching(checkpoints, _TEMPORARY_FOLDER):
        shutil.rmtree(path, ignore_errors=True)  # which follows no link


def _matching(folder: Path, names: re.Pattern[str]) -> list[Path]:
    return [path for path in folder.iterdir() if names.fullmatch(path.name)] if folder.is_dir() else []
