"""What bitwise equality assumes, kept with every checkpoint; a resume prints in one line what of it has changed."""

from __future__ import annotations

import difflib
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy
import torch

from graphtrain.data.fingerprint import data_asides, data_changes, fingerprint
from graphtrain.data.loaders import by_name, is_data
from graphtrain.printable import one_line
from graphtrain.storage.manifest import Manifest
from graphtrain.version import __version__

_MOST_CHANGES = 50
_MOST_CHARACTERS = 300

_PACKAGE = Path(__file__).parent.parent
_MOST_BYTES = 1 << 20
_SECONDS = 10  # for each answer of git: a repository may be on a disk that does not answer
_INSTALLS = f"{os.sep}site-packages{os.sep}"
# Whatever a person has configured, it is a difference that can be applied.
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


@dataclass(frozen=True)
class RunEnvironment:
    """Code, arguments, data, versions and threads of this process.

    Attributes:
        environment: library versions, machine, threads, numeric flags and the seed.
        about: plain data of whoever started the run: the `command`, the `arguments` of its `setup` and which of them
            were `given`, fingerprints of the `weights` that it returned, ...
    """

    origin: Provenance
    data: Mapping[str, Any]
    environment: Mapping[str, Any]
    about: Mapping[str, Any]

    def with_resources(self, former: Mapping[str, Any], resources: Mapping[str, Any]) -> RunEnvironment:
        """The same, with the data that is new since.

        Arguments:
            former: the resources so far.
            resources: those from now on.
        """
        now, before = dict(by_name(resources)), dict(by_name(former))
        data = {name: value for name, value in self.data.items() if now.get(name) is not None}
        for name, resource in now.items():
            if before.get(name) is not resource and is_data(name, resource):
                data[name] = fingerprint(resource)
        return replace(self, data=data)

    def as_plain(self) -> dict[str, Any]:
        """The form that a manifest holds; every text of it can be written as UTF-8."""
        plain: dict[str, Any] = all_utf8({**vars(self), "origin": self.origin.as_plain()})
        return plain

    def changes(self, saved: Manifest) -> list[str]:
        """What a person has changed since a manifest was written, in words: code, arguments and data."""
        now = self.as_plain()
        seeds = saved.about.get("seed"), now["about"].get("seed")
        return [
            *(code_changes(saved.origin, now["origin"]) or ()),
            *_argument_changes(saved.about, now["about"]),
            *data_changes(saved.data, now["data"]),
            # Another seed of the command, with which `setup` was called; the order of data stays that of the run.
            *([f"seed {seeds[0]} -> {seeds[1]}"] if seeds[0] is not None and seeds[0] != seeds[1] else []),
        ]

    def asides(self, saved: Manifest) -> str:
        """What has been changed since and makes no difference, in words; empty for nothing."""
        return "; ".join(one_line(line, _MOST_CHARACTERS) for line in data_asides(saved.data, dict(self.data)))

    def changed_data(self, saved: Manifest) -> list[str]:
        """The names of the data that differ from those of a manifest."""
        now = self.as_plain()["data"]
        return [name for name in now if data_changes(saved.data, {name: now[name]})]

    def changes_of_weights(self, saved: Manifest) -> list[str]:
        """The models that were not set up with the weights of then, where both are known, in words.

        To a run that trains them on they make no difference: a resume loads the saved ones.
        """
        before, now = (about.get("weights") or {} for about in (saved.about, self.about))
        return [f"the weights of `{name}`" for name in now if before.get(name, now[name]) != now[name]]

    def compared(self, saved: Manifest, others: Sequence[str] = (), lost: Sequence[str] = ()) -> str:
        """Whether a resume from a manifest is exact, in words: ``code, data, threads unchanged: exact``.

        Arguments:
            others: what else has changed, in words. Default: nothing.
            lost: state that was not saved, or is not what it was, in words. Default: none.
        """
        now = self.as_plain()
        # A field that only another version of graphtrain saves is no change.
        before = saved.environment
        fields = [(name, before[name], value) for name, value in now["environment"].items() if name in before]
        versions = [f"{name} {former} -> {value}" for name, former, value in fields if former != value]
        changes = [*others, *self.changes(saved), *versions]
        if lost:
            return f"not exact: {_listed([*lost, *changes])}"
        if changes:
            return f"exact except for what changed: {_listed(changes)}"
        data = [facts for name, facts in now["data"].items() if name in saved.data]
        was_compared = {
            "code": code_changes(saved.origin, now["origin"]) is not None,
            "arguments": bool(saved.about.get("arguments")),
            "data": any(facts[key] not in (None, "") for facts in data for key in ("length", "samples", "hash")),
            "versions, threads": bool(saved.environment),
        }
        unchanged = ", ".join(name for name, compared in was_compared.items() if compared)
        return f"{unchanged} unchanged: exact" if unchanged else ""


