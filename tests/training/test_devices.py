"""Promises 7 and 10: training on a device is as by a loop by hand, and cut anywhere as never cut, to the last bit.

A checkpoint is copied at every batch and written while training goes on; runs are resumed from these. Nothing waits for
a CUDA device, and what is fetched early changes no number.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, Loader, Trainer, fit
from tests.devices import DEVICES, deterministic_kernels
from tests.training.tiny import tiny
from tests.world import (
    SAMPLES,
    SEED,
    Augmented,
    Resources,
    World,
    assert_same,
    by_hand,
    cross_entropy,
    said_at_resume,
    small_model,
    world,
)

# Of the compiler of torch, when it is imported, and on a device that could compute less exactly; and of Python 3.12, of
# the worker processes of a loader: torch has threads once it uses a device.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
    pytest.mark.filterwarnings(r"ignore:\s*Online softmax is disabled:UserWarning"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning"),
]

BATCH, EPOCHS, DECAY = 3, 2, 0.9
SCALER = {"init_scale": 2.0**20, "growth_factor": 3.0, "backoff_factor": 0.3, "growth_interval": 2}
Step = Callable[[nn.Module, Any], Any]


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    torch.set_num_threads(1)
    with deterministic_kernels():
        yield
    if torch.cuda.is_initialized():
        torch.cuda.set_sync_debug_mode("default")


# ---- what is trained


def plain_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def sum_and_count(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
    """The loss is a sum over what counts, and their number is a tensor on the device."""
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
    counts = batch[1] != 1
    return {"loss": (loss * counts).sum(), "tokens": counts.sum()}


def busy_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """The device is behind the host, so that a copy which did not wait for it would be of another step."""
    if batch[0].is_cuda:
        torch.cuda._sleep(5_000_000)
    return cross_entropy(model, batch)


def noisy_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """It draws from the generator of the device, in a validation too."""
    return cross_entropy(model, (batch[0] + torch.randn_like(batch[0]), batch[1]))


@dataclass(frozen=True)
class SetUp:
    """What is trained, and how: a row of the table.

    Attributes:
        overlays: of the graph alone; the loop by hand does the same without them.
        options: of the optimizer.
    """

    overlays: tuple[str, ...] = ()
    model: Callable[[], nn.Module] = small_model
    step: Step = cross_entropy
    options: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "32-true"
    every: int = 1
    max_norm: float | None = None
    compile: bool = False
    average: bool = False
    validates: bool = False
    workers: int = 0

    def world(self, device: str) -> World:
        graph = fit(epochs=EPOCHS, accumulate=self.every, clip=self.max_norm, log_every="2 steps", keep=1000)
        graph = graph.set("checkpoint", every="1 batches").set("schedule", every="1 steps")
        graph = graph.set("train_batch", precision=self.precision, compile=self.compile)
        if self.precision == "16-mixed":
            graph = graph.overlay("fp16").set("unscale", **SCALER)
        if self.average:
            graph = graph.overlay("ema").set("ema", decay=DECAY, warmup=False)
        pinned = {"pin_memory": True} if device == "cuda" else {}

        def optimizer(parameters: Any) -> torch.optim.Optimizer:
            return torch.optim.AdamW(parameters, lr=0.05, **self.options)

        def rate(optimizer: torch.optim.Optimizer) -> Any:
            return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

        return world(
            graph,
            overlays=self.overlays,
            model=lambda: self.model().to(device),
            optimizer=optimizer,
            scheduler=rate,
            data=lambda: Loader(Augmented(), BATCH, shuffle=True, num_workers=self.workers, **pinned),
            training_step=self.step,
            options={"device": device},
            val_data=lambda: Loader(Augmented(5), BATCH) if self.validates else None,
        )


SET_UPS = {
    "float32": SetUp(),
    "bfloat16": SetUp(precision="bf16-mixed"),
    "float16": SetUp(precision="16-mixed", every=2, max_norm=0.5, average=True),
    "accumulate": SetUp(every=3),
    "clip": SetUp(max_norm=0.5),
    "foreach": SetUp(options={"foreach": True}),
    "made fused": SetUp(options={"fused": True}),
    "worker processes": SetUp(workers=1),
    "average": SetUp(average=True),
    "finite": SetUp(("check_finite",)),
    "sums": SetUp(("token_windows",), step=sum_and_count, every=2),
    "validation": SetUp(validates=True, step=noisy_loss),
    "busy device": SetUp(step=busy_loss, every=2),
    "compiled": SetUp(compile=True, every=2),
    "all of these": SetUp(("check_finite",), precision="bf16-mixed", every=2, max_norm=0.5, average=True),
}


# ---- the loop by hand


class ByHand:
    """The reference: what happens to the loss of a batch, for all rows; the rest is the loop of `tests.world`."""

    def __init__(self, set_up: SetUp, device: str) -> None:
        if set_up.compile:
            torch._dynamo.reset()
        self.set_up, self.device = set_up, device
        self.resources: Resources = set_up.world(device).resources()
        self.model, self.optimizer = self.resources["model"], self.resources["optimizer"]
        self.scheduler = self.resources.pop("scheduler")
        self.average = copy.deepcopy(self.model).requires_grad_(False) if set_up.average else None
        self.scaler = torch.amp.GradScaler(device, **SCALER) if set_up.precision == "16-mixed" else None
        self.taken: list[bool] = []
        self.counted: Any = 0

    def train(self) -> None:
        set_up, device = self.set_up, self.device
        types = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
        step = torch.compile(set_up.step, dynamic=False) if set_up.compile else set_up.step

        def on_the_device(model: nn.Module, batch: Any) -> Any:
            is_mixed = set_up.precision in types and model.training
            with torch.autocast(device, types[set_up.precision]) if is_mixed else nullcontext():
                result = step(model, tuple(tensor.to(device) for tensor in batch))
            if isinstance(result, dict):
                self.counted = self.counted + result["tokens"]
            return result

        resources = {**self.resources, "training_step": on_the_device}
        validate = [math.ceil(SAMPLES / BATCH)] if set_up.validates else []
        by_hand(resources, epochs=EPOCHS, accumulate=set_up.every, validate=validate, backward=self.backward, seed=SEED)

    def backward(self, loss: torch.Tensor, is_step: bool) -> None:
        share = loss if self.set_up.every == 1 or torch.is_tensor(self.counted) else loss / self.set_up.every
        (share if self.scaler is None else self.scaler.scale(share)).backward()
        if is_step:
            self.update()

    def update(self) -> None:
        parameters, scaler = list(self.model.parameters()), self.scaler
        if torch.is_tensor(self.counted):
            torch._foreach_div_([each.grad for each in parameters], self.counted)
            self.counted = 0
        if scaler is not None:
            scaler.unscale_(self.optimizer)
        if self.set_up.max_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self.set_up.max_norm)
        if scaler is None:
            self.optimizer.step()
            self.taken.append(True)
        else:
            before = scaler.get_scale()
            scaler.step(self.optimizer)
            scaler.update()
            self.taken.append(scaler.get_scale() >= before)
        self.optimizer.zero_grad()
        if self.taken[-1]:
            self.scheduler.step()
            if self.average is not None:
                with torch.no_grad():
                    for mean, weight in zip(self.average.parameters(), self.model.parameters(), strict=True):
                        mean.lerp_(weight, 1 - DECAY)


def without_fused(state: dict[str, Any]) -> dict[str, Any]:
    groups = [{key: value for key, value in group.items() if key != "fused"} for group in state["param_groups"]]
    return {**state, "param_groups": groups}


def expect_by_hand_and_never_cut(set_up: SetUp, device: str, run_dir: Path) -> None:
    reference = ByHand(set_up, device)
    reference.train()
    said: list[str] = []
    whole = set_up.world(device).trainer(run_dir, lines=said)
    whole.run()
    resources = whole.resources
    assert {each.device.type for each in resources["model"].parameters()} == {device}
    assert_same(resources["model"].state_dict(), reference.model.state_dict())
    assert_same(without_fused(resources["optimizer"].state_dict()), without_fused(reference.optimizer.state_dict()))
    assert whole.progress["step"]["steps"] == sum(reference.taken)
    if reference.average is not None:
        assert_same(dict(resources["average"].named_parameters()), dict(reference.average.named_parameters()))
    if reference.scaler is not None:
        assert whole.read("unscale.scale") == reference.scaler.get_scale()
        assert 1 < sum(reference.taken) < len(reference.taken), "some overflow, and some do not"
    assert not [line for line in said if "not be exact" in line]
    paths = sorted((run_dir / "checkpoints").iterdir())
    assert len(paths) >= EPOCHS * SAMPLES // BATCH
    for path in paths[1:-1:3] if not set_up.compile else paths[4:5]:  # to compile takes long
        cut = set_up.world(device).trainer()
        cut.run(resume=path)
        assert cut.digest() == whole.digest(), path.name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("set_up", SET_UPS.values(), ids=SET_UPS)
def test_it_equals_a_loop_by_hand_and_a_run_never_cut(set_up: SetUp, device: str, tmp_path: Path) -> None:
    expect_by_hand_and_never_cut(set_up, device, tmp_path)


# ---- from one device to another


def held(trainer: Trainer) -> Any:
    """Weights and gradients of the open window, on the host."""
    named = trainer.resources["model"].named_parameters()
    return {name: (each.detach().cpu().clone(), each.grad.cpu().clone()) for name, each in named}


@pytest.mark.cuda
@pytest.mark.parametrize(("before", "after"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_run_goes_on_on_another_device(before: str, after: str, tmp_path: Path) -> None:
    it = SetUp(model=plain_model, every=2, average=True)  # without dropout, which draws on its device
    whole, first = it.world(before).trainer(), it.world(before).trainer(tmp_path)
    whole.run()
    first.run(until="3 batches")
    second = it.world(after).trainer(tmp_path)
    second.advance(0)
    assert_same(held(second), held(first))
    second.run()
    assert {each.device.type for each in second.resources["model"].parameters()} == {after}
    for name, weight in whole.resources["model"].state_dict().items():
        now = second.resources["model"].state_dict()[name]
        torch.testing.assert_close(now.cpu(), weight.cpu(), rtol=1e-3, atol=1e-4)


# ---- devices that are not there: generators of the CPU in the place of theirs


def stand_in(patch: pytest.MonkeyPatch, device: str, count: int = 1, seed: int = 0) -> None:
    """As if this process had used so many devices."""
    module: Any = getattr(torch, device)
    generators = [torch.Generator().manual_seed(seed) for _ in range(count)]
    if device == "mps":
        patch.setattr(torch.backends.mps, "is_available", lambda: True)
        patch.setattr(module, "current_allocated_memory", lambda: count)
        patch.setattr(module, "get_rng_state", generators[0].get_state)
        patch.setattr(module, "set_rng_state", generators[0].set_state)
    else:
        patch.setattr(module, "is_initialized", lambda: count > 0)
        patch.setattr(module, "device_count", lambda: count)
        patch.setattr(module, "default_generators", tuple(generators))


@pytest.mark.parametrize("device", ["cuda", "mps", "mtia", "xpu"])
def test_the_random_numbers_of_every_device_continue(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        module: Any = getattr(torch, device)  # nothing that is saved leads to its generators
        generator = module.get_rng_state.__self__ if device == "mps" else module.default_generators[0]
        return model(batch).square().mean() * torch.rand((), generator=generator)

    def run(seed: int, run_dir: Path | None, until: str | None = None) -> tuple[str, str]:
        said: list[str] = []
        with monkeypatch.context() as patch:
            stand_in(patch, device, seed=seed)
            trainer = tiny(run_dir=run_dir, training_step=step, said=said)
            trainer.run(until=until)
            return trainer.digest(), "\n".join(said)

    whole, _ = run(0, None)
    run(0, tmp_path, "3 batches")
    digest, said = run(1, tmp_path)
    assert digest == whole and ": exact" in said


class Anywhere(nn.Linear):
    """It stays on the CPU, whatever device it is moved to."""

    def to(self, *given: Any, **named: Any) -> Any:
        return self


def test_a_device_whose_generator_torch_does_not_expose_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty, said = torch.empty, list[str]()
    monkeypatch.setattr(torch, "empty", lambda *given, device=None, **named: empty(*given, **named))
    for until in ("3 batches", None):
        given = {"model": Anywhere(1, 1), "transfer": lambda batch, device: batch, "device": "vulkan"}
        tiny(run_dir=tmp_path, said=said, **given).run(until=until)
    assert "not exact: the random generator of the device vulkan is not saved" in said_at_resume(said)


def test_it_is_said_that_there_are_other_devices_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways, as if this process had used a device."""

    def run(devices: int, until: str | None) -> str:
        said: list[str] = []
        with monkeypatch.context() as patch:
            stand_in(patch, "cuda", devices)
            tiny(run_dir=tmp_path, said=said).run(until=until)
        return "\n".join(said)

    run(1, "2 batches")
    assert "random numbers of 0 CUDA devices instead of 1" in run(0, "4 batches")
    assert "random numbers of 2 CUDA devices instead of 0" in run(2, "6 batches")
    assert "CUDA devices instead" not in run(2, None)


