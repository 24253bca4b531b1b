"""On a CUDA device: time per batch beside loops written by hand, and how long a save stops training.

    python tools/benchmarks/device.py
    python tools/benchmarks/device.py --json device.json   # device-tiny.json, ...: one for each part
    python tools/benchmarks/device.py --device cpu --small # to try the script itself

Time per batch, as in loop.py, in rounds of all cases. The batches are in pinned memory of the host, from where the loop
by hand moves them with `non_blocking`; all clip by norm:

* tiny MLP: what is measured is the host, which launches kernels.
* transformer: 25 M parameters, sequences of 256, AdamW, bfloat16 by autocast.
* images: convolutions in bfloat16 on batches of 38 MB.

Saves and loads of 400 MB, the weights of a model on the device with the moments of AdamW:

* one copy to pinned memory, which nothing can be faster than;
* how long `torch.save` takes, flushed and renamed; how long the calls of `dcp.async_save` and of graphtrain take, both
  of which go on to write while training continues; how long graphtrain takes until it is on the disk;
* loading into model and optimizer: `torch.load`, `dcp.load`, graphtrain's files with the checksum of each, and a whole
  resume, which also creates the Trainer.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from measure import Target, arguments, comparison, rounds, show, spread, torch_save
from torch import nn
from torch.nn.utils import clip_grad_norm_
from workloads import MAX_NORM, TINY, Batch, Training, Workload

from graphtrain import Graph, Trainer
from graphtrain.storage.checkpoint import read_checkpoint

BY_HAND, AGAIN = "by hand", "by hand, again"
FIT = "fit"
COPY, TORCH_SAVE, DCP_SAVE = "one copy to pinned memory", "torch.save", "dcp.async_save: training stands still"
SAVE, WRITTEN = "graphtrain: training stands still", "graphtrain: until it is on the disk"
TORCH_LOAD, DCP_LOAD, LOAD, RESUME = "torch.load", "dcp.load", "graphtrain, load", "graphtrain, resume"
LEAST_NOISE = 0.005
LEAST_ROUNDS, MOST_SECONDS = 2, 8.0  # of a part
PREPARED = 8  # different batches
WIDTH, MEGABYTES = 1024, 400


class Transformer(nn.Module):
    """Eight layers that predict the next byte; without dropout."""

    VOCABULARY, LENGTH, WIDTH, LAYERS = 256, 256, 512, 8

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            self.WIDTH, nhead=8, dim_feedforward=4 * self.WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.characters = nn.Embedding(self.VOCABULARY, self.WIDTH)
        self.places = nn.Parameter(torch.zeros(self.LENGTH, self.WIDTH))
        self.layers = nn.TransformerEncoder(layer, num_layers=self.LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(self.WIDTH, self.VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(self.LENGTH))

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Logits: sequences, bytes of the vocabulary, places."""
        hidden = self.layers(self.characters(characters) + self.places, mask=self.mask, is_causal=True)
        return self.head(hidden).transpose(1, 2)


def _text() -> Batch:
    characters = torch.randint(Transformer.VOCABULARY, (16, Transformer.LENGTH + 1))
    return characters[:, :-1].contiguous(), characters[:, 1:].contiguous()


