"""Files of graphs and overlays: names and paths, and how a new one is written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path

from graphtrain.errors import UsageError
from graphtrain.graph.canonical import FORMAT
from graphtrain.graph.registry import GRAPHS, OVERLAYS, Texts
from graphtrain.printable import shorten

_FORMAT_LINE = re.compile(r"^\ufeff?[ \t]*format[ \t]*=", re.MULTILINE)


@dataclass(frozen=True)
class TextSource:
    """The origin of a name or path: a text that names others, or the user.

    Attributes:
        file: the file as shown in messages.
        folder: the base of relative paths; None for names and paths typed by the user.
        chain: the files that lead to it, from the outermost one.
    """

    file: str = ""
    folder: Path | None = None
    chain: tuple[str, ...] = ()

    def opened(self, source: str | Path, sort: Texts) -> tuple[TextSource, str]:
        """A graph or an overlay that is named here, and its text.

        Raises:
            UsageError: there is no such file, or it cannot be read here.
        """
        shipped = sort.find(source) if isinstance(source, str) else None
        if shipped is not None:
            path, file, folder, identity = shipped, f"{source}.toml", Path(), f"<{sort.word} {source}>"
        else:
            path = self._found(source, sort)
            file, folder, identity = str(path), path.parent, str(path.resolve())
        if identity in self.chain:
            cycle = " -> ".join((*self.chain[self.chain.index(identity) :], identity))
            raise UsageError(
                f"graphs that extend or contain each other in a cycle: {cycle}",
                "let one of them extend or contain something else, such as a shipped graph",
            )
        text = _file_text(path)
        if (self.chain or sort is OVERLAYS) and not _FORMAT_LINE.search(text.partition("\n[")[0]):
            # Its text is not quoted: a graph of a stranger may name any file of this machine.
            raise UsageError(f"`{source}` is no {sort.word}: there is no line `format = {FORMAT}` at its top")
        # Without the byte order mark of some editors.
        return TextSource(file, folder, (*self.chain, identity)), text.removeprefix("\ufeff")

    def _found(self, source: str | Path, sort: Texts) -> Path:
        """The path of a file."""
        path = Path(source)
        if self.folder is not None and path.is_absolute():
            raise UsageError(f"`{source}`: a graph must name others by shipped name or relative path")
        path = (self.folder or Path()) / path
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


def _file_text(file: Path | Traversable) -> str:
    if not file.is_file():
        raise UsageError(f"cannot read the graph `{file}`: it is {'a folder' if file.is_dir() else 'missing'}")
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read the graph `{file}`: {error.strerror}") from None
    except UnicodeDecodeError as error:
        hint = "a graph is TOML text; is this the right file?"
        raise UsageError(f"the graph `{file}` is not UTF-8 text (byte {error.start})", hint) from None
