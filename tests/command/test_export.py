"""`graphtrain export`: the weights of a run in one file, whoever has written it."""

from __future__ import annotations

import errno
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import pytest
import safetensors.torch
import torch
from torch.utils.data import DataLoader

from graphtrain import Graph, Trainer
from graphtrain.command.runs import export
from graphtrain.command.set_up import named_weights, warm_start
from graphtrain.errors import UsageError
from graphtrain.ranks import Alone, using_ranks
from graphtrain.storage import regular
from tests.resume.rank_runs import run, trainer_of


@pytest.mark.full
@pytest.mark.parametrize("world_size", [1, 2])
def test_the_weights_of_a_run_are_one_file(tmp_path: Path, world_size: int, capsys: pytest.CaptureFixture[str]) -> None:
    ends = run(world_size, tmp_path / "run", act=lambda trainer: trainer.run(until="1 steps"))
    path = tmp_path / "weights.safetensors"
    export.callback(tmp_path / "run", path)
    assert capsys.readouterr().out.startswith(f"wrote {path}: 9 tensors, 56 numbers, of 000001-step-1")
    weights = safetensors.torch.load_file(path)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.2), torch.nn.Linear(6, 1)
    ).double()
    model.load_state_dict(weights)
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}, "without which some readers refuse it"
    assert torch.equal(torch.cat([parameter.flatten() for parameter in model.parameters()]), ends[0].weights)

    with pytest.raises(UsageError, match="exists; a file is never overwritten"):
        export.callback(tmp_path / "run", path)
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    export.callback(checkpoint, tmp_path / "again.safetensors", model="model")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


@pytest.mark.full
@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.sweep)])
def test_what_was_validated_is_what_is_exported(tmp_path: Path, world_size: int) -> None:
    def graph(fit: Graph) -> Graph:
        fit = fit.set("validate", every="1 steps").set("checkpoint", every="1 steps")
        return fit.set("accumulate", every=2).set("finish", after="2 steps")

    ends = run(world_size, tmp_path / "run", graph=graph)
    reported = [row["val/error"] for row in ends[0].metrics if "val/error" in row]
    with using_ranks(Alone()):
        resources = trainer_of(None).resources
    model, inputs, targets = resources["model"].eval(), *next(iter(DataLoader(resources["val_data"].dataset, 99)))[:2]
    exported = []
    for checkpoint in sorted((tmp_path / "run" / "checkpoints").glob("0*")):
        export.callback(checkpoint, tmp_path / f"{checkpoint.name}.safetensors")
        model.load_state_dict(safetensors.torch.load_file(tmp_path / f"{checkpoint.name}.safetensors"))
        exported.append(torch.nn.functional.mse_loss(model(inputs), targets).item())
    assert len(exported) >= 2
    assert reported == pytest.approx(exported, rel=1e-12)


def test_a_checkpoint_of_several_processes_begins_a_run(tmp_path: Path) -> None:
    ends = run(2, tmp_path / "run", advance=1)
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    with using_ranks(Alone()):
        model = trainer_of(None).resources["model"]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    warm_start({"model": model}, [f"model={checkpoint}"])
    assert torch.equal(torch.cat([parameter.flatten() for parameter in model.parameters()]), ends[0].weights)
    with pytest.raises(UsageError, match="there is no file") as caught:
        named_weights(f"model={tmp_path / 'run'}")
    assert caught.value.hint.startswith(f"graphtrain export {tmp_path / 'run'} weights.safetensors")


def test_weights_that_begin_no_run_are_named(tmp_path: Path) -> None:
    safetensors.torch.save_file({"weight": torch.ones(1, 3)}, tmp_path / "other.safetensors")
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    (tmp_path / "empty").mkdir()
    for name, message in [
        ("other.safetensors", " does not match `model`:\n    missing in the file: bias\n    weight: float32 (1, 3) in"),
        ("torn.safetensors", " cannot be read as safetensors: torn.safetensors: "),
        ("empty", " has no file .safetensors"),
    ]:
        with pytest.raises(UsageError) as caught:
            warm_start({"model": torch.nn.Linear(2, 1)}, [f"model={tmp_path / name}"])
        assert caught.value.message.startswith(f"--init: `{tmp_path / name}`{message}")