def _convolutions() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after, stride in ((3, 64, 4), (64, 128, 2), (128, 256, 2)):
        layers += [nn.Conv2d(before, after, 5, stride, padding=2), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def _images() -> Batch:
    return torch.randn(64, 3, 224, 224), torch.randint(10, (64,))


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


HALF = ("transformer", "images")
# Short: the whole benchmark takes about a minute.
WORKLOADS = (
    replace(TINY, batches=400, warm_up=50),
    Workload("transformer", Transformer, _adamw, _text, batches=20, warm_up=5),
    Workload("images", _convolutions, _adamw, _images, batches=20, warm_up=5),
)


def is_half(workload: Workload, device: torch.device) -> bool:
    return workload.name in HALF and device.type == "cuda"  # most processors only emulate it


def by_hand(workload: Workload, training: Training) -> None:
    model, optimizer, training_step = training.model, training.optimizer, training.training_step
    device = training.device
    in_half = is_half(workload, device)
    for batch in training.data:
        batch = tuple(tensor.to(device, non_blocking=True) for tensor in batch)
        with torch.autocast(device.type, torch.bfloat16) if in_half else nullcontext():
            loss = training_step(model, batch)
        loss.backward()
        clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()


def fit(workload: Workload, training: Training) -> None:
    graph = Graph.load("fit").set("clip", max_norm=MAX_NORM).set("finish", after=f"{len(training.data)} batches")
    graph = graph.set("log", every="never")
    graph = graph.set("train_batch", precision="bf16-mixed" if is_half(workload, training.device) else "32-true")
    training.trainer(graph, display=None).run()


def data_of(workload: Workload, device: torch.device, *, small: bool) -> list[Batch]:
    torch.manual_seed(1)
    prepared = [workload.batch() for _ in range(PREPARED)]
    if small:
        prepared = [(inputs[:1], targets[:1]) for inputs, targets in prepared]
    if device.type == "cuda":
        prepared = [(inputs.pin_memory(), targets.pin_memory()) for inputs, targets in prepared]
    count = workload.warm_up + workload.batches + 1
    return (prepared * (count // PREPARED + 1))[:count]


def measured_rounds(cases: Mapping[str, Callable[[], float]], count: int) -> dict[str, list[float]]:
    """The figures of each case, of so many rounds, or of fewer after some seconds."""
    begun, figures = time.monotonic(), {name: list[float]() for name in cases}
    for number in range(count):
        ordered = list(cases)[:: 1 if number % 2 else -1]
        for name, measured in rounds({name: cases[name] for name in ordered}, 1, warm_up=not number).items():
            figures[name] += measured
        if number + 1 >= LEAST_ROUNDS and time.monotonic() - begun > MOST_SECONDS:
            break
    return figures


def shown(options: Namespace, title: str, rows: list[dict[str, Any]], aims: list[Target]) -> None:
    """Show a part as soon as it is measured."""
    file = (
        options.json.with_stem(f"{options.json.stem}-{title.split(':')[0].split()[0]}")
        if options.json is not None
        else None
    )
    show(f"{title} on {options.device}", rows, file, aims)
    sys.stdout.flush()


def batches(options: Namespace) -> None:
    """Measure the time per batch."""
    loops: dict[str, Callable[[Workload, Training], None]] = {
        BY_HAND: by_hand,
        FIT: fit,
        AGAIN: by_hand,
    }
    for workload in WORKLOADS:
        if options.small:
            workload = replace(workload, batches=1, warm_up=1)
        data = data_of(workload, options.device, small=options.small)

        def measured(loop: Callable[..., None], workload: Workload = workload, data: list[Batch] = data) -> float:
            training = Training(workload, data, options.device)
            gc.collect()
            loop(workload, training)
            return training.microseconds

        times = measured_rounds({name: partial(measured, loop) for name, loop in loops.items()}, options.rounds)
        compared = comparison(times, against=BY_HAND)
        noise = max(spread(times, AGAIN, BY_HAND), abs(compared[-1]["ratio"] - 1), LEAST_NOISE)
        aims = [
            Target(f"{workload.name}: {FIT}, ratio to by hand", compared[1]["ratio"], 1.0, noise),
        ]
        shown(options, f"{workload.name}: microseconds a batch", compared, aims)


# ---- saves and loads


def layers_of(options: Namespace) -> int:
    return 2 if options.small else MEGABYTES * 10**6 // (3 * 4 * WIDTH * WIDTH)


class Saves:
    """The cases: each call saves or loads the same state once, and returns milliseconds."""

    def __init__(self, options: Namespace, folder: Path) -> None:
        self._options, self._folder, self._device = options, folder, options.device
        self._number = 0
        self._trainer = self._made()
        self._trainer.run(until="2 steps")
        self._copies = [
            torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._device.type == "cuda")
            for tensor in self._tensors()
        ]

    def _made(self) -> Trainer:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers_of(self._options))))
        model.to(self._device)
        return Trainer(
            Graph.load("fit").set("checkpoint", every="never").set("finish", after="100 steps"),
            run_dir=self._folder / "run",
            device=self._device,
            model=model,
            optimizer=_adamw(model.parameters()),
            train_data=[torch.ones(2, WIDTH)] * 100,
            training_step=lambda model, batch: model(batch).square().mean(),
            notify=lambda line: None,
            display=None,
        )

    def _state(self) -> dict[str, Any]:
        resources = self._trainer.resources
        return {"model": resources["model"].state_dict(), "optimizer": resources["optimizer"].state_dict()}

    def _tensors(self) -> list[torch.Tensor]:
        state = self._state()
        moments = [each for parts in state["optimizer"]["state"].values() for each in parts.values() if each.dim()]
        return [*state["model"].values(), *moments]

    def _timed(self, work: Callable[[], Any]) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - begun)

    def copy(self) -> float:
        def work() -> None:
            for copy, tensor in zip(self._copies, self._tensors(), strict=True):
                copy.copy_(tensor, non_blocking=True)

        return self._timed(work)

    def torch_save(self) -> float:
        return self._timed(lambda: torch_save(self._state(), self._folder / "state.pt"))

    def dcp_save(self) -> float:
        self._number += 1
        under_way: list[Any] = []
        path = self._folder / f"dcp-{self._number}"
        took = self._timed(lambda: under_way.append(dcp.async_save(self._state(), checkpoint_id=path, no_dist=True)))
        under_way[0].result()
        if self._number > 1:
            shutil.rmtree(self._folder / f"dcp-{self._number - 1}")
        return took

    def save(self) -> float:
        writer = self._trainer._run.writer
        with writer.completed():
            return self._timed(lambda: writer.save(self._trainer._run.requests.policy))

    def written(self) -> float:
        return self._timed(self.save)

    def _model_and_optimizer(self) -> tuple[Any, Any]:
        resources = self._trainer.resources
        return resources["model"], resources["optimizer"]

    def torch_load(self) -> float:
        def work() -> None:
            state = torch.load(self._folder / "state.pt", map_location=self._device, weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])

        model, optimizer = self._model_and_optimizer()
        return self._timed(work)

    def dcp_load(self) -> float:
        def work() -> None:
            state = self._state()
            dcp.load(state, checkpoint_id=self._folder / f"dcp-{self._number}", no_dist=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])

        model, optimizer = self._model_and_optimizer()
        return self._timed(work)

    def _newest(self) -> Path:
        return max((self._folder / "run" / "checkpoints").glob("*-step-*"))

    def load(self) -> float:
        def work() -> None:
            read = read_checkpoint(self._newest()).sections["resources"]
            model.load_state_dict(read["model"])
            optimizer.load_state_dict(read["optimizer"])

        model, optimizer = self._model_and_optimizer()
        return self._timed(work)

    def resume(self) -> float:
        def work() -> None:
            self._made().advance(0, resume=self._newest())

        return self._timed(work)


