"""Training on a device: as by a loop by hand, and cut anywhere as never cut, to the last bit.

A checkpoint is copied at every batch and written while training goes on; runs are resumed from these.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

from graphtrain import Graph, Loader, Trainer
from graphtrain.errors import CheckpointError, NotFiniteError
from graphtrain.state.random import capture_random, restore_random, seed_everything
from graphtrain.storage.state_files import StagedState, split, state_digest
from graphtrain.storage.strides import name_of
from graphtrain.storage.tensor_files import StagingBuffers
from tests.devices import DEVICES, deterministic_kernels
from tests.program.small_run import Augmented, make_model
from tests.program.test_by_hand import assert_same
from tests.ranks.processes import run_processes

# Of the compiler of torch, when it is imported, and on a device that could compute less exactly; and of Python 3.12, of
# the worker processes of a loader: torch has threads once it uses a device.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
    pytest.mark.filterwarnings(r"ignore:\s*Online softmax is disabled:UserWarning"),
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream:UserWarning"),  # of torch's own CUDA graphs
]

BATCH, SAMPLES, EPOCHS, DECAY = 3, 14, 2, 0.9
SCALER = {"init_scale": 2.0**20, "growth_factor": 3.0, "backoff_factor": 0.3, "growth_interval": 2}

Edit = Callable[[Graph], Graph]
Step = Callable[[nn.Module, Any], Any]


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    torch.set_num_threads(1)
    with deterministic_kernels():
        yield


# ---- what is trained


class Attention(nn.Module):
    """Each number of a sample is a token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(1, 32)
        self.layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=64, dropout=0.1, batch_first=True)
        self.head = nn.Linear(32, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.layer(self.embedding(inputs.unsqueeze(-1))).mean(1))
        return logits


def plain_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def mean_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def sum_and_count(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
    """The loss is a sum over what counts, and their number is a tensor on the device."""
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
    counts = batch[1] != 1
    return {"loss": (loss * counts).sum(), "tokens": counts.sum()}


def busy_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """The device is behind the host, so that a copy which did not wait for it would be of another step."""
    if batch[0].is_cuda:
        torch.cuda._sleep(5_000_000)
    return mean_loss(model, batch)


def noisy_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """It draws from the generator of the device, in a validation too."""
    return mean_loss(model, (batch[0] + torch.randn_like(batch[0]), batch[1]))


def adamw(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), **{"lr": 0.05, **options})


def same(graph: Graph) -> Graph:
    return graph


def graphed(model: nn.Module) -> nn.Module:
    """Forward and backward are replayed as CUDA graphs."""
    captured: nn.Module = torch.cuda.make_graphed_callables(model, (torch.zeros(BATCH, 6, device="cuda"),))  # type: ignore[arg-type]
    return captured


