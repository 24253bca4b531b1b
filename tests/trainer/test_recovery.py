"""After a failure inside a node a new trainer resumes from the last save point, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, LifeCycleError, Loader, Outcome, Trainer

EPOCHS, BATCHES = 3, 5


def failing(folder: Path, moment: str | int) -> Callable[[object], None]:
    """A call that raises at a moment, once: a file is gone then, whatever this process holds when the run resumes."""
    flag = folder / "failing"
    flag.touch()

    def at(now: object) -> None:
        if now == moment and flag.exists():
            flag.unlink()
            raise ValueError("a transient failure")

    return at


def fit(**checkpoint: Any) -> Graph:
    graph = Graph.load("fit").set("schedule", every="1 steps").set("accumulate", every=2).set("log", every="2 steps")
    return graph.set("checkpoint", **{"every": "3 batches", **checkpoint}).set("finish", after=f"{EPOCHS} epochs")


def make_trainer(
    run_dir: Path | None = None,
    at: Callable[[object], None] = lambda moment: None,
    graph: Graph | None = None,
    said: list[str] | None = None,
    data: Any = None,
) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.3))
    model.append(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def training_step(model: Any, batch: Any, epoch: int, batch_index: int) -> Any:
        at(epoch * BATCHES + batch_index + 1)
        return model(batch[0]).square().mean()

    def validation_step(model: Any, batch: Any, step: int, batch_index: int) -> Any:
        at(f"val-{step}-{batch_index}")
        return {"loss": model(batch).square().mean()}

    samples = torch.arange(4.0 * BATCHES).reshape(-1, 1)
    return Trainer(
        fit() if graph is None else graph,
        seed=0,
        run_dir=run_dir,
        device="cpu",
        display=None,
        notify=(said if said is not None else []).append,
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2),
        train_data=data or Loader(torch.utils.data.TensorDataset(samples), batch_size=4, shuffle=True),
        val_data=torch.utils.data.DataLoader(samples[:4], batch_size=2, shuffle=True),
        training_step=training_step,
        validation_step=validation_step,
    )


@pytest.fixture(scope="module")
def whole() -> Trainer:
    """A run that never failed."""
    trainer = make_trainer()
    assert trainer.run() is Outcome.FINISHED
    return trainer


@pytest.mark.full
@pytest.mark.parametrize(("moment", "repeats"), [(4, 1), (6, 3), ("val-6-1", None)])
def test_a_run_that_failed_once_is_the_run_that_never_did(
    moment: int | str, repeats: int | None, whole: Trainer, tmp_path: Path
) -> None:
    said: list[str] = []
    at = failing(tmp_path, moment)
    failed = make_trainer(tmp_path, at)
    with pytest.raises(ValueError, match="a transient failure") as caught:
        failed.run()
    assert failed.state == "failed" and "raised in node " in caught.value.__notes__[0]
    with pytest.raises(LifeCycleError, match="has failed inside a node\n  hint: make a new Trainer"):
        failed.run()
    trainer = make_trainer(tmp_path, at, said=said)
    assert trainer.run() is Outcome.FINISHED
    assert trainer.digest() == whole.digest()
    assert trainer.metrics == whole.metrics
    (line,) = [line for line in said if line.startswith("resumed ")]
    assert repeats is None or f"; repeating {repeats} batch" in line
