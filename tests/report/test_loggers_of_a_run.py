"""A run that is cut again and again, as TensorBoard reads it; its reference is the same run never cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from graphtrain.graph import Graph
from graphtrain.state.random import seed_everything
from graphtrain.trainer.trainer import Trainer
from tests.program.small_run import Augmented, make_loader, make_model, make_optimizer, small_graph, training_step

pytest.importorskip("tensorboard")

from graphtrain.report.tensorboard import TensorBoard
from tests.report.test_tensorboard import as_shown, shown_in, texts_in

# At the end of an epoch one step has a row of the log, one of the epoch and one of a validation.
GRAPH = small_graph().set("checkpoint", every="1 batches")


def make_trainer(run_dir: Path | None, graph: Graph = GRAPH, lr: float = 0.05) -> Trainer:
    torch.set_num_threads(1)
    seed_everything(7)
    model: nn.Module = make_model()
    optimizer, _ = make_optimizer("sgd", model)
    optimizer.param_groups[0]["lr"] = lr
    data = Augmented()
    return Trainer(
        graph,
        run_dir=run_dir,
        seed=11,
        loggers=[TensorBoard()] if run_dir is not None else [],
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=optimizer,
        train_data=make_loader("Loader", data),
        val_data=DataLoader(data, 4),
        training_step=training_step,
    )


def uncut(graph: Graph = GRAPH) -> Trainer:
    trainer = make_trainer(None, graph)
    trainer.run()
    return trainer


@pytest.mark.full
def test_a_run(tmp_path: Path) -> None:
    make_trainer(tmp_path).run()
    rows = uncut().metrics
    assert len(rows) > len({row["step"] for row in rows}), "or no two rows have one step"
    assert shown_in(tmp_path / "tensorboard") == as_shown(rows)
    assert texts_in(tmp_path / "tensorboard", "hyper_parameters")


@pytest.mark.full
@pytest.mark.parametrize("length", [pytest.param(9, marks=pytest.mark.sweep), 20, 40])
def test_killed_and_resumed(tmp_path: Path, length: int) -> None:
    # Given up between two visits without a word: what a killed process would have left on the disk.
    for _ in range(1000):
        trainer = make_trainer(tmp_path)
        for _ in range(length):
            if trainer.position != "end":
                trainer.advance()
        shown = shown_in(tmp_path / "tensorboard")
        assert shown == as_shown(trainer.metrics)
        if trainer.position == "end":
            break
        length += 1  # or a length shorter than from one checkpoint to the next would never get past it
    assert trainer.position == "end"
    assert trainer.metrics == uncut().metrics
    assert shown == as_shown(uncut().metrics)


@pytest.mark.full
def test_save_between_two_rows_of_one_step(tmp_path: Path) -> None:
    graph = small_graph().set("checkpoint", every="never")
    reference = uncut(graph).metrics
    trainer = make_trainer(tmp_path, graph)
    cuts = 0
    while trainer.position != "end":
        before = len(trainer.metrics)
        trainer.advance()
        rows = trainer.metrics
        if len(rows) > before and len(rows) < len(reference) and reference[len(rows)]["step"] == rows[-1]["step"]:
            trainer.save()
            kept = len(trainer.metrics)
            trainer.advance(10)  # more rows, which are repeated
            trainer = make_trainer(tmp_path, graph)
            trainer.advance()
            assert trainer.metrics[:kept] == reference[:kept]
            cuts += 1
    assert cuts >= 2
    assert shown_in(tmp_path / "tensorboard") == as_shown(reference)
