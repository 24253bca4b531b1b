"""A run that goes back to a checkpoint by itself: where to, what it keeps, and that cuts make no difference (8, 10)."""

from __future__ import annotations

import functools
import json
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Loader, NotFiniteError, Run, Trainer, UsageError, node, progress
from tests.fake_ranks import run_ranks
from tests.simulation.disk import Calls
from tests.world import in_a_process, rows_of

BAD = 7  # a sample whose loss is a spike
FIT = Graph.load("fit").overlay("rollback").set("rollback", deviations=4.0, warmup=3, skip=2)
FIT = FIT.set("finish", after="3 epochs").set("accumulate", every=2).set("log", every="1 steps")
FIT = FIT.set("checkpoint", every="4 batches", keep=1)


def weighted(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    inputs, weights = batch
    loss: torch.Tensor = ((model(inputs) - inputs.sum(1, keepdim=True)).square().mean(1) * weights).mean()
    return loss


def trainer_of(
    run_dir: Path | None, lines: list[str] | None = None, graph: Graph = FIT, *, lr: float = 0.05, **more: Any
) -> Trainer:
    """Five batches an epoch, in one of which the loss is a thousand times as large."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    layers = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1)
    model = torch.nn.Sequential(*layers).double()
    weights = torch.ones(20, dtype=torch.float64)
    weights[BAD] = 1e3
    data = torch.utils.data.TensorDataset(torch.randn(20, 3, dtype=torch.float64), weights)
    resources: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9),
        "train_data": Loader(data, batch_size=4, shuffle=True),
        "training_step": weighted,
        **more,
    }
    notify = (lambda line: None) if lines is None else lines.append
    return Trainer(graph, seed=0, run_dir=run_dir, display=None, notify=notify, **resources)


def returns(lines: list[str]) -> list[str]:
    """The checkpoints that a run was sent back to."""
    start = "`rollback` sends the run back to "
    return [line.removeprefix(start).partition(":")[0] for line in lines if line.startswith(start)]


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, Path, list[str]]:
    """The run that is never cut, with all of its checkpoints."""
    run_dir, lines = tmp_path_factory.mktemp("whole"), list[str]()
    trainer = trainer_of(run_dir, lines, FIT.set("checkpoint", keep=100))
    trainer.run()
    return trainer, run_dir, lines


def expect_same(run_dir: Path, trainer: Trainer, whole: tuple[Trainer, Path, list[str]]) -> None:
    assert trainer.digest() == whole[0].digest()
    assert trainer.progress["rollback"] == whole[0].progress["rollback"]
    assert rows_of(run_dir) == rows_of(whole[1])


@pytest.mark.full
def test_it_goes_back_more_than_once_and_tells(whole: tuple[Trainer, Path, list[str]]) -> None:
    assert len(returns(whole[2])) >= 2
    assert any("sends the run back to 00000" in line and "repeating " in line for line in whole[2])
    steps = [row["step"] for row in whole[0].metrics if "loss" in row]
    assert steps == sorted({*steps}), "no row of what was abandoned is left"
    counts = Run(whole[1]).activity.at(-1)
    assert counts is not None and counts["runs"]["next_batch"] == whole[0].progress["next_batch"]["runs"]
    status = json.loads((whole[1] / "status.json").read_text())
    assert (status["state"], status["trained"][0]) == ("finished", whole[0].read("next_batch.batches"))


@pytest.mark.full
@pytest.mark.parametrize("between", [13, *(pytest.param(number, marks=pytest.mark.sweep) for number in (2, 5))])
def test_stops_every_few_transitions_change_nothing(
    between: int, tmp_path: Path, whole: tuple[Trainer, Path, list[str]]
) -> None:
    """Each stop leaves a checkpoint that is newer than the one to go back to, and `keep` is 1."""
    trainer = trainer_of(tmp_path)
    while trainer.advance(between) != "end":
        trainer.save()
        assert len(names(tmp_path)) <= 2
        trainer = trainer_of(tmp_path)
    expect_same(tmp_path, trainer, whole)


@pytest.mark.full
def test_kills_at_any_call_of_the_disk_change_nothing(tmp_path: Path, whole: tuple[Trainer, Path, list[str]]) -> None:
    calls = Calls()
    with calls.watched():
        trainer_of(tmp_path / "counted").run()

    def train(at: int) -> None:
        with Calls(at, lambda name: os._exit(9)).watched():
            trainer_of(tmp_path / str(at)).run()

    for at in random.Random(0).sample(range(1, len(calls.made)), 8):
        run_dir = tmp_path / str(at)
        with pytest.raises(json.JSONDecodeError):  # it is killed before it says anything
            in_a_process(functools.partial(train, at))
        resumed = trainer_of(run_dir)
        resumed.run()
        expect_same(run_dir, resumed, whole)


def test_a_replay_does_not_follow(whole: tuple[Trainer, Path, list[str]]) -> None:
    first = min((whole[1] / "checkpoints").iterdir())
    for start in ([first], []):
        with pytest.raises(UsageError, match="a replay does not follow"):
            trainer_of(None).run_to(lambda session: list(session.compiled.compiler.transitions), *start)


# ---- where to


@pytest.mark.first(1)
@pytest.mark.parametrize("change", ["graph", "settings"])
def test_what_a_person_has_changed_is_not_undone(change: str, tmp_path: Path) -> None:
    lines = list[str]()
    first = trainer_of(tmp_path, lines)
    first.run(until="5 batches")
    former = names(tmp_path)
    lines.clear()
    if change == "graph":
        first.rewire(first.graph.set("clip", max_norm=1e9))
        first.run()
    else:
        trainer_of(tmp_path, lines, lr=0.01).run(from_setup="optimizer.lr")
    assert returns(lines) and min(returns(lines)) > max(former), "made after the change"


@pytest.mark.full
def test_it_goes_back_to_finite_weights(tmp_path: Path) -> None:
    lines = list[str]()
    trainer = trainer_of(tmp_path, lines)
    trainer.run(until="6 batches")
    trainer.run(before="checkpoint")
    with torch.no_grad():
        trainer.resources["model"][0].bias[0] = math.nan
    trainer.run()
    assert any("`model.0.bias` is not finite" in line for line in lines)
    why = lines.index("`rollback`: the loss is nan at batch 3 of epoch 2")
    assert any(line.startswith("`rollback` sends the run back to 000001-step-2: ") for line in lines[why + 1 : why + 3])
    assert all(weight.isfinite().all() for weight in trainer.resources["model"].parameters())


def test_it_goes_back_to_before_the_first_step_of_an_optimizer_with_a_schedule(tmp_path: Path) -> None:
    lines, resources = list[str](), dict(trainer_of(None).resources)
    schedule = torch.optim.lr_scheduler.StepLR(resources["optimizer"], 2)
    graph = FIT.set("checkpoint", every="once").set("schedule", every="1 steps")
    trainer_of(tmp_path, lines, graph, scheduler=schedule, **resources).run()
    assert "000001-step-0" in returns(lines)


@pytest.mark.full
def test_a_fork_can_go_back_to_its_beginning(tmp_path: Path) -> None:
    lines, plain = list[str](), Graph.load("fit").set("finish", after="9 batches")

    def trainer_in(name: str, graph: Graph, sample: float) -> Trainer:
        trainer = trainer_of(tmp_path / name, lines, graph)
        trainer.resources["train_data"].dataset.tensors[0][0] *= sample
        return trainer

    trainer_in("plain", plain, 0.0).run(until="5 batches")
    trainer_in("fork", plain.overlay("rollback"), math.nan).run(resume=tmp_path / "plain" / "newest")
    assert returns(lines) == ["000001-step-5"]


@pytest.mark.parametrize(
    ("settings", "step", "message"),
    [
        ({"checkpoint": {"every": "9 epochs"}}, math.inf, "no checkpoint with finite weights to go back to"),
        ({"rollback": {"most": 1}}, 1.0, r"has already gone back once, of at most 1\n"),
    ],
    ids=["nowhere", "a limit"],
)
def test_what_ends_it(settings: Any, step: float, message: str, tmp_path: Path) -> None:
    graph = FIT
    for path, parameters in settings.items():
        graph = graph.set(path, **parameters)
    with pytest.raises(NotFiniteError, match=message):
        trainer_of(tmp_path, graph=graph, training_step=lambda model, batch: weighted(model, batch) * step).run()


@node
class Twice:
    """Go back once, at a batch, and count what it sees of the run."""

    at: int = 5
    seen: int = progress(0)
    answers: list[bool] = progress([])

    def setup(self, history: Any) -> None:
        self._history = history

    def __call__(self) -> None:
        self.seen += 1
        if self.seen in (1, self.at):
            self.answers = [*self.answers, self._history.restore()]


@pytest.mark.full
def test_a_kind_of_ones_own_goes_back_and_keeps_its_progress(tmp_path: Path) -> None:
    graph = Graph.load("fit").insert("again", Twice, after="train_batch").set("finish", after="6 batches")
    trainer = trainer_of(tmp_path, graph=graph.set("checkpoint", every="2 batches"))
    trainer.run()
    assert trainer.progress["again"]["answers"] == [False, True], "nothing was saved before the first batch"
    assert (trainer.read("again.seen"), trainer.read("train_batch.runs")) == (7, 6)


@pytest.mark.full
def test_another_number_of_ranks_goes_back_to_what_the_former_have_saved(tmp_path: Path) -> None:
    run_ranks(2, lambda ranks: trainer_of(tmp_path).run(until="4 batches"))
    saved, lines = names(tmp_path), list[str]()
    trainer = trainer_of(tmp_path, lines)
    trainer.run()
    assert trainer.state == "finished" and {*saved} & {*returns(lines)}
