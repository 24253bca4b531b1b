"""The character model: it learns, a cut changes nothing, and its weights are usable alone."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from graphtrain import Trainer
from graphtrain.command.script import import_script
from tests.command.conftest import Command

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPT = str(EXAMPLES / "charlm.py")
TINY = {"width": 16, "layers": 1, "heads": 2, "context": 8, "batch_size": 4, "windows": 32, "epochs": 2, "dropout": 0.2}
WORDS = [f"{name}={value}" for name, value in TINY.items()]


@pytest.fixture
def charlm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", list(sys.path))
    return import_script(EXAMPLES / "charlm.py")


@pytest.fixture
def sample(charlm: ModuleType) -> ModuleType:
    return import_script(EXAMPLES / "charlm_sample.py")


def rows_of(run_dir: Path, metric: str) -> list[float]:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [row[metric] for row in rows if metric in row]


def digest_of(run_dir: Path) -> Any:
    return json.loads((run_dir / "status.json").read_text())["digest"]


def weights_of(run_dir: Path) -> Path:
    return max((run_dir / "checkpoints").iterdir()) / "model.safetensors"


# --- Through the command ---------------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("precision", "amounts"),
    [
        pytest.param("32-true", ("2 batches", "5 batches", "1.5 epochs"), marks=pytest.mark.sweep, id="32-true"),
        pytest.param("bf16-mixed", ("5 batches",), id="bf16-mixed"),
    ],
)
def test_a_cut_run_equals_one_never_cut(
    precision: str, amounts: tuple[str, ...], folder: Path, command: Command
) -> None:
    words = ["run", SCRIPT, *WORDS, "accumulate.every=3", "log.every=1 steps", "finish.after=2 epochs"]
    words += [f"train_batch.precision={precision}", "--run-dir"]
    assert command(*words, "whole").code == 0
    for amount in amounts:
        assert command(*words, "cut", "--until", amount).code == 0
    again = command(*words, "cut")
    assert again.code == 0 and "unchanged: exact" in again.err
    assert digest_of(folder / "cut") == digest_of(folder / "whole")
    assert (folder / "cut/metrics.jsonl").read_bytes() == (folder / "whole/metrics.jsonl").read_bytes()
    losses = rows_of(folder / "whole", "loss")
    assert rows_of(folder / "whole", "bits_per_character") == pytest.approx([loss / math.log(2) for loss in losses])
    other = command(*words, "other", "--seed", "1")
    assert other.code == 0
    assert digest_of(folder / "other") != digest_of(folder / "whole"), "digests that are always equal prove nothing"


# --- Its own graph ---------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_its_graph_counts_tokens_and_ends_by_them(charlm: ModuleType) -> None:
    assert charlm.graph.check() == []
    resources = charlm.setup(**TINY)
    trainer = Trainer(
        charlm.graph.set("finish", after="400 tokens").set("accumulate", every=2),
        device="cpu",
        notify=lambda line: None,
        **resources,
    )
    trainer.run()
    assert trainer.read("count_tokens.tokens") == 13 * 4 * 8, "the first number of batches of 32 that reaches 400"
    assert trainer.read("next_batch.batches") == trainer.read("train_batch.runs") == 13


# --- Weights alone ---------------------------------------------------------------------------------------------------


@pytest.mark.sweep
def test_the_weights_alone_give_the_model_and_text(
    charlm: ModuleType, sample: ModuleType, folder: Path, command: Command
) -> None:
    assert command("run", SCRIPT, *WORDS, "finish.after=2 epochs", "--run-dir", "r").code == 0
    file = weights_of(folder / "r")
    assert sample.newest_weights(folder / "r") == file
    model = charlm.CharacterModel.from_weights(load_file(file)).eval()
    with torch.no_grad():
        results = [(charlm.training_step(model, batch), len(batch)) for batch in charlm.setup(**TINY)["val_data"]]
    mean = sum(float(result["loss"]) * size for result, size in results) / sum(size for _, size in results)
    assert mean == pytest.approx(rows_of(folder / "r", "val/loss")[-1], rel=1e-12)

    written = write("r", "--prompt", "import", "--length", "30", cwd=folder)
    assert written.returncode == 0, written
    assert written.stdout.startswith("import") and len(written.stdout) == len("import") + 30 + len("\n")
    assert written.stdout == sample.generate(model, "import", 30, temperature=0.9, seed=0) + "\n"
    assert sample.generate(model, "import", 30, temperature=0.9, seed=1) + "\n" != written.stdout
    lukewarm = {sample.generate(model, "import", 5, temperature=1e-4, seed=seed) for seed in range(5)}
    assert len(lukewarm) == 1, "near 0 every draw is the likeliest"


def write(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the sampling script in a real process."""
    arguments = [sys.executable, "-W", "error", str(EXAMPLES / "charlm_sample.py"), *words]
    return subprocess.run(arguments, cwd=cwd, capture_output=True, text=True, timeout=300)
