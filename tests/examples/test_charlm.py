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
def test_it_learns_more_than_how_frequent_characters_are(charlm: ModuleType, folder: Path, command: Command) -> None:
    words = ["width=32", "layers=1", "heads=2", "context=16", "windows=1600", "epochs=5", "lr=1e-2"]
    result = command("run", SCRIPT, *words, "finish.after=5 epochs", "--run-dir", "r")
    assert result.code == 0, result
    bits = rows_of(folder / "r", "val/bits_per_character")
    assert len(bits) == 5
    shares = torch.bincount(charlm.read_tokens()[0].int()).double()
    shares = shares[shares > 0] / shares.sum()
    assert bits[-1] < float(-(shares * shares.log2()).sum()), "the least that one table of frequencies can reach"
    losses = rows_of(folder / "r", "loss")
    assert losses[-1] < losses[0]


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


def test_heads_that_do_not_divide_the_width_are_refused(folder: Path, command: Command) -> None:
    result = command("run", SCRIPT, "width=10", "heads=4")
    assert result.code == 1
    assert "width must be a multiple of the number of heads; got 10 and 4" in result.err


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


# --- The model -------------------------------------------------------------------------------------------------------


def test_decode_inverts_encode_except_outside_the_vocabulary(charlm: ModuleType) -> None:
    text = "def f(x):\n\treturn ' ~'"
    assert charlm.decode(charlm.encode(text)) == text
    assert charlm.decode(charlm.encode(charlm.VOCABULARY)) == charlm.VOCABULARY
    assert charlm.decode(charlm.encode("a\x7f\r\0é€😀z")) == "a" + charlm.VOCABULARY[-1] * 6 + "z"


def test_windows_are_at_multiples_of_the_stride(charlm: ModuleType) -> None:
    tokens = torch.arange(10, dtype=torch.uint8)
    for stride in (1, 2, 3):
        windows = charlm.Windows(tokens, 4, stride)
        begins = [begin for begin in range(0, 10, stride) if begin + 4 <= 10]
        assert [windows[index].tolist() for index in range(len(windows))] == [
            list(range(begin, begin + 4)) for begin in begins
        ]


def test_training_and_validation_share_no_file_and_leave_none_out(
    charlm: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        (tmp_path / f"m{number:02}.py").write_bytes(f"{number};".encode() + b"\xff")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    train, val = (charlm.decode(text).replace(charlm.VOCABULARY[-1], "") for text in charlm.read_tokens())
    assert (train, val) == ("1;2;3;4;5;6;7;8;9;11;", "0;10;")


def test_no_logits_depend_on_later_tokens(charlm: ModuleType) -> None:
    model = charlm.CharacterModel(16, 2, 2, 8).eval()
    tokens = torch.randint(0, 98, (3, 8), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 98
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not any(torch.equal(before[:, position], after[:, position]) for position in (5, 6, 7))


def test_the_rate_rises_then_falls_and_its_numbers_are_saved(charlm: ModuleType) -> None:
    schedule = charlm.WarmupCosine(warmup_steps=4, steps=20)
    rates = [schedule(step) for step in range(30)]
    assert max(rates) == 1 == rates[4]
    assert rates[:5] == sorted(rates[:5]) and rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[20:] == [pytest.approx(0.05)] * 10
    saved = charlm.setup(**TINY)["scheduler"].state_dict()
    assert saved["lr_lambdas"] == [{"warmup_steps": 1, "steps": 2 * 8}]


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


def test_the_newest_weights_are_those_of_the_last_save(sample: ModuleType, tmp_path: Path) -> None:
    for name in ("000009-step-900", "999999-step-40", "1000000-step-30", ".1000001-step-31.tmp"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "model.safetensors").touch()
    assert sample.newest_weights(tmp_path).parent.name == "1000000-step-30"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "there is no checkpoint with a model in nowhere"),
        (["nowhere", "--prompt", ""], "the prompt must not be empty"),
    ],
)
def test_what_cannot_be_sampled_is_reported(
    words: list[str], message: str, sample: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "argv", ["charlm_sample.py", *words])
    with pytest.raises(SystemExit) as leaving:
        sample.main()
    assert leaving.value.code not in (0, None)
    assert message in f"{leaving.value.code}{capsys.readouterr().err}"


def write(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the sampling script in a real process."""
    arguments = [sys.executable, "-W", "error", str(EXAMPLES / "charlm_sample.py"), *words]
    return subprocess.run(arguments, cwd=cwd, capture_output=True, text=True, timeout=300)
