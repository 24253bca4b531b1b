"""Promise 14: `graphtrain test` and `graphtrain predict`: the weights of a run, and no change of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from graphtrain import checkpoint_folder
from tests.looking.conftest import Command
from tests.looking.running import contents
from tests.world import assert_same

SCRIPT = """\
import os
import torch
from graphtrain import Graph, main

graph = Graph.load("fit").overlay("ema").set("checkpoint", best="val/level", best_mode="min", every="1 epochs", keep=9)

def training_step(model, batch):
    return model(batch).square().mean()

def validation_step(model, batch, epoch):
    return {"level": abs(epoch - 1.0)}

def test_step(model, batch):
    return {"mean": model(batch).mean(), "number": 1.0}

def predict_step(model, batch):
    if os.path.exists("stop") and batch[0, 0] == 2.0:
        os.kill(os.getpid(), 15)
        os.unlink("stop")
    return {"output": model(batch)[:, 0], "first": batch[:, 0]}

def setup(width: int = 1, lr: float = 0.1):
    model = torch.nn.Linear(2, width)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=lr),
        "train_data": [torch.randn(2, 2) for _ in range(4)],
        "val_data": [torch.ones(2, 2)],
        "test_data": [torch.full((2, 2), float(number)) for number in range(5)],
        "predict_data": [torch.full((2, 2), float(number)) for number in range(5)],
        "training_step": training_step,
        "validation_step": validation_step,
        "test_step": test_step,
        "predict_step": predict_step,
    }

if __name__ == "__main__":
    main(setup)
"""


def predictions(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of all batches."""
    parts = [load_file(file) for file in sorted(folder.iterdir())]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@pytest.fixture
def trained(folder: Path, command: Command) -> Path:
    """A run of three epochs whose second checkpoint is the best, with an argument that is no default."""
    (folder / "script.py").write_text(SCRIPT)
    words = ("run", "script.py", "width=3", "finish.after=3 epochs", "--run-dir", "r", "--quiet")
    assert command(*words).code == 0
    return folder / "r"


def files(run_dir: Path) -> dict[str, Any]:
    return {name: content for name, content in contents(run_dir).items() if name != "."}


def output(path: Path, model: str, value: float) -> torch.Tensor:
    """What the weights of a model in a checkpoint make of two samples of one value."""
    weights = load_file(path / f"{model}.safetensors")
    return torch.nn.functional.linear(torch.full((2, 2), value), weights["weight"], weights["bias"])


def expected_mean(path: Path, model: str = "average") -> float:
    return float(torch.stack([output(path, model, float(number)).mean() for number in range(5)]).double().mean())


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "test.jsonl").read_text().splitlines()]


@pytest.mark.full
def test_the_best_weights_are_tested(trained: Path, command: Command) -> None:
    """Those of the average, which the run validates; and the row has the step of the checkpoint."""
    before = files(trained)
    best, newest = checkpoint_folder(trained / "best"), checkpoint_folder(trained / "newest")
    assert best != newest
    result = command("test", "script.py", "--run-dir", "r")
    assert result.code == 0, result.err
    assert f"weights: `average` of r/checkpoints/{best.name}" in result.err and "changed since" not in result.err
    assert result.out.startswith(f"{best.name}  test/mean ")
    (row,) = rows(trained)
    assert (row["checkpoint"], row["step"], row["epoch"]) == (best.name, 8, 2.0)
    assert row["test/mean"] == pytest.approx(expected_mean(best), rel=1e-6) and row["test/number"] == 1.0
    for weights, path in (("newest", newest), (best.name, best), (str(newest), newest)):
        assert command("test", "script.py", "--run-dir", "r", "--weights", weights, "--quiet").code == 0
        assert rows(trained)[-1]["checkpoint"] == path.name
    assert sorted(row["checkpoint"] for row in rows(trained)) == [best.name] * 2 + [newest.name] * 2
    words = ("--model", "model", "next_batch.limit=1")
    assert command("test", "script.py", "--run-dir", "r", *words, "--quiet").code == 0
    assert rows(trained)[-1]["test/mean"] == pytest.approx(float(output(best, "model", 0.0).mean()), rel=1e-6)
    (trained / "test.jsonl").unlink()
    assert files(trained) == before, "nothing else was written"