@dataclass(frozen=True)
class SetUp:
    """What is trained, and how: a row of the table.

    Attributes:
        edit: of the graph alone; the loop by hand does the same without it.
        options: of the optimizer, for both.
        by_hand: of the optimizer of the loop by hand alone.
        prepare: called with the model on its device.
    """

    edit: Edit = same
    model: Callable[[], nn.Module] = make_model
    step: Step = mean_loss
    options: dict[str, Any] = field(default_factory=dict)
    by_hand: dict[str, Any] = field(default_factory=dict)
    precision: str = "32-true"
    every: int = 1
    max_norm: float = math.inf
    compile: bool = False
    average: bool = False
    validates: bool = False
    workers: int = 0
    samples: int = SAMPLES
    prepare: Callable[[nn.Module], nn.Module] | None = None

    def parts(self, device: str) -> dict[str, Any]:
        """What both loops are supplied with: the same, every time."""
        if self.compile:
            torch._dynamo.reset()
        seed_everything(7)
        model = self.model().to(device)
        if self.prepare is not None:
            model = self.prepare(model)
        options = {name: value.to(device) if torch.is_tensor(value) else value for name, value in self.options.items()}
        optimizer = adamw(model, **options)
        pinned = {"pin_memory": True} if device == "cuda" else {}
        data = Loader(Augmented(self.samples), BATCH, shuffle=True, seed=11, num_workers=self.workers, **pinned)
        return {
            "model": model,
            "optimizer": optimizer,
            "scheduler": LambdaLR(optimizer, lambda step: 1 / (1 + step)),
            "train_data": data,
            "training_step": self.step,
            **({"val_data": Loader(Augmented(5), BATCH), "validation_step": self.step} if self.validates else {}),
        }

    def graph(self) -> Graph:
        graph = Graph.load("fit").set("finish", after=f"{EPOCHS} epochs").set("log", every="2 steps")
        graph = graph.set("accumulate", every=self.every).set("clip", max_norm=self.max_norm)
        graph = graph.set("checkpoint", every="1 batches", keep=1000).set("schedule", every="1 steps")
        if self.precision == "16-mixed":
            graph = graph.overlay("fp16").set("unscale", **SCALER)
        if self.average:
            graph = graph.overlay("ema").set("ema", decay=DECAY, warmup=False)
        return self.edit(graph.set("train_batch", precision=self.precision, compile=self.compile))

    def trainer(
        self, device: str, run_dir: Path | None = None, said: list[str] | None = None, **others: Any
    ) -> Trainer:
        notify = (lambda line: None) if said is None else said.append
        supplied = {**self.parts(device), **others}
        options: dict[str, Any] = {"run_dir": run_dir, "seed": 11, "display": None, "notify": notify}
        return Trainer(self.graph(), device=device, **options, **supplied)


def set_of(*nodes: str, **values: Any) -> Edit:
    """Set parameters of some nodes."""

    def edit(graph: Graph) -> Graph:
        for node in nodes:
            graph = graph.set(node, **values)
        return graph

    return edit


def checked(graph: Graph) -> Graph:
    """Look at every loss."""
    return graph.overlay("check_finite")


def all_of_these(graph: Graph) -> Graph:
    return checked(graph)


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
    "finite": SetUp(checked),
    "sums": SetUp(lambda graph: graph.overlay("token_windows"), step=sum_and_count, every=2),
    "validation": SetUp(validates=True, step=noisy_loss),
    "attention": SetUp(model=Attention, precision="bf16-mixed", every=2, max_norm=1.0),
    "busy device": SetUp(step=busy_loss, every=2),
    "compiled": SetUp(compile=True, every=2),
    "all of these": SetUp(all_of_these, precision="bf16-mixed", every=2, max_norm=0.5, average=True),
}
OF_CUDA = {
    "rate on the device": SetUp(options={"capturable": True, "lr": torch.tensor(0.05)}, every=2),
    "CUDA graphs": SetUp(prepare=graphed, samples=5 * BATCH),
}


def autocast(precision: str, device: str) -> Any:
    types = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
    return torch.autocast(device, types[precision]) if precision in types else nullcontext()


