"""What bitwise equality assumes, saved with every checkpoint; a resume reports in one line what has changed."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch

from graphtrain.data.fingerprint import data_changes, fingerprint
from graphtrain.data.loaders import by_name, is_data
from graphtrain.names import plainly_named, quoted
from graphtrain.printable import one_line
from graphtrain.state.weights import uncompiled
from graphtrain.storage.manifest import Manifest
from graphtrain.version import __version__

_MOST_CHANGES = 50
_MOST_CHARACTERS = 300
_PACKAGE = Path(__file__).parent.parent
_SECONDS = 10  # timeout of git: a repository may be on a disk that does not answer


@dataclass(frozen=True)
class RunEnvironment:
    """Code, data, versions and threads of this process, as plain data; every string can be encoded as UTF-8.

    Attributes:
        files: name -> content, of files that belong to the origin.
        origin: the code, as `provenance` returns it.
        data: name -> fingerprint.
        environment: library versions, machine, threads, numeric flags and the seed.
        about: plain data about the start of the run: the `command`, the `arguments` of its `setup` and which of them
            were `given`, ...
    """

    files: Mapping[str, str]
    origin: Mapping[str, Any]
    data: Mapping[str, Any]
    environment: Mapping[str, Any]
    about: Mapping[str, Any]

    def with_resources(self, former: Mapping[str, Any], resources: Mapping[str, Any]) -> RunEnvironment:
        """The same, with the fingerprints of data that differs from the former resources."""
        others = {name: value for name, value in resources.items() if former.get(name) is not value}
        kept = {name: facts for name, facts in self.data.items() if name.partition(".")[0] not in others}
        return replace(self, data={**kept, **_fingerprints(others)})

    def as_plain(self) -> dict[str, Any]:
        """Plain data for a manifest, and for the list of starts."""
        return {name: value for name, value in vars(self).items() if name != "files"}

    def changes(self, saved: Manifest) -> list[str]:
        """What the user has changed since a manifest was written, in words: code, arguments and data."""
        seeds = saved.about.get("seed"), self.about.get("seed")
        return [
            *(code_changes(saved.origin, self.origin) or ()),
            *argument_changes(saved.about, self.about),
            *data_changes(saved.data, self.data),
            # Another seed of the command, with which `setup` was called; the order of data stays that of the run.
            *([f"seed {seeds[0]} -> {seeds[1]}"] if seeds[0] is not None and seeds[0] != seeds[1] else []),
        ]

    def changed_data(self, saved: Manifest) -> list[str]:
        """The names of the data that differ from those of a manifest."""
        return [name for name, facts in self.data.items() if data_changes(saved.data, {name: facts})]

    def compared(self, saved: Manifest, others: Sequence[str] = (), lost: Sequence[str] = ()) -> str:
        """Whether a resume from a manifest is exact, in words: ``code, data, threads unchanged: exact``.

        Arguments:
            others: other changes, in words. Default: none.
            lost: state that was not saved or not restored, in words. Default: none.
        """
        # A field that only another version of graphtrain saves is no change.
        before = saved.environment
        fields = [(name, before[name], value) for name, value in self.environment.items() if name in before]
        versions = [f"{name} {former} -> {value}" for name, former, value in fields if former != value]
        changes = [*others, *self.changes(saved), *versions]
        if lost or changes:
            listed = [one_line(change, _MOST_CHARACTERS) for change in [*lost, *changes]]
            more = [f"{len(listed) - _MOST_CHANGES} more"] if len(listed) > _MOST_CHANGES else []
            text = ", ".join([*listed[:_MOST_CHANGES], *more])
            return f"not exact: {text}" if lost else f"exact except for what changed: {text}"
        data = [facts for name, facts in self.data.items() if name in saved.data]
        was_compared = {
            "code": code_changes(saved.origin, self.origin) is not None,
            "arguments": bool(saved.about.get("arguments")),
            "data": any(facts.get(key) is not None for facts in data for key in ("length", "samples")),
            "versions, threads": bool(saved.environment),
        }
        unchanged = ", ".join(name for name, compared in was_compared.items() if compared)
        return f"{unchanged} unchanged: exact" if unchanged else ""


def run_environment(
    resources: Mapping[str, Any], about: Mapping[str, Any], *, deterministic: bool, seed: int, device: torch.device
) -> RunEnvironment:
    """The environment of this process; `about` may name its `script`."""
    script = about.get("script")
    compiled = [
        f"{name}.{path}".rstrip(".")
        for name, module in resources.items()
        for path, each in (plainly_named(module.named_modules()) if isinstance(module, torch.nn.Module) else ())
        if uncompiled(each) is not each or each._compiled_call_impl is not None
    ]
    environment = {
        "graphtrain": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "platform": sys.platform,
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda or "",
        # A run on the host does not look for another device, which would be in use then.
        "device": f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type,
        "deterministic": deterministic,
        "seed": seed,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch.compile": quoted(compiled, 3) if compiled else "nothing",
    }
    origin, files = provenance(Path(script) if script else None)
    plain = map(_all_utf8, (origin, _fingerprints(resources), environment, about))
    return RunEnvironment(files, *plain)


def _fingerprints(resources: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fingerprint(resource) for name, resource in by_name(resources) if is_data(name, resource)}


def _all_utf8(value: Any) -> Any:
    """Plain data with escapes for what UTF-8 cannot encode: a path or an argument may have any bytes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_all_utf8(name): _all_utf8(inner) for name, inner in value.items()}
    return [_all_utf8(inner) for inner in value] if isinstance(value, list | tuple) else value