def test_a_run_on_the_host_uses_no_device_that_is_there_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask for its name would put it to use: then its generator is part of the state."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *given: pytest.fail("it was asked"))
    tiny(run_dir=tmp_path).run(until="2 batches")
    tiny(run_dir=tmp_path).run(until="4 batches")


# ---- nothing waits for a CUDA device

WARM, COUNT, SIZE = 5, 105, 16


def host_batches() -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(COUNT * SIZE, 6, generator=generator).split(SIZE)
    return list(zip(inputs, torch.randint(0, 3, (COUNT * SIZE,), generator=generator).split(SIZE), strict=True))


def pinned_batches() -> list[Any]:
    return [tuple(one.pin_memory() for one in batch) for batch in host_batches()]


def device_batches() -> list[Any]:
    return [tuple(one.to("cuda") for one in batch) for batch in host_batches()]


def seeing_synchronisation(step: Step) -> Step:
    """A training step that makes whatever waits for the device an error, from a batch on until the last but one."""
    batches = 0

    def seeing(model: nn.Module, batch: Any) -> Any:
        nonlocal batches
        batches += 1
        if batches == WARM:
            torch.cuda.set_sync_debug_mode("error")
        if batches == COUNT:  # the end of the epoch reads the means
            torch.cuda.set_sync_debug_mode("default")
        return step(model, batch)

    return seeing


