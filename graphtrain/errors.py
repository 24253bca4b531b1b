"""Everything graphtrain raises on purpose.

    GraphtrainError
    ├── GraphError        a graph with problems: all of them, at once     (ValueError)
    ├── EditError         a verb that cannot be applied to a graph        (ValueError)
    ├── UsageError        a wrong argument, resource, script or directory (ValueError)
    ├── GuardError        a guard raised while the run asked it           (RuntimeError)
    ├── DataError         data whose position cannot be kept              (ValueError)
    ├── CheckpointError   a checkpoint that cannot be written or trusted  (RuntimeError)
    └── LifeCycleError    a call that the state of the run forbids        (RuntimeError)

Errors of the user's own code are never wrapped: they pass through with a note that names the node.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphtrain.graph.problem import Problem


class GraphtrainError(Exception):
    """The common ancestor: one readable message, with a hint where there is one."""

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(f"{message}\n  hint: {hint}" if hint else message)


class GraphError(GraphtrainError, ValueError):
    """A graph that cannot be used; `problems` holds every reason."""

    def __init__(self, problems: Iterable[Problem], subject: str = "the graph") -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        lines = "\n".join(str(problem) for problem in self.problems)
        super().__init__(f"{subject} has {count} {'problem' if count == 1 else 'problems'}:\n{lines}")


class EditError(GraphtrainError, ValueError):
    """A verb that cannot be applied; the graph is unchanged."""


class UsageError(GraphtrainError, ValueError):
    """A wrong argument, resource, script or directory."""


class GuardError(GraphtrainError, RuntimeError):
    """A guard that raised while it was asked, such as a division by zero."""

    def __init__(self, node: str, guard: str, expression: str, error: BaseException) -> None:
        self.node, self.guard = node, guard
        super().__init__(
            f"guard `{guard}` on an edge leaving `{node}` raised {type(error).__name__}: {error}\n"
            f'  {guard} = "{expression}"',
            "a guard must hold a value at every visit; add a conjunct that rules the case out",
        )


class DataError(GraphtrainError, ValueError):
    """Data whose position cannot be kept, so that a resume could not be exact."""


class CheckpointError(GraphtrainError, RuntimeError):
    """A checkpoint that cannot be written, or that cannot be trusted."""


class LaterFormatError(CheckpointError):
    """A checkpoint of a later version: sound, and not to be passed over."""


class SaveFailedError(CheckpointError):
    """A checkpoint that could not be written, while the run itself is sound: it stopped, and can be resumed."""


class LifeCycleError(GraphtrainError, RuntimeError):
    """A call that the state of the run forbids, such as running inside a run."""
