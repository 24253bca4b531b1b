"""The loop written by hand, with what a careful person saves: every `state_dict`, the generators, the position."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy
import torch

from graphtrain import Loader
from tests.rows_elsewhere import EPOCHS, Killed, SetUp


def train(name: str, folder: Path, cut: int | None = None, resume: bool = False) -> dict[str, Any]:
    """Train a row; saved is at the cut, which is after a step of the optimizer."""
    run = SetUp(name)
    model, optimizer, scheduler, data = run.model, run.optimizer, run.scheduler, run.train_data
    generator = getattr(data, "generator", None)
    first_epoch = skipped = steps = batches = 0
    saved: dict[str, Any] = {}
    if resume:
        # The run's own file: weights_only would refuse the state of NumPy's generator.
        saved = torch.load(folder / "checkpoint.pt", weights_only=False)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        if scheduler is not None:
            scheduler.load_state_dict(saved["scheduler"])
        first_epoch, skipped, steps, batches = (saved[key] for key in ("epoch", "batch", "steps", "batches"))
    model.train()
    optimizer.zero_grad(set_to_none=run.set_to_none)
    for epoch in range(first_epoch, EPOCHS):
        if saved:
            set_random_states(saved["random at the beginning of the epoch"], generator)
        at_the_beginning = random_states(generator)
        batch_index = skipped if saved else 0
        announce(data, epoch)
        if saved and saved["data"] is not None:
            data.load_state_dict(saved["data"])
            iterator = iter(data)
        else:
            iterator = opened(data, epoch, batch_index)
        if saved:
            set_random_states(saved["random"], generator)
            saved = {}
        pending = 0
        for batch in iterator:
            loss = run.train_loss(batch, step=steps, epoch=epoch, batch_index=batch_index)
            (loss / run.every if run.every > 1 else loss).backward()
            batch_index, batches, pending = batch_index + 1, batches + 1, pending + 1
            if pending < run.every:
                continue
            steps, pending = steps + 1, 0
            _step(run)
            if batches == cut:
                checkpoint = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scheduler": None if scheduler is None else scheduler.state_dict(),
                    "data": data.state_dict() if hasattr(data, "state_dict") else None,
                    "random at the beginning of the epoch": at_the_beginning,
                    "random": random_states(generator),
                    "epoch": epoch,
                    "batch": batch_index,
                    "steps": steps,
                    "batches": batches,
                }
                torch.save(checkpoint, folder / "checkpoint.pt")
                raise Killed
        if pending:
            steps += 1
            _step(run)
        run.validate(step=steps, epoch=epoch)
    return run.result()


def _step(run: SetUp) -> None:
    run.optimizer.step()
    if run.scheduler is not None:
        run.scheduler.step()
    run.optimizer.zero_grad(set_to_none=run.set_to_none)


def announce(data: Any, epoch: int) -> None:
    """Tell the sampler and the data set the epoch, where they ask for it."""
    for part in (getattr(data, "sampler", None), getattr(data, "dataset", None)):
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)


def opened(data: Any, epoch: int, start: int) -> Any:
    """The batches of an epoch from number `start`; those before it are fetched and dropped."""
    if isinstance(data, Loader):
        return data.batches(epoch, start)
    iterator = iter(data)
    next(itertools.islice(iterator, start, start), None)
    return iterator


def random_states(generator: torch.Generator | None) -> dict[str, Any]:
    """The state of every global generator, and of the loader's."""
    return {
        "torch": torch.get_rng_state(),
        "numpy": numpy.random.get_state(),
        "python": random.getstate(),
        "loader": None if generator is None else generator.get_state(),
    }


def set_random_states(states: dict[str, Any], generator: torch.Generator | None) -> None:
    """Restore what `random_states` returned."""
    torch.set_rng_state(states["torch"])
    numpy.random.set_state(states["numpy"])
    random.setstate(states["python"])
    if generator is not None:
        generator.set_state(states["loader"])
