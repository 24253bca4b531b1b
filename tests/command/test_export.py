"""`graphtrain export`: the weights of a run in one file, whoever has written it."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch.utils.data import DataLoader

from graphtrain import Graph
from graphtrain.command.runs import export
from graphtrain.command.set_up import named_weights, warm_start
from graphtrain.errors import UsageError
from graphtrain.ranks import Alone, using_ranks
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
    assert torch.equal(torch.cat([parameter.flatten() for parameter in model.parameters()]), ends[0].weights)

    with pytest.raises(UsageError, match="exists; a file is never overwritten"):
        export.callback(tmp_path / "run", path)
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    export.callback(checkpoint, tmp_path / "again.safetensors", model="model")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


@pytest.mark.full
@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.sweep)])
def test_what_was_validated_is_what_is_exported(tmp_path: Path, world_size: int) -> None:
    """In an open window too, in which each rank has statistics of batch norm of its own."""

    def graph(fit: Graph) -> Graph:
        fit = fit.set("validate", every=["4 batches", "end"]).set("checkpoint", every="4 batches")
        return fit.set("accumulate", every=4).set("finish", after="1 steps")

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
        ("empty", " has neither `.metadata` nor a file .safetensors"),
    ]:
        with pytest.raises(UsageError) as caught:
            warm_start({"model": torch.nn.Linear(2, 1)}, [f"model={tmp_path / name}"])
        assert caught.value.message.startswith(f"--init: `{tmp_path / name}`{message}")


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
