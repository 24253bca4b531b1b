"""Promise 16: `graphtrain replay`: to any moment of a past run, bit for bit, with batch and gradients at hand."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.looking.conftest import Command
from tests.looking.running import contents, forget
from tests.looking.test_verify import KEEPING, WHOLE

# The original run notes what it sees, while a file is there: every gradient and loss at a step, every batch.
NOTING = WHOLE.replace(
    "def training_step(model, batch):\n    inputs, targets = batch\n"
    "    return torch.nn.functional.mse_loss(model(inputs), targets)\n",
    """\
import pathlib

from safetensors.torch import save_file

seen = {"step": 0, "batch": 0}


def note(name, tensors):
    if pathlib.Path("noting").exists():
        save_file({key: one.detach().clone() for key, one in tensors.items()}, f"noting/{name}.safetensors")


def training_step(model, batch):
    inputs, targets = batch
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    seen["loss"] = loss
    if model.training:
        seen["batch"] += 1
        note(f"batch-{seen['batch']}", {"0": inputs, "1": targets})
    return loss
""",
).replace(
    "    loader = DataLoader if plain else Loader\n",
    """    loader = DataLoader if plain else Loader

    def noted(optimizer, arguments, keywords):
        seen["step"] += 1
        gradients = {name: one.grad for name, one in model.named_parameters()}
        note(f"step-{seen['step']}", {**gradients, "loss": seen["loss"]})

    optimizer.register_step_pre_hook(noted)
