"""`train_batch.compile`: what is compiled, how often, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, Trainer
from graphtrain.state.random import seed_everything
from tests.program.small_run import make_model
from tests.program.test_by_hand import assert_same

BATCHES, EPOCHS = 5, 3
FULL, SHORT = 4, 3

Step = Callable[..., Any]


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


@pytest.fixture(autouse=True)
def nothing_is_compiled_yet() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made, compile_for_real = Compiler(), torch.compile

    def compile_with_it(function: Any, *, isolate_recompiles: bool = False, **options: Any) -> Any:
        made.asked += 1
        return compile_for_real(function, backend=made, isolate_recompiles=isolate_recompiles, **options)

    monkeypatch.setattr(torch, "compile", compile_with_it)
    return made


def make_data() -> list[Any]:
    generator = torch.Generator().manual_seed(2)
    sizes = [FULL] * (BATCHES - 1) + [SHORT]
    return [
        (torch.randn(size, 6, generator=generator), torch.randint(0, 3, (size,), generator=generator)) for size in sizes
    ]


def loss_alone(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def with_metrics(model: nn.Module, batch: Any) -> dict[str, Any]:
    scores = model(batch[0])
    hits = (scores.argmax(1) == batch[1]).float().mean()
    return {"loss": nn.functional.cross_entropy(scores, batch[1]), "accuracy": hits, "size": len(batch[1])}


def asking(model: nn.Module, batch: Any, step: int, *, epoch: int) -> torch.Tensor:
    return loss_alone(model, batch) / (1 + step) + epoch


class Owner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = make_model()

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.layers(inputs)

    def training_step(self, batch: Any) -> torch.Tensor:
        return loss_alone(self, batch)


class Asker(Owner):
    def training_step(self, batch: Any, step: int) -> torch.Tensor:  # type: ignore[override]
        return asking(self, batch, step, epoch=0)


def make_trainer(
    step: Step | type[Owner] = loss_alone,
    run_dir: Path | None = None,
    *,
    compiled: bool = True,
    precision: str = "32-true",
    width: int = 8,
    **resources: Any,
) -> Trainer:
    torch.set_num_threads(1)
    seed_everything(7)
    own = isinstance(step, type)
    model = step() if own else make_model()
    if width != 8:
        model = nn.Sequential(nn.Linear(6, width), nn.Linear(width, 3))
    graph = (
        Graph.load("fit")
        .set("train_batch", precision=precision)
        .set("accumulate", every=2)
        .set("checkpoint", every="1 batches", keep=10_000)
        .set("finish", after=f"{EPOCHS} epochs")
    )
    return Trainer(
        graph.set("train_batch", compile=True) if compiled else graph,
        run_dir=run_dir,
        seed=11,
        device="cpu",
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        **{"train_data": make_data(), **({} if own else {"training_step": step}), **resources},
    )


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


STEPS = [loss_alone, with_metrics, asking, Owner, Asker]


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize(
    ("step", "precision"), [*((one, "32-true") for one in STEPS), (with_metrics, "bf16-mixed"), (Asker, "bf16-mixed")]
)
def test_what_is_compiled_computes_the_same(step: Any, precision: str, compiler: Compiler) -> None:
    plain = make_trainer(step, compiled=False, precision=precision)
    expected = losses_and_gradients(plain)
    assert compiler.asked == 0
    trainer = make_trainer(step, precision=precision)
    assert_same(losses_and_gradients(trainer), expected)
    assert len(expected) == BATCHES * EPOCHS
    assert (compiler.asked, set(compiler.sizes)) == (1, {FULL, SHORT})
    assert trainer.metrics == plain.metrics
    assert_same(trainer.resources["model"].state_dict(), plain.resources["model"].state_dict())


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("step", [loss_alone, with_metrics, Owner])
def test_a_shape_is_compiled_once(step: Any, compiler: Compiler) -> None:
    make_trainer(step).run()
    assert (compiler.asked, compiler.sizes) == (1, [FULL, SHORT])


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("step", [asking, Asker])
def test_a_number_that_changes_is_a_variable_soon(step: Any, compiler: Compiler) -> None:
    """As a constant it would be compiled for every step, eight times, and then no more."""
    make_trainer(step).run()
    assert compiler.asked == 1
    assert len(compiler.sizes) <= 6, (
        "steps 0, 1 and any other, epochs 0, 1 and any other, some of them at a short batch"
    )
    before = len(compiler.sizes)
    further = make_trainer(step)
    further.rewire(further.graph.set("finish", after="20 epochs"))
    further.run()
    assert len(compiler.sizes) - before <= 6


def test_evaluation_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []

    def compile_nothing(function: Any, **options: Any) -> Any:
        def call(model: nn.Module, batch: Any) -> Any:
            modes.append(model.training)
            return function(model, batch)

        return call

    monkeypatch.setattr(torch, "compile", compile_nothing)
    trainer = make_trainer(val_data=make_data())
    trainer.run()
    assert trainer.progress["validate/eval_batch"]["runs"] > 0
    assert modes == [True] * (BATCHES * EPOCHS)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "step", [step if step is asking else pytest.param(step, marks=pytest.mark.sweep) for step in STEPS]
)
def test_a_cut_run_equals_one_never_cut(step: Any, compiler: Compiler, tmp_path: Path) -> None:
    whole = make_trainer(step, tmp_path / "whole")
    whole.run()
    torch._dynamo.reset()
    make_trainer(step, tmp_path / "cut").run(until="7 batches")  # inside a window
    torch._dynamo.reset()
    cut = make_trainer(step, tmp_path / "cut")
    cut.run()
    assert cut.digest() == whole.digest()


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("step", STEPS)
def test_with_the_compiler_of_torch(step: Any, precision: str, tmp_path: Path) -> None:
    """Dropout draws otherwise when it is compiled, so the numbers are compared without it."""

    def without_dropout(trainer: Trainer) -> Trainer:
        for module in trainer.resources["model"].modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return trainer

    expected = losses_and_gradients(without_dropout(make_trainer(step, compiled=False, precision=precision)))
    found = losses_and_gradients(without_dropout(make_trainer(step, precision=precision)))
    close = {"rtol": 1e-4, "atol": 1e-5} if precision == "32-true" else {"rtol": 5e-2, "atol": 2e-2}
    torch.testing.assert_close(found, expected, **close)

    whole = make_trainer(step, tmp_path / "whole", precision=precision)
    whole.run()
    for amount in ("4 batches", "7 batches"):
        make_trainer(step, tmp_path / "cut", precision=precision).run(until=amount)
    torch._dynamo.reset()
    cut = make_trainer(step, tmp_path / "cut", precision=precision)
    cut.run()
    assert cut.digest() == whole.digest()
