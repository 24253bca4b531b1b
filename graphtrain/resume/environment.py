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
from graphtrain.resume.provenance import Provenance, all_utf8, code_changes, provenance
from graphtrain.state.weights import uncompiled
from graphtrain.storage.manifest import Manifest
from graphtrain.version import __version__

_MOST_CHANGES = 50
_MOST_CHARACTERS = 300


@dataclass(frozen=True)
class RunEnvironment:
    """Code, arguments, data, versions and threads of this process.

    Attributes:
        environment: library versions, machine, threads, numeric flags and the seed.
        about: plain data about the start of the run: the `command`, the `arguments` of its `setup` and which of them
            were `given`, fingerprints of the `weights` that it returned, ...
    """

    origin: Provenance
    data: Mapping[str, Any]
    environment: Mapping[str, Any]
    about: Mapping[str, Any]

    def with_resources(self, former: Mapping[str, Any], resources: Mapping[str, Any]) -> RunEnvironment:
        """The same, with the fingerprints of new data.

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
        """Plain data for a manifest; every string can be encoded as UTF-8."""
        plain: dict[str, Any] = all_utf8({**vars(self), "origin": self.origin.as_plain()})
        return plain

    def changes(self, saved: Manifest) -> list[str]:
        """What the user has changed since a manifest was written, in words: code, arguments and data."""
        now = self.as_plain()
        seeds = saved.about.get("seed"), now["about"].get("seed")
        return [
            *(code_changes(saved.origin, now["origin"]) or ()),
            *self.changed_arguments(saved),
            *data_changes(saved.data, now["data"]),
            # Another seed of the command, with which `setup` was called; the order of data stays that of the run.
            *([f"seed {seeds[0]} -> {seeds[1]}"] if seeds[0] is not None and seeds[0] != seeds[1] else []),
        ]

    def changed_arguments(self, saved: Manifest) -> list[str]:
        """The arguments of `setup` that differ from those of a manifest, in words."""
        return argument_changes(saved.about, all_utf8(self.about))

    def changed_data(self, saved: Manifest) -> list[str]:
        """The names of the data that differ from those of a manifest."""
        now = self.as_plain()["data"]
        return [name for name in now if data_changes(saved.data, {name: now[name]})]

    def changes_of_weights(self, saved: Manifest) -> list[str]:
        """The models that are set up with other weights than then, if both are known, in words.

        A run that trains them further does not depend on these: a resume loads the saved weights.
        """
        before, now = (about.get("weights") or {} for about in (saved.about, self.about))
        return [f"the weights of `{name}`" for name in now if before.get(name, now[name]) != now[name]]

    def compared(self, saved: Manifest, others: Sequence[str] = (), lost: Sequence[str] = ()) -> str:
        """Whether a resume from a manifest is exact, in words: ``code, data, threads unchanged: exact``.

        Arguments:
            others: other changes, in words. Default: none.
            lost: state that was not saved or not restored, in words. Default: none.
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
            "data": any(facts[key] not in (None, "") for facts in data for key in ("length", "samples")),
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
    data = {name: fingerprint(resource) for name, resource in by_name(resources) if is_data(name, resource)}
    return RunEnvironment(provenance(Path(script) if script else None), data, environment, about)


def _listed(changes: Sequence[str]) -> str:
    shown = [one_line(change, _MOST_CHARACTERS) for change in changes[:_MOST_CHANGES]]
    more = [f"{len(changes) - _MOST_CHANGES} more"] if len(changes) > _MOST_CHANGES else []
    return ", ".join(shown + more)


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
