"""A row of the resume table: a function that makes the resources of a run, and what a resume of it must report."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from graphtrain import GraphtrainError, fit
from tests.world import World, run_through

ROWS: dict[str, Row] = {}


@dataclass(frozen=True)
class Row:
    """A set-up.

    Attributes:
        make: resources by name.
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

    def world(self, epochs: int = 2) -> World:
        """A training that saves only when it is asked to."""
        graph = fit(epochs=epochs, log_every="1 steps", save_every="never").set("schedule", every="1 steps")
        for name, parameters in self.parameters.items():
            graph = graph.set(name, **parameters)
        return World(graph, self.make)


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


def rows(
    reports: str = "exact",
    *,
    bound: str = "",
    needs: str | tuple[str, ...] = "reachable",
    stateless: str = "",
    **made: Callable[[], dict[str, Any]],
) -> None:
    """Add functions to the table, each under the name that it is given."""
    for name, make in made.items():
        make.__name__ = name
        row(reports, bound=bound, needs=needs, stateless=stateless)(make)


def outcome(it: Row, run_dir: Path, at: Sequence[int] = (), copies: Path | None = None, epochs: int = 2) -> Any:
    """Run a row to its end, with copies of its run directory at some transitions; what became of it, as JSON has it."""
    try:
        course = run_through(it.world(epochs), run_dir, at, copies)
    except GraphtrainError as error:
        return {"refused": str(error)}
    trained = [course.trainer.resources[name].state_dict() for name in ("model", "optimizer")]
    return {"trained": fingerprint([trained, course.metrics]), "digest": course.digest, "lines": course.lines}


def fingerprint(value: Any) -> str:
    """A hash of what a `state_dict` has: tensors, plain values, dictionaries and lists of them."""
    if isinstance(value, torch.Tensor):
        raw = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        text = f"{value.dtype} {tuple(value.shape)} {hashlib.sha256(raw).hexdigest()}"
    elif isinstance(value, Mapping):
        text = "{" + ", ".join(f"{key!r}: {fingerprint(part)}" for key, part in value.items()) + "}"
    elif isinstance(value, list | tuple):
        text = "[" + ", ".join(map(fingerprint, value)) + "]"
    else:
        text = repr(value)
    return hashlib.sha256(text.encode()).hexdigest()


# ---- what many rows are made of


def batches(count: int = 7, size: int = 4, width: int = 3) -> list[torch.Tensor]:
    """Batches of one tensor, always the same."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(size, width, generator=generator) for _ in range(count)]


def squared(model: Any, batch: Any) -> torch.Tensor:
    """A loss."""
    return model(batch).square().mean()


def perceptron(*further: torch.nn.Module) -> torch.nn.Module:
    """A model that is initialised by the global generator."""
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), *further, torch.nn.Linear(4, 2))


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


def stepped(update: Callable[[int], Any], **resources: Any) -> dict[str, Any]:
    """Resources with a loss that is scaled by what `update` makes of the number of the step."""

    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        return squared(model, batch) * float(update(step))

    return seeded(perceptron, training_step=step, **resources)


class Node:
    """A node of a list of its own."""

    def __init__(self, value: int, before: Node | None = None) -> None:
        self.value, self.before, self.after = value, before, None
        if before is not None:
            before.after = self


if __name__ == "__main__":  # `python -m tests.rows ROW FOLDER SCRIPT`: a resume in an interpreter of its own
    __file__ = sys.argv[3]  # the script that began the run: another one would be a change of the code
    if not __file__:
        del __file__
    from tests import rows as named
    from tests.resume.setups import ROWS as EVERY

    print(json.dumps(named.outcome(EVERY[sys.argv[1]], Path(sys.argv[2]))))