""",
)


NOTED: list[Path] = []


@pytest.fixture
def noted(folder: Path, command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 24 batches and 9 steps in ``r``, with what it saw in ``noted``; a copy of the first one."""
    if NOTED:
        shutil.copytree(NOTED[0], folder, dirs_exist_ok=True)
        return folder
    (folder / "whole.py").write_text(NOTING)
    (folder / "noting").mkdir()
    assert command("run", "whole.py", *KEEPING, "--run-dir", "r", "--quiet").code == 0
    forget("whole")
    (folder / "noting").rename(folder / "noted")
    assert len(list((folder / "noted").glob("step-*"))) == 9, "three windows an epoch, the last of two batches"
    assert len(list((folder / "noted").glob("batch-*"))) == 24
    NOTED.append(tmp_path_factory.mktemp("noted"))
    shutil.copytree(folder, NOTED[0], dirs_exist_ok=True)
    return folder


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Type lines into the debugger that `--pdb` will open."""
    return lambda *lines: monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))


SAVE = "!import safetensors.torch; safetensors.torch.save_file({}, 'seen.safetensors')"


def assert_bitwise(one: Path, other: Path) -> None:
    saved, expected = load_file(one), load_file(other)
    assert saved.keys() == expected.keys()
    for name, value in saved.items():
        assert value.dtype == expected[name].dtype and torch.equal(value, expected[name]), name


@pytest.mark.full
@pytest.mark.parametrize("step", [5, 1, 2, 3, 9])
def test_a_step_has_the_loss_and_the_gradients_it_had(
    step: int, noted: Path, command: Command, typed: Callable[..., None]
) -> None:
    before = contents(noted / "r")
    typed(
        SAVE.format("{**gradients, 'loss': loss.detach()}"),
        "p trainer.position, trainer.progress['step']['steps']",
        "q",
    )
    result = command("replay", "whole.py", "--run-dir", "r", "--to", f"{step} steps", "--pdb")
    assert result.code == 0 and f"('zero_grad', {step})" in result.out, result
    assert_bitwise(noted / "seen.safetensors", noted / "noted" / f"step-{step}.safetensors")
    assert contents(noted / "r") == before


@pytest.mark.first(2)
@pytest.mark.parametrize("batch", [4, 9, 1, 8, 24])
def test_a_batch_is_the_one_it_was(batch: int, noted: Path, command: Command, typed: Callable[..., None]) -> None:
    typed(SAVE.format("{'0': batch[0], '1': batch[1]}"), "p trainer.position, 'loss' in slots", "q")
    result = command("replay", "whole.py", "--run-dir", "r", "--to", f"{batch} batches", "--pdb")
    assert result.code == 0 and "('train_batch', False)" in result.out, "a loss would be that of the batch before"
    assert_bitwise(noted / "seen.safetensors", noted / "noted" / f"batch-{batch}.safetensors")


def test_a_replay_can_be_continued(noted: Path, command: Command, typed: Callable[..., None]) -> None:
    typed("p trainer.position, trainer.progress['step']['steps']", "p trainer.run()", "p trainer.digest()", "q")
    words = ["--to", "2 steps", "--node", "train_batch", "--pdb"]
    result = command("replay", "whole.py", "--run-dir", "r", *words)
    digest = json.loads((noted / "r" / "status.json").read_text())["digest"]
    assert "('train_batch', 2)" in result.out and f"(Pdb) '{digest}'" in result.out


# --- The command -----------------------------------------------------------------------------------------------------


def test_what_is_shown(noted: Path, command: Command) -> None:
    before = contents(noted / "r")
    result = command("replay", "whole.py", "--run-dir", "r", "--to", "5 steps")
    assert (result.code, contents(noted / "r")) == (0, before)
    assert result.err == "code, arguments, data, versions, threads unchanged: exact\n"
    names = sorted(one.name for one in (noted / "r" / "checkpoints").iterdir())
    assert result.out.startswith("step 5, epoch 1.75, batch 6/8, window 3/3, next node zero_grad (replayed from ")
    assert f"(replayed from {names[-4]})" in result.out, names
    expected = load_file(noted / "noted" / "step-5.safetensors")
    loss = re.search(r"^loss +float32 \(\): (\S+) *$", result.out, re.MULTILINE)
    assert loss is not None and float(loss[1]) == pytest.approx(float(expected["loss"]), rel=1e-8)
    for name in ("0.weight", "4.bias"):
        shape = " x ".join(map(str, expected[name].shape))
        norm = f"{float(expected[name].double().norm()):.6g}"
        assert re.search(rf"^{name} +{shape} +{re.escape(norm)} +\S+$", result.out, re.MULTILINE), (name, norm)
    assert re.search(r"^batch\[0\] +float32 \(3, 4\): mean ", result.out, re.MULTILINE)


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("1_steps", "step 1, epoch 0.38, batch 3/8, window 3/3, next node zero_grad (replayed from the beginning)"),
        ("7_batches", "step 2, epoch 0.88, batch 7/8, next node train_batch (replayed from 0"),
        ("1_epochs", "step 2, epoch 1, batch 8/8, window 1/3, next node train_batch (replayed from 0"),
        ("1.5_epochs", "step 4, epoch 1.50, batch 4/8, next node train_batch (replayed from 0"),
        ("3_steps --node validate/eval_batch", "step 3, epoch 1, batch 8/8, next node validate/eval_batch (replayed f"),
        ("3_steps --node zero_grad", "step 3, epoch 1, batch 8/8, window 2/3, next node zero_grad (replayed from 0"),
        ("3_steps --node begin_epoch", "step 3, epoch 1, batch 8/8, next node begin_epoch (replayed from 0"),
        # A checkpoint is a moment: nothing is run to it, and what follows is what followed.
        ("FIRST", "step 1, epoch 0.62, batch 5/8, window 2/3, next node decide (replayed from FIRST)"),
        ("FIRST --node step", "step 1, epoch 0.75, batch 6/8, window 3/3, next node step"),
        ("newest", "step 9, epoch 3, batch 8/8"),
    ],
)
def test_moments(words: str, shown: str, noted: Path, command: Command) -> None:
    before, first = contents(noted / "r"), min(path.name for path in (noted / "r" / "checkpoints").iterdir())
    to = [word.replace("_", " ", word[0].isdigit()) if word != "FIRST" else first for word in words.split()]
    result = command("replay", "whole.py", "--run-dir", "r", "--to", *to)
    assert (result.code, result.err.startswith("code, arguments, data")) == (0, True), result.err
    assert result.out.startswith(shown.replace("FIRST", first)), result.out
    assert contents(noted / "r") == before


def test_the_debugger(noted: Path, command: Command, typed: Callable[..., None]) -> None:
    typed(
        "p trainer.position, trainer.progress['step']['steps']",
        "p float(loss)",
        "p sorted(gradients)[:2], float(gradients['0.bias'][0])",
        "p type(model).__name__, tuple(batch[0].shape)",
        "p trainer.advance(), [one.grad for one in model.parameters()][0]",
        "c",
    )
    before = contents(noted / "r")
    result = command("replay", "whole.py", "--run-dir", "r", "--to", "5 steps", "--pdb")
    assert (result.code, contents(noted / "r")) == (0, before)
    expected = load_file(noted / "noted" / "step-5.safetensors")
    answers = [line.removeprefix("(Pdb) ") for line in result.out.splitlines() if line.startswith("(Pdb) ")]
    assert answers[:5] == [
        "('zero_grad', 5)",
        repr(float(expected["loss"])),
        repr((["0.bias", "0.weight"], float(expected["0.bias"][0]))),
        "('Sequential', (3, 4))",
        "('decide', None)",
    ]
    assert "names here, as they are at this moment: model, optimizer" in result.out and "gradients" in result.out


def test_the_debugger_inside_a_nested_graph(noted: Path, command: Command, typed: Callable[..., None]) -> None:
    typed("p slots['validate/split'], model.training", "q")
    words = ["--to", "4 batches", "--node", "validate/eval_batch", "--pdb"]
    result = command("replay", "whole.py", "--run-dir", "r", *words)
    assert result.code == 0
    assert "(Pdb) ('val', False)" in result.out


def test_a_run_that_was_killed_goes_beyond_its_last_checkpoint(noted: Path, command: Command) -> None:
    for path in sorted((noted / "r" / "checkpoints").iterdir())[3:]:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    result = command("replay", "whole.py", "--run-dir", "r", "--to", "8 steps")
    assert result.code == 0
    assert "8 steps are after the last checkpoint, 000003-" in result.err
    assert "(replayed from 000003-" in result.out


# --- After a failure -------------------------------------------------------------------------------------------------

FAILING = """\
import torch
from graphtrain import Graph