@pytest.mark.full
def test_predictions_are_written_beside_the_run(trained: Path, command: Command) -> None:
    before = files(trained)
    best = checkpoint_folder(trained / "best")
    result = command("predict", "script.py", "--run-dir", "r")
    assert result.code == 0, result.err
    folder = trained / "predict" / best.name / "predictions"
    assert f"the run is finished: r/predict/{best.name}/predictions" in result.err
    written = predictions(folder)
    expected = torch.cat([output(best, "average", float(number))[:, 0] for number in range(5)])
    assert torch.equal(written["output"], expected)
    assert written["first"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert command("predict", "script.py", "--run-dir", "r").code == 0, "it was finished before"
    assert_same(predictions(folder), written)
    assert command("predict", "script.py", "--run-dir", "r", "-o", "again").code == 0
    assert_same(predictions(Path("again")), written)
    shutil.rmtree(folder)
    result = command("predict", "script.py", "--run-dir", "r")
    assert (result.code, "was predicted before, and is gone" in result.err) == (2, True)
    shutil.rmtree(trained / "predict")
    assert files(trained) == before

    # A signal in the third batch; meanwhile another checkpoint becomes the newest, and the first one is removed.
    Path("stop").touch()
    result = command("predict", "script.py", "--run-dir", "r", "-o", "p.jsonl")
    assert (result.code, Path("p.jsonl").exists()) == (75, False), result.err
    assert command("predict", "script.py", "--run-dir", "r", "-o", "p.jsonl").code == 0
    lines = [json.loads(line) for line in Path("p.jsonl").read_text().splitlines()]
    assert [line["first"] for line in lines] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert [line["output"] for line in lines] == pytest.approx(expected.tolist(), abs=0)


def test_a_run_of_token_windows_is_tested_by_tokens(folder: Path, command: Command) -> None:
    script = SCRIPT.replace('.overlay("ema")', '.overlay("token_windows")').replace(
        'best="val/level", best_mode="min", ', ""
    )
    loss = 'return {"loss": model(batch).square().sum(), "tokens": 6}'
    script = script.replace("return model(batch).square().mean()", loss).replace(
        'return {"mean": model(batch).mean(), "number": 1.0}', loss
    )
    (folder / "script.py").write_text(script)
    assert command("run", "script.py", "finish.after=1 epochs", "--run-dir", "r", "--quiet").code == 0
    result = command("test", "script.py", "--run-dir", "r")
    assert "weights: `model` of r/checkpoints/" in result.err, "the newest, as none was ranked"
    assert result.code == 0, result.err
    weights = load_file(checkpoint_folder(folder / "r" / "newest") / "model.safetensors")
    total = sum(
        (torch.full((2, 2), float(number)) @ weights["weight"].T + weights["bias"]).square().sum()
        for number in range(5)
    )
    (row,) = rows(folder / "r")
    assert row["test/loss"] == pytest.approx(float(total) / 30, rel=1e-6)
    assert "test/tokens" not in row
    per_sample = command("test", "script.py", "eval_batch.per=samples", "--run-dir", "r", "--weights", "newest")
    assert per_sample.code == 0, per_sample.err
    assert rows(folder / "r")[1]["test/loss"] == pytest.approx(float(total) / 5, rel=1e-6)  # the mean of the sums


@pytest.mark.full
def test_what_is_there_is_not_overwritten(trained: Path, command: Command) -> None:
    Path("script.jsonl").touch()
    for words, fragment in (
        (("predict", "script.py", "-o", "script.jsonl"), "exists; a file is never overwritten"),
        (("predict", "script.py", "-o", "p.csv"), "must end in .jsonl, or be a folder"),
    ):
        result = command(*words, "--run-dir", "r")
        assert (result.code, fragment in result.err, "Traceback" in result.err) == (2, True, False), (words, result.err)
