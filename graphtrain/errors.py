"""The exceptions that graphtrain raises, all of them a `GraphtrainError`.

Exceptions of the user's code are never wrapped: they are raised unchanged, with a note that names the node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True)
class Problem:
    """One problem of a graph.

    Arguments:
        code: stable, such as ``"G101"``; listed in `allow` of a graph if the problem is intended.
        severity: an error stops a run, a warning does not.
        where: file and line, if known, then the place in the graph.
        message: the value received, and what was expected.
        hint: what to do; empty if the message is enough.
        path: an example, node by node, if the problem is about paths.

    >>> print(Problem("G101", "error", "my.toml:12", "unknown node `stp`", "did you mean `step`?"))
    my.toml:12: error G101: unknown node `stp`
        did you mean `step`?
    """

    code: str
    severity: Severity
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


class GraphtrainError(Exception):
    """The base class: a readable message, with a hint if there is one."""

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(f"{message}\n  hint: {hint}" if hint else message)


class GraphError(GraphtrainError, ValueError):
    """A graph with problems; `problems` has all of them."""

    def __init__(self, problems: Iterable[Problem], subject: str = "the graph") -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        lines = "\n".join(str(problem) for problem in self.problems)
        super().__init__(f"{subject} has {count} {'problem' if count == 1 else 'problems'}:\n{lines}")


class EditError(GraphtrainError, ValueError):
    """An edit that cannot be applied; the graph is unchanged.

    Attributes:
        is_missing: True if a node that it names, or a guard that it widens, does not exist.
    """

    def __init__(self, message: str, hint: str = "", *, is_missing: bool = False) -> None:
        self.is_missing = is_missing
        super().__init__(message, hint)


class UsageError(GraphtrainError, ValueError):
    """A wrong argument, resource, script or directory."""


class UnknownMetricError(UsageError):
    """A metric by which checkpoints are ranked, but that nothing records; raised between two nodes of the run."""


class GuardError(GraphtrainError, RuntimeError):
    """A guard that raised an exception, such as a division by zero."""

    def __init__(self, node: str, guard: str, expression: str, error: BaseException) -> None:
        self.node, self.guard = node, guard
        message = f"guard `{guard}` on an edge leaving `{node}` raised {type(error).__name__}: {error}"
        hint = "a guard must have a value at every visit; add a condition that excludes this case"
        if isinstance(error, TypeError) and "nothing yet" not in str(error):
            hint = "write a Python number to the slot: `.item()` of a tensor"
        super().__init__(f'{message}\n  {guard} = "{expression}"', hint)


class ExpressionError(GraphtrainError, RuntimeError):
    """An expression that raised where it was read, or whose value its parameter cannot have."""

    def __init__(self, name: str, expression: str, reason: str, hint: str = "") -> None:
        bound = "an expression needs a value at every visit; bound it by `max` or `min`, or write `... if ... else ...`"
        super().__init__(f'{name}: {reason}\n  {name} = "{expression}"', hint or bound)


class NotFiniteError(GraphtrainError, ArithmeticError):
    """A loss or gradients that are infinite or NaN, or a loss that spikes more often than the run may go back.

    Attributes:
        samples: those of the run up to the batch where it was; 0 where that is not known.
        check: the node that found it.
    """

    def __init__(self, message: str, hint: str = "", samples: int = 0, check: object = None) -> None:
        self.samples, self.check = samples, check
        super().__init__(message, hint)


class DataError(GraphtrainError, ValueError):
    """Data that gives no batch, or whose position cannot be saved or restored, so that no resume would be exact."""


class CheckpointError(GraphtrainError, RuntimeError):
    """A checkpoint that cannot be written, or that is damaged."""


class SaveFailedError(CheckpointError):
    """A checkpoint that could not be written, while the run itself is sound: it stopped, and can be resumed."""


class RanksError(GraphtrainError, RuntimeError):
    """Ranks that cannot continue together; raised on all of them instead of a hang."""


class RanksDivergedError(RanksError):
    """Ranks that took different edges, or whose state differs where it must be equal."""


class RankFailedError(RanksError):
    """Another rank that has failed, has ended, or did not arrive in time."""


class LifeCycleError(GraphtrainError, RuntimeError):
    """A call that is invalid in this state of the run, such as `run` inside of a run."""