class ByHand:
    """The reference: a loop for all rows."""

    def __init__(self, set_up: SetUp, device: str) -> None:
        self.set_up, self.device = set_up, device
        self.parts = set_up.parts(device)
        self.model, self.optimizer = self.parts["model"], self.parts["optimizer"]
        for group in self.optimizer.param_groups:
            group.update(set_up.by_hand)
        self.average = copy.deepcopy(self.model).requires_grad_(False) if set_up.average else None
        self.scaler = torch.amp.GradScaler(device, **SCALER) if set_up.precision == "16-mixed" else None
        self.step = torch.compile(set_up.step, dynamic=False) if set_up.compile else set_up.step
        self.taken: list[bool] = []
        self.counted: Any = 0

    def moved(self, batch: Any) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.to(self.device) for tensor in batch)

    def train(self) -> None:
        seed_everything(11)
        for _ in range(EPOCHS):
            count = math.ceil(self.set_up.samples / BATCH)
            for number, batch in enumerate(self.parts["train_data"], start=1):
                with autocast(self.set_up.precision, self.device):
                    result = self.step(self.model, self.moved(batch))
                self.backward(result)
                if number % self.set_up.every == 0 or number == count:
                    self.update()
            if self.set_up.validates:
                self.validate()

    def backward(self, result: Any) -> None:
        if isinstance(result, dict):
            self.counted = self.counted + result["tokens"]
            result["loss"].backward()
            return
        share = result if self.set_up.every == 1 else result / self.set_up.every
        (share if self.scaler is None else self.scaler.scale(share)).backward()

    def update(self) -> None:
        parameters, scaler = list(self.model.parameters()), self.scaler
        if torch.is_tensor(self.counted):
            torch._foreach_div_([each.grad for each in parameters], self.counted)
            self.counted = 0
        if scaler is not None:
            scaler.unscale_(self.optimizer)
        if self.set_up.max_norm < math.inf:
            nn.utils.clip_grad_norm_(parameters, self.set_up.max_norm)
        if scaler is not None:
            before = scaler.get_scale()
            scaler.step(self.optimizer)
            scaler.update()
            self.taken.append(scaler.get_scale() >= before)
        else:
            self.optimizer.step()
            self.taken.append(True)
        self.optimizer.zero_grad()
        if self.taken[-1]:
            self.parts["scheduler"].step()
            self.follow()

    def follow(self) -> None:
        if self.average is not None:
            with torch.no_grad():
                for mean, weight in zip(self.average.parameters(), self.model.parameters(), strict=True):
                    mean.lerp_(weight, 1 - DECAY)

    def validate(self) -> None:
        random = capture_random()
        seed_everything(11)
        self.model.eval()
        with torch.no_grad():
            for batch in self.parts["val_data"]:
                self.step(self.model, self.moved(batch))
        self.model.train()
        restore_random(random)


def without_fused(state: dict[str, Any]) -> dict[str, Any]:
    groups = [{key: value for key, value in group.items() if key != "fused"} for group in state["param_groups"]]
    return {**state, "param_groups": groups}


def expect_by_hand(trainer: Trainer, reference: ByHand) -> None:
    resources = trainer.resources
    assert_same(resources["model"].state_dict(), reference.model.state_dict())
    state, expected = resources["optimizer"].state_dict(), reference.optimizer.state_dict()
    assert_same(without_fused(state), without_fused(expected))
    assert trainer.progress["step"]["steps"] == sum(reference.taken)
    if reference.average is not None:
        assert_same(dict(resources["average"].named_parameters()), dict(reference.average.named_parameters()))
    if reference.scaler is not None:
        assert trainer.read("unscale.scale") == reference.scaler.get_scale()
        assert 1 < sum(reference.taken) < len(reference.taken), "some overflow, and some do not"


def checkpoints(run_dir: Path) -> list[Path]:
    return sorted((run_dir / "checkpoints").iterdir())


def expect_by_hand_and_never_cut(set_up: SetUp, device: str, run_dir: Path) -> None:
    reference = ByHand(set_up, device)
    reference.train()
    said: list[str] = []
    whole = set_up.trainer(device, run_dir, said)
    whole.run()
    assert {each.device.type for each in whole.resources["model"].parameters()} == {device}
    expect_by_hand(whole, reference)
    assert not [line for line in said if "not be exact" in line]
    paths = checkpoints(run_dir)
    assert len(paths) >= EPOCHS * set_up.samples // BATCH
    for path in paths[1:-1:3] if not set_up.compile else paths[4:5]:  # to compile takes long
        cut = set_up.trainer(device)
        cut.run(resume=path)
        assert cut.digest() == whole.digest(), path.name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("set_up", SET_UPS.values(), ids=SET_UPS)
