"""Small runs that pages are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from click.testing import CliRunner, Result

from graphtrain import Graph, Trainer
from graphtrain.command.cli import app

HOSTILE = "<img src=x onerror=alert(1)>"
ENDING = "</script><script>alert(2)</script>\u202e"


def procedure() -> Graph:
    graph = Graph.load("fit").set("finish", after="2 epochs").set("log", every="1 steps")
    return graph.set("accumulate", every=2).set("checkpoint", every="1 epochs")


def trainer_of(run_dir: Path, graph: Graph | None = None, rate: float = 0.1, **settings: Any) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    return Trainer(
        graph or procedure(),
        seed=0,
        run_dir=run_dir,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=rate),
        train_data=[torch.ones(2, 2)] * 7,
        val_data=[torch.ones(2, 2)] * 3,
        training_step=lambda model, batch: {"loss": (model(batch) - 1).square().mean(), HOSTILE: 1.0},
        validation_step=lambda model, batch: {"loss": 1.0, ENDING: 2.0},
        display=None,
        notify=lambda line: None,
        **settings,
    )


def command(*words: str) -> Result:
    """A command of graphtrain, in this process."""
    return CliRunner().invoke(app, words)
