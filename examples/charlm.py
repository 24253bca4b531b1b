"""A small causal transformer, a character-level language model of the source code of Python's standard library.

    graphtrain run examples/charlm.py
    graphtrain run examples/charlm.py lr=1e-3 layers=4 epochs=30 finish.after='30 epochs'
    python examples/charlm.py train_batch.precision=bf16-mixed
    python examples/charlm_sample.py runs/charlm-001

All commands train with `graph` below, the shipped graph `fit` with some edits; `--graph fit` trains without the edits.
A run takes about 80 s on two cores of an AMD EPYC (two threads, torch 2.13, no GPU), and about as long on one core in
bf16-mixed. The validation loss is then about 2.2 bits per character, where the frequencies of the characters alone give
4.5.
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

# The tokens are characters: tab, newline, printable ASCII, and one for all other characters.
VOCABULARY = "\t\n" + "".join(map(chr, range(32, 127))) + "\N{REPLACEMENT CHARACTER}"
# Code point -> token; code points from 127 on are clamped to 127, which is not printable.
TOKENS = (torch.tensor([VOCABULARY.find(chr(code)) for code in range(128)]) % len(VOCABULARY)).byte()


def encode(text: str) -> torch.Tensor:
    """The tokens of a text, as bytes."""
    code_points = torch.frombuffer(bytearray(text, "utf-32-le", "replace"), dtype=torch.int32)
    return TOKENS[code_points.clamp(max=127)]


def decode(tokens: torch.Tensor) -> str:
    """The text of the tokens; characters outside the vocabulary come back as its last one."""
    return "".join(VOCABULARY[token] for token in tokens.tolist())


def read_tokens() -> tuple[torch.Tensor, torch.Tensor]:
    """Training and validation tokens: the top-level modules of the standard library, of which every tenth validates."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    texts = [file.read_text("utf-8", "replace") for file in files]
    return encode("".join(text for number, text in enumerate(texts) if number % 10)), encode("".join(texts[::10]))


class Sequences(Dataset[torch.Tensor]):
    """Sequences of `length` consecutive tokens; sequence `i` begins at ``i * stride``."""

    def __init__(self, tokens: torch.Tensor, length: int, stride: int = 1) -> None:
        self._tokens, self.length, self._stride = tokens, length, stride

    def __len__(self) -> int:
        return (len(self._tokens) - self.length) // self._stride + 1

    def __getitem__(self, index: int) -> torch.Tensor:
        begin = index * self._stride
        return self._tokens[begin : begin + self.length]


class Block(nn.Module):
    """A pre-norm transformer block: causal self-attention and an MLP, each with a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.attention_in(self.attention_norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attention = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.attention_out(attention.transpose(1, 2).reshape(batch, length, width)))
        hidden = functional.gelu(self.mlp_in(self.mlp_norm(x)))
        return x + self.dropout(self.mlp_out(hidden))


class CharacterModel(nn.Module):
    """A causal transformer over characters; returns the logits of the next token at every position.

    Its sizes follow from the shapes of its weights, so that `from_weights` needs nothing but a state dict.

    Arguments:
        width: size of the embeddings and of the hidden states.
        layers: number of blocks.
        heads: number of attention heads in a block.
        context: longest sequence, in tokens.
    """

    def __init__(self, width: int, layers: int, heads: int, context: int, dropout: float = 0.0) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of the number of heads; got {width} and {heads}")
        self.token_embedding = nn.Embedding(len(VOCABULARY), width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(VOCABULARY))
        self.register_buffer("heads", torch.tensor(heads))  # the only size that no shape shows
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                # Projections into the residual stream are scaled down by depth, as in GPT-2.
                scale = math.sqrt(2 * layers) if name.endswith("_out.weight") else 1
                nn.init.normal_(parameter, std=0.02 / scale)

    @classmethod
    def from_weights(cls, weights: Mapping[str, torch.Tensor]) -> Self:
        """The model with the weights of a state dict, without dropout."""
        context, width = weights["position_embedding.weight"].shape
        layers = len({name.split(".")[1] for name in weights if name.startswith("blocks.")})
        model = cls(width, layers, int(weights["heads"]), context)
        model.load_state_dict(weights)
        return model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def training_step(model: nn.Module, sequences: torch.Tensor) -> dict[str, torch.Tensor]:
    """The cross-entropy loss, in nats per character, and the same in bits."""
    tokens = sequences.long()
    logits = model(tokens[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    return {"loss": loss, "bits_per_character": loss.detach() / math.log(2)}


@dataclass
class WarmupCosine:
    """A factor for the learning rate: linear warm-up, then cosine decay to 0.05.

    An object and not a function, so that the scheduler's `state_dict` has its numbers, and a resume detects changes.
    """

    warmup_steps: int
    steps: int

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        progress = min((step - self.warmup_steps) / max(self.steps - self.warmup_steps, 1), 1)
        return 0.05 + 0.95 * (1 + math.cos(math.pi * progress)) / 2


@node
class CountTokens:
    """Count the tokens trained on by all processes: from the samples that `next_batch` has fetched, not from one batch.

    Guard fields:
        tokens: number of tokens since the start of the run.
    """

    tokens: int = progress(0)

    _context: int

    def setup(self, train_data: Loader) -> None:
        self._context = train_data.dataset.length - 1

    def __call__(self, sequences: int) -> None:
        self.tokens = sequences * self._context


# The unit `tokens` is displayed as a rate, and triggers can use it: finish.after='4000000 tokens'.
graph = (
    Graph.load("fit")
    .insert("count_tokens", CountTokens, before="train_batch", reads={"sequences": "next_batch.samples"})
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
    sequences: int = 4096,
    epochs: int = 10,
) -> dict[str, Any]:
    """The resources of the run.

    Arguments:
        lr: peak learning rate of AdamW.
        width: size of the embeddings and of the hidden states.
        layers: number of transformer blocks.
        heads: number of attention heads in a block.
        context: context length in tokens.
        dropout: dropout probability.
        batch_size: sequences per batch.
        sequences: sequences per epoch, each of `context` tokens from a random position.
        epochs: length of the learning rate schedule; use the same number as in `finish.after`.
    """
    train_tokens, val_tokens = read_tokens()
    train_sequences = Sequences(train_tokens, context + 1)
    sampler = RandomSampler(train_sequences, replacement=True, num_samples=sequences)
    train_data = Loader(train_sequences, batch_size, sampler=sampler)
    val_stride = max(len(val_tokens) // max(sequences // 8, 1), 1)
    model = CharacterModel(width, layers, heads, context, dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99))
    steps = epochs * len(train_data)
    schedule = WarmupCosine(warmup_steps=steps // 10, steps=steps)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, schedule),
        "train_data": train_data,
        "val_data": Loader(Sequences(val_tokens, context + 1, val_stride), 4 * batch_size),
        "training_step": training_step,
    }


if __name__ == "__main__":
    graphtrain.main(setup)
