"""Code, data, versions and settings that a bitwise equal resume requires; a resume reports what has changed."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from graphtrain.data.fingerprint import data_changes, fingerprints
from graphtrain.names import plainly_named, quoted
from graphtrain.printable import one_line
from graphtrain.state.weights import uncompiled
from graphtrain.storage.manifest import Manifest
from graphtrain.version import __version__

_MOST_CHARACTERS = 300
_PACKAGE = Path(__file__).parent.parent
_SECONDS = 10  # timeout of git: a repository may be on a disk that does not answer


@dataclass(frozen=True)
class RunEnvironment:
    """Code, data, versions and threads of this process, as plain data for a manifest and for the list of starts."""

    origin: Mapping[str, Any]  # `code`: file -> hash; the `script`; the git `revision`
    data: Mapping[str, Any]  # name -> fingerprint
    environment: Mapping[str, Any]  # library versions, machine, threads, numeric flags and the seed
    about: Mapping[str, Any]  # the `command`, the `arguments` of its `setup` and which of them are `explicit`, ...

    def changes(self, saved: Manifest) -> list[str]:
        """What the user has changed since a manifest was written, in words: code, arguments, data and the seed."""
        former, seed = saved.about.get("seed"), self.about.get("seed")
        return [
            *_code_changes(saved.origin, self.origin),
            *_argument_changes(saved.about, self.about),
            *data_changes(saved.data, self.data),
            # The seed with which `setup` was called; data keeps the order of the saved seed.
            *([f"seed {former} -> {seed}"] if former is not None and former != seed else []),
        ]

    def changed_data(self, saved: Manifest) -> list[str]:
        """The names of data that has changed since a manifest was written."""
        return [name for name, facts in self.data.items() if data_changes(saved.data, {name: facts})]

    def compared(self, saved: Manifest, other_changes: Sequence[str] = (), lost: Sequence[str] = ()) -> str:
        """Whether a resume is exact, in words: ``code, data, versions, threads unchanged: exact``.

        Arguments:
            other_changes: further changes, in words.
            lost: state that was not saved or not restored, in words.
        """
        # A field that only another version of graphtrain saves is no change.
        before, now = saved.environment, self.environment
        versions = [f"{name} {before[name]} -> {now[name]}" for name in now if before.get(name, now[name]) != now[name]]
        if changes := [*lost, *other_changes, *self.changes(saved), *versions]:
            listed = ", ".join(one_line(change, _MOST_CHARACTERS) for change in changes)
            return f"{'not exact' if lost else 'exact except for what changed'}: {listed}"
        was_compared = {
            "code": saved.origin.get("script") and self.origin.get("script"),
            "arguments": saved.about.get("arguments"),
            "data": any(facts.get("length") is not None for name, facts in self.data.items() if name in saved.data),
            "versions, threads": before,
        }
        unchanged = ", ".join(name for name, compared in was_compared.items() if compared)
        former = f"; but the resume from {saved.inexact_since} was not" * bool(saved.inexact_since)
        return f"{unchanged} unchanged: exact{former}" if unchanged else ""


def run_environment(
    resources: Mapping[str, Any], about: Mapping[str, Any], *, deterministic: bool, seed: int, device: torch.device
) -> RunEnvironment:
    """The environment of this process; `about` may name the `script` of the user."""
    modules = {name: value for name, value in resources.items() if isinstance(value, torch.nn.Module)}
    compiled = [
        f"{name}.{path}".rstrip(".")
        for name, module in modules.items()
        for path, each in plainly_named(module.named_modules())
        if uncompiled(each) is not each or each._compiled_call_impl is not None
    ]
    packages = [name for name in sys.modules if name.isidentifier() and name not in sys.stdlib_module_names]
    loaded = {name: getattr(sys.modules[name], "__dict__", {}).get("__version__") for name in packages}
    environment = {
        **{name: version for name, version in loaded.items() if isinstance(version, str)},
        "graphtrain": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "platform": sys.platform,
        **torch_settings(),
        "cuda": torch.version.cuda or "",
        # A run on the host does not look for another device, which would be in use then.
        "device": f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type,
        "deterministic": deterministic,
        "seed": seed,
        "torch.compile": quoted(compiled, 3) if compiled else "nothing",
    }
    origin = provenance(Path(about["script"]) if about.get("script") else None)
    return RunEnvironment(origin, fingerprints(resources), environment, about)


def torch_settings() -> dict[str, Any]:
    """The settings of torch that decide bits, which training may change: each save notes them."""
    precision, dtype = torch.get_float32_matmul_precision(), str(torch.get_default_dtype())
    return {"threads": torch.get_num_threads(), "float32_matmul_precision": precision, "default_dtype": dtype}


def _argument_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    before, after = saved.get("arguments", {}), now.get("arguments", {})
    names = sorted({*before, *now.get("explicit", after)})
    pairs = [(name, before.get(name, "default"), after.get(name, "not given")) for name in names]
    return [f"{name} {former} -> {value}" for name, former, value in pairs if before.get(name) != after.get(name)]


# ---- the code


def provenance(script: Path | None = None) -> dict[str, Any]:
    """Hash the loaded modules in the repository of a script, or else in its folder.

    Without a script, the program is the file that Python was started with; in a notebook, the current folder.
    """
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is None and main is not None and Path(main).is_file():
        script = None if Path(main).resolve().is_relative_to(_PACKAGE) else Path(main)
    program = script.resolve() if script is not None else Path.cwd().resolve()
    folder = program.parent if script is not None else program
    top, revision = _repository(folder)
    folders = {top or folder, os.path.abspath(script.parent) if script is not None else folder}
    # Compared as text: resolving the paths of all that torch imports takes 0.25 s.
    inside = tuple([f"{each}{os.sep}" for each in folders])
    names = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    local = {Path(name) for name in names if name.endswith(".py") and name.startswith(inside)} | {program}
    # Installed packages are identified by their versions.
    files = {file.resolve() for file in local if "site-packages" not in file.parts}
    files = {file for file in files if file.is_relative_to(top or folder) and file.is_file()}
    # Relative to the script, so that a copy of the project has the same names, in a repository or not.
    code = {os.path.relpath(file, folder): hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in sorted(files)}
    return {"code": code, "script": program.name if program.name in code else "", "revision": revision}


def _code_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The files that differ. A file that only one of the runs has loaded is no change, unless it is the program."""
    before, after = saved.get("code", {}), now.get("code", {})
    changes = [name for name in sorted(before.keys() & after.keys()) if before[name] != after[name]]
    former, program = saved.get("script"), now.get("script")
    if former and program and former != program and before[former] != after[program]:
        changes = [f"{former} -> {program}", *(name for name in changes if name not in (former, program))]
    return changes


def _repository(folder: Path) -> tuple[str, str]:
    """The top folder and the revision of the repository that contains a folder; empty strings if there is none."""
    command = ["git", "-C", str(folder), "rev-parse", "--show-toplevel", "HEAD"]
    try:
        done = subprocess.run(  # noqa: S603 - the words are ours, and no shell reads them
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=True
        )
        top, revision = os.fsdecode(done.stdout).splitlines()
    except (OSError, subprocess.SubprocessError, ValueError):
        return "", ""
    return top, revision
