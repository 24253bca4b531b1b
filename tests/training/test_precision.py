"""Promise 7: bf16, fp16 and `torch.compile` train what the loop by hand trains."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Outcome, Trainer, UsageError
from tests.fake_ranks import run_ranks
from tests.world import (
    Augmented,
    Resources,
    World,
    assert_as_by_hand,
    assert_exact,
    assert_same,
    by_hand,
    cross_entropy,
    small_fit,
    small_model,
    world,
)

# ---- precision


def in_bf16(training: bool, validation: bool) -> World:
    names = {True: "bf16-mixed", False: "32-true"}
    graph = small_fit(validate_every="1 epochs", precision=names[training])
    return world(graph.set("validate/eval_batch", precision=names[validation]), model=small_model)


@pytest.mark.parametrize("validation", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_only_step_functions_run_in_low_precision(training: bool, validation: bool) -> None:
    def loop(resources: Resources) -> list[float]:
        step = resources["training_step"]

        def cast(model: nn.Module, batch: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16, enabled=training if model.training else validation):
                return step(model, batch)

        return by_hand({**resources, "training_step": cast}, validate=(5,))

    trainer = assert_as_by_hand(in_bf16(training, validation), loop=loop)
    assert all(parameter.dtype == torch.float32 for parameter in trainer.resources["model"].parameters())


@pytest.mark.full
def test_low_precision_is_exact_through_cuts(tmp_path: Path) -> None:
    assert_exact(in_bf16(True, True), tmp_path, at=3)


# ---- fp16

SCALER = {"init_scale": 2.0**18, "growth_factor": 3.0, "backoff_factor": 0.3, "growth_interval": 2}
HUGE = 1e5  # of which the square is infinite in float16


def squared(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def of_huge_batches(*huge: int, window: int = 2, overlay: str = "", epochs: int = 3) -> World:
    """Seven batches, some of which overflow."""

    def data() -> Any:
        draw = torch.Generator().manual_seed(3)
        return [torch.randn(6, 4, generator=draw) * (HUGE if number in huge else 1) for number in range(7)]

    graph = small_fit(epochs=epochs, accumulate=window, clip=0.5, validate_every="never", precision="16-mixed")
    return world(
        graph.set("unscale", **SCALER),
        overlays=[overlay] if overlay else [],
        model=lambda: nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.25), nn.Linear(6, 1)),
        data=data,
        scheduler="lambda",
        training_step=squared,
    )


@pytest.mark.parametrize("window", [1, 2, 3])
def test_fp16_trains_what_a_loop_with_a_scaler_trains(window: int) -> None:
    scaler, taken = torch.amp.GradScaler("cpu", **SCALER), list[bool]()

    def loop(resources: Resources) -> None:
        model, optimizer, scheduler = (resources[name] for name in ("model", "optimizer", "scheduler"))
        average = resources["average"] = copy.deepcopy(model)

        def cast(model: nn.Module, batch: Any) -> Any:
            with torch.autocast("cpu", torch.float16):
                return squared(model, batch)

        def backward(loss: torch.Tensor, is_step: bool) -> None:
            scaler.scale(loss if window == 1 else loss / window).backward()
            if not is_step:
                return
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            before = model[0].weight.clone()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            taken.append(not torch.equal(before, model[0].weight))
            if taken[-1]:
                scheduler.step()
                with torch.no_grad():
                    for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                        mean.lerp_(weight, 1 - 0.9)

        given = {**resources, "training_step": cast, "scheduler": None}
        by_hand(given, epochs=3, accumulate=window, backward=backward)

    it = of_huge_batches(5, window=window, overlay="ema")
    it = it.but(it.graph.set("ema", decay=0.9, warmup=False))
    trainer = assert_as_by_hand(it, ("model", "optimizer", "average"), loop=loop)
    assert 3 <= sum(taken) < len(taken) - 3, "some overflow, and some do not"
    assert trainer.read("unscale.scale") == scaler.get_scale()
    assert trainer.read("unscale.finite_windows") == scaler._get_growth_tracker()
    assert trainer.read("unscale.overflows") == taken.count(False)
    steps = trainer.read("step.steps"), trainer.read("ema.updates"), trainer.resources["scheduler"].last_epoch
    assert steps == (sum(taken),) * 3


@pytest.mark.full
def test_fp16_is_exact_through_cuts(tmp_path: Path) -> None:
    assert_exact(of_huge_batches(5, overlay="ema"), tmp_path, at=4)


def test_ranks_find_the_same_overflow_and_keep_the_same_scale() -> None:
    """A batch that overflows is on one rank alone."""

    def run(ranks: Any) -> tuple[Any, ...]:
        trainer = of_huge_batches(5, window=1).trainer()
        trainer.run()
        counts = [trainer.read(f"unscale.{name}") for name in ("scale", "overflows", "finite_windows")]
        return counts, [weight.tolist() for weight in trainer.resources["model"].parameters()]

    first, second = run_ranks(2, run)
    assert first == second and first[0][1] >= 3


def test_a_run_whose_every_window_overflows_ends_with_an_error() -> None:
    it = of_huge_batches(*range(7), epochs=9)
    with pytest.raises(UsageError, match="the loss scale has dropped to 0, after"):
        it.but(it.graph.set("unscale", backoff_factor=1e-3)).trainer().run()


def test_a_model_in_float16_is_refused() -> None:
    it = of_huge_batches()
    with pytest.raises(UsageError, match="Attempting to unscale FP16 gradients"):
        it.but(model=lambda made: made["model"].half()).trainer().run()


# ---- torch.compile

FULL, SHORT = 4, 2


class Compiler:
    """In the place of torch's backend: it runs graphs as they are, and knows with which batches they were made."""

    def __init__(self) -> None:
        self.asked = 0
        self.sizes: list[int] = []

    def __call__(self, graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        tensors = [one for one in examples if isinstance(one, torch.Tensor) and one.ndim == 2]
        (size,) = (one.shape[0] for one in tensors if one.shape[1] == 6 and not isinstance(one, nn.Parameter))
        assert not isinstance(size, torch.SymInt), "a shape is compiled by itself"
        self.sizes.append(size)
        return graph.forward


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    made, compile_for_real = Compiler(), torch.compile
    torch._dynamo.reset()

    def compile_with_it(function: Any, *, isolate_recompiles: bool = False, **options: Any) -> Any:
        made.asked += 1
        return compile_for_real(function, backend=made, isolate_recompiles=isolate_recompiles, **options)

    monkeypatch.setattr(torch, "compile", compile_with_it)
    yield made
    torch._dynamo.reset()


def with_metrics(model: nn.Module, batch: Any) -> dict[str, Any]:
    scores = model(batch[0])
    hits = (scores.argmax(1) == batch[1]).float().mean()
    return {"loss": nn.functional.cross_entropy(scores, batch[1]), "accuracy": hits, "size": len(batch[1])}


def asking(model: nn.Module, batch: Any, step: int, *, epoch: int) -> torch.Tensor:
    return cross_entropy(model, batch) / (1 + step) + epoch


class Owner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = small_model()

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.layers(inputs)

    def training_step(self, batch: Any, step: int) -> torch.Tensor:
        return asking(self, batch, step, epoch=0)


STEPS: list[Callable[..., Any]] = [cross_entropy, with_metrics, asking, Owner]


def of_step(step: Any, precision: Any = "32-true", epochs: int = 3, compiled: bool = True) -> World:
    it = world(
        small_fit(epochs=epochs, precision=precision, compile=compiled, validate_every="2 epochs"),
        model=step if step is Owner else small_model,
        optimizer="SGD with momentum",
        data=lambda: [*torch.utils.data.DataLoader(Augmented(), FULL)],  # of 14 samples
        training_step=step,
    )
    return it.but(training_step=None) if step is Owner else it


def losses_and_gradients(trainer: Trainer) -> list[Any]:
    """Of every batch of a run, read after the backward."""
    seen: list[Any] = []
    while trainer.position != "end":
        before = trainer.position
        trainer.advance()
        if before == "train_batch":
            model = trainer.resources["model"]
            gradients = {name: one.grad.clone() for name, one in model.named_parameters()}
            seen.append((trainer.read("loss").clone(), gradients))
    return seen


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("step", STEPS)
def test_what_is_compiled_computes_the_same(step: Any, precision: str, compiler: Compiler) -> None:
    plain = of_step(step, precision, compiled=False).trainer()
    expected = losses_and_gradients(plain)
    assert compiler.asked == 0
    trainer = of_step(step, precision).trainer()
    assert_same(losses_and_gradients(trainer), expected)
    assert len(expected) == 12 and trainer.metrics == plain.metrics
    assert (compiler.asked, set(compiler.sizes)) == (1, {FULL, SHORT})
    assert len(compiler.sizes) <= (2 if step in (cross_entropy, with_metrics) else 6), "each shape and few numbers"


@pytest.mark.full
def test_a_number_that_changes_is_a_variable_soon(compiler: Compiler) -> None:
    """As a constant it would be compiled for every step, eight times, and then no more."""
    assert of_step(asking, epochs=20).trainer().run() is Outcome.FINISHED
    assert compiler.asked == 1 and len(compiler.sizes) <= 6


def test_evaluation_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []

    def compile_nothing(function: Any, **options: Any) -> Any:
        def call(model: nn.Module, batch: Any) -> Any:
            modes.append(model.training)
            return function(model, batch)

        return call

    monkeypatch.setattr(torch, "compile", compile_nothing)
    trainer = of_step(cross_entropy).trainer()
    trainer.run()
    assert trainer.read("validate/eval_batch.runs") > 0 and modes == [True] * 12


@pytest.mark.sweep
@pytest.mark.parametrize("step", STEPS)
def test_what_is_compiled_is_exact_through_cuts(step: Any, compiler: Compiler, tmp_path: Path) -> None:
    assert_exact(of_step(step), tmp_path, at=2)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize(("step", "precision"), [(asking, "32-true"), (with_metrics, "bf16-mixed"), (Owner, "32-true")])
def test_with_the_compiler_of_torch(step: Any, precision: str, tmp_path: Path) -> None:
    """Dropout draws otherwise when it is compiled, so the numbers are compared without it."""

    def seen(compiled: bool) -> list[Any]:
        trainer = of_step(step, precision, compiled=compiled).trainer()
        for module in trainer.resources["model"].modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return losses_and_gradients(trainer)

    close = {"rtol": 1e-4, "atol": 1e-5} if precision == "32-true" else {"rtol": 5e-2, "atol": 2e-2}
    torch.testing.assert_close(seen(True), seen(False), **close)
    assert_exact(of_step(step, precision), tmp_path, at=1)
