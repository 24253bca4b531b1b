"""Where a run comes from: the code that it runs, its revision, and what of it was not committed."""

from __future__ import annotations

import difflib
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphtrain.storage.text import utf8

_PACKAGE = Path(__file__).parent.parent
_MOST_BYTES = 1 << 20
_SECONDS = 10
# Whatever a person has configured, it is a difference that can be applied again.
_DIFF = ["diff", "--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/", "HEAD"]


@dataclass(frozen=True)
class Provenance:
    """The user's code in this process. Every text of it can be written as UTF-8.

    Attributes:
        code: file, relative to the folder of the script -> the beginning of its hash (SHA-256, hexadecimal).
        revision: the git commit it was checked out from; empty without one.
        difference: what is not in that commit, as a unified diff: tracked files, and loaded ones unknown to git.
        script: which of the files is the program; empty where none is.
    """

    code: Mapping[str, str] = field(default_factory=dict)
    revision: str = ""
    difference: str = ""
    script: str = ""

    @property
    def difference_file(self) -> str:
        """The name under which the difference is kept; empty if there is none."""
        return f"source-{_digest(self.difference.encode())}.diff" if self.difference else ""

    def as_plain(self) -> dict[str, object]:
        """What a manifest and the list of starts hold."""
        return {
            "code": dict(self.code),
            "script": self.script,
            "revision": self.revision,
            "difference": self.difference_file,
        }


def provenance(script: Path | None = None) -> Provenance:
    """The origin of the modules loaded now that belong to a script's project: its repository, or its folder.

    Arguments:
        script: the program. Default: the file that Python was started with; in a notebook, the present folder.
    """
    started = script or _started_with()
    folder = started.resolve().parent if started is not None else Path.cwd().resolve()
    top = os.fsdecode(_git(folder, "rev-parse", "--show-toplevel")).rstrip("\n")
    project = Path(top) if top else folder
    files = _loaded_files(project, started)
    # Relative to the script, so that a copy of the project has the same names, in a repository or not.
    code = {utf8(os.path.relpath(one, folder)): _digest(one.read_bytes()) for one in files}
    revision = _git(project, "rev-parse", "HEAD").decode(errors="replace").strip() if top else ""
    name = utf8(started.resolve().name) if started is not None else ""
    return Provenance(code, revision, _difference(project, files, revision), name if name in code else "")


def code_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str] | None:
    """The files that are not as they were, given two origins in their plain form; None where nothing can be said.

    A file that is loaded now and was not then is no change by itself; another program is one.

    >>> saved = {"script": "train.py", "code": {"train.py": "aa", "net.py": "bb"}}
    >>> code_changes(saved, {"script": "train.py", "code": {"train.py": "aa", "net.py": "cc", "new.py": "dd"}})
    ['net.py']
    >>> code_changes(saved, {"script": "other.py", "code": {"other.py": "ee", "net.py": "bb"}})
    ['train.py -> other.py']
    >>> code_changes(saved, {"script": "", "code": {}})
    """
    before, after = saved.get("code", {}), now.get("code", {})
    programs = saved.get("script", ""), now.get("script", "")
    hashes = before.get(programs[0]), after.get(programs[1])
    common = (before.keys() & after.keys()) - {*programs}
    changes = sorted(name for name in common if before[name] != after[name])
    if None in hashes:  # a program that is not known may be another one
        return changes or None
    if hashes[0] != hashes[1]:
        changes.insert(0, programs[0] if programs[0] == programs[1] else " -> ".join(programs))
    return changes


def _started_with() -> Path | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    path = Path(file) if file else None
    return path if path is not None and path.is_file() and not path.resolve().is_relative_to(_PACKAGE) else None


def _loaded_files(project: Path, started: Path | None) -> list[Path]:
    """The Python files of the project that are loaded; what is installed is told by its version instead."""
    # Told apart as text first: resolving the paths of all that torch brings takes 0.25 s, also where the environment is
    # a folder of the project.
    here = (f"{project}{os.sep}", f"{os.path.abspath(started.parent)}{os.sep}" if started is not None else "\0")
    installs = f"{os.sep}site-packages{os.sep}"
    names = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    own = [name for name in names if name.endswith(".py") and name.startswith(here) and installs not in name]
    found = {Path(name).resolve() for name in own}
    if started is not None:
        found.add(started.resolve())
    installed = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), _PACKAGE}
    return sorted(
        one
        for one in found
        if one.is_relative_to(project)
        and one.is_file()
        and "site-packages" not in one.parts
        and not any(one.is_relative_to(folder) and folder != project for folder in installed)
    )


def _difference(project: Path, files: Sequence[Path], revision: str) -> str:
    """What is not committed, the loaded files first; what is beyond the most that is kept is left out."""
    names = [str(one.relative_to(project)) for one in files]
    if not revision:
        return _bounded(_as_new(project, name) for name in names)
    known = set(os.fsdecode(_git(project, "ls-files", "-z", "--", *_literally("", names))).split("\0")) if names else ()

    def found() -> Iterator[bytes]:
        if names:
            yield _git(project, *_DIFF, "--", *_literally("", names), most=_MOST_BYTES + 1)
        for name in names:
            if name not in known:
                yield _as_new(project, name)
        yield _git(project, *_DIFF, "--", ".", *_literally("exclude,", names), most=_MOST_BYTES + 1)

    return _bounded(found())


def _literally(also: str, names: Iterable[str]) -> list[str]:
    """Names as git takes them for what they are, not for patterns."""
    return [f":({also}literal){name}" for name in names]


def _bounded(pieces: Iterable[bytes]) -> str:
    whole = b""
    for piece in pieces:
        whole += piece
        if len(whole) > _MOST_BYTES:
            kept = whole[:_MOST_BYTES].rpartition(b"\n")[0]
            return f"{kept.decode(errors='replace')}\n# cut here: the difference is longer than {_MOST_BYTES} bytes\n"
    return whole.decode(errors="replace")


def _as_new(project: Path, name: str) -> bytes:
    with (project / name).open("rb") as file:
        lines = file.read(_MOST_BYTES + 1).decode(errors="replace").splitlines(keepends=True)
    return "".join(difflib.unified_diff([], lines, "/dev/null", f"b/{utf8(name)}")).encode()


def _git(folder: Path, *words: str, most: int = -1) -> bytes:
    """What git says in a folder; nothing where there is no git, or no repository.

    Arguments:
        most: bytes to read; git is ended if it has more to say. Default: all.
    """
    command = ["git", "-C", str(folder), *words]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat"}
    try:
        process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
    except OSError:
        return b""
    limit = threading.Timer(_SECONDS, process.kill)
    limit.start()
    with process:
        try:
            assert process.stdout is not None, "it is a pipe"
            found = process.stdout.read(most)
            whole = len(found) != most
            if not whole:
                process.kill()
            code = process.wait()
        finally:
            limit.cancel()
            limit.join()
    return found if code == 0 or not whole else b""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