class Tied(torch.nn.Module):
    """Two names of one weight, two empty parameters, a lazy one, and an extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.empty, self.nothing = torch.nn.Parameter(torch.ones(0)), torch.nn.Parameter(torch.ones(0))
        self.lazy = torch.nn.LazyLinear(1, bias=False)

    def get_extra_state(self) -> int:
        return 3


WHOLE = {
    **{"first.weight": torch.ones(2, 2), "first.bias": torch.ones(2), "second.weight": torch.ones(2, 2)},
    **{"empty": torch.ones(0), "nothing": torch.ones(0), "lazy.weight": torch.ones(1, 9)},
}


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
def test_the_tensors_that_do_not_fit_are_named(changes: dict[str, Any], lines: list[str], tmp_path: Path) -> None:
    kept = {name: value for name, value in (WHOLE | changes).items() if value is not None}
    safetensors.torch.save_file(kept, tmp_path / "w.safetensors")
    if not lines:
        warm_start({"model": Tied()}, [f"model={tmp_path / 'w.safetensors'}"])
        return
    with pytest.raises(UsageError) as caught:
        warm_start({"model": Tied()}, [f"model={tmp_path / 'w.safetensors'}"])
    named = caught.value.message.splitlines()[1:]
    expected = [f"    {line.replace('missing:', 'missing in the file:')}" for line in lines]
    assert len(named) == len(expected) and all(map(str.startswith, named, expected))


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    run(1, tmp_path / "run", advance=1)
    path = tmp_path / "weights.safetensors"
    for source, file, model, message in [
        (tmp_path / "run", tmp_path / "weights.pt", None, "must end in .safetensors"),
        (tmp_path / "other", path, None, "there is no run"),
        (tmp_path / "run", path, "modl", "the run has no model `modl`"),
        (tmp_path / "run", tmp_path / "none" / "weights.safetensors", None, "cannot write"),
    ]:
        with pytest.raises(UsageError, match=message):
            export.callback(source, file, model=model)
    assert not path.exists()


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
        (
            torch.tensor(1j, dtype=torch.complex128),
            r"`phase` is of torch\.complex128, which no file of safetensors",
        ),
        (torch.eye(3).to_sparse(), r"`phase` is of torch\.sparse_coo, which no file of weights can hold"),
        (torch.empty(2, 0), ""),
        (torch.tensor(3), ""),
    ],
    ids=["complex", "sparse", "empty", "number"],
)
def test_any_weights_are_exported_or_named(phase: torch.Tensor, message: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Strange()
    model.phase = phase
    trainer = Trainer(
        Graph.load("fit").set("finish", after="1 steps"),
        run_dir=tmp_path / "run",
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.ones(1, 4)],
        training_step=lambda model, batch: model(batch).sum(),
    )
    trainer.run()
    path = tmp_path / "weights.safetensors"
    with pytest.raises(UsageError, match=message) if message else nullcontext():
        export.callback(tmp_path / "run", path)
    if not message:
        assert set(loaded := safetensors.torch.load_file(path)) == {"weight", "bias", "kernel", "tied", "phase"}
        assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())


def test_a_disk_that_is_full_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(1, tmp_path / "run", advance=1)
    monkeypatch.setattr(regular, "write_pieces", lambda file, pieces: [*pieces] and fail_with(errno.ENOSPC))
    with pytest.raises(UsageError, match=r"cannot write `.*weights.safetensors`: No space left on device"):
        export.callback(tmp_path / "run", tmp_path / "weights.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def fail_with(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number))
