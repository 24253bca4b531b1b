"""A row of the table: a function that sets a run up, and what a resume of it must report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

ROWS: dict[str, Row] = {}


@dataclass(frozen=True)
class Row:
    """A set-up.

    Attributes:
        make: resources by name; called in a process of its own.
        reports: "exact"; or text of the line of a resume that says why it is not; or "refused: " and text of the error.
        bound: why a resume that is not called exact need not diverge. Empty: it does diverge.
        needs: the parts of what a resume puts back, as in `mutations.PARTS`, without which it diverges.
        stateless: why an exact row needs nothing of what is reachable. Empty: it needs it.
        requires: a library without which the row is skipped.
        parameters: of nodes of `fit`, as on the command line.
    """

    make: Callable[[], dict[str, Any]]
    reports: str
    bound: str
    needs: tuple[str, ...]
    stateless: str
    requires: str
    parameters: dict[str, Any]

    @property
    def is_exact(self) -> bool:
        """True if nothing may differ after a resume."""
        return self.reports == "exact"


def row(
    reports: str = "exact",
    *,
    bound: str = "",
    needs: str | tuple[str, ...] = "reachable",
    stateless: str = "",
    requires: str = "",
    **parameters: Any,
) -> Callable[[Callable[[], dict[str, Any]]], Callable[..., Any]]:
    """Add a function to the table, under its name."""

    def add(make: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
        assert make.__name__ not in ROWS, make.__name__
        parts = (needs,) if isinstance(needs, str) else needs
        ROWS[make.__name__] = Row(make, reports, bound, parts, stateless, requires, parameters)
        return make

    return add


def batches(count: int = 7, size: int = 4, width: int = 3) -> list[torch.Tensor]:
    """Batches of one tensor, always the same."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(size, width, generator=generator) for _ in range(count)]


def squared(model: Any, batch: Any) -> torch.Tensor:
    """A loss."""
    return model(batch).square().mean()


def seeded(model: Callable[[], torch.nn.Module], *, optimizer: Any = None, **resources: Any) -> dict[str, Any]:
    """Resources around a model that is always initialised alike."""
    torch.manual_seed(0)
    made = model()
    optimizer = optimizer or (lambda parameters: torch.optim.AdamW(parameters, lr=0.02))
    return {
        "model": made,
        "optimizer": optimizer(made.parameters()),
        "train_data": batches(),
        "training_step": squared,
        **resources,
    }
