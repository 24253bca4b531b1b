"""A script for `graphtrain run`: the run with everything in it, on a disk that is slow.

Environment:
    FLUSH_SECONDS: how long every flush to the disk takes. Default: 0.
    BATCH_SECONDS: how long every batch takes at least. Default: 0.
    TRAINED: a file to which every process adds a line for each batch that it trains: its id, and the batch's number in
        the run. Default: none.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from tests.resume.full_run import KINDS, Augmented, Network, losses_of

_flush = os.fsync


def _flush_slowly(descriptor: int) -> None:
    time.sleep(float(os.environ.get("FLUSH_SECONDS", "0")))
    _flush(descriptor)


os.fsync = _flush_slowly


def setup(kind: str = "Loader", workers: int = 0) -> dict[str, Any]:
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    temperature = torch.tensor(1.5)
    trained = os.environ.get("TRAINED")
    seconds = float(os.environ.get("BATCH_SECONDS", "0"))

    def training_step(model: Network, batch: Any) -> Any:
        result = losses_of(model, batch, temperature)
        if model.training:
            time.sleep(seconds)
            if trained is not None:
                with open(trained, "a") as file:
                    file.write(f"{os.getpid()} {int(model.seen)}\n")
        return result

    data = Augmented()
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100),
        "train_data": KINDS[kind](data, workers),
        "val_data": KINDS["list"](data, 0),
        "training_step": training_step,
    }
