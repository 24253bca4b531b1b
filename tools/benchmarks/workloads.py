"""The workloads of the loops: models, prepared batches, and a clock in the training step.

Every loop gets a `Training` and trains it, with clipping by norm. The time is measured between two calls of the
training step, at its first line, which is the same code for all loops: work before the first batch and after the last
one is not included, nor are the first batches, which warm up memory and caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from graphtrain import Graph, Trainer

Batch = tuple[torch.Tensor, torch.Tensor]

MAX_NORM = 1.0
PREPARED = 200  # different batches; the data is a list of them, over and over
SPREAD = 4.0  # so that gradients exceed MAX_NORM, and a loop that does not clip ends with other weights


@dataclass(frozen=True)
class Workload:
    """A model with its optimizer and its data.

    Arguments:
        batch: makes a batch.
        batches: how many are timed.
        warm_up: how many come before the clock starts.
    """

    name: str
    model: Callable[[], nn.Module]
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    batch: Callable[[], Batch]
    batches: int
    warm_up: int

    def data(self, device: torch.device) -> list[Batch]:
        """All batches of a training run, the same in every call."""
        torch.manual_seed(1)
        prepared = [self.batch() for _ in range(PREPARED)]
        on_device = [(inputs.to(device), targets.to(device)) for inputs, targets in prepared]
        count = self.warm_up + self.batches + 1
        return (on_device * (count // PREPARED + 1))[:count]


class Training:
    """One training, about to begin: its model is new, and its clock starts and stops by itself.

    Attributes:
        data: the batches of its one epoch, a list.
    """

    def __init__(self, workload: Workload, data: list[Batch], device: torch.device) -> None:
        torch.manual_seed(0)
        self.model = workload.model().to(device)
        self.optimizer = workload.optimizer(self.model.parameters())
        self.data = data
        self.device = device
        self._calls = 0
        self._marks = (workload.warm_up + 1, len(data))
        self._stamps: list[float] = []

    def training_step(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        """The loss."""
        self._calls += 1
        if self._calls in self._marks:
            self._stamp()
        inputs, targets = batch
        return cross_entropy(model(inputs), targets)

    def trainer(self, graph: Graph, **options: Any) -> Trainer:
        """That of graphtrain which trains it, silently; `options` as of `Trainer`, in place of what it has itself."""
        given = {"model": self.model, "optimizer": self.optimizer, "train_data": self.data, "device": self.device}
        return Trainer(graph, **{**given, "notify": lambda line: None, **options}, training_step=self.training_step)

    def _stamp(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self._stamps.append(time.perf_counter())

    @property
    def microseconds(self) -> float:
        """For a batch."""
        begun, ended = self._stamps
        assert self._calls == len(self.data), f"{self._calls} batches were trained instead of {len(self.data)}"
        return 1e6 * (ended - begun) / (self._marks[1] - self._marks[0])


class Transformer(nn.Module):
    """Two layers that predict the next character; without dropout, so that every loop computes the same."""

    VOCABULARY, LENGTH, WIDTH = 64, 32, 128

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            self.WIDTH, nhead=4, dim_feedforward=2 * self.WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.characters = nn.Embedding(self.VOCABULARY, self.WIDTH)
        self.places = nn.Parameter(torch.zeros(self.LENGTH, self.WIDTH))
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(self.WIDTH, self.VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(self.LENGTH))

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Logits: sequences, characters of the vocabulary, places."""
        hidden = self.layers(self.characters(characters) + self.places, mask=self.mask, is_causal=True)
        return self.head(hidden).transpose(1, 2)


def _mlp(*widths: int) -> nn.Module:
    layers: list[nn.Module] = []
    for width, following in pairwise(widths):
        layers += [nn.Linear(width, following), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


def _adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def _labelled(width: int) -> Batch:
    return SPREAD * torch.randn(32, width), torch.randint(10, (32,))


def _text() -> Batch:
    characters = torch.randint(Transformer.VOCABULARY, (4, Transformer.LENGTH + 1))
    return characters[:, :-1].contiguous(), characters[:, 1:].contiguous()


# Short: many short rounds are more robust than a few long ones on a machine with other load.
TINY = Workload("tiny MLP", lambda: _mlp(64, 64, 10), _sgd, lambda: _labelled(64), batches=3_000, warm_up=200)
LARGER = (
    Workload("MLP of 1 M", lambda: _mlp(512, 768, 768, 10), _sgd, lambda: _labelled(512), batches=100, warm_up=20),
    Workload("transformer", Transformer, _adamw, _text, batches=50, warm_up=10),
)
# For what exchanges gradients.
OF_TEN_MILLION = Workload(
    "MLP of 10 M", lambda: _mlp(1024, 2048, 2048, 2048, 10), _sgd, lambda: _labelled(1024), batches=20, warm_up=5
)
