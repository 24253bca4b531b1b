"""A small GPT over Python's standard library, as in nanoGPT: graphtrain run examples/nanogpt.py --processes 2."""

import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from graphtrain import Graph, Loader, PlannedRun, main

graph = (
    Graph.load("fit")
    .set("train_batch", precision="bf16-mixed")
    .set("accumulate", every=2)
    .set("clip", max_norm=1.0)
    .set("validate", every="250 steps")
    .insert("validate_train", graph="evaluate", after="validate", reads={"val_data": "seen_data"})
    .set("validate_train/begin_evaluation", split="train")
    .set("checkpoint", every="250 steps", best="val/loss")
    .set("finish", after="750 steps")
)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        wide, narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), wide, nn.GELU(), narrow, nn.Dropout(0.1))

    def forward(self, x):
        query, key, value = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self, context, width, layers, heads):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(128, width), nn.Embedding(context, width)
        self.layers = nn.Sequential(*(Block(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        self.head = nn.Linear(width, 128)

    def training_step(self, batch):
        x = self.layers(self.tokens(batch[:, :-1]) + self.positions.weight)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), batch[:, 1:].flatten())

    def validation_step(self, batch):
        return {"loss": self.training_step(batch)}


def setup(run: PlannedRun, lr: float = 1e-3, context: int = 64, width: int = 128, layers: int = 2, heads: int = 4):
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = "".join(file.read_text("utf-8", "replace") for file in files).encode("ascii", "replace")
    sequences = torch.tensor(list(text)).unfold(0, context + 1, context + 1).split(len(text) // (context + 1) * 9 // 10)
    train_data, model = Loader(sequences[0], batch_size=32, shuffle=True), GPT(context, width, layers, heads)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.1)
    steps, warmup = run.steps(train_data), 50
    schedules = [LinearLR(optimizer, 0.01, total_iters=warmup), CosineAnnealingLR(optimizer, steps - warmup, lr / 10)]
    seen_data, val_data = sequences[0][::360].split(32), Loader(sequences[1][::40], batch_size=32)
    data = {"train_data": train_data, "val_data": val_data, "seen_data": seen_data}
    return {"model": model, "optimizer": optimizer, "scheduler": SequentialLR(optimizer, schedules, [warmup]), **data}


if __name__ == "__main__":
    main(setup)
