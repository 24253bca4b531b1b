"""One training with everything that can vary as an argument, one way to cut it, and one loop written by hand.

A test says what is special about its training, and nothing else:

    assert_exact(world(graph=fit(accumulate=4), data="shuffle buffer"), tmp_path, at=3)

The training has in it what a resume can get wrong: unique samples, shuffled; augmentation from torch, NumPy and Python;
dropout and batch norm; short last windows; validation within epochs; AdamW with two groups, a parameter of no module, a
schedule, clipping; a frozen layer that is thawed on the way, a batch norm that is fixed there; a buffer that is no part
of `state_dict` and that the loss depends on.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import random
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from graphtrain import Graph, Loader, Trainer, fit

SAMPLES, BATCH_SIZE, THAWED_AFTER = 14, 3, 4
SEED = 11  # of runs
Resources = dict[str, Any]

# ---- what is trained


class Augmented(Dataset[Any]):
    """Distinct samples, disturbed at random each time they are read, from every generator there is."""

    def __init__(self, samples: int = SAMPLES) -> None:
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(samples, 6, generator=generator)
        self.targets = torch.randint(0, 3, (samples,), generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = 0.1 * torch.randn(6) * (random.random() + float(numpy.random.rand()))
        return self.inputs[index] + noise, self.targets[index]


class Network(nn.Module):
    """Modes, buffers of both kinds, a frozen layer, tied weights and random numbers all matter to its output."""

    level: torch.Tensor
    seen: torch.Tensor
    recent: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 8).requires_grad_(False)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.4)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.head = nn.Linear(8, 3)
        self.register_buffer("level", torch.ones(()), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("recent", None, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.relu(self.norm(self.frozen(inputs))))
        hidden = self.second(torch.relu(self.first(hidden)))
        if self.training:
            self.level = 0.9 * self.level + 0.1 * hidden.detach().abs().mean()
            self.recent = hidden.detach().mean(0)
            self.seen += 1
            if self.seen == THAWED_AFTER:
                self.frozen.requires_grad_(True)
                self.norm.eval()
        center = 0.0 if self.recent is None else 0.1 * self.recent
        output: torch.Tensor = self.head((hidden - center) / self.level)
        return output


def small_model() -> nn.Module:
    """Dropout and batch norm, and nothing that `state_dict` does not have."""
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 3))


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    """A training step that returns the loss alone."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


