"""The provenance of a run: its code, the revision, and uncommitted changes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

_PACKAGE = Path(__file__).parent.parent
_MOST_CHARACTERS = 1 << 20
_SECONDS = 10  # timeout of git: a repository may be on a disk that does not answer


class Provenance(NamedTuple):
    """The user's code in this process.

    Attributes:
        origin: plain data: ``code``, file relative to the folder of the script -> the beginning of its hash (SHA-256);
            ``script``, the file that is the program; ``revision``, the git commit; ``difference``, the name of a file.
        files: the name and the content of that file: uncommitted changes, as `git diff HEAD` shows them.
    """

    origin: Mapping[str, Any]
    files: Mapping[str, str]


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
        return Provenance({}, {})
    top = _git(folder, "rev-parse", "--show-toplevel").rstrip("\n")
    # Relative to the script, so that a copy of the project has the same names, in a repository or not.
    files = _loaded_files(Path(top) if top else folder, program)
    code = {os.path.relpath(file, folder): _digest(file.read_bytes()) for file in sorted(files)}
    name = program.resolve().name if program is not None else ""
    difference = _git(folder, "diff", "--no-ext-diff", "--no-color", "HEAD") if top else ""
    if len(difference) > _MOST_CHARACTERS:
        difference = f"{difference[:_MOST_CHARACTERS]}\n# cut here: it is longer than {_MOST_CHARACTERS} characters\n"
    target = f"source-{_digest(difference.encode('utf-8', 'backslashreplace'))}.diff" if difference else ""
    revision = _git(folder, "rev-parse", "HEAD").strip() if top else ""
    origin = {"code": code, "script": name if name in code else "", "revision": revision, "difference": target}
    return Provenance(origin, {target: difference} if difference else {})


def code_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str] | None:
    """The files that have changed between two origins; None if that is unknown.

    A file that is loaded now and was not then is not a change by itself; another program is.

    >>> saved = {"script": "train.py", "code": {"train.py": "aa", "net.py": "bb"}}
    >>> code_changes(saved, {"script": "other.py", "code": {"other.py": "ee", "net.py": "cc", "new.py": "dd"}})
    ['train.py -> other.py', 'net.py']
    """
    before, after = saved.get("code", {}), now.get("code", {})
    former, program = saved.get("script", ""), now.get("script", "")
    common = sorted((before.keys() & after.keys()) - {former, program})
    changes = [name for name in common if before[name] != after[name]]
    if former not in before or program not in after:  # a program that is not known may be another one
        return changes or None
    is_other = before[former] != after[program]
    return [former if former == program else f"{former} -> {program}"] * is_other + changes


def _loaded_files(project: Path, program: Path | None) -> set[Path]:
    """The Python files of the project that are loaded; installed packages are identified by their version instead."""
    folders = [project, *([Path(os.path.abspath(program.parent))] if program is not None else [])]
    # Compared as text: resolving the paths of all that torch imports takes 0.25 s.
    inside = tuple(f"{folder}{os.sep}" for folder in folders)
    paths = [Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), _PACKAGE]
    installed = tuple(f"{path}{os.sep}" for path in paths if path != project)
    names = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    local = [Path(name) for name in names if name.endswith(".py") and name.startswith(inside)]
    loaded = {file.resolve() for file in local if "site-packages" not in file.parts}
    loaded = {file for file in loaded if not str(file).startswith(installed)}
    files = loaded | ({program.resolve()} if program is not None else set())
    return {file for file in files if file.is_relative_to(project) and file.is_file()}


def _git(folder: Path, *words: str) -> str:
    """The output of git in a folder; empty without git, a repository, or an answer."""
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat"}
    command = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(  # noqa: S603 - the words are ours, and no shell reads them
            command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return os.fsdecode(done.stdout)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
