"""A small causal transformer, character by character: the source of Python's own standard library as text.

    graphtrain run examples/charlm.py
    graphtrain run examples/charlm.py lr=1e-3 layers=4 epochs=30 finish.after='30 epochs'
    python examples/charlm.py train_batch.precision=bf16-mixed validate/eval_batch.precision=bf16-mixed
    python examples/charlm_sample.py runs/charlm-001

The first command runs the shipped graph `fit` as it is; `python examples/charlm.py` takes the same words, and runs it
with the edits of `GRAPH` below. Either takes about 80 s on two cores of an AMD EPYC (two threads, torch 2.13, no GPU),
and about as long on one of them in bf16-mixed. A character of a file not trained on then takes about 2.2 bits, where a
table of frequencies takes 4.5.
"""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, RandomSampler

import graphtrain
from graphtrain import Graph, Loader, node, progress

# What a model reads and writes: tab, newline, printable ASCII, and one sign for everything else.
ALPHABET = "\t\n" + "".join(map(chr, range(32, 127))) + "\N{REPLACEMENT CHARACTER}"
# Code -> place in the alphabet; 127 is no printable character, and stands for all above it.
PLACES = (torch.tensor([ALPHABET.find(chr(code)) for code in range(128)]) % len(ALPHABET)).byte()


def encode(text: str) -> torch.Tensor:
    """The place of every character in the alphabet, as bytes."""
    codes = torch.frombuffer(bytearray(text, "utf-32-le", "replace"), dtype=torch.int32)
    return PLACES[codes.clamp(max=127)]


def decode(places: torch.Tensor) -> str:
    """The text that `encode` was given; what is outside the alphabet comes back as its last sign."""
    return "".join(ALPHABET[place] for place in places.tolist())


def read_texts() -> tuple[torch.Tensor, torch.Tensor]:
    """The top-level modules of the standard library, by name: nine of ten to train on, every tenth to validate on."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = [file.read_text("utf-8", "replace") for file in files]
    return encode("".join(text for number, text in enumerate(texts) if number % 10)), encode("".join(texts[::10]))


class Windows(Dataset[torch.Tensor]):
    """Stretches of `length` characters of a text; window `i` begins at ``i * stride``."""

    def __init__(self, text: torch.Tensor, length: int, stride: int = 1) -> None:
        self._text, self._length, self._stride = text, length, stride

    def __len__(self) -> int:
        return (len(self._text) - self._length) // self._stride + 1

    def __getitem__(self, index: int) -> torch.Tensor:
        begin = index * self._stride
        return self._text[begin : begin + self._length]


class Block(nn.Module):
    """Attention to the characters so far, then two layers over each; what they give is added to what they are given."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.hidden_norm = nn.LayerNorm(width)
        self.hidden_in = nn.Linear(width, 4 * width)
        self.hidden_out = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        batch, length, width = stream.shape
        joined = self.attention_in(self.attention_norm(stream)).view(batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = joined.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        stream = stream + self.dropout(self.attention_out(attended.transpose(1, 2).reshape(batch, length, width)))
        hidden = functional.gelu(self.hidden_in(self.hidden_norm(stream)))
        return stream + self.dropout(self.hidden_out(hidden))


class CharacterModel(nn.Module):
    """A transformer with its norms before its layers; gives scores for the character after each of those it is given.

    Its weights tell its sizes, so that a file of them is enough to build it again.

    Arguments:
        context: the most characters it is given at once.
    """

    def __init__(self, width: int, layers: int, heads: int, context: int, dropout: float = 0.0) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"the width must be a multiple of the number of heads; got {width} and {heads}")
        self.characters = nn.Embedding(len(ALPHABET), width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, len(ALPHABET))
        self.register_buffer("heads", torch.tensor(heads))  # the one size that no shape shows
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                narrower = math.sqrt(2 * layers) if name.endswith("_out.weight") else 1
                nn.init.normal_(parameter, std=0.02 / narrower)

    @classmethod
    def from_weights(cls, weights: Mapping[str, torch.Tensor]) -> Self:
        """The model that a state dict is of, without dropout."""
        context, width = weights["positions.weight"].shape
        layers = len({name.split(".")[1] for name in weights if name.startswith("blocks.")})
        model = cls(width, layers, int(weights["heads"]), context)
        model.load_state_dict(weights)
        return model

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        places = torch.arange(characters.shape[1], device=characters.device)
        stream = self.characters(characters) + self.positions(places)
        for block in self.blocks:
            stream = block(stream)
        return self.scores(self.norm(stream))


def training_step(model: nn.Module, windows: torch.Tensor) -> dict[str, torch.Tensor]:
    """The loss in nats a character, and the same in bits."""
    characters = windows.long()
    scores = model(characters[:, :-1])
    loss = functional.cross_entropy(scores.flatten(0, 1), characters[:, 1:].flatten())
    return {"loss": loss, "bits_per_character": loss.detach() / math.log(2)}


@dataclass
class WarmupCosine:
    """The share of the full learning rate at a step: up in a line, then down along a cosine to a twentieth.

    An object and no function, so that the scheduler's `state_dict` holds its numbers: a resume with others is noticed.
    """

    warmup_steps: int
    steps: int

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        way = min((step - self.warmup_steps) / max(self.steps - self.warmup_steps, 1), 1)
        return 0.05 + 0.95 * (1 + math.cos(math.pi * way)) / 2


@node
class CountTokens:
    """Count the characters trained on.

    Guard fields:
        tokens: how many since the start.
    """

    tokens: int = progress(0)

    def __call__(self, batch: torch.Tensor) -> None:
        windows, length = batch.shape
        self.tokens += windows * (length - 1)


# A unit named `tokens` is shown as a rate, and triggers may use it: finish.after='4000000 tokens'.
GRAPH = (
    Graph.load("fit")
    .insert("count_tokens", CountTokens, before="train_batch")
    .clock("tokens", "count_tokens.tokens")
    .set("clip", max_norm=1.0)
    .set("log", every="20 steps")
)


def setup(
    lr: float = 3e-3,
    width: int = 128,
    layers: int = 2,
    heads: int = 4,
    context: int = 64,
    dropout: float = 0.05,
    batch_size: int = 32,
    windows: int = 4096,
    epochs: int = 10,
) -> dict[str, Any]:
    """The resources of the run.

    Arguments:
        lr: the highest learning rate of AdamW.
        width: numbers that stand for a character between the layers.
        layers: blocks of attention and hidden layer.
        heads: of attention; they share the width.
        context: characters that the model sees at once.
        dropout: share of what a block adds that is left out in training.
        batch_size: windows in a batch.
        windows: in an epoch, each of `context` characters from a random place.
        epochs: over which the learning rate falls; give as many as `finish.after` has.
    """
    train_text, val_text = read_texts()
    places = Windows(train_text, context + 1)
    train_data = Loader(places, batch_size, sampler=RandomSampler(places, replacement=True, num_samples=windows))
    val_stride = max(len(val_text) // max(windows // 8, 1), 1)
    model = CharacterModel(width, layers, heads, context, dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99))
    steps = epochs * len(train_data)
    schedule = WarmupCosine(warmup_steps=steps // 10, steps=steps)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, schedule),
        "train_data": train_data,
        "val_data": Loader(Windows(val_text, context + 1, val_stride), 4 * batch_size),
        "training_step": training_step,
    }


if __name__ == "__main__":
    graphtrain.main(setup, graph=GRAPH)
