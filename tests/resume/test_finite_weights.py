"""A checkpoint with weights that are not finite displaces none whose weights are (promises 12, 14)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from graphtrain import Graph, Outcome, Trainer
from tests.fake_ranks import run_ranks

DIVERGES = 4  # the step after which weights are NaN


class Net(torch.nn.Module):
    """A linear layer, and a mask that is meant to be infinite."""

    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))

    def training_step(self, batch: torch.Tensor, step: int) -> torch.Tensor:
        loss: torch.Tensor = (self.layer(batch) + self.mask).softmax(-1).square().mean() + self.layer.weight.sum()
        return loss * math.nan if step == DIVERGES else loss


def trainer_of(
    run_dir: Path | None,
    said: list[str] | None = None,
    keep: int = 2,
    until: str = "8 steps",
    step: Any = Net.training_step,
    **checkpoint: Any,
) -> Trainer:
    torch.manual_seed(0)
    model = Net()
    graph = Graph.load("fit").set("checkpoint", every="1 steps", keep=keep, **checkpoint).set("finish", after=until)
    return Trainer(
        graph,
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=(lambda line: None) if said is None else said.append,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.rand(3, 2) for _ in range(12)],
        training_step=step,
    )


def steps_of(run_dir: Path) -> list[int]:
    return [int(path.name.rpartition("-")[2]) for path in sorted((run_dir / "checkpoints").iterdir())]


def checkpoints(run_dir: Path) -> dict[int, bool]:
    """Step -> whether its weights are finite."""
    found = {}
    for step, path in zip(steps_of(run_dir), sorted((run_dir / "checkpoints").iterdir()), strict=True):
        state = load_file(path / "model.safetensors")
        found[step] = all(bool(state[name].isfinite().all()) for name in ("layer.weight", "layer.bias"))
    return found


@pytest.mark.first(2)
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("keep", [1, 2])
def test_those_with_finite_weights_stay(keep: int, mode: str, tmp_path: Path) -> None:
    said: list[str] = []
    assert trainer_of(tmp_path, said, keep, mode=mode).run() is Outcome.FINISHED
    finite = dict.fromkeys(range(DIVERGES - keep + 1, DIVERGES + 1), True)
    assert checkpoints(tmp_path) == {**finite, 8: False}
    lines = [line for line in said if "is not finite" in line and "checkpoint" in line]
    assert len(lines) == 1 and lines[0].startswith("000005-step-5: `model.layer.")


@pytest.mark.full
def test_a_resume_passes_over_weights_that_are_not_finite_and_says_so(tmp_path: Path) -> None:
    trainer_of(tmp_path, until="6 steps").run()
    said: list[str] = []
    again = trainer_of(tmp_path, said)
    again.advance(1)
    assert again.progress["step"]["steps"] == 4 and again.resources["model"].layer.weight.isfinite().all()
    (line,) = [line for line in said if " is not finite; " in line]
    assert line.endswith("step-6: `model.layer.bias` is not finite; --resume 000007-step-6 resumes from it anyway")
    (line,) = [line for line in said if line.startswith("resumed ")]
    assert "step 4," in line and "repeating 2 batches" in line
    trainer_of(tmp_path).run()
    assert checkpoints(tmp_path) == {3: True, 4: True, 8: False}


@pytest.mark.full
def test_a_checkpoint_that_a_person_names_is_taken(tmp_path: Path) -> None:
    trainer_of(tmp_path, until="6 steps").run()
    for name, step in (("000007-step-6", 6), ("newest", 4), ("000003-step-3", 3)):
        said: list[str] = []
        again = trainer_of(None, said)
        again.run(resume=tmp_path / "checkpoints" / name if name != "newest" else tmp_path / name, until="1 steps")
        assert any(f"step {step}," in line for line in said if line.startswith("resumed "))
        assert not any(" is not finite; " in line for line in said)


def test_a_failure_names_the_checkpoint_from_which_a_resume_begins(tmp_path: Path) -> None:
    stops, said = [6], list[str]()

    def failing(model: Net, batch: torch.Tensor, step: int) -> torch.Tensor:
        if step in stops:
            stops.remove(step)
            raise ValueError("looks at the weights")
        return model.training_step(batch, step)

    trainer = trainer_of(tmp_path, said, step=failing)
    with pytest.raises(ValueError, match="looks at") as failure:
        trainer.run()
    assert "resumes from checkpoint 000004-step-4" in failure.value.__notes__
    assert trainer_of(tmp_path, said).run(until="1 steps") is Outcome.REACHED
    assert any(line.startswith("resumed ") and "step 4," in line for line in said)


@pytest.mark.full
def test_ranks_pass_over_the_same(tmp_path: Path) -> None:
    def run(ranks: Any) -> int:
        trainer = trainer_of(tmp_path)
        trainer.advance(1)
        return int(trainer.progress["step"]["steps"])

    trainer_of(tmp_path, until="6 steps").run()
    assert run_ranks(2, run) == [4, 4]


def test_a_run_whose_weights_were_never_finite_keeps_the_newest(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    with torch.no_grad():
        trainer.resources["model"].layer.bias[0] = math.inf
    trainer.run()
    assert checkpoints(tmp_path) == {7: False, 8: False}


def test_one_does_not_take_the_place_of_another_at_the_same_step(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    trainer.run(until="2 steps")
    trainer.save()
    assert checkpoints(tmp_path) == {1: True, 2: True}
    with torch.no_grad():
        trainer.resources["model"].layer.bias[0] = math.nan
    trainer.save()
    assert steps_of(tmp_path) == [1, 2, 2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1.0])
def test_what_is_looked_at_are_weights_of_any_type(dtype: torch.dtype, value: float, tmp_path: Path) -> None:
    said = list[str]()
    trainer = trainer_of(tmp_path, said)
    trainer.run(until="1 steps")
    layer = trainer.resources["model"].layer
    layer.bias.data = torch.tensor([0.0, value]).to(dtype)
    layer.bias.grad = None
    trainer.save()
    assert bool([line for line in said if "`model.layer.bias` is not finite" in line]) is not math.isfinite(value)
