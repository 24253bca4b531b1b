"""What bitwise equality assumes, saved with every checkpoint; a resume reports in one line what has changed."""

from __future__ import annotations

import platform
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
from graphtrain.resume.provenance import code_changes, provenance
from graphtrain.state.weights import uncompiled
from graphtrain.storage.manifest import Manifest
from graphtrain.version import __version__

_MOST_CHANGES = 50
_MOST_CHARACTERS = 300


@dataclass(frozen=True)
class RunEnvironment:
    """Code, data, versions and threads of this process, as plain data; every string can be encoded as UTF-8.

    Attributes:
        origin: the code, as in `Provenance`.
        data: name -> fingerprint.
        environment: library versions, machine, threads, numeric flags and the seed.
        about: plain data about the start of the run: the `command`, the `arguments` of its `setup` and which of them
            were `given`, ...
        files: name -> content, of files that belong to the origin.
    """

    origin: Mapping[str, Any]
    data: Mapping[str, Any]
    environment: Mapping[str, Any]
    about: Mapping[str, Any]
    files: Mapping[str, str]

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
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "deterministic": deterministic,
        "seed": seed,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch.compile": quoted(compiled, 3) if compiled else "nothing",
    }
    code = provenance(Path(script) if script else None)
    origin, data, versions, start = map(_all_utf8, (code.origin, _fingerprints(resources), environment, about))
    return RunEnvironment(origin, data, versions, start, code.files)


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