def argument_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The arguments that differ, in words.

    >>> argument_changes({"arguments": {"lr": "0.1"}}, {"arguments": {"lr": "0.2", "width": "8"}, "given": []})
    ['lr 0.1 -> 0.2']
    >>> argument_changes({"arguments": {"lr": "0.1"}}, {"arguments": {"width": "8"}, "given": ["width"]})
    ['lr 0.1 -> not given', 'width default -> 8']
    """
    before, after = saved.get("arguments", {}), now.get("arguments", {})
    given = now.get("given", after)
    return [
        f"{name} {before.get(name, 'default')} -> {after.get(name, 'not given')}"
        for name in sorted({*before, *given})
        if before.get(name) != after.get(name)
    ]


# ---- the code


def provenance(script: Path | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    """The provenance of the loaded modules that belong to a script's project: its repository, or its folder.

    Arguments:
        script: the program. Default: the file that Python was started with; in a notebook, the current folder.

    Returns:
        ``code``, file relative to the folder of the script -> the beginning of its hash; ``script``, the file that is
        the program; ``revision``, the git commit; ``difference``, the name of a file. And that file with its content:
        uncommitted changes, as `git diff HEAD` shows them.
    """
    program = script
    if script is None and (file := getattr(sys.modules.get("__main__"), "__file__", None)):
        program = Path(file) if Path(file).is_file() and not Path(file).resolve().is_relative_to(_PACKAGE) else None
    try:
        folder = program.resolve().parent if program is not None else Path.cwd().resolve()
    except FileNotFoundError:  # the current folder is gone, so relative paths are unknown
        return {}, {}
    top = _git(folder, "rev-parse", "--show-toplevel").rstrip("\n")
    # Relative to the script, so that a copy of the project has the same names, in a repository or not.
    files = _loaded_files(Path(top) if top else folder, program)
    code = {os.path.relpath(file, folder): _digest(file.read_bytes()) for file in sorted(files)}
    name = program.resolve().name if program is not None else ""
    difference = _git(folder, "diff", "--no-ext-diff", "--no-color", "HEAD") if top else ""
    target = f"source-{_digest(difference.encode('utf-8', 'backslashreplace'))}.diff" if difference else ""
    revision = _git(folder, "rev-parse", "HEAD").strip() if top else ""
    origin = {"code": code, "script": name if name in code else "", "revision": revision, "difference": target}
    return origin, {target: difference} if difference else {}


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