def test_it_equals_a_loop_by_hand_and_a_run_never_cut(set_up: SetUp, device: str, tmp_path: Path) -> None:
    expect_by_hand_and_never_cut(set_up, device, tmp_path)


@pytest.mark.cuda
@pytest.mark.parametrize("set_up", OF_CUDA.values(), ids=OF_CUDA)
def test_what_is_of_cuda_alone_does_too(set_up: SetUp, tmp_path: Path) -> None:
    expect_by_hand_and_never_cut(set_up, "cuda", tmp_path)


@pytest.mark.cuda
def test_a_generator_that_is_not_restored_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation: dropout draws from the generator of the device."""
    SET_UPS["float32"].trainer("cuda", tmp_path).run(until="3 batches")
    monkeypatch.setattr("graphtrain.program.run_state.restore_random", lambda saved: None)
    with pytest.raises(CheckpointError, match="the state loaded is not the state saved"):
        SET_UPS["float32"].trainer("cuda", tmp_path).run()


# ---- from one device to another


ELSEWHERE = SetUp(model=plain_model, every=2, average=True)  # without dropout, which draws on its device


def on_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    return {key: on_host(part) for key, part in value.items()} if isinstance(value, dict) else value


def held(trainer: Trainer) -> dict[str, Any]:
    """Weights, gradients of the open window, the average and the state of the optimizer, on the host."""
    model, optimizer = trainer.resources["model"], trainer.resources["optimizer"]
    gradients = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    states = [model.state_dict(), trainer.resources["average"].state_dict(), optimizer.state_dict()["state"]]
    held: dict[str, Any] = on_host(dict(enumerate([*states, gradients])))
    return held


def without_devices(run_dir: Path) -> tuple[list[str], Any]:
    """Resume where no device is to be seen, and train to the end; what is said, and what is held at the beginning."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    said: list[str] = []
    trainer = ELSEWHERE.trainer("cpu", run_dir, said)
    trainer.advance(0)
    begun = held(trainer)
    trainer.run()
    return said, {number: str(part) for number, part in begun.items()}


