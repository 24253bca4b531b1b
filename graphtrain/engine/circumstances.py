"""What bitwise equality assumes, kept with every checkpoint; a resume says in one line what of it has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphtrain.data.fingerprint import data_changes, fingerprint, is_data
from graphtrain.engine.environment import environment, environment_changes
from graphtrain.engine.origin import Origin, code_changes, origin


@dataclass(frozen=True)
class Circumstances:
    """Code, arguments, data, versions and threads of this process.

    Attributes:
        about: plain data of whoever started the run: the `command`, the `arguments` of its `setup`, ...
    """

    origin: Origin
    data: Mapping[str, Any]
    environment: Mapping[str, Any]
    about: Mapping[str, Any]

    def as_plain(self) -> dict[str, Any]:
        """The form that a manifest holds."""
        return {
            "origin": self.origin.as_plain(),
            "data": dict(self.data),
            "environment": dict(self.environment),
            "about": dict(self.about),
        }

    def compared(self, saved: Mapping[str, Any], others: Sequence[str] = ()) -> str:
        """What has changed since a manifest was written, in words: ``code, data, threads unchanged: exact``.

        Arguments:
            others: what else has changed, in words. Default: nothing.
        """
        code = saved["origin"]["code"]
        arguments, before = self.about.get("arguments", {}), saved["about"].get("arguments", {})
        changes = {
            "others": others,
            "code": code_changes(code, self.origin.code),
            "arguments": [
                f"{name} {before.get(name, 'default')} -> {arguments.get(name, 'default')}"
                for name in sorted({*before, *arguments})
                if before.get(name) != arguments.get(name)
            ],
            "data": data_changes(saved["data"], self.data),
            "versions, threads": environment_changes(saved["environment"], self.environment),
        }
        found = [one for group in changes.values() for one in group]
        if found:
            return "changed: " + ", ".join(found)
        known = {"code": bool(code), "arguments": bool(before), "data": bool(self.data), "versions, threads": True}
        return ", ".join(name for name, one in known.items() if one) + " unchanged: exact"


def circumstances(resources: Mapping[str, Any], about: Mapping[str, Any], *, deterministic: bool) -> Circumstances:
    """Those of this process; `about` may name its `script`."""
    script = about.get("script")
    return Circumstances(
        origin(Path(script) if script else None),
        {name: fingerprint(one) for name, one in resources.items() if is_data(name, one)},
        environment(deterministic),
        about,
    )