class WithTemperature:
    """A training step with a parameter that is in no module, which returns a metric beside the loss."""

    def __init__(self) -> None:
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def __call__(self, model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        logits = model(batch[0]) * self.temperature
        correct = (logits.argmax(1) == batch[1]).float().mean()
        return {"loss": nn.functional.cross_entropy(logits, batch[1]), "accuracy": correct}


class Unsized:
    """An iterable that does not know its length and draws its order from the global generator."""

    def __init__(self, data: Dataset[Any]) -> None:
        self._data = data

    def order(self) -> Iterator[int]:
        yield from torch.randperm(SAMPLES).tolist()

    def __iter__(self) -> Iterator[Any]:
        order = self.order()
        while batch := [self._data[index] for _, index in zip(range(BATCH_SIZE), order, strict=False)]:
            yield tuple(torch.stack(parts) for parts in zip(*batch, strict=True))


class ShuffleBuffer(Unsized):
    """The same with a small buffer, out of which each sample is drawn when it is needed."""

    def order(self) -> Iterator[int]:
        waiting: list[int] = []
        for index in range(SAMPLES):
            waiting.append(index)
            if len(waiting) == 5:
                yield waiting.pop(int(torch.randint(len(waiting), ())))
        while waiting:
            yield waiting.pop(random.randrange(len(waiting)))


class LazySampler(Sampler[int]):
    """Draws each index when it is asked for, from a global generator that training draws from too."""

    def __iter__(self) -> Iterator[int]:
        waiting = list(range(SAMPLES))
        while waiting:
            yield waiting.pop(int(torch.randint(len(waiting), ())))

    def __len__(self) -> int:
        return SAMPLES


class Stream(IterableDataset[Any]):
    """Samples one after the other, in an order drawn at the beginning; each worker has its share."""

    def __init__(self, data: Dataset[Any]) -> None:
        self._data = data

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        own = range(SAMPLES) if worker is None else range(worker.id, SAMPLES, worker.num_workers)
        for number in torch.randperm(len(own)).tolist():
            yield self._data[own[number]]


class WithState:
    """Data that keeps its own position and its own random numbers."""

    def __init__(self, data: Dataset[Any]) -> None:
        self._data, self._generator, self._order = data, random.Random(3), list[int]()

    def __iter__(self) -> Iterator[Any]:
        if not self._order:
            self._order = self._generator.sample(range(SAMPLES), SAMPLES)
        while self._order:
            chosen, self._order = self._order[:BATCH_SIZE], self._order[BATCH_SIZE:]
            yield tuple(torch.stack(parts) for parts in zip(*[self._data[index] for index in chosen], strict=True))

    def __len__(self) -> int:
        return math.ceil(SAMPLES / BATCH_SIZE)

    def state_dict(self) -> dict[str, Any]:
        return {"order": list(self._order), "generator": self._generator.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._order = list(state["order"])
        self._generator.setstate(state["generator"])


def _stateful(data: Dataset[Any], workers: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

    return StatefulDataLoader(data, BATCH_SIZE, shuffle=True, num_workers=workers)


DATA: dict[str, Callable[[Dataset[Any], int], Any]] = {
    "Loader": lambda data, workers: Loader(data, BATCH_SIZE, shuffle=True, num_workers=workers),
    "DataLoader": lambda data, workers: DataLoader(data, BATCH_SIZE, shuffle=True, num_workers=workers),
    "own generator": lambda data, workers: DataLoader(
        data, BATCH_SIZE, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(5)
    ),
    "lazy sampler": lambda data, workers: DataLoader(data, BATCH_SIZE, sampler=LazySampler(), num_workers=workers),
    "stream": lambda data, workers: DataLoader(Stream(data), BATCH_SIZE, num_workers=workers),
    "StatefulDataLoader": _stateful,
    "list": lambda data, workers: list(DataLoader(data, BATCH_SIZE)),
    "unsized": lambda data, workers: Unsized(data),
    "shuffle buffer": lambda data, workers: ShuffleBuffer(data),
    "with state": lambda data, workers: WithState(data),
}
WITHOUT_LENGTH = ("stream", "unsized", "shuffle buffer")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.01),
    "Adam with amsgrad": lambda groups: torch.optim.Adam(groups, lr=0.01, amsgrad=True),
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.01),
    "SGD with momentum": lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9, nesterov=True),
    "RMSprop": lambda groups: torch.optim.RMSprop(groups, lr=0.001, momentum=0.5, centered=True),
}
SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "none": lambda optimizer: None,
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9),
    "warm-up": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer, [SCHEDULERS["linear"](optimizer), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)], [2]
    ),
    "linear": lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2),
    "lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
}