class Data(list):
    def __init__(self, batches, fails):
        super().__init__(batches)
        self.fails = fails

    def __iter__(self):
        for number, batch in enumerate(list.__iter__(self)):
            if self.fails == "data" and number == 4:
                raise ValueError("fails here")
            yield batch


def setup(fails: str):
    model = torch.nn.Linear(2, 1)

    def training_step(model, batch, step):
        if fails == "training" and step == 5:
            raise ValueError("fails here")
        return model(batch).square().mean()

    def validation_step(model, batch, step, batch_index):
        if fails == "validation" and step == 6 and batch_index == 2:
            raise ValueError("fails here")
        return {"loss": model(batch).square().mean()}

    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "train_data": Data([torch.randn(2, 2) for _ in range(6)], fails),
        "val_data": [torch.randn(2, 2) for _ in range(4)],
        "training_step": training_step,
        "validation_step": validation_step,
    }


graph = Graph.load("fit").set("validate", every="2 batches").set("checkpoint", every="2 steps")
guarded = graph.set("log", every="3 steps").guard("log_due", "log.due and 1 / (3 - step.steps) < 9")
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("fails", "expected"),
    [
        ("training", "--to '6 batches' --node train_batch --runs 5"),
        ("validation", "--to '6 batches' --node validate/eval_batch --runs 2"),
        ("data", "--to '4 batches' --node next_batch --runs 4"),
        ("guard", "--to '3 batches' --node decide --runs "),
    ],
)
def test_a_failure_is_printed_with_the_line_that_leads_to_it(
    fails: str, expected: str, folder: Path, command: Command, typed: Callable[..., None]
) -> None:
    text = FAILING.replace("guarded = ", "graph = ") if fails == "guard" else FAILING
    (folder / "train.py").write_text(text)
    failed = command("run", "train.py", f"fails={fails}", "finish.after=2 epochs", "--run-dir", "r", "--quiet")
    assert failed.code == 1
    (line,) = re.findall(r"replay it: (graphtrain replay train.py --run-dir r .*)", failed.err)
    assert expected in line
    node, runs = line.split()[-3], int(line.split()[-1])
    typed(f"p trainer.read('{node}.runs')", "p trainer.advance()", "q")
    shown = command(*shlex.split(line)[1:], "--pdb")
    assert shown.code == 0 and f", next node {node} (replayed from 00000" in shown.out, shown
    assert f"(Pdb) {runs}\n" in shown.out
    assert f"(Pdb) *** raised in node `{node}`" in shown.out
