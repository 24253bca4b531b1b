"""Promises 7, 10 and 20: the examples run as they are; a cut changes nothing, and what they come to is as they say."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from graphtrain import Trainer
from tests.looking.conftest import Command

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TINY = {"width": 16, "layers": 1, "heads": 2, "context": 8, "batch_size": 4, "sequences": 32, "epochs": 2}
TINY |= {"dropout": 0.2}
CHARLM = [*(f"{name}={value}" for name, value in TINY.items()), "accumulate.every=3", "log.every=1 steps"]
NANOGPT = ["width=16", "heads=2", "layers=1", "context=16", "finish.after=30 steps", "log.every=10 steps"]
NANOGPT += ["validate.every=15 steps", "checkpoint.every=12 steps", "checkpoint.keep=9"]
FINETUNE = ["layers=1", "length=32", "snippets=640", "lr=2e-3", "validate/next_batch.limit=2", "log.every=10 steps"]

Rows = list[dict[str, Any]]


def rows_of(run_dir: Path) -> Rows:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def values(rows: Rows, metric: str) -> list[float]:
    return [row[metric] for row in rows if metric in row]


def in_bits(rows: Rows) -> bool:
    losses = values(rows, "loss")
    return values(rows, "bits_per_character") == pytest.approx([loss / math.log(2) for loss in losses])


def warms_up(rows: Rows) -> bool:
    both = ([row["step"] for row in rows if f"{split}/loss" in row] for split in ("train", "val"))
    return [*both] == [[15, 30]] * 2 and values(rows, "lr") == sorted(values(rows, "lr"))


def learns(rows: Rows) -> bool:
    seen, unseen = values(rows, "accuracy"), values(rows, "val/accuracy")
    return len(seen) == 8 and seen[-1] > seen[0] + 0.2 and unseen[-1] > unseen[0] + 0.1


@dataclass(frozen=True)
class Example:
    """How an example is run, where it is cut, and what its rows are."""

    script: str
    words: list[str]
    until: tuple[str, ...]
    rows: Callable[[Rows], bool] = lambda rows: bool(rows)
    package: str = "torch"


RUNS = {
    "charlm": Example("charlm", CHARLM, ("2 batches", "5 batches", "1.5 epochs"), in_bits),
    "charlm, bfloat16": Example("charlm", [*CHARLM, "train_batch.precision=bf16-mixed"], ("5 batches",), in_bits),
    "digits, until it stops early": Example(
        "digits",
        ["--overlay", "ema", "--overlay", "early_stop", "early_stop.patience=2"],
        ("1.3 epochs",),
        lambda rows: 3 <= rows[-1]["epoch"] < 20,
        "sklearn",
    ),
    "nanogpt": Example("nanogpt", NANOGPT, ("21 batches",), warms_up),
    "transformers": Example(
        "transformers_finetune", [*FINETUNE, "finish.after=4 epochs"], ("27 batches",), learns, "transformers"
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", RUNS)
def test_a_cut_changes_nothing(name: str, folder: Path, command: Command) -> None:
    example = RUNS[name]
    pytest.importorskip(example.package)
    words = ["run", str(EXAMPLES / f"{example.script}.py"), *example.words, "--run-dir"]
    whole = command(*words, "whole")
    assert whole.code == 0, whole.err
    for amount in example.until:
        assert command(*words, "cut", "--until", amount).code == 0
    again = command(*words, "cut")
    assert again.code == 0 and "unchanged: exact" in again.err
    digests = [json.loads((folder / name / "status.json").read_text())["digest"] for name in ("whole", "cut")]
    assert digests[0] == digests[1]
    assert (folder / "cut/metrics.jsonl").read_bytes() == (folder / "whole/metrics.jsonl").read_bytes()
    assert example.rows(rows_of(folder / "whole"))


# Mean of -log(frequency) over the characters of the text, in nats: what a model of frequencies alone gives.
FREQUENCIES_ALONE = 3.15


@pytest.mark.sweep
def test_nanogpt_learns(folder: Path, command: Command) -> None:
    assert command("run", str(EXAMPLES / "nanogpt.py"), "--quiet", "--run-dir", "whole").code == 0
    assert values(rows_of(folder / "whole"), "val/loss")[-1] < 2.1 < FREQUENCIES_ALONE


# ---- the graph and the weights of the character model


def imported(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.full
def test_its_graph_counts_tokens_and_ends_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    charlm = imported("charlm", monkeypatch)
    graph = charlm.graph.set("finish", after="400 tokens").set("accumulate", every=2)
    assert graph.check() == []
    trainer = Trainer(graph, device="cpu", display=None, notify=lambda line: None, **charlm.setup(**TINY))
    trainer.run()
    assert trainer.read("count_tokens.tokens") == 13 * 4 * 8, "the first number of batches of 32 that reaches 400"


@pytest.mark.sweep
def test_the_weights_alone_give_the_model_and_text(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    charlm, sample = imported("charlm", monkeypatch), imported("charlm_sample", monkeypatch)
    words = [word for word in CHARLM if "." not in word.partition("=")[0]]
    assert command("run", str(EXAMPLES / "charlm.py"), *words, "finish.after=2 epochs", "--run-dir", "r").code == 0
    file = max((folder / "r" / "checkpoints").iterdir()) / "model.safetensors"
    assert sample.newest_weights(folder / "r") == file
    model = charlm.CharacterModel.from_weights(load_file(file)).eval()
    with torch.no_grad():
        results = [(charlm.training_step(model, batch), len(batch)) for batch in charlm.setup(**TINY)["val_data"]]
    mean = sum(float(result["loss"]) * size for result, size in results) / sum(size for _, size in results)
    assert mean == pytest.approx(values(rows_of(folder / "r"), "val/loss")[-1], rel=1e-12)
    arguments = [sys.executable, "-W", "error", str(EXAMPLES / "charlm_sample.py"), "r", "--prompt", "import"]
    written = subprocess.run([*arguments, "--length", "30"], cwd=folder, capture_output=True, text=True, timeout=300)
    assert written.returncode == 0, written
    assert written.stdout == sample.generate(model, "import", 30, temperature=0.9, seed=0) + "\n"
    assert sample.generate(model, "import", 30, temperature=0.9, seed=1) + "\n" != written.stdout