def trainer_of(graph: Graph, data: list[Any], step: Step) -> Trainer:
    graph = graph.set("log", every="never").set("checkpoint", every=["50 batches", "1 epochs"], keep=100)
    made = {"model": lambda: small_model().to("cuda"), "data": lambda: data, "val_data": lambda: None}
    return world(graph, **made, options={"device": "cuda"}).trainer(training_step=seeing_synchronisation(step))


@pytest.mark.cuda
@pytest.mark.parametrize("data", [device_batches, pinned_batches, host_batches])
@pytest.mark.parametrize("settings", [{}, {"clip": 1.0, "accumulate": 2}, {"precision": "bf16-mixed"}], ids=str)
def test_a_hundred_batches_wait_for_nothing(settings: dict[str, Any], data: Callable[[], Any]) -> None:
    trainer = trainer_of(fit(epochs=1, **settings), data(), cross_entropy)
    trainer.run()
    assert trainer.progress["train_batch"]["runs"] == COUNT


@pytest.mark.cuda
def test_what_waits_is_noticed() -> None:
    """The mutation: a metric that is a number."""

    def step(model: nn.Module, batch: Any) -> dict[str, Any]:
        loss = cross_entropy(model, batch)
        return {"loss": loss, "number": loss.item()}

    with pytest.raises(RuntimeError, match="synchroniz"):
        trainer_of(fit(epochs=1), device_batches(), step).run()


@pytest.mark.cuda
def test_a_batch_that_is_read_late_is_still_there() -> None:
    """The device is kept busy, so that it reads a batch long after the host released it, and of several others."""
    large = [torch.full((1 << 20, 1), float(number)).pin_memory() for number in range(40)]
    sums: list[torch.Tensor] = []

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(20_000_000)
        sums.append(batch.double().mean())
        return model(batch[:1]).sum()

    tiny(fit(epochs=1), device="cuda", train_data=large, training_step=step, not_state="training_step").run()
    assert [one.item() for one in sums] == [float(number) for number in range(40)]
