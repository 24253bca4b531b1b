"""Truncated backpropagation through time: a recurrent network predicts the characters of Python's standard library.

    graphtrain run graphs/gallery/tbptt/tbptt_example.py
    graphtrain run graphs/gallery/tbptt/tbptt_example.py split_batch.length=64 width=192

A batch contains sequences of 256 characters. The graph `tbptt` divides them into splits of 32, with an optimizer step
for each; the hidden state is passed from split to split without gradients. `val/loss` is in nats per character, on
whole sequences of held-out files.
Source: Williams and Peng, "An efficient gradient-based algorithm for on-line training of recurrent network
trajectories", 1990.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from graphtrain import Graph, Loader

METRIC = "val/loss"
BASELINE = 2.36  # of the frequencies of pairs of characters in the files that are trained on; of single ones 2.98
LEVEL = 1.9  # ends at 1.72

graph = Graph.load("tbptt").set("split_batch", length=32).set("finish", after="1 epochs")
MODULES = ("argparse", "ast", "dataclasses", "doctest", "inspect", "pickle", "tarfile", "typing")
UNSEEN = ("subprocess", "threading")


class Characters(nn.Module):
    """A GRU over ASCII characters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 32)
        self.recurrent = nn.GRU(32, width, batch_first=True)
        self.head = nn.Linear(width, 128)

    def forward(self, inputs: torch.Tensor, hidden: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits, shape (batch, time, 128), and the hidden state after the last character."""
        outputs, hidden = self.recurrent(self.embedding(inputs), hidden)
        return self.head(outputs), hidden


def training_step(model: Characters, batch: torch.Tensor, hidden: torch.Tensor | None = None) -> dict[str, Any]:
    """The loss and the hidden state for a split, shape (batch, time, 2): each character and the next."""
    logits, hidden = model(batch[:, :, 0], hidden)
    return {"loss": cross_entropy(logits.flatten(0, 1), batch[:, :, 1].flatten()), "hidden": hidden}


def validation_step(model: Characters, batch: torch.Tensor) -> torch.Tensor:
    """The loss of whole sequences."""
    return training_step(model, batch)["loss"]


def sequences(modules: tuple[str, ...], length: int = 256) -> torch.Tensor:
    """Sequences of characters and their successors, from modules of the standard library."""
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = [library.joinpath(f"{name}.py").read_bytes() for name in modules]
    text = torch.tensor(list(b"".join(texts))).clamp(max=127)
    count = (len(text) - 1) // length * length
    return torch.stack([text[:count], text[1 : count + 1]], 1).reshape(-1, length, 2)


def setup(lr: float = 3e-3, width: int = 128, batch_size: int = 32) -> dict[str, Any]:
    """The resources of the run.

    Arguments:
        lr: learning rate of Adam.
        width: size of the hidden state.
        batch_size: sequences per batch.
    """
    torch.set_num_threads(1)  # a network this small is slower with two
    model = Characters(width)
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=lr),
        "train_data": Loader(sequences(MODULES), batch_size, shuffle=True),
        "val_data": Loader(sequences(UNSEEN), batch_size=64),
        "training_step": training_step,
        "validation_step": validation_step,
    }