def saves(options: Namespace) -> None:
    """Measure saves and loads."""
    folder = Path(tempfile.mkdtemp(prefix="graphtrain-"))
    megabytes = layers_of(options) * 3 * 4 * WIDTH * WIDTH / 1e6
    try:
        measured = Saves(options, folder)
        cases: dict[str, Callable[[], float]] = {
            COPY: measured.copy,
            TORCH_SAVE: measured.torch_save,
            DCP_SAVE: measured.dcp_save,
            SAVE: measured.save,
            WRITTEN: measured.written,
        }
        times = measured_rounds(cases, options.rounds)
        aims = [
            Target("stall of a save, ratio to one copy", ratio(times, SAVE, COPY), 1.15, spread(times, SAVE, COPY)),
            Target("stall of a save, ratio to torch.save", ratio(times, SAVE, TORCH_SAVE), 0.1),
            Target("stall of a save, ratio to dcp.async_save", ratio(times, SAVE, DCP_SAVE), 0.25),
            Target("until it is on the disk, ratio to torch.save", ratio(times, WRITTEN, TORCH_SAVE), 1.0),
        ]
        shown(options, f"saves: milliseconds, {megabytes:.0f} MB", comparison(times, against=TORCH_SAVE), aims)
        cases = {
            TORCH_LOAD: measured.torch_load,
            DCP_LOAD: measured.dcp_load,
            LOAD: measured.load,
            RESUME: measured.resume,
        }
        times = measured_rounds(cases, options.rounds)
        aims = [Target("load with checksums, ratio to dcp.load", ratio(times, LOAD, DCP_LOAD), 1.0)]
        shown(options, f"loads: milliseconds, {megabytes:.0f} MB", comparison(times, against=TORCH_LOAD), aims)
    finally:
        shutil.rmtree(folder)


def ratio(times: Mapping[str, list[float]], case: str, against: str) -> float:
    """The median of the ratios within a round."""
    return statistics.median(figure / base for figure, base in zip(times[case], times[against], strict=True))


def main() -> None:
    further = {
        "--device": {"type": torch.device, "default": torch.device("cuda"), "help": "where to train (default: cuda)"},
        "--small": {"action": "store_true", "help": "few batches and little to save: to try the script itself"},
    }
    options = arguments(__doc__, rounds=5, further=further)
    if options.device.type == "cuda" and not torch.cuda.is_available():
        print("there is no CUDA device: nothing was measured")  # noqa: T201
        sys.exit()
    # torch.distributed warns, also from its own thread, that it runs in one process and that it overwrites files.
    warnings.simplefilter("ignore", UserWarning)
    if options.small:
        Transformer.WIDTH, Transformer.LAYERS = 64, 1
    batches(options)
    saves(options)


if __name__ == "__main__":
    main()