@pytest.mark.cuda
@pytest.mark.parametrize(("before", "after"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_run_goes_on_on_another_device(before: str, after: str, tmp_path: Path) -> None:
    whole = ELSEWHERE.trainer(before)
    whole.run()
    first = ELSEWHERE.trainer(before, tmp_path)
    first.run(until="3 batches")
    second = ELSEWHERE.trainer(after, tmp_path)
    second.advance(0)
    assert_same(held(second), held(first))
    assert held(second)[3], "the window is open"
    second.run()
    assert {each.device.type for each in second.resources["model"].parameters()} == {after}
    for name, weight in whole.resources["model"].state_dict().items():
        now = second.resources["model"].state_dict()[name]
        torch.testing.assert_close(now.cpu(), weight.cpu(), rtol=1e-3, atol=1e-4)


@pytest.mark.cuda
def test_a_run_goes_on_where_there_is_no_device(tmp_path: Path) -> None:
    first = ELSEWHERE.trainer("cuda", tmp_path)
    first.run(until="3 batches")
    ((said, begun),) = run_processes(1, without_devices, tmp_path)
    assert begun == {number: str(part) for number, part in held(first).items()}
    assert "random numbers of 0 CUDA devices instead of 1" in "\n".join(said)


def stand_in(patch: pytest.MonkeyPatch, device: str, count: int = 1, seed: int = 0) -> list[torch.Generator]:
    """Generators of the CPU in the place of those of devices, as if this process had used them."""
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
    return generators


@pytest.mark.parametrize("device", ["cuda", "mps", "mtia", "xpu"])
def test_the_random_numbers_of_every_device_continue(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        module: Any = getattr(torch, device)  # nothing that is saved leads to its generators
        generator = module.get_rng_state.__self__ if device == "mps" else module.default_generators[0]
        return mean_loss(model, batch) * torch.rand((), generator=generator)

    def run(seed: int, run_dir: Path | None, until: str | None = None) -> tuple[str, str]:
        said: list[str] = []
        with monkeypatch.context() as patch:
            stand_in(patch, device, seed=seed)
            trainer = SetUp(model=plain_model, step=step).trainer("cpu", run_dir, said)
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
        resources = {**SetUp(model=lambda: Anywhere(6, 3)).parts("cpu"), "transfer": lambda batch, device: batch}
        Trainer(Graph.load("fit"), run_dir=tmp_path, device="vulkan", notify=said.append, **resources).run(until=until)
    assert "not exact: the random generator of the device vulkan is not saved" in "\n".join(said)


def test_it_is_said_that_there_are_other_devices_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways, as if this process had used a device."""

    def run(devices: int, until: str | None) -> list[str]:
        said: list[str] = []
        with monkeypatch.context() as patch:
            stand_in(patch, "cuda", devices)
            SET_UPS["float32"].trainer("cpu", tmp_path, said).run(until=until)
        return said

    run(1, "2 batches")
    assert "random numbers of 0 CUDA devices instead of 1" in "\n".join(run(0, "4 batches"))
    assert "random numbers of 2 CUDA devices instead of 0" in "\n".join(run(2, "6 batches"))
    assert "CUDA devices instead" not in "\n".join(run(2, None))


def test_a_run_on_the_host_uses_no_device_that_is_there_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask for its name would put it to use: then its generator is part of the state."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *given: pytest.fail("it was asked"))
    SET_UPS["float32"].trainer("cpu", tmp_path).run(until="2 batches")
    SET_UPS["float32"].trainer("cpu", tmp_path).run(until="4 batches")


def test_a_digest_is_the_same_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = torch.ones(3)
    sections = {"resources": {"model": {"weight": torch.ones(2)}}, "slots": {"both": [shared, shared]}}
    expected = state_digest(sections)
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    monkeypatch.setattr("graphtrain.storage.encoding.is_usual", lambda tensor: False)
    assert split(sections, "cuda:0").packed != split(sections).packed == split(sections, "cpu").packed
    with monkeypatch.context() as patch:
        patch.setattr("graphtrain.storage.state_files.split", lambda given, device="cuda:0": split(given, device))
        assert StagedState(sections, {"slots": sections["slots"]}, StagingBuffers()).digest({}) == expected
    monkeypatch.undo()
    assert state_digest({**sections, "slots": {"both": [shared, shared.clone()]}}) != expected


def test_ranks_of_a_host_write_the_same_name_of_their_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        monkeypatch.setattr(torch.cuda, "current_device", lambda rank=rank: rank)
        assert name_of(torch.device("cuda", rank)) == "cuda"
        assert name_of(torch.device("cuda", 1 - rank)) == f"cuda:{1 - rank}"


# ---- what fails on a device


def too_large(model: nn.Module, batch: Any) -> torch.Tensor:
    """It asks for more memory than any machine has, unless a batch is small."""
    if len(batch[0]) > 2:
        torch.empty(1 << 50, dtype=torch.uint8, device=batch[0].device)
    return mean_loss(model, batch)


@pytest.mark.parametrize("device", DEVICES)
def test_memory_that_runs_out_is_named(device: str) -> None:
    with pytest.raises((torch.OutOfMemoryError, RuntimeError)) as error:
        SetUp(model=plain_model, step=too_large).trainer(device).run()
    assert error.value.__notes__ == ["raised in node `train_batch` (step 0, epoch 0.20, batch 1/5)"]


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_not_finite_is_named(device: str) -> None:
    inputs = torch.ones(6, 6)
    inputs[4] = torch.inf
    data = TensorDataset(inputs, torch.zeros(6, dtype=torch.int64))
    set_up = SetUp(checked, plain_model)
    with pytest.raises(NotFiniteError, match=r"batch 2"):
        set_up.trainer(device, train_data=Loader(data, BATCH)).run()
