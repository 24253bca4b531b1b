"""The result of a check: a value that prints the same way everywhere."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Problem:
    """One problem of a graph.

    Arguments:
        code: stable, such as ``"G101"``; listed in `allow` of a graph if the problem is intended.
        severity: ``"error"`` stops a run, ``"warning"`` does not.
        where: file and line, as far as they are known, then the place in the graph.
        message: the value received, and what was expected.
        hint: what to do; empty if the message is enough.
        path: an example, node by node, if the problem is about paths.

    >>> print(Problem("G101", "error", "my.toml:12", "unknown node `stp`", "did you mean `step`?"))
    my.toml:12: error G101: unknown node `stp`
        did you mean `step`?
    """

    code: str
    severity: Literal["error", "warning"]
    where: str
    message: str
    hint: str = ""
    path: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.where}: {self.severity} {self.code}: {self.message}"]
        if self.path:
            lines.append(f"    path: {' -> '.join(self.path)}")
        if self.hint:
            lines.append(f"    {self.hint}")
        return "\n".join(lines)

    def as_plain(self) -> dict[str, Any]:
        """The problem as plain data, for ``--json``."""
        return {**asdict(self), "path": list(self.path)}
