"""Where a run comes from: the code that it runs, its revision, and what of it was not committed."""

from __future__ import annotations

import difflib
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
_MOST_BYTES = 1 << 20
_SECONDS = 10


@dataclass(frozen=True)
class Origin:
    """The user's code in this process.

    Attributes:
        code: file, relative to the folder of the project -> the beginning of its hash (SHA-256, hexadecimal).
        revision: the git commit it was checked out from; empty without one.
        difference: what is not in that commit, as a unified diff: tracked files, and loaded ones unknown to git.
    """

    code: Mapping[str, str] = field(default_factory=dict)
    revision: str = ""
    difference: str = ""

    @property
    def difference_file(self) -> str:
        """The name under which the difference is kept; empty if there is none."""
        return f"source-{_digest(self.difference.encode())}.diff" if self.difference else ""

    def as_plain(self) -> dict[str, object]:
        """What a manifest and the list of starts hold."""
        return {"code": dict(self.code), "revision": self.revision, "difference": self.difference_file}


def origin(script: Path | None = None) -> Origin:
    """The origin of the modules loaded now that belong to a script's project: its repository, or its folder.

    Arguments:
        script: the program. Default: the file that Python was started with; in a notebook, the present folder.
    """
    started = script or _started_with()
    folder = started.resolve().parent if started is not None else Path.cwd()
    top = _git(folder, "rev-parse", "--show-toplevel").strip()
    project = Path(top) if top else folder
    files = _loaded_files(project, started)
    code = {str(one.relative_to(project)): _digest(one.read_bytes()) for one in files}
    revision = _git(project, "rev-parse", "HEAD").strip() if top else ""
    return Origin(code, revision, _difference(project, code, revision)[:_MOST_BYTES])


def code_changes(saved: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The files that are not as they were; one that is loaded now and was not then is no change by itself.

    >>> code_changes({"train.py": "aa", "net.py": "bb"}, {"train.py": "aa", "net.py": "cc", "new.py": "dd"})
    ['net.py']
    """
    return sorted(name for name in saved if name in now and now[name] != saved[name])


def _started_with() -> Path | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    path = Path(file) if file else None
    return path if path is not None and path.is_file() and not path.resolve().is_relative_to(_PACKAGE) else None


def _loaded_files(project: Path, started: Path | None) -> list[Path]:
    """The Python files of the project that are loaded; what is installed is told by its version instead."""
    # Told apart as text first: resolving the paths of all that torch brings takes 0.25 s.
    here = (f"{project}{os.sep}", f"{os.path.abspath(started.parent)}{os.sep}" if started is not None else "\0")
    names = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    found = {Path(name).resolve() for name in names if name and name.endswith(".py") and name.startswith(here)}
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


def _difference(project: Path, code: Mapping[str, str], revision: str) -> str:
    if not revision:
        return "".join(_as_new(project, name) for name in code)
    known = set(_git(project, "ls-files", "-z", "--", *code).split("\0"))
    return _git(project, "diff", "HEAD") + "".join(_as_new(project, name) for name in code if name not in known)


def _as_new(project: Path, name: str) -> str:
    lines = (project / name).read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    return "".join(difflib.unified_diff([], lines, "/dev/null", f"b/{name}"))


def _git(folder: Path, *words: str) -> str:
    """What git says in a folder; nothing where there is no git, or no repository."""
    command = ["git", "-C", str(folder), *words]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat"}
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, timeout=_SECONDS, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