def run_environment(
    resources: Mapping[str, Any], about: Mapping[str, Any], *, deterministic: bool, seed: int
) -> RunEnvironment:
    """That of this process; `about` may name its `script`."""
    script = about.get("script")
    environment = {
        "graphtrain": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "platform": sys.platform,
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda or "",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "deterministic": deterministic,
        "seed": seed,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    data = {name: fingerprint(resource) for name, resource in by_name(resources) if is_data(name, resource)}
    return RunEnvironment(provenance(Path(script) if script else None), data, environment, about)


def _listed(changes: Sequence[str]) -> str:
    shown = [one_line(change, _MOST_CHARACTERS) for change in changes[:_MOST_CHANGES]]
    more = [f"{len(changes) - _MOST_CHANGES} more"] if len(changes) > _MOST_CHANGES else []
    return ", ".join(shown + more)


def _argument_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The arguments that differ, in words.

    >>> _argument_changes({"arguments": {"lr": "0.1"}}, {"arguments": {"lr": "0.2", "width": "8"}, "given": []})
    ['lr 0.1 -> 0.2']
    >>> _argument_changes({"arguments": {"lr": "0.1"}}, {"arguments": {"width": "8"}, "given": ["width"]})
    ['lr 0.1 -> not given', 'width default -> 8']
    """
    before, after = saved.get("arguments", {}), now.get("arguments", {})
    given = now.get("given", after)
    return [
        f"{name} {before.get(name, 'default')} -> {after.get(name, 'not given')}"
        for name in sorted({*before, *given})
        if before.get(name) != after.get(name)
    ]


# ---- where a run comes from: the code that it runs, its revision, and what of it was not committed


def provenance(script: Path | None = None) -> Provenance:
    """The origin of the modules loaded now that belong to a script's project: its repository, or its folder.

    Arguments:
        script: the program. Default: the file that Python was started with; in a notebook, the present folder.
    """
    program = script
    if script is None and (file := getattr(sys.modules.get("__main__"), "__file__", None)):
        program = Path(file) if Path(file).is_file() and not Path(file).resolve().is_relative_to(_PACKAGE) else None
    try:
        folder = program.resolve().parent if program is not None else Path.cwd().resolve()
    except FileNotFoundError:  # the present folder is gone, and what is relative to it is not known
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


def _loaded_files(project: Path, program: Path | None) -> list[Path]:
    """The Python files of the project that are loaded; what is installed is identified by its version instead."""
    # Selected as text first: resolving the paths of all that torch imports takes 0.25 s, also where the environment is
    # a folder of the project.
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
    """What is not committed, the loaded files first; what does not fit is cut off at the end."""
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
    """The beginning of what git prints in a folder; nothing where there is no git, no repository, or no answer.

    It prints into a file, not into memory: the difference of a large file that is tracked may be larger than that.
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
    """`text` with what UTF-8 cannot hold written out: a path or an argument may have any bytes.

    >>> utf8("plain"), utf8(b"\\xff.py".decode(errors="surrogateescape"))
    ('plain', '\\\\udcff.py')
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def all_utf8(value: Any) -> Any:
    """Plain data in which every text went through `utf8`; tuples become lists.

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
