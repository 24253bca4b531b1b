"""Promise 14: `graphtrain export`, and runs that begin with weights: `--init`, of all of a model or of a part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from graphtrain import Trainer, fit
from tests.looking.conftest import Command
from tests.looking.running import TINY
from tests.world import world

# Two names of one weight, two empty parameters, a lazy one, and an extra state.
TIED = """
import torch

class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.empty, self.nothing = torch.nn.Parameter(torch.ones(0)), torch.nn.Parameter(torch.ones(0))
        self.lazy = torch.nn.LazyLinear(1, bias=False)

    def get_extra_state(self):
        return 3

    def set_extra_state(self, state): ...

    def forward(self, batch):
        return self.lazy(torch.cat([self.second(self.first(batch)), batch.new_ones(len(batch), 7)], 1))
"""
WHOLE = {
    **{"first.weight": torch.ones(2, 2), "first.bias": torch.ones(2), "second.weight": torch.ones(2, 2)},
    **{"empty": torch.ones(0), "nothing": torch.ones(0), "lazy.weight": torch.ones(1, 9)},
}


def run_of(command: Command, script: str, *words: str, run_dir: str = "new") -> Any:
    if not Path("own.py").exists():
        Path("own.py").write_text(script)
    return command("run", "own.py", "finish.after=1 steps", "--run-dir", run_dir, *words)


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"second.weight": None}, []),
        ({"first.weight": None}, []),
        ({"first.weight": None, "second.weight": None}, ["missing: first.weight", "missing: second.weight"]),
        ({"first.bias": None, "empty": None}, ["missing: empty", "missing: first.bias"]),
        ({"lazy.weight": None}, ["missing: lazy.weight"]),
        ({"other": torch.ones(1)}, ["unknown to the module: other"]),
        ({"first.bias": torch.ones(3)}, ["first.bias: float32 (3,) in the file, float32 (2,) in the module"]),
        ({"first.bias": torch.ones(2).long()}, ["first.bias: int64 (2,) in the file, float32 (2,) in the module"]),
        ({"first.bias": torch.ones(2).half()}, []),
        (
            {"second.weight": torch.zeros(2, 2)},
            ["first.weight: in the memory of second.weight in the module, and has other values in the file"],
        ),
        ({f"x{n}": torch.ones(1) for n in range(11)}, ["unknown", *["unknown"] * 9, "... and 1 more"]),
    ],
)
def test_the_tensors_that_do_not_fit_are_named(
    changes: dict[str, Any], lines: list[str], folder: Path, command: Command
) -> None:
    save_file({name: value for name, value in (WHOLE | changes).items() if value is not None}, "w.safetensors")
    script = TIED + TINY.replace("torch.nn.Linear(2, 1)", "Tied()")
    result = run_of(command, script, "--init", "model=w.safetensors", "--quiet")
    assert result.code == (2 if lines else 0), result.err
    named = [line for line in result.err.splitlines()[1:] if line.startswith("    ")]
    expected = [f"    {line.replace('missing:', 'missing in the file:')}" for line in lines]
    assert len(named) == len(expected) and all(map(str.startswith, named, expected)), named
    assert (folder / "new").exists() == (not lines)


@pytest.mark.parametrize("name", ["torn.safetensors", "empty", "torn.bin"])
def test_a_file_that_holds_no_weights(name: str, tiny: Path, command: Command) -> None:
    (tiny / "empty").mkdir()
    for file in ("torn.safetensors", "torn.bin"):
        (tiny / file).write_bytes(b"torn")
    result = command("run", "tiny.py", "--init", f"model={name}", "--run-dir", "new")
    assert (result.code, result.err.startswith("error: --init: ")) == (2, True), result.err
    assert f"`{name}`" in result.err and "Traceback" not in result.err and not (tiny / "new").exists()


@pytest.mark.full
def test_a_warm_start_begins_with_weights_and_is_no_resume(tiny: Path, command: Command) -> None:
    assert command("run", "tiny.py", "finish.after=3 steps", "--run-dir", "old").code == 0
    weights = next((tiny / "old" / "checkpoints").iterdir()) / "model.safetensors"
    words = ["run", "tiny.py", "finish.after=2 steps", "--init", f"model={weights}", "--run-dir"]

    def status(run_dir: str) -> dict[str, Any]:
        return dict(json.loads((tiny / run_dir / "status.json").read_text()))

    first = command(*words, "new")
    assert first.code == 0, first.err
    assert f"--init: `model` has the weights of {weights}" in first.err and "resumed" not in first.err
    assert status("new")["step"] == 2
    assert command("run", "tiny.py", "finish.after=2 steps", "--run-dir", "cold").code == 0
    assert status("new")["digest"] != status("cold")["digest"]
    again = command(*words, "new")
    assert again.code == 0 and "was finished before" in again.err, "the same command resumes the run"
    assert command("export", "old", "w.safetensors").code == 0
    for other in (weights.parent, "w.safetensors"):
        run_dir = f"by {Path(other).name}"
        assert command(*words[:4], f"model={other}", "--run-dir", run_dir).code == 0
        assert status(run_dir)["digest"] == status("new")["digest"]


NAMED = TINY.replace(
    "torch.nn.Linear(2, 1)", "torch.nn.ModuleDict({'body': torch.nn.Linear(2, 2), 'head': torch.nn.Linear(2, OUT)})"
).replace("model(batch)", "model['head'](model['body'](batch))")


@pytest.mark.full
def test_a_part_of_the_weights_is_taken_by_patterns(folder: Path, command: Command) -> None:
    (folder / "old.py").write_text(NAMED.replace("OUT", "1"))
    (folder / "new.py").write_text(NAMED.replace("OUT", "3"))
    assert command("run", "old.py", "finish.after=3 steps", "--run-dir", "old").code == 0
    words = ["run", "new.py", "checkpoint.keep=9", "finish.after=2 epochs", "--run-dir", "new"]
    taken = command(*words, "--init", "model.body.*=old/newest")
    assert taken.code == 0 and "--init: `model` has 2 of 4 tensors of old" in taken.err
    assert "equal" in command("verify", "new.py", "--run-dir", "new").out, "it begins as the run did"


# ---- export


def test_the_weights_of_a_run_are_one_file(tmp_path: Path, command: Command) -> None:
    trainer = world(fit(epochs=1)).trainer(tmp_path / "run")
    trainer.run()
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    result = command("export", "run", "weights.safetensors")
    expected = trainer.resources["model"].state_dict()
    assert result.out.startswith(f"wrote weights.safetensors: {len(expected)} tensors, "), result
    assert checkpoint.name in result.out
    weights = load_file("weights.safetensors")
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], value) for name, value in expected.items())
    with safe_open("weights.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}, "without which some readers refuse it"
    assert "exists; a file is never overwritten" in command("export", "run", "weights.safetensors").err
    assert command("export", str(checkpoint), "again.safetensors", "--model", "model").code == 0
    assert Path("again.safetensors").read_bytes() == Path("weights.safetensors").read_bytes()


class Strange(torch.nn.Linear):
    """A layer with values of a type that files of weights do not have, not in the order of memory, and shared."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.register_buffer("kernel", torch.arange(6.0, dtype=torch.float64).reshape(2, 3).T)
        self.register_buffer("tied", self.weight.detach())
        self.register_buffer("phase", None)


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        (torch.tensor(1j, dtype=torch.complex128), "`phase` is of torch.complex128, which no file of safetensors"),
        (torch.eye(3).to_sparse(), "`phase` is of torch.sparse_coo, which no file of safetensors can hold"),
        (torch.empty(2, 0), ""),
        (torch.tensor(3), ""),
    ],
    ids=["complex", "sparse", "empty", "number"],
)
def test_any_weights_are_exported_or_named(phase: torch.Tensor, message: str, tmp_path: Path, command: Command) -> None:
    model = Strange()
    model.phase = phase
    Trainer(
        fit(epochs=1),
        run_dir=tmp_path / "run",
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.ones(1, 4)],
        training_step=lambda model, batch: model(batch).sum(),
    ).run()
    result = command("export", "run", "weights.safetensors")
    if message:
        assert result.code == 2 and message in result.err and not Path("weights.safetensors").exists()
        return
    loaded = load_file("weights.safetensors")
    assert {*loaded} == {"weight", "bias", "kernel", "tied", "phase"}
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
