"""What a rank holds while it saves and loads its part of a model of 400 MB: its state twice and one layer, at most."""

from __future__ import annotations

import ctypes
import gc
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from graphtrain import Graph, Loader, PlannedRun, Trainer
from tests.ranks.processes import run_processes

LAYERS, WIDTH = 20, 2236  # of 20 MB each
LAYER = WIDTH * WIDTH * 4
MOST_BESIDE = 24 << 20  # what Python, gloo and threads need for themselves
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
GRAPH = Graph.load("fit").set("accumulate", every=2).set("validate", every="never").set("checkpoint", every="never")
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of mallopt


def resident(which: str = "VmRSS") -> int:
    """Bytes of this process in memory, now or (`VmHWM`) at most since the peak was forgotten."""
    found = re.search(rf"^{which}:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def forget_peak() -> None:
    gc.collect()
    CLEAR.write_text("5")


def give_back_at_once() -> None:
    """Let freed memory leave the process, so that the peak is of what is held."""
    allocator = ctypes.CDLL(None)
    allocator.mallopt(_MMAP_THRESHOLD, 1 << 18)
    allocator.mallopt(_TRIM_THRESHOLD, 1 << 18)
    torch.set_num_threads(1)


def trainer_of(layers: int, width: int, folder: Path | None) -> Trainer:
    """A model that is never whole: made without memory, sharded, and then filled."""
    with torch.device("meta"):
        model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(layers)])
    mesh = PlannedRun(GRAPH).mesh
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    for number, parameter in enumerate(model.parameters()):
        local = parameter.to_local()  # type: ignore[attr-defined]
        torch.nn.init.normal_(local, std=0.02, generator=torch.Generator().manual_seed(number))
    return Trainer(
        GRAPH,
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False),
        train_data=Loader(torch.ones(64, width), batch_size=1),
        training_step=lambda model, batch: model(batch).square().mean(),
        seed=1,
        display=None,
        notify=lambda line: None,
        run_dir=folder,
    )


def is_open(trainer: Trainer) -> bool:
    """True in a window after the first step, when there are gradients and the state of the optimizer."""
    return bool(trainer.progress["step"]["steps"] and trainer.progress["accumulate"]["count"])


def held(trainer: Trainer) -> int:
    """Bytes of this rank's parts of weights, gradients and the state of the optimizer."""
    parameters = [*trainer.resources["model"].parameters()]
    gradients = [each.grad for each in parameters if each.grad is not None]
    states = [value for state in trainer.resources["optimizer"].state.values() for value in state.values()]
    locals_of = [each.to_local() if hasattr(each, "to_local") else each for each in (*parameters, *gradients, *states)]
    return sum(each.nbytes for each in locals_of)


@dataclass
class Measured:
    """Bytes of one rank.

    Attributes:
        state: its part of weights, gradients and the state of the optimizer.
        peak: how much more it held at most than before there was a model.
    """

    state: int
    peak: int


def small() -> int:
    """What a process holds that has trained a tiny model: nothing of that is in the figures."""
    give_back_at_once()
    trainer = trainer_of(2, 64, None)
    trainer.advance(20)
    return resident()


def saved(folder: Path) -> Measured:
    """Train to within a window, and save there."""
    before = small()
    trainer = trainer_of(LAYERS, WIDTH, folder)
    trainer.advance(0)
    while trainer.position != "next_batch" or not is_open(trainer):
        trainer.advance()
    forget_peak()
    trainer.save()
    return Measured(held(trainer), resident("VmHWM") - before)


def loaded(folder: Path, saves: bool = False) -> Measured:
    """Resume; and save again, on this number of ranks."""
    before = small()
    trainer = trainer_of(LAYERS, WIDTH, folder)
    forget_peak()
    trainer.advance(0)
    assert is_open(trainer)
    measured = Measured(held(trainer), resident("VmHWM") - before)
    if saves:
        trainer.save()
    return measured


@pytest.mark.sweep
@pytest.mark.skipif(not CLEAR.exists(), reason="the peak of a process is forgotten by Linux only")
def test_a_rank_holds_its_state_twice_and_one_layer(tmp_path: Path) -> None:
    total = 4 * LAYERS * LAYER  # weights, gradients, and two tensors of the optimizer
    for ranks, function, *arguments in ((4, saved), (4, loaded), (3, loaded), (2, loaded, True), (4, loaded)):
        for measured in run_processes(ranks, function, tmp_path, *arguments, seconds=600):
            print(ranks, function.__name__, *(f"{each / 1e6:.0f} MB" for each in (measured.state, measured.peak)))
            assert measured.state == pytest.approx(total / ranks, rel=0.01)
            assert measured.peak <= 2 * measured.state + LAYER + MOST_BESIDE, (ranks, function, measured)