def seed_generators(seed: int) -> None:
    """Seed Python, NumPy and torch."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


# ---- a training


@dataclass(frozen=True)
class World:
    """A training that can be made again and again, always the same.

    Attributes:
        graph: the procedure.
        make: resources by name; the generators are seeded just before.
        options: further arguments of the `Trainer`.
    """

    graph: Graph
    make: Callable[[], Resources]
    options: Mapping[str, Any] = field(default_factory=dict)

    def resources(self) -> Resources:
        """New ones, which equal all others."""
        torch.set_num_threads(1)
        seed_generators(7)
        return self.make()

    def trainer(
        self,
        run_dir: Path | str | None = None,
        *,
        losses: list[float] | None = None,
        lines: list[str] | None = None,
        **options: Any,
    ) -> Trainer:
        """A trainer with new resources, on the CPU, that shows nothing.

        Arguments:
            losses: takes the loss of every batch that `training_step` is called with, trained or validated.
            lines: takes what the run has to say.
            options: further arguments of the `Trainer`, resources among them.
        """
        made = {**self.resources(), **{name: value for name, value in options.items() if value is not None}}
        shown = {"seed": SEED, "device": "cpu", "display": None, **self.options}
        if losses is not None:
            made["training_step"] = _noting(made["training_step"], losses)
            shown["not_state"] = [*shown.get("not_state", ()), "training_step<losses>"]
        notify = (lambda line: None) if lines is None else lines.append
        return Trainer(made.pop("graph", self.graph), run_dir=run_dir, **{**shown, "notify": notify, **made})

    def but(self, graph: Graph | None = None, **resources: Any) -> World:
        """The same with another graph, or other resources: values, or functions of the resources made before."""

        def make() -> Resources:
            made = self.make()
            for name, value in resources.items():
                made[name] = value(made) if callable(value) and not isinstance(value, nn.Module) else value
            return made

        return replace(self, graph=graph or self.graph, make=make)


def _noting(step: Callable[..., Any], losses: list[float]) -> Callable[..., Any]:
    @functools.wraps(step)
    def noted(*arguments: Any, **named: Any) -> Any:
        result = step(*arguments, **named)
        loss = result["loss"] if isinstance(result, Mapping) else result
        losses.append(float(loss.detach()))
        return result

    return noted


def small_fit(data: str = "Loader", **settings: Any) -> Graph:
    """`fit` for two epochs of five batches: short last windows, validation within epochs, a row at every step.

    Arguments:
        data: of which kind it is: without a length an epoch has no fractions.
        settings: further ones of `graphtrain.fit`, or other values of these.
    """
    part = "3 batches" if data in WITHOUT_LENGTH else "0.4 epochs"
    graph = fit(
        **{"epochs": 2, "accumulate": 2, "clip": 1.0, "log_every": "1 steps", "save_every": "never", **settings}
    )
    return graph if "validate_every" in settings else graph.set("validate", every=[part, "1 epochs"])


def world(
    graph: Graph | None = None,
    *,
    edit: Callable[[Graph], Graph] = lambda graph: graph,
    overlays: Sequence[str] = (),
    model: Callable[[], nn.Module] = Network,
    optimizer: str | Callable[[Any], torch.optim.Optimizer] = "AdamW",
    scheduler: str | Callable[[torch.optim.Optimizer], Any] = "cosine",
    data: str | Callable[[], Any] = "Loader",
    workers: int = 0,
    training_step: Callable[..., Any] | None = None,
    options: Mapping[str, Any] | None = None,
    **resources: Callable[[], Any],
) -> World:
    """A training of `fit`, in which what is named is otherwise.

    Arguments:
        graph: Default: `small_fit`.
        edit: changes the graph, before the overlays do.
        optimizer, scheduler: a name in `OPTIMIZERS` or `SCHEDULERS`, or a function of the parameters or the optimizer.
        data: a name in `DATA`, or a function that makes `train_data`, or a mapping of resources.
        workers: of the loader.
        training_step: with that of the default, the optimizer has two groups and a parameter of no module.
        options: further arguments of the `Trainer`.
        resources: further ones by name, each a function that makes it.
    """
    kind = data if isinstance(data, str) else ""
    edited = edit(graph if graph is not None else small_fit(kind))
    make_optimizer = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    make_scheduler = SCHEDULERS[scheduler] if isinstance(scheduler, str) else scheduler

    def make() -> Resources:
        network, step = model(), training_step or WithTemperature()
        groups: Any = network.parameters()
        if isinstance(step, WithTemperature) and isinstance(network, Network):
            body = [parameter for name, parameter in network.named_parameters() if not name.startswith("head")]
            head = [*network.head.parameters(), step.temperature]
            groups = [{"params": body}, {"params": head, "weight_decay": 0.0}]
        made = make_optimizer(groups)
        train_data = DATA[kind](Augmented(), workers) if kind else data()  # type: ignore[operator]
        return {
            "model": network,
            "optimizer": made,
            "scheduler": make_scheduler(made),
            "val_data": DataLoader(Augmented(), 5),
            "training_step": step,
            **(train_data if isinstance(train_data, dict) else {"train_data": train_data}),
            **{name: value() for name, value in resources.items()},
        }

    return World(edited.overlay(*overlays) if overlays else edited, make, options or {})


# ---- cutting it


@dataclass(frozen=True)
class Course:
    """The nodes that a run has visited, what became of it, and what it had to say."""

    visited: list[str]
    digest: str
    metrics: list[dict[str, Any]]
    lines: list[str]
    trainer: Trainer = field(compare=False, repr=False)


def run_through(
    it: World, run_dir: Path | None, at: Sequence[int] = (), copies: Path | None = None, *, ends: bool = True, **of: Any
) -> Course:
    """Run to the end, and keep a copy of the run directory, `cut-N`, after each number of transitions in `at`.

    Arguments:
        ends: False ends it after the last cut.
        of: options of the trainer, and `trace`: True notes what is visited, in twice the time.
    """
    lines, visited = list[str](), list[str]()
    trace = visited.append if of.pop("trace", False) else None
    trainer = it.trainer(run_dir, lines=lines, **of)
    before = 0
    for number in sorted(at):
        if trainer.advance(number - before) == "end":
            break
        before = number
        trainer.save()
        assert run_dir is not None and copies is not None
        shutil.copytree(run_dir, copies / f"cut-{number}")
    if ends and (trainer.position != "end" or not at):
        trainer.run(trace=trace and (lambda explained: trace(explained.node)))
    return Course(visited, trainer.digest(), rows_of(run_dir), lines, trainer)


def rows_of(run_dir: Path | None) -> list[dict[str, Any]]:
    """The rows of metrics that a run has written."""
    file = run_dir / "metrics.jsonl" if run_dir is not None else None
    return [json.loads(line) for line in file.read_text().splitlines()] if file is not None and file.exists() else []


def said_at_resume(lines: Sequence[str]) -> str:
    """The line that says what was resumed, and whether exactly."""
    (line,) = [line for line in lines if line.startswith("resumed ")]
    return line


def says_exact(line: str) -> bool:
    """Whether a resume is called exact."""
    return line.endswith("exact") and "not exact" not in line


def assert_exact(
    it: World, folder: Path, at: int | Sequence[int] = 1, *, resumed: World | None = None, reports: str = "exact",
    doubts: str | None = None,
) -> Course:  # fmt: skip
    """A run that is cut, and resumed by new objects, is the run that was never cut.

    Arguments:
        at: after which transitions it is cut; a number: so many of them at random, 0 for all. A run that saves at
            several of them is compared too.
        resumed: what it is resumed as. Default: the same.
        reports: what the line of the resume must have in it instead of "exact"; then the rest may differ.
        doubts: what it may have in it instead of "exact", and the rest is equal all the same. Default: nothing.

    Returns the run that was never cut.
    """
    whole = run_through(it, folder / "whole", trace=True)
    every = range(1, len(whole.visited))
    if isinstance(at, int):
        at = every if not at else sorted(random.Random(folder.name).sample(every, min(at, len(every))))
    saved = run_through(it, folder / "saved", at, folder, ends=len(at) > 1)
    if len(at) > 1:
        assert (saved.digest, saved.metrics) == (whole.digest, whole.metrics), "by saving"
    for cut in at:
        run_dir, where = folder / f"cut-{cut}", f"cut {cut}, after {whole.visited[cut - 1]}"
        if not run_dir.exists():
            continue
        seed_generators(cut)  # what a process draws before it resumes is no matter
        after = run_through(resumed or it, run_dir)
        line = said_at_resume(after.lines)
        if reports != "exact":
            assert reports in line, f"{where}: {line}"
            continue
        assert says_exact(line) or (doubts and doubts in line), f"{where}: {line}"
        assert after.digest == whole.digest, where
        assert after.metrics == whole.metrics, where
    return whole


def in_a_process(act: Callable[[], Any], seconds: int = 300) -> Any:
    """What a function returns, as JSON has it, in a process of its own; an exception of it is an AssertionError."""
    readable, writable = os.pipe()
    process = os.fork()
    if not process:
        os.close(readable)
        signal.alarm(seconds)
        try:
            said: Any = {"returned": act()}
        except BaseException:
            said = {"raised": traceback.format_exc()}
        with contextlib.suppress(BaseException), open(writable, "wb") as pipe:
            pipe.write(json.dumps(said).encode())
        os._exit(0)
    os.close(writable)
    with open(readable, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(process, 0)
    assert not os.WIFSIGNALED(status), f"the process was ended by signal {os.WTERMSIG(status)}"
    said = json.loads(answer)
    assert "raised" not in said, said["raised"]
    return said["returned"]


# ---- the loop by hand


def by_hand(
    resources: Resources,
    *,
    epochs: int = 2,
    accumulate: int = 2,
    clip: float | None = 1.0,
    validate: Sequence[int] = (),
    window: str = "flush",
    backward: Callable[[torch.Tensor, bool], None] | None = None,
    seed: int = SEED,
) -> list[float]:
    """Train resources in place by a plain loop of PyTorch; the loss of every batch, validated ones too.

    Arguments:
        validate: the numbers of the batches of an epoch after which `val_data` is evaluated.
        window: what happens to a short window at the end of an epoch: "flush" takes a step with it, "carry" fills it
            up in the next epoch, "drop" discards it, "scaled" takes a step with the mean over its own batches.
        backward: called with the loss of a batch and whether its window ends, in the place of passes and steps.
    """
    model, optimizer, scheduler = resources["model"], resources["optimizer"], resources.get("scheduler")
    function, losses, open_window = resources["training_step"], list[float](), 0
    train_data = resources["train_data"]
    if isinstance(train_data, Loader):
        train_data.seed = seed
    seed_generators(seed)
    for epoch in range(epochs):
        length = len(train_data)
        for number, batch in enumerate(train_data, 1):
            result = function(model, batch)
            loss = result["loss"] if isinstance(result, Mapping) else result
            losses.append(float(loss.detach()))
            open_window += 1
            is_cut = number == length and (window != "carry" or epoch == epochs - 1)
            is_step = open_window == accumulate or (is_cut and window != "drop")
            if backward is not None:
                backward(loss, is_step)
            else:
                (loss / accumulate).backward()
                if is_step:
                    _step(optimizer, open_window / accumulate if window == "scaled" else 1.0, clip)
                if is_step or is_cut:
                    optimizer.zero_grad()
            if is_step or is_cut:
                open_window = 0
            if number in validate:
                losses += _evaluated(model, resources["val_data"], function, seed)
            if is_step and scheduler is not None:
                scheduler.step()
    return losses


def _step(optimizer: torch.optim.Optimizer, share: float, clip: float | None) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        if parameter.grad is not None and share != 1.0:
            parameter.grad.div_(share)
    if clip is not None:
        nn.utils.clip_grad_norm_(parameters, clip)
    optimizer.step()


def _evaluated(model: nn.Module, data: Any, function: Callable[..., Any], seed: int) -> list[float]:
    before = random.getstate(), numpy.random.get_state()
    modes = {module: module.training for module in model.modules()}
    with torch.random.fork_rng(), torch.no_grad():  # the generators of devices too
        seed_generators(seed)
        model.eval()
        results = [function(model, batch) for batch in data]
    for module, mode in modes.items():
        module.training = mode
    random.setstate(before[0])
    numpy.random.set_state(before[1])
    return [float(result["loss"] if isinstance(result, Mapping) else result) for result in results]


def assert_same(one: Any, other: Any, where: str = "") -> None:
    """Equal to the last bit, through dictionaries and lists."""
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other), where
    elif isinstance(one, Mapping):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_same(left, right, f"{where}.{number}")
    else:
        assert one == other, where


def assert_as_by_hand(
    it: World, names: Sequence[str] = ("model", "optimizer"), *, loop: Any = by_hand, run_dir: Any = None, **how: Any
) -> Trainer:
    """A run has the losses of the loop by hand, and its resources are the same in the end.

    Arguments:
        names: of the resources whose `state_dict` is compared.
        loop: called with the resources: trains them in place, may add some, and returns the losses, or None.
        how: of the loop.
    """
    resources, losses = it.resources(), list[float]()
    models = [name for name in names if isinstance(resources.get(name), nn.Module)]
    before = {name: {key: value.clone() for key, value in resources[name].state_dict().items()} for name in models}
    expected = loop(resources, **how)
    trainer = it.trainer(run_dir, losses=losses if expected is not None else None)
    trainer.run()
    assert expected is None or losses == expected
    for name in names:
        assert_same(trainer.resources[name].state_dict(), resources[name].state_dict(), name)
    for name, saved in before.items():  # that nothing trains would be equal too
        assert any(not torch.equal(value, saved[key]) for key, value in resources[name].state_dict().items()), name
    return trainer
