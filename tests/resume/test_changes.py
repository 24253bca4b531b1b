"""What changed between two starts of a run is named, and nothing else is; "exact" is said only where it is (11, 13).

Graphs are in `test_changed_graph.py`, hyper-parameters in `test_hyper_parameters.py`.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from graphtrain import CheckpointError, Graph, Trainer, UsageError, fit
from tests.world import in_a_process, said_at_resume, says_exact

# ---- the command: code, arguments, data, seeds

SCRIPT = """
import helper, torch

def setup(lr: float = 0.1, batches: int = 4, name: str = "tiny"):
    model = torch.nn.Linear(2, 1)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=lr),
        "train_data": [torch.randn(2, 2) for _ in range(batches)],
        "training_step": lambda model, batch: model(batch).square().mean(),
    }
"""


def command(folder: Path, *words: str) -> tuple[int, str]:
    """What `graphtrain WORDS` returns and prints, in a process of its own."""

    def act() -> tuple[int, str]:
        os.chdir(folder)
        sys.argv, said, code = ["graphtrain", *words], io.StringIO(), 0
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            try:
                runpy.run_module("graphtrain", run_name="__main__")
            except SystemExit as end:
                code = int(end.code or 0)
        return code, said.getvalue()

    code, said = in_a_process(act)
    return code, said


def begun(folder: Path, *words: str) -> Path:
    """A folder with a script and what it imports, and a run of it that was stopped after two steps."""
    (folder / "tiny.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("SIZE = 2\n")
    code, said = command(
        folder, "run", "tiny.py", "--run-dir", "r", "finish.after=6 steps", "--until", "2 steps", *words
    )
    assert code == 0, said
    return folder


def resumed_line(folder: Path, *words: str, script: str = "tiny.py") -> str:
    code, said = command(folder, "run", script, "--run-dir", "r", "finish.after=6 steps", *words)
    assert code == 0, said
    return next(line for line in said.splitlines() if line.startswith("resumed"))


def rewritten(name: str, old: str, new: str, to: str = "") -> Callable[[Path], object]:
    return lambda folder: (folder / (to or name)).write_text((folder / name).read_text().replace(old, new))


# what is changed, the script, its arguments, and the end of the line
STARTS: dict[str, tuple[Callable[[Path], object], str, list[str], str]] = {
    "a file that is imported, an argument, and its data": (
        rewritten("helper.py", "2", "3"), "tiny.py", ["batches=5"],
        "exact except for what changed: helper.py, batches 4 -> 5, train_data (length 4 -> 5)",
    ),
    "nothing": (
        lambda folder: None, "tiny.py", [],
        "repeating nothing; code, arguments, data, versions, threads unchanged: exact",
    ),
    "a default": (
        rewritten("tiny.py", "batches: int = 4", "batches: int = 5"), "tiny.py", [],
        "changed: tiny.py, batches 4 -> 5, train_data (length 4 -> 5)",
    ),
    "an argument that is given as its default is": (lambda folder: None, "tiny.py", ["batches=4"], "unchanged: exact"),
    "another script": (
        rewritten("tiny.py", "import", "# another\nimport", "second.py"), "second.py", [],
        "; exact except for what changed: tiny.py -> second.py",
    ),
    "the seed": (lambda folder: None, "tiny.py", ["--seed", "3"], "seed 0 -> 3"),
    "another file of the folder": (
        lambda folder: (folder / "other.py").write_text("x = 1"), "tiny.py", [], "unchanged: exact",
    ),
}  # fmt: skip


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("name", STARTS)
def test_what_changed_between_two_starts_is_named(name: str, tmp_path: Path) -> None:
    change, script, words, expected = STARTS[name]
    change(begun(tmp_path))
    assert resumed_line(tmp_path, *words, script=script).endswith(expected)


@pytest.mark.full
def test_every_start_is_kept_and_what_is_repeated_is_reported(tmp_path: Path) -> None:
    begun(tmp_path, "name=x", "checkpoint.every=never")
    status = json.loads((tmp_path / "r" / "status.json").read_text())
    status["trained"][0] += 7
    (tmp_path / "r" / "status.json").write_text(json.dumps(status))
    assert "; repeating 7 batches; " in resumed_line(tmp_path, "name=x")
    first, second = [json.loads(line) for line in (tmp_path / "r" / "starts.jsonl").read_text().splitlines()]
    assert first["about"]["arguments"] == {"lr": "0.1", "batches": "4", "name": "'x'"}, "defaults included"
    assert (first["about"]["explicit"], first["checkpoint"]) == (["name"], None)
    assert second["checkpoint"] == "000001-step-2"
    assert "run tiny.py" in first["about"]["command"] and first["environment"]["torch"] == torch.__version__
    assert {*first["origin"]["code"]} == {"tiny.py", "helper.py"}


@pytest.mark.full
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_revision_is_kept(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        done = subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout

    git("init", "-q")
    (tmp_path / "tiny.py").write_text(SCRIPT.replace("import", "# former\nimport"))
    for is_committed in (False, True):
        if is_committed:
            git("add", "tiny.py")
            git("commit", "-qm", "first")
        begun(tmp_path)
        start = json.loads((tmp_path / "r" / "starts.jsonl").read_text())
        assert start["origin"]["revision"] == (git("rev-parse", "HEAD").strip() if is_committed else "")
        shutil.rmtree(tmp_path / "r")


# ---- in Python: what `setup` made


class Task:
    """A step function with attributes; `change` is called at its third call."""

    threshold = 0.5
    scale: Any = 1.0

    def __init__(self, change: Callable[[Any], object] | None = None) -> None:
        self.calls, self.change = 0, change

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        self.calls += 1
        if self.calls == 3 and self.change is not None:
            self.change(self)
        loss: torch.Tensor = model(batch).square().mean() * self.scale * SCALE
        return loss


SCALE = 1.0
Prepare = Callable[[Any, Any, int], object]
BATCHES = list(torch.linspace(-1, 1, 48).view(8, 2, 3))


def trainer_of(
    run_dir: Path | None,
    lines: list[str] | None = None,
    model: Callable[[], nn.Module] = lambda: nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.1)),
    step: Callable[..., Any] | None = None,
    **more: Any,
) -> Trainer:
    torch.set_num_threads(1)  # undone after each test
    torch.manual_seed(0)
    net = model()
    optimizer = torch.optim.SGD([weight for weight in net.parameters() if weight.requires_grad], lr=0.1)
    graph = Graph.load("fit").set("finish", after="12 batches").set("checkpoint", every="never")
    given = {
        "graph": graph,
        "model": net,
        "optimizer": optimizer,
        "train_data": BATCHES,
        "training_step": step or Task(),
    }
    notify = (lambda line: None) if lines is None else lines.append
    return Trainer(seed=0, run_dir=run_dir, display=None, notify=notify, **{**given, **more})


def set_up(prepare: Prepare, process: int, run_dir: Path, lines: list[str], change: Any = None, **more: Any) -> Trainer:
    """A trainer as the process of this number sets it up."""
    task = Task(change)
    trainer = trainer_of(run_dir, lines, step=task, **more)
    prepare(trainer.resources["model"], task, process)
    return trainer_of(run_dir, lines, lambda: trainer.resources["model"], task, **more)


def resumed(prepare: Prepare, run_dir: Path, change: Any = None, **more: Any) -> tuple[str, Trainer, Trainer]:
    """The line of the resume, and the trainers of both processes, which stand at one position."""
    first, lines = set_up(prepare, 1, run_dir, [], change, **more), list[str]()
    first.run(until="5 batches")
    first.save()
    second = set_up(prepare, 2, run_dir, lines, change, **more)
    second.advance(0)
    return said_at_resume(lines), first, second


class Counter:
    """State under other names than those of its attributes."""

    def __init__(self, value: float) -> None:
        self._value = value

    def state_dict(self) -> dict[str, float]:
        return {"value": self._value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._value = state["value"]


SAME: dict[str, tuple[Prepare, Callable[[Any], object] | None]] = {
    "noise of a module, which is saved": (
        lambda model, task, process: setattr(model, "noise", torch.full((3,), float(process))), None,
    ),
    "an object with a state_dict": (
        lambda model, task, process: setattr(task, "counter", Counter(process)),
        lambda task: setattr(task.counter, "_value", 7),
    ),
    "a list that training fills": (
        lambda model, task, process: setattr(task, "seen", [process]), lambda task: task.seen.append(7),
    ),
    "a value that training sets": (
        lambda model, task, process: setattr(task, "scale", float(process)), lambda task: setattr(task, "scale", 1.5),
    ),
    "a generator without a seed": (
        lambda model, task, process: setattr(task, "generator", torch.Generator().manual_seed(process)), None,
    ),
    "a learning rate that is a tensor": (lambda model, task, process: setattr(task, "rate", torch.rand(1)), None),
}  # fmt: skip


@pytest.mark.first(3)
@pytest.mark.parametrize("name", SAME)
def test_what_is_restored_is_no_difference(name: str, tmp_path: Path) -> None:
    prepare, change = SAME[name]
    line, first, second = resumed(prepare, tmp_path, change)
    assert says_exact(line), line
    assert second.digest() == first.digest()
    before, after = (trainer.resources["training_step"] for trainer in (first, second))
    for attribute in ("scale", "seen", "rate"):
        assert getattr(after, attribute, None) == getattr(before, attribute, None)
    assert not hasattr(after, "counter") or after.counter._value == 7


def part(make: Callable[[int], Any]) -> tuple[Prepare, str]:
    return lambda model, task, process: setattr(task, "part", make(process)), "training_step.part differs from what"


DIFFERENT: dict[str, tuple[Prepare, str]] = {
    "a probability": (
        lambda model, task, process: setattr(model[1], "p", process / 10),
        "model.1.p differs from what `setup` created before: seed it, or give the object that holds it a "
        "`state_dict` and a `load_state_dict`",
    ),
    "a global": (lambda model, task, process: globals().update(SCALE=float(process)), "SCALE differs from what"),
    "a variable of a closure": (
        lambda model, task, process: setattr(task, "inner", (lambda value: lambda: value)(process)),
        "training_step.inner<value> differs from what `setup` created before",
    ),
    "an attribute of a class": (lambda model, task, process: setattr(Task, "threshold", process), "threshold differs"),
    "many attributes": (
        lambda model, task, process: vars(task).update({f"a{number}": float(process) for number in range(5)}),
        "training_step.a2 differs from what",
    ),
    "a value": part(float),
    "a list": part(lambda process: [1.0, float(process)]),
    "a function, by another name": part(lambda process: (torch.relu, torch.tanh)[process - 1]),
    "a module of another class": part(lambda process: (nn.ReLU, nn.Tanh)[process - 1]()),
    "a sparse tensor": part(lambda process: torch.full((2, 2), float(process)).to_sparse_csr()),
    "a read-only array": part(lambda process: numpy.frombuffer(bytes([process]), numpy.uint8)),
    "a long list": part(lambda process: [float(process)] * 2_000),
    "tuples in a set": part(lambda process: {(1, process)}),
    "a function in a partial": part(lambda process: functools.partial((max, min)[process - 1], 1)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.first(5)
@pytest.mark.parametrize("name", DIFFERENT)
def test_what_setup_makes_otherwise_is_named(name: str, tmp_path: Path) -> None:
    prepare, expected = DIFFERENT[name]
    try:
        line, _, _ = resumed(prepare, tmp_path)
    finally:
        globals().update(SCALE=1.0)
        Task.threshold = 0.5
    assert "not exact: " in line and expected in line


def test_a_changed_program_makes_other_things_which_are_changes(tmp_path: Path) -> None:
    lines = list[str]()
    for process in (1, 2):
        about = {"arguments": {"p": f"0.{process}"}}
        trainer = set_up(DIFFERENT["a probability"][0], process, tmp_path, lines, about=about)
        trainer.advance(2)
        trainer.save()
    assert said_at_resume(lines).endswith("exact except for what changed: model.1.p as set up, p 0.1 -> 0.2")


def test_what_is_compared_is_the_set_up_of_the_last_start(tmp_path: Path) -> None:
    reported = []
    for process in (1, 1, 2, 2):
        lines = list[str]()
        trainer = set_up(DIFFERENT["a probability"][0], process, tmp_path, lines)
        trainer.advance(2)
        trainer.save()
        reported.append(any("model.1.p differs" in line for line in lines))
    assert reported == [False, False, True, False]
    starts = [json.loads(line) for line in (tmp_path / "starts.jsonl").read_text().splitlines()]
    assert ["setup" in start for start in starts] == [True, False, True, False], "written when it is another"


@pytest.mark.parametrize("name", ["numpy", "networkx", "threads"])
def test_versions_and_threads_are_compared(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trainer_of(tmp_path)
    first.advance(2)
    first.save()
    lines = list[str]()
    second = trainer_of(tmp_path, lines)
    if name != "threads":
        monkeypatch.setattr(sys.modules[name], "__version__", "9.9.9")
    else:
        torch.set_num_threads(2)
    second.advance(0)
    assert "exact except for what changed: " in said_at_resume(lines) and f"{name} " in said_at_resume(lines)


# ---- what is left out, and what cannot be put back


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda: torch.set_num_threads(torch.get_num_threads() + 1), "threads 2 -> 1"),
        (lambda: torch.set_default_dtype(torch.float64), "default_dtype torch.float64 -> torch.float32"),
    ],
)
def test_a_setting_of_torch_that_training_changes_is_named(change: Any, named: str, tmp_path: Path) -> None:
    def train(until: str | None) -> list[str]:
        def step(model: Any, batch: Any, step: int) -> Any:
            if step == 1:
                change()
            return model(batch).sum()

        torch.set_num_threads(1)
        model, lines = torch.nn.Linear(2, 1), list[str]()
        Trainer(
            fit(epochs=1), run_dir=tmp_path, display=None, notify=lines.append, training_step=step, model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1), train_data=[torch.ones(4, 2)] * 4,
        ).run(until=until)  # fmt: skip
        return lines

    in_a_process(lambda: train("2 steps"))
    line = next(line for line in in_a_process(lambda: train(None)) if line.startswith("resumed"))
    assert line.endswith(f"exact except for what changed: {named}")


def test_what_is_left_out_is_neither_compared_nor_saved_nor_restored(tmp_path: Path) -> None:
    def prepare(model: Any, task: Any, process: int) -> None:
        task.scale, task.noise = float(process), torch.full((2,), float(process))

    line, first, second = resumed(prepare, tmp_path, not_state=["training_step.scale", "training_step.noise"])
    assert says_exact(line) and second.digest() == first.digest()
    assert (second.resources["training_step"].scale, second.resources["training_step"].noise[0]) == (2, 2)


@pytest.mark.full
def test_what_is_left_out_at_a_resume_stays_as_it_is_set_up(tmp_path: Path) -> None:
    def prepare(model: Any, task: Any, process: int) -> None:
        task.noise, task.counter, task.scale = torch.full((2,), float(process)), Counter(process), 1.0

    def change(task: Any) -> None:
        task.noise, task.counter._value, task.scale = torch.ones(3), 5, 0.5

    first = set_up(prepare, 1, tmp_path, [], change)
    first.run(until="5 batches")
    first.save()
    left_out = [f"training_step.{name}" for name in ("noise", "counter", "scale")]
    lines = list[str]()
    second = set_up(prepare, 2, tmp_path, lines, change, not_state=left_out)
    second.advance(0)
    task = second.resources["training_step"]
    assert (task.noise.tolist(), task.counter._value, task.scale) == ([2, 2], 2, 1)
    assert task.calls == 5, "all else is restored"
    assert "exact except for what changed: not_state: + training_step.counter" in said_at_resume(lines)
    second.save()
    lines = list[str]()
    third = set_up(prepare, 3, tmp_path, lines, change, not_state=left_out)
    third.advance(0)
    assert says_exact(said_at_resume(lines)) and third.digest() == second.digest()


def test_a_path_to_leave_out_that_names_nothing_is_an_error_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"not_state: there is no `training_step.cals`") as raised:
        trainer_of(tmp_path, not_state=["training_step.cals"]).run()
    assert "did you mean `training_step.calls`" in raised.value.hint


def test_a_state_that_a_resource_does_not_take_is_named(tmp_path: Path) -> None:
    class Refusing(Counter):
        def load_state_dict(self, state: dict[str, float]) -> None:
            raise ZeroDivisionError("x" * 500)

    trainer_of(tmp_path, counter=Refusing(1)).run(until="1 batches")
    with pytest.raises(CheckpointError, match=r"its state cannot be restored \(ZeroDivisionError: xxx") as failed:
        trainer_of(tmp_path, counter=Refusing(1)).run()
    assert len(failed.value.message) < 400


# ---- what is said to be exact, and is


class Keeping(nn.Linear):
    """Keeps its losses, and the last one under another name."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.losses: list[Any] = []
        self.last: Any = None

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        loss = super().forward(batch)
        self.losses = [*self.losses[-3:], {"loss": loss, "value": loss.detach()}]
        self.last = loss.detach()
        return loss


