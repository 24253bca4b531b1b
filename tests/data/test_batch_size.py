"""Another batch size, or number of workers, at a resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import DataError, Graph, Loader, Trainer

COUNT = 40


def run(data: Any, run_dir: Path, until: str | None, **parameters: Any) -> tuple[Trainer, list[list[int]], str]:
    """A trainer that has run, the samples of each batch that it was given, and its line about the resume."""
    seen: list[list[int]] = []
    lines: list[str] = []

    def training_step(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        batch = torch.as_tensor(batch)
        seen.append(batch.reshape(-1).int().tolist())
        return model(batch.reshape(-1, 1).float()).square().mean()

    torch.manual_seed(1)
    model = torch.nn.Linear(1, 1)
    graph = Graph.load("fit").set("checkpoint", every="never").set("finish", after="2 epochs")
    trainer = Trainer(
        graph.set("next_batch", **parameters),
        seed=0,
        run_dir=run_dir,
        device="cpu",
        display=None,
        notify=lines.append,
        not_state=["training_step<seen>"],
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-5),
        training_step=training_step,
        train_data=data,
    )
    trainer.run(until=until)
    return trainer, seen, next((line for line in lines if line.startswith("resumed ")), "")


def flat(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


@pytest.mark.parametrize(
    "made",
    [lambda size: Loader(range(COUNT), size, shuffle=True), lambda size: DataLoader(range(COUNT), size)],  # type: ignore[arg-type]
)
def test_inside_an_epoch_it_is_refused_and_the_epoch_can_be_ended(made: Callable[[int], Any], tmp_path: Path) -> None:
    run(made(4), tmp_path, "3 batches")
    with pytest.raises(DataError) as caught:
        run(made(8), tmp_path, "1 epochs")
    assert str(caught.value) == (
        "train_data has a batch size of 8, and the run is inside an epoch that was begun with 4\n"
        "  hint: end this epoch with batches of 4; or resume from a checkpoint between two epochs"
    )
    _, _, line = run(made(4), tmp_path, "1 epochs")
    assert line.endswith(": exact")
    trainer, seen, line = run(made(8), tmp_path, None)
    assert sorted(flat(seen)) == list(range(COUNT)) and {len(batch) for batch in seen} == {8}
    assert "train_data: batch size 8, was 4" in line and trainer.progress["next_batch"]["epochs"] == 2
