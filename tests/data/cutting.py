"""A run cut after every batch and resumed with fresh objects, compared with the run never cut."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from graphtrain import Graph, Trainer
from graphtrain.state.random import seed_everything

Made = Callable[[], Any]
"""Makes data, or a mapping of `train_data` and `val_data`."""

AssertExact = Callable[..., None]
"""`assert_exact` below, as the fixture of that name gives it."""


def run_over(
    data: Any,
    run_dir: Path | None,
    *,
    epochs: int = 2,
    notify: Callable[[str], None] = lambda line: None,
    edit: Callable[[Graph], Graph] = lambda graph: graph,
    saved: Sequence[str] = ("1 batches", "1 epochs"),
) -> tuple[Trainer, list[Any]]:
    """A trainer whose training draws from every generator between two batches, and what it will have seen."""
    seen: list[Any] = []

    def training_step(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        inputs = batch[0] if isinstance(batch, tuple) else torch.as_tensor(numpy.asarray(batch))
        noise = random.random() + numpy.random.rand() + numpy.random.randn()
        loss = model(inputs.reshape(-1, 1).float()).square().mean() * noise
        seen.append((inputs.tolist(), loss.item()))
        return loss

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    graph = (
        Graph.load("fit")
        .set("accumulate", every=2)
        .set("checkpoint", every=list(saved), keep=10_000)
        .set("validate", every=["2 epoch_batches", "1 epochs"])
        .set("finish", after=f"{epochs} epochs")
    )
    trainer = Trainer(
        edit(graph),
        run_dir=run_dir,
        seed=5,
        device="cpu",
        display=None,
        notify=notify,
        not_state=["training_step<seen>"],
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        training_step=training_step,
        **(data if isinstance(data, dict) else {"train_data": data}),
    )
    return trainer, seen


def checkpoints(run_dir: Path) -> list[Path]:
    return sorted(path for path in (run_dir / "checkpoints").iterdir() if not path.name.startswith("."))


def assert_exact(made: Made, tmp_path: Path, *, resumed: Made | None = None, epochs: int = 2, **options: Any) -> None:
    """Every cut is reported as exact and ends as the run never cut does, and so does the run that saves nothing.

    Arguments:
        resumed: makes the data to resume with. Default: the data that the run began with.
        options: of `run_over`.
    """
    unsaved, seen = _run_unsaved(made, epochs, options)
    seed_everything(3)
    whole, seen_whole = run_over(made(), tmp_path / "whole", epochs=epochs, **options)
    whole.run()
    assert seen_whole == seen
    assert whole.digest() == unsaved.digest()
    cuts = checkpoints(tmp_path / "whole")
    assert len(cuts) > 2
    for path in cuts:
        _assert_exact_from(path, unsaved, seen, resumed or made, {**options, "epochs": epochs})


def assert_some_exact(
    made: Made, tmp_path: Path, *, resumed: Made | None = None, epochs: int = 2, **options: Any
) -> None:
    """The same of one cut, chosen by the name of the test, of a run that ends soon after it."""
    chosen = random.Random(tmp_path.name)
    unsaved, seen = _run_unsaved(made, epochs, options)
    batch = chosen.randrange(2, unsaved.progress["next_batch"]["batches"] - 1)
    options["saved"] = [f"{batch} batches", "1 epochs"]
    seed_everything(3)
    begun, seen_before = run_over(made(), tmp_path / "begun", epochs=epochs, **options)
    begun.run(until=f"{batch + 1} batches")
    assert seen_before == seen[: len(seen_before)] and len(seen_before) > batch
    path = chosen.choice(checkpoints(tmp_path / "begun"))
    _assert_exact_from(path, unsaved, seen, resumed or made, {**options, "epochs": epochs})


def _run_unsaved(made: Made, epochs: int, options: dict[str, Any]) -> tuple[Trainer, list[Any]]:
    seed_everything(3)
    trainer, seen = run_over(made(), None, epochs=epochs, **{**options, "saved": ["never"]})
    trainer.run()
    assert len(seen) > 3 * epochs
    return trainer, seen


def _assert_exact_from(path: Path, whole: Trainer, seen: list[Any], made: Made, options: dict[str, Any]) -> None:
    seed_everything(3)
    lines: list[str] = []
    cut, seen_after = run_over(made(), None, **{**options, "notify": lines.append})
    cut.run(resume=path)
    (line,) = [line for line in lines if line.startswith("resumed ")]
    assert line.endswith("exact") and "not exact" not in line, line
    assert seen_after == seen[len(seen) - len(seen_after) :], path.name
    assert cut.digest() == whole.digest(), path.name


def batches(data: Iterable[Any]) -> list[Any]:
    return [value.tolist() if isinstance(value, torch.Tensor) else value for value in data]