class Thawing(nn.Module):
    """Counts its calls and uses the count; gets a buffer at the third, and trains another parameter after it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.calls = nn.Linear(3, 1), 0
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.register_buffer("mean", None)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 3:
            self.mean = torch.ones(1)
        self.frozen.requires_grad_(self.calls > 3)
        output: torch.Tensor = self.body(batch) * self.frozen + 1 / self.calls
        return output if self.mean is None else output + self.mean


EXACT: dict[str, Callable[[], nn.Module]] = {
    "losses that are kept, and their values": Keeping,
    "what counts and thaws": Thawing,
}


@pytest.mark.first(3)
@pytest.mark.parametrize("name", EXACT)
def test_it_is_said_to_be_exact_and_is(name: str, tmp_path: Path) -> None:
    lines, whole, first = list[str](), trainer_of(None, model=EXACT[name]), trainer_of(tmp_path, model=EXACT[name])
    whole.run()
    first.advance(31)
    first.save()
    second = trainer_of(tmp_path, lines, EXACT[name])
    second.run()
    assert second.digest() == whole.digest()
    assert says_exact(said_at_resume(lines)) and not any("not be exact" in line for line in lines)


class Hooked(nn.Module):
    """Registers a hook at its first forward pass, and remembers that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.seen: list[torch.Tensor] = []

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if not getattr(self, "_hooks_are_registered", False):
            self.body.register_forward_hook(lambda module, inputs, output: self.seen.append(output))
            self._hooks_are_registered = True
        self.seen.clear()
        output: torch.Tensor = self.body(batch)
        return output + self.seen[0].mean()


