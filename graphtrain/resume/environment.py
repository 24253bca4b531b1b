"""What bitwise equality assumes, kept with every checkpoint; a resume says in one line what of it has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphtrain.data.fingerprint import data_changes, fingerprint, is_data
from graphtrain.printable import one_line
from graphtrain.resume.provenance import Provenance, code_changes, provenance
from graphtrain.resume.versions import environment, environment_changes
from graphtrain.storage.text import all_utf8

_MOST_CHANGES = 50
_MOST_CHARACTERS = 300


@dataclass(frozen=True)
class RunEnvironment:
    """Code, arguments, data, versions and threads of this process.

    Attributes:
        about: plain data of whoever started the run: the `command`, the `arguments` of its `setup`, ...
    """

    origin: Provenance
    data: Mapping[str, Any]
    environment: Mapping[str, Any]
    about: Mapping[str, Any]

    def as_plain(self) -> dict[str, Any]:
        """The form that a manifest holds; every text of it can be written as UTF-8."""
        plain = {
            "origin": self.origin.as_plain(),
            "data": self.data,
            "environment": self.environment,
            "about": self.about,
        }
        return {name: all_utf8(one) for name, one in plain.items()}

    def compared(self, saved: Mapping[str, Any], others: Sequence[str] = ()) -> str:
        """What has changed since a manifest was written, in words: ``code, data, threads unchanged: exact``.

        Arguments:
            others: what else has changed, in words. Default: nothing.
        """
        now = self.as_plain()
        arguments, before = now["about"].get("arguments", {}), saved["about"].get("arguments", {})
        code = code_changes(saved["origin"], now["origin"])
        changes = {
            "others": others,
            "code": code or (),
            "arguments": [
                f"{name} {before.get(name, 'default')} -> {arguments.get(name, 'default')}"
                for name in sorted({*before, *arguments})
                if before.get(name) != arguments.get(name)
            ],
            "data": data_changes(saved["data"], now["data"]),
            "versions, threads": environment_changes(saved["environment"], now["environment"])
            if saved["environment"]
            else (),
        }
        found = [_shown(one) for group in changes.values() for one in group]
        if found:
            more = [f"{len(found) - _MOST_CHANGES} more"] if len(found) > _MOST_CHANGES else []
            return "changed: " + ", ".join(found[:_MOST_CHANGES] + more)
        known = {
            "code": code is not None,
            "arguments": bool(before),
            "data": any(_says_something(one) and name in saved["data"] for name, one in now["data"].items()),
            "versions, threads": bool(saved["environment"]),
        }
        named = ", ".join(name for name, one in known.items() if one)
        return f"{named} unchanged: exact" if named else ""


def _shown(change: str) -> str:
    """A change on a line: what was saved is text of others."""
    text = one_line(change[:_MOST_CHARACTERS])
    return text if len(change) <= _MOST_CHARACTERS else f"{text}..."


def _says_something(data: Mapping[str, Any]) -> bool:
    return any(one not in (None, "") for one in data.values())


def run_environment(
    resources: Mapping[str, Any], about: Mapping[str, Any], *, deterministic: bool, seed: int | None = None
) -> RunEnvironment:
    """Those of this process; `about` may name its `script`."""
    script = about.get("script")
    return RunEnvironment(
        provenance(Path(script) if script else None),
        {name: fingerprint(one) for name, one in resources.items() if is_data(name, one)},
        environment(deterministic, seed),
        about,
    )
