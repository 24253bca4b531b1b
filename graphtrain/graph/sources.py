"""Files of graphs and overlays: where one is, its text, and how a new one is written."""

from __future__ import annotations

from importlib.resources.abc import Traversable
from pathlib import Path

from graphtrain.errors import UsageError
from graphtrain.graph.registry import GRAPHS, OVERLAYS, Texts
from graphtrain.printable import shorten


def path_of(source: str | Path, sort: Texts, folder: Path | None) -> Path:
    """The path of a file that a text in a folder names; the folder is None for one that the user names."""
    path = Path(source)
    if folder is not None and path.is_absolute():
        raise UsageError(f"`{source}`: a graph must name others by shipped name or relative path")
    path = (folder or Path()) / path
    try:
        exists = path.resolve() is not None and path.exists()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, circular links, no permission
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"there is no {sort.word} {shorten(repr(str(source)))}: {reason}", sort.hint("")) from None
    if isinstance(source, str) and path.suffix != ".toml" and (not exists or not source):
        hint = sort.hint(source)
        if sort is GRAPHS and OVERLAYS.find(source) is not None:
            hint = f"`{source}` is an overlay: name it after a graph, as in --overlay {source}"
        elif sort is OVERLAYS and GRAPHS.find(source) is not None:
            hint = f"`{source}` is a graph, which comes before the overlays"
        raise UsageError(f"there is no {sort.word} `{source}`", hint)
    return path


def file_text(file: Path | Traversable) -> str:
    """The text of a graph, without the byte order mark of some editors."""
    if not file.is_file():
        raise UsageError(f"cannot read the graph `{file}`: it is {'a folder' if file.is_dir() else 'missing'}")
    try:
        return file.read_text(encoding="utf-8").removeprefix("\ufeff")
    except OSError as error:
        raise UsageError(f"cannot read the graph `{file}`: {error.strerror}") from None
    except UnicodeDecodeError as error:
        hint = "a graph is TOML text; is this the right file?"
        raise UsageError(f"the graph `{file}` is not UTF-8 text (byte {error.start})", hint) from None


def write_new(path: Path, content: bytes) -> None:
    """Write a file, or raise a UsageError if it exists; none is left behind if the disk refuses."""
    is_new = False
    try:
        with path.open("xb") as file:
            is_new = True
            file.write(content)
    except FileExistsError:
        raise UsageError(f"`{path}` exists; a file is never overwritten", "choose another name") from None
    except OSError as error:
        if is_new:
            path.unlink(missing_ok=True)
        raise UsageError(f"cannot write `{path}`: {error.strerror}") from None