def test_what_says_that_hooks_are_registered_is_not_restored_without_them(tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Sequential(Hooked())

    lines, whole = list[str](), trainer_of(None, model=make)
    whole.run()
    first = trainer_of(tmp_path, lines, make)
    first.advance(21)
    first.save()
    second = trainer_of(tmp_path, lines, make)
    second.run()
    assert second.digest() == whole.digest()
    assert "not exact: model.0.body has other hooks than it was set up with" in said_at_resume(lines)


# ---- what a run compares itself with is what was there when it began


@pytest.mark.full
def test_a_graph_that_takes_the_place_does_not_begin_again(tmp_path: Path) -> None:
    whole, lines = trainer_of(None, model=Thawing), list[str]()
    whole.run()
    first = trainer_of(tmp_path, lines, Thawing)
    graph = first.graph
    first.rewire(graph.set("finish", after="20 batches"))
    first.run(until="7 batches")
    first.rewire(graph)
    first.run(until="9 batches")
    first.save()
    assert not [line for line in lines if "exact" in line]
    second = trainer_of(tmp_path, lines, Thawing)
    second.run()
    assert says_exact(said_at_resume(lines))
    assert (second.digest(), second.resources["model"].calls) == (whole.digest(), 12)


def test_a_step_function_may_hold_the_trainer_that_calls_it(tmp_path: Path) -> None:
    held = list[Trainer]()

    def step(model: Any, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = model(batch).square().mean() * (1 + len(held[-1].metrics))
        return loss

    for until in ("5 batches", None):
        lines = list[str]()
        held[:] = [trainer_of(tmp_path, lines, step=step)]
        held[0].run(until=until)
        assert not any("not exact" in line for line in lines)
