"""A small Llama as torchtitan trains it: activation checkpointing, compilation and `fully_shard`, each by block."""

from __future__ import annotations

import random
import shutil
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from graphtrain import Graph, Loader, PlannedRun, Trainer
from graphtrain.ranks import current_ranks
from tests.ranks import sharded
from tests.ranks.processes import run_processes

VOCABULARY, WIDTH, HEADS, KEY_HEADS, HIDDEN, BLOCKS, LENGTH = 67, 32, 4, 2, 88, 3, 12
STEPS, EVERY, BATCH, SAMPLES = 50, 2, 2, 54  # an epoch has 27 batches: its last window is short
GRAPH = (
    Graph.load("fit")
    .set("accumulate", every=EVERY)
    .set("clip", max_norm=1.0)
    .set("validate", every="never")
    .set("checkpoint", every="never")
    .set("finish", after=f"{STEPS} steps")
)


class Attention(torch.nn.Module):
    """Causal attention with rotary positions, whose keys and values have fewer heads than the queries."""

    def __init__(self) -> None:
        super().__init__()
        self.size = WIDTH // HEADS
        self.query = torch.nn.Linear(WIDTH, HEADS * self.size, bias=False)
        self.key = torch.nn.Linear(WIDTH, KEY_HEADS * self.size, bias=False)
        self.value = torch.nn.Linear(WIDTH, KEY_HEADS * self.size, bias=False)
        self.output = torch.nn.Linear(HEADS * self.size, WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        samples, length, _ = hidden.shape

        def heads(projected: torch.Tensor) -> torch.Tensor:
            return projected.view(samples, length, -1, self.size).transpose(1, 2)

        def rotated(vectors: torch.Tensor) -> torch.Tensor:
            first, second = vectors.float().chunk(2, -1)
            turned = (first * cosine - second * sine, second * cosine + first * sine)
            return torch.cat(turned, -1).to(vectors)

        query, key, value = heads(self.query(hidden)), heads(self.key(hidden)), heads(self.value(hidden))
        key, value = (each.repeat_interleave(HEADS // KEY_HEADS, 1) for each in (rotated(key), value))
        mixed = torch.nn.functional.scaled_dot_product_attention(rotated(query), key, value, is_causal=True)
        result: torch.Tensor = self.output(mixed.transpose(1, 2).reshape(samples, length, -1))
        return result


class Block(torch.nn.Module):
    """Attention and a gated network, each of normalized inputs, and each added to them."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.network_norm = torch.nn.RMSNorm(WIDTH, 1e-5), torch.nn.RMSNorm(WIDTH, 1e-5)
        self.attention = Attention()
        self.gate = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = torch.nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = torch.nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), cosine, sine)
        normalized = self.network_norm(hidden)
        gated: torch.Tensor = self.down(torch.nn.functional.silu(self.gate(normalized)) * self.up(normalized))
        return hidden + gated


class Llama(torch.nn.Module):
    """Tokens to logits."""

    cosine: torch.Tensor
    sine: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(BLOCKS)])
        self.norm = torch.nn.RMSNorm(WIDTH, 1e-5)
        self.output = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        size = WIDTH // HEADS
        frequencies = 10_000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(LENGTH).float(), frequencies)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens)
        for block in self.blocks:
            hidden = block(hidden, self.cosine, self.sine)
        logits: torch.Tensor = self.output(self.norm(hidden))
        return logits


def backend() -> str:
    """Inductor where there is what it compiles with; else the backend that needs no compiler."""
    has_headers = Path(sysconfig.get_paths()["include"], "Python.h").is_file()
    return "inductor" if has_headers and (shutil.which("g++") or shutil.which("clang++")) else "aot_eager"


def parts_of(backend: str) -> dict[str, Any]:
    import torch._inductor.config  # 1 s, which a run of other tests need not wait for

    torch.manual_seed(3)
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1  # else every rank starts as many processes as there are cores
    model = Llama()
    for number, block in enumerate(model.blocks):
        checkpointed = checkpoint_wrapper(block, preserve_rng_state=False)
        checkpointed.compile(backend=backend, fullgraph=True)
        model.blocks[number] = checkpointed
    mesh, policy = PlannedRun(GRAPH, "cpu").mesh, MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.randint(VOCABULARY, (SAMPLES, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, warmed_up),
        "train_data": Loader(tokens, batch_size=BATCH, shuffle=True, seed=5),
        "training_step": loss_of,
    }


def warmed_up(step: int) -> float:
    return min((step + 1) / 10, (STEPS - step) / (STEPS - 10))


def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


def trainer_of(backend: str, **options: Any) -> Trainer:
    return Trainer(GRAPH, seed=1, device="cpu", display=None, notify=lambda line: None, **parts_of(backend), **options)


def first_half(backend: str, folder: Path) -> tuple[dict[str, str], list[int], list[str]]:
    """What the graph has come to, three cuts, and the weights that differ from those of a loop by hand.

    The same training is begun in a folder, and cut and resumed in these processes up to the second cut.
    """
    trainer, number = trainer_of(backend), 0
    while trainer.position != "end":
        trainer.advance()
        number += 1
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"], "the blocks were compiled"
    found = digests(trainer)
    apart = [name for name, each in by_hand(backend).items() if found[name] != sharded.digest({name: each})]
    cuts = sorted(random.Random(current_ranks().world_size).sample(range(1, number), 3))
    life(backend, folder, cuts[0])
    life(backend, folder, cuts[1] - cuts[0])
    return found, cuts, apart


def second_half(backend: str, folder: Path, number: int) -> dict[str, str]:
    """Resume in other processes, cut again after so many transitions, and train to the end: what it has come to."""
    life(backend, folder, number)
    trainer = trainer_of(backend, run_dir=folder)
    trainer.run()
    return digests(trainer)


def life(backend: str, folder: Path, number: int) -> None:
    """Resume, and save after so many transitions."""
    trainer = trainer_of(backend, run_dir=folder)
    trainer.advance(number)
    trainer.save()


def digests(trainer: Trainer) -> dict[str, str]:
    return {name: sharded.digest({name: each}) for name, each in sharded.state_of(trainer).items()}


def by_hand(backend: str) -> dict[str, torch.Tensor]:
    """The same by a loop with `fully_shard`."""
    parts, ranks = parts_of(backend), current_ranks()
    model, optimizer, scheduler = parts["model"], parts["optimizer"], parts["scheduler"]
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    size, step, epoch = EVERY * ranks.world_size, 0, 0
    while step < STEPS:
        batches = list(parts["train_data"].batches(epoch))
        for start in range(0, len(batches), size):
            window = batches[start : start + size]
            for first in range(0, len(window), ranks.world_size):
                round_of = window[first : first + ranks.world_size]
                has_one = ranks.rank < len(round_of)
                loss = loss_of(model, round_of[ranks.rank if has_one else 0])
                (loss / size if has_one else torch.where(torch.tensor(False), loss, 0.0)).backward()
            sharded.clip(model, 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            if step == STEPS:
                break
        epoch += 1
    return sharded.weights(model)


# Starting costs more than training: each process imports inductor (4 s) and looks what the processor can do (3 s). So
# there are two starts, and what they compile is in inductor's cache, which ranks and starts share.
@pytest.mark.sweep
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_llama_is_trained_as_by_hand_and_cut_thrice(tmp_path: Path, ranks: int) -> None:
    found = run_processes(ranks, first_half, backend(), tmp_path, seconds=1800)
    expected, cuts, _ = found[0]
    assert [apart for _, _, apart in found] == [[]] * ranks
    ended = run_processes(ranks, second_half, backend(), tmp_path, cuts[2] - cuts[1], seconds=1800)
    assert ended == [expected] * ranks, cuts
