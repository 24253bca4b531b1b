"""The provenance of a run: its code, the revision, and uncommitted changes."""

from __future__ import annotations

import difflib
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parent.parent
_MOST_BYTES = 1 << 20
_SECONDS = 10  # timeout of git: a repository may be on a disk that does not answer
_INSTALLS = f"{os.sep}site-packages{os.sep}"
# A diff that can be applied, whatever the user has configured.
_DIFF = ["diff", "--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/", "HEAD"]


@dataclass(frozen=True)
class Provenance:
    """The user's code in this process. Every string can be encoded as UTF-8.

    Attributes:
        code: file, relative to the folder of the script -> the beginning of its hash (SHA-256, hexadecimal).
        revision: the git commit it was checked out from; empty without one.
        difference: uncommitted changes as a unified diff: of tracked files, and loaded files unknown to git.
        script: the file that is the program; empty if none is.
    """

    code: Mapping[str, str] = field(default_factory=dict)
    revision: str = ""
    difference: str = ""
    script: str = ""

    @property
    def difference_file(self) -> str:
        """The name of the file with the difference; empty if there is none."""
        return f"source-{_digest(self.difference.encode())}.diff" if self.difference else ""

    def as_plain(self) -> dict[str, object]:
        """Plain data for a manifest and the list of starts."""
        return {
            "code": dict(self.code),
            "script": self.script,
            "revision": self.revision,
            "difference": self.difference_file,
        }


def provenance(script: Path | None = None) -> Provenance:
    """The provenance of the loaded modules that belong to a script's project: its repository, or its folder.

    Arguments:
        script: the program. Default: the file that Python was started with; in a notebook, the current folder.
    """
    program = script
    if script is None and (file := getattr(sys.modules.get("__main__"), "__file__", None)):
        program = Path(file) if Path(file).is_file() and not Path(file).resolve().is_relative_to(_PACKAGE) else None
    try:
        folder = program.resolve().parent if program is not None else Path.cwd().resolve()
    except FileNotFoundError:  # the current folder is gone, so relative paths are unknown
        return Provenance()
    top = os.fsdecode(_git(folder, "rev-parse", "--show-toplevel")).rstrip("\n")
    project = Path(top) if top else folder
    files = _loaded_files(project, program)
    # Relative to the script, so that a copy of the project has the same names, in a repository or not.
    code = {utf8(os.path.relpath(file, folder)): _digest(file.read_bytes()) for file in files}
    revision = _git(project, "rev-parse", "HEAD").decode(errors="replace").strip() if top else ""
    name = utf8(program.resolve().name) if program is not None else ""
    difference = _difference(project, [str(file.relative_to(project)) for file in files], revision)
    return Provenance(code, revision, difference, name if name in code else "")


def code_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str] | None:
    """The files that have changed between two origins in plain form; None if that is unknown.

    A file that is loaded now and was not then is not a change by itself; another program is.

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


def _loaded_files(project: Path, program: Path | None) -> list[Path]:
    """The Python files of the project that are loaded; installed packages are identified by their version instead."""
    # Filtered as text first: resolving the paths of all that torch imports takes 0.25 s, even if the environment is a
    # folder of the project.
    folders = (f"{project}{os.sep}", f"{os.path.abspath(program.parent)}{os.sep}" if program is not None else "\0")
    names = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    local = [name for name in names if name.endswith(".py") and name.startswith(folders) and _INSTALLS not in name]
    files = {Path(name).resolve() for name in local} | ({program.resolve()} if program is not None else set())
    installed = {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), _PACKAGE} - {project}
    return sorted(
        file
        for file in files
        if file.is_relative_to(project) and file.is_file()
        if _INSTALLS not in str(file) and not any(file.is_relative_to(folder) for folder in installed)
    )


def _difference(project: Path, names: Sequence[str], revision: str) -> str:
    """Uncommitted changes, the loaded files first; cut at the end if they are too long."""
    literally = [f":(literal){name}" for name in names]  # a name may look like a pattern
    tracked = _git(project, "ls-files", "-z", "--", *literally) if revision and names else b""
    unknown = set(names) - set(os.fsdecode(tracked).split("\0"))
    difference = b"".join(_as_new(project, name) for name in names if name in unknown)
    if revision:
        others = [f":(exclude,literal){name}" for name in names]
        difference = (_git(project, *_DIFF, "--", *literally) if names else b"") + difference
        difference += _git(project, *_DIFF, "--", ".", *others)
    if len(difference) <= _MOST_BYTES:
        return difference.decode(errors="replace")
    whole_lines = difference[:_MOST_BYTES].rpartition(b"\n")[0].decode(errors="replace")
    return f"{whole_lines}\n# cut here: the difference is longer than {_MOST_BYTES} bytes\n"


def _as_new(project: Path, name: str) -> bytes:
    with (project / name).open("rb") as file:
        lines = file.read(_MOST_BYTES + 1).decode(errors="replace").splitlines(keepends=True)
    return "".join(difflib.unified_diff([], lines, "/dev/null", f"b/{utf8(name)}")).encode()


def _git(folder: Path, *words: str) -> bytes:
    """The beginning of the output of git in a folder; empty without git, a repository, or an answer.

    It prints to a file: the diff of a large tracked file may not fit in memory.
    """
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat"}
    try:
        with tempfile.TemporaryFile() as output:
            subprocess.run(  # noqa: S603 - the words are ours, and no shell reads them
                ["git", "-C", str(folder), *words],  # noqa: S607 - the git that the person uses
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                env=environment,
                timeout=_SECONDS,
                check=True,
            )
            output.seek(0)
            return output.read(_MOST_BYTES + 1)
    except (OSError, subprocess.SubprocessError):  # a full disk too
        return b""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def utf8(text: str) -> str:
    """`text` with escapes for what UTF-8 cannot encode: a path or an argument may have any bytes.

    >>> utf8("plain"), utf8(b"\\xff.py".decode(errors="surrogateescape"))
    ('plain', '\\\\udcff.py')
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def all_utf8(value: Any) -> Any:
    """Plain data with `utf8` applied to every string; tuples become lists.

    >>> all_utf8({"a": ("b", 1)})
    {'a': ['b', 1]}
    """
    if isinstance(value, str):
        return utf8(value)
    if isinstance(value, Mapping):
        return {all_utf8(name): all_utf8(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [all_utf8(inner) for inner in value]
    return value
