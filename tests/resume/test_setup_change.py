"""What `setup` makes otherwise at a resume is reported unless the restore puts it right; nothing else is."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from graphtrain import Graph, Trainer, UsageError

SCALE = 1.0


class Task:
    """A step function with attributes; `change` is called at its third call."""

    threshold = 0.5

    def __init__(self, change: Callable[[Task], object] | None = None) -> None:
        self.calls, self.change = 0, change

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        self.calls += 1
        if self.calls == 3 and self.change is not None:
            self.change(self)
        return model(batch).square().mean() * getattr(self, "scale", SCALE)


class Counter:
    """State under other names than those of its attributes."""

    def __init__(self, value: float) -> None:
        self._value = value

    def state_dict(self) -> dict[str, float]:
        return {"value": self._value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._value = state["value"]


Prepare = Callable[[Any, Task, int], object]


def trainer_of(
    prepare: Prepare, process: int, run_dir: Path, change: Any = None, **more: Any
) -> tuple[Trainer, list[str]]:
    """A trainer as the process of this number sets it up."""
    torch.set_num_threads(1)  # undone after each test; others want the processors too
    torch.manual_seed(0)
    model, lines = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.1)), []
    task = Task(change)
    data = torch.utils.data.TensorDataset(torch.ones(8, 2))
    prepare(model, task, process)
    trainer = Trainer(
        Graph.load("fit").set("finish", after="8 batches").set("checkpoint", every="never"),
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=lines.append,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=torch.utils.data.DataLoader(data, batch_size=2, collate_fn=getattr(task, "collate", stacked)),
        training_step=task,
        **more,
    )
    return trainer, lines


def stacked(samples: Any) -> torch.Tensor:
    return torch.stack([sample[0] for sample in samples])


def resumed(prepare: Prepare, run_dir: Path, change: Any = None, **more: Any) -> tuple[str, Trainer, Trainer]:
    """The line of the resume, and the trainers of both processes, which stand at one position."""
    first, _ = trainer_of(prepare, 1, run_dir, change, **more)
    first.run(until="5 batches")
    first.save()
    second, lines = trainer_of(prepare, 2, run_dir, change, **more)
    second.advance(0)
    (line,) = [line for line in lines if line.startswith("resumed ")]
    return line, first, second


def later(name: str, value: Callable[[], Any]) -> Callable[[Task], object]:
    return lambda task: setattr(task, name, value())


SAME: dict[str, tuple[Prepare, Any]] = {
    "nothing": (lambda model, task, process: None, None),
    "noise of a module, which is saved": (
        lambda model, task, process: setattr(model, "noise", torch.full((3,), float(process))),
        None,
    ),
    "a value that training sets": (
        lambda model, task, process: setattr(task, "scale", float(process)),
        later("scale", lambda: 1.5),
    ),
    "a list that training fills": (
        lambda model, task, process: setattr(task, "seen", [process]),
        lambda task: task.seen.append(7),
    ),
    "an object with a state_dict": (
        lambda model, task, process: setattr(task, "counter", Counter(process)),
        lambda task: setattr(task.counter, "_value", 7),
    ),
    "a generator without a seed": (
        lambda model, task, process: setattr(task, "generator", torch.Generator().manual_seed(process)),
        None,
    ),
    "a learning rate that is a tensor": (lambda model, task, process: setattr(task, "rate", torch.rand(1)), None),
}


@pytest.mark.second(7)
@pytest.mark.first(3)
@pytest.mark.parametrize("name", list(SAME))
def test_what_is_restored_is_no_difference(name: str, tmp_path: Path) -> None:
    line, first, second = resumed(SAME[name][0], tmp_path, SAME[name][1])
    assert line.endswith("exact"), line
    assert second.digest() == first.digest()
    before, after = (trainer.resources for trainer in (first, second))
    if name.startswith("noise"):
        assert torch.equal(after["model"].noise, before["model"].noise)
    for attribute in ("scale", "seen", "rate"):
        if hasattr(before["training_step"], attribute):
            assert getattr(after["training_step"], attribute) == getattr(before["training_step"], attribute)
    if hasattr(before["training_step"], "counter"):
        assert after["training_step"].counter._value == 7


DIFFERENT: dict[str, tuple[Prepare, str]] = {
    "a probability": (
        lambda model, task, process: setattr(model[1], "p", process / 10),
        "model.1.p differs from what `setup` made: seed it, or give what holds it a `state_dict`",
    ),
    "a value": (
        lambda model, task, process: setattr(task, "scale", float(process)),
        "training_step.scale differs from what `setup` made: seed it, or give what holds it a `state_dict`",
    ),
    "a list": (
        lambda model, task, process: setattr(task, "weights", [1.0, float(process)]),
        "training_step.weights differs from what `setup` made: seed it, or give what holds it a `state_dict`",
    ),
    "a global": (lambda model, task, process: globals().update(SCALE=float(process)), "SCALE differs from what"),
    "an attribute of a class": (lambda model, task, process: setattr(Task, "threshold", process), "threshold differs"),
    "a variable of a closure": (
        lambda model, task, process: setattr(task, "inner", (lambda value: lambda: value)(process)),
        "training_step.inner<value> differs from what `setup` made",
    ),
    "a function, by another name": (
        lambda model, task, process: setattr(task, "f", (torch.relu, torch.tanh)[process - 1]),
        "training_step.f differs from what `setup` made",
    ),
    "a lambda": (
        lambda model, task, process: setattr(task, "f", (lambda x: x, lambda x: x + x)[process - 1]),
        "training_step.f differs from what `setup` made",
    ),
    "a module of another class": (
        lambda model, task, process: setattr(task, "f", (torch.nn.ReLU, torch.nn.Tanh)[process - 1]()),
        "training_step.f differs from what `setup` made",
    ),
    **{
        name: (
            lambda model, task, process, make=make: setattr(task, "part", make(process)),
            "training_step.part differs from what `setup` made",
        )
        for name, make in {
            "a sparse tensor": lambda process: torch.full((2, 2), float(process)).to_sparse_csr(),
            "a read-only array": lambda process: numpy.frombuffer(bytes([process]), numpy.uint8),
            "a long list": lambda process: [float(process)] * 2_000,
            "tuples in a set": lambda process: {(1, process)},
            "a function in a partial": lambda process: functools.partial((max, min)[process - 1], 1),
        }.items()
    },
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.first(3)
@pytest.mark.parametrize("name", list(DIFFERENT))
def test_what_stays_different_is_named_with_what_to_do(name: str, tmp_path: Path) -> None:
    prepare, expected = DIFFERENT[name]
    try:
        line, _, _ = resumed(prepare, tmp_path)
    finally:
        globals().update(SCALE=1.0)
        Task.threshold = 0.5
    assert "not exact: " in line
    assert expected in line


def test_a_changed_program_makes_other_things_which_are_changes(tmp_path: Path) -> None:
    first, _ = trainer_of(DIFFERENT["a probability"][0], 1, tmp_path, about={"arguments": {"p": "0.1"}})
    first.run(until="5 batches")
    first.save()
    second, lines = trainer_of(DIFFERENT["a probability"][0], 2, tmp_path, about={"arguments": {"p": "0.2"}})
    second.advance(0)
    assert lines[-1].endswith("exact except for what changed: model.1.p as set up, p 0.1 -> 0.2")


@pytest.mark.full
def test_the_hashes_are_written_once_and_when_they_are_others(tmp_path: Path) -> None:
    different = DIFFERENT["a probability"][0]
    reported = []
    for process in (1, 1, 2, 2):
        trainer, lines = trainer_of(different, process, tmp_path)
        trainer.advance(2)
        trainer.save()
        reported.append("model.1.p differs" in lines[-1])
    assert reported == [False, False, True, False], "the checkpoint that is resumed last is of the other set-up"
    starts = [json.loads(line) for line in (tmp_path / "starts.jsonl").read_text().splitlines()]
    assert ["setup" in start for start in starts] == [True, False, True, False]


def test_what_is_left_out_is_neither_compared_nor_saved_nor_restored(tmp_path: Path) -> None:
    def prepare(model: Any, task: Task, process: int) -> None:
        task.scale, task.noise = float(process), torch.full((2,), float(process))

    line, first, second = resumed(prepare, tmp_path, not_state=["training_step.scale", "training_step.noise"])
    assert line.endswith("exact")
    assert second.resources["training_step"].scale == 2
    assert second.resources["training_step"].noise[0] == 2
    assert second.digest() == first.digest()


@pytest.mark.full
def test_what_is_left_out_at_a_resume_stays_as_it_is_set_up(tmp_path: Path) -> None:
    def prepare(model: Any, task: Task, process: int) -> None:
        task.noise, task.counter, task.scale = torch.full((2,), float(process)), Counter(process), 1.0
        task.average = torch.nn.Linear(1, 1).requires_grad_(False)
        torch.nn.init.constant_(task.average.weight, process)

    def change(task: Any) -> None:
        task.noise, task.counter._value, task.scale = torch.ones(3), 5, 0.5

    first, _ = trainer_of(prepare, 1, tmp_path, change)
    first.run(until="5 batches")
    first.save()
    left_out = [f"training_step.{name}" for name in ("noise", "counter", "scale", "average")]
    second, lines = trainer_of(prepare, 2, tmp_path, change, not_state=left_out)
    second.advance(0)
    task = second.resources["training_step"]
    assert (task.noise.tolist(), task.counter._value, task.scale) == ([2, 2], 2, 1)
    assert task.average.weight == 2
    assert task.calls == 5, "all else is restored"
    assert "exact except for what changed: not_state: + training_step.average" in lines[-1]
    second.save()
    third, lines = trainer_of(prepare, 3, tmp_path, change, not_state=left_out)
    third.advance(0)
    assert lines[-1].endswith("exact")
    assert third.digest() == second.digest()


def test_a_path_to_leave_out_that_names_nothing_is_an_error_with_a_suggestion(tmp_path: Path) -> None:
    trainer, _ = trainer_of(SAME["nothing"][0], 1, tmp_path, not_state=["training_step.cals"])
    with pytest.raises(UsageError, match=r"not_state: there is no `training_step.cals`") as raised:
        trainer.run()
    assert "did you mean `training_step.calls`" in raised.value.hint
