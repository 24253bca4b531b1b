"""`graphtrain replay`: to any moment of a past run, bit for bit, with batch and gradients at hand."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from graphtrain.command.rebuild import TrainerFactory
from graphtrain.command.run import ScriptOrClass
from graphtrain.graph import Graph
from graphtrain.proof.history import RunHistory
from graphtrain.proof.replay import Replay, parse_moment
from graphtrain.storage.checkpoint import SavedCheckpoint
from tests.command.conftest import Command
from tests.command.running import contents, forget
from tests.command.test_verify import KEEPING, WHOLE

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


def replayed(run_dir: Path, to: str, node: str | None = None) -> Replay:
    """What the command does, without its words."""
    lineage = RunHistory(run_dir, lambda line: None).lineage()
    term = parse_moment(to, Graph.load("fit"))
    start: SavedCheckpoint | None = None
    for checkpoint in lineage:
        if checkpoint.counts[{"steps": "step", "batches": "next_batch"}[term.unit]][term.unit] < term.amount:
            start = checkpoint
    trainers = TrainerFactory(ScriptOrClass(script="whole.py"), [], lambda line: None)
    trainer = trainers.trainer(lineage[-1], from_the_beginning=start is None)
    replay = Replay(trainer, start.path if start is not None else None)
    assert replay.to_amount(term)
    assert node is None or replay.to_node(node)
    return replay


def same(one: Any, other: Any) -> bool:
    return bool(torch.equal(one.view(torch.uint8) if one.ndim else one, other.view(torch.uint8) if one.ndim else other))


@pytest.mark.full
@pytest.mark.parametrize("step", [1, 2, 3, 5, 9])
def test_a_step_has_the_loss_and_the_gradients_it_had(step: int, noted: Path) -> None:
    before = contents(noted / "r")
    replay = replayed(noted / "r", f"{step} steps")
    expected = load_file(noted / "noted" / f"step-{step}.safetensors")
    assert same(replay.slots["loss"], expected.pop("loss"))
    assert replay.gradients.keys() == expected.keys()
    for name, gradient in replay.gradients.items():
        assert same(gradient, expected[name]), name
    assert replay.trainer.position == "zero_grad" and replay.trainer.progress["step"]["steps"] == step
    assert contents(noted / "r") == before


@pytest.mark.first(3)
@pytest.mark.parametrize("batch", [1, 4, 8, 9, 24])
def test_a_batch_is_the_one_it_was(batch: int, noted: Path) -> None:
    replay = replayed(noted / "r", f"{batch} batches")
    expected = load_file(noted / "noted" / f"batch-{batch}.safetensors")
    assert [same(one, expected[str(index)]) for index, one in enumerate(replay.slots["batch"])] == [True, True]
    assert replay.trainer.position == "train_batch"
    assert replay.slots["loss"] is None, "that of the batch before would be taken for its own"


def test_a_replay_can_be_continued(noted: Path) -> None:
    replay = replayed(noted / "r", "2 steps", "train_batch")
    assert replay.trainer.position == "train_batch" and replay.trainer.progress["step"]["steps"] == 2
    replay.trainer.run()
    assert replay.trainer.digest() == json.loads((noted / "r" / "status.json").read_text())["digest"]


@pytest.mark.full
def test_a_checkpoint_is_a_moment(noted: Path, command: Command) -> None:
    """Nothing is run to it, and what follows is what followed."""
    before = contents(noted / "r")
    first, *_, last = sorted(path.name for path in (noted / "r" / "checkpoints").iterdir())
    result = command("replay", "whole.py", "--run-dir", "r", "--to", first)
    shown = f"step 1, epoch 0.62, batch 5/8, window 2/3, next node decide (replayed from {first})"
    assert (result.code, shown in result.out, contents(noted / "r")) == (0, True, before), result.out
    result = command("replay", "whole.py", "--run-dir", "r", "--to", first, "--node", "step")
    assert (result.code, "step 1, epoch 0.75, batch 6/8, window 3/3, next node step" in result.out) == (0, True), (
        result.out
    )
    result = command("replay", "whole.py", "--run-dir", "r", "--to", "newest")
    assert (result.code, f"next node end (replayed from {last})" in result.out) == (0, True), result.out
    result = command("replay", "whole.py", "--run-dir", "r", "--to", "best")
    assert (result.code, "none was ranked by a metric" in result.err) == (2, True), result.err


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
    assert re.search(r"^batch +list of 2 *\n +0: float32 \(3, 4\): mean ", result.out, re.MULTILINE)


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("to", "node", "shown"),
    [
        (
            "1 steps",
            None,
            "step 1, epoch 0.38, batch 3/8, window 3/3, next node zero_grad (replayed from the beginning)",
        ),
        ("7 batches", None, "step 2, epoch 0.88, batch 7/8, next node train_batch (replayed from 0"),
        ("1 epochs", None, "step 2, epoch 1, batch 8/8, window 1/3, next node train_batch (replayed from 0"),
        ("1.5 epochs", None, "step 4, epoch 1.50, batch 4/8, next node train_batch (replayed from 0"),
        (
            "3 steps",
            "validate/eval_batch",
            "step 3, epoch 1, batch 8/8, next node validate/eval_batch (replayed from 0",
        ),
        ("3 steps", "zero_grad", "step 3, epoch 1, batch 8/8, window 2/3, next node zero_grad (replayed from 0"),
        ("3 steps", "begin_epoch", "step 3, epoch 1, batch 8/8, next node begin_epoch (replayed from 0"),
    ],
)
def test_moments(to: str, node: str | None, shown: str, noted: Path, command: Command) -> None:
    words = ["replay", "whole.py", "--run-dir", "r", "--to", to, *(["--node", node] if node else [])]
    result = command(*words)
    assert (result.code, result.err.startswith("code, arguments, data")) == (0, True), result.err
    assert result.out.startswith(shown), result.out


def test_the_debugger(noted: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = [
        "p trainer.position, trainer.progress['step']['steps']",
        "p float(loss)",
        "p sorted(gradients)[:2], float(gradients['0.bias'][0])",
        "p type(model).__name__, tuple(batch[0].shape)",
        "p trainer.advance(), [one.grad for one in model.parameters()][0]",
        "c",
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(typed) + "\n"))
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


def test_the_debugger_inside_a_nested_graph(noted: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("p slots['validate/split'], model.training\nq\n"))
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


# --- Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.first(5)
@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--to", "10 steps"], "the run does not reach 10 steps: it ends at step 9", ""),
        (["--to", "5 stops"], "--to: unknown unit `stops`", "did you mean `steps`?"),
        (["--to", "3 minutes"], "--to: `minutes` are wall-clock time, which no replay repeats", "use batches"),
        (["--to", "2 steps", "--node", "stop"], "--node: there is no node `stop`", "did you mean `step`?"),
        (["--to", "9 steps", "--node", "clip"], "the node `clip` does not run again after 9 steps", ""),
        (["--to", "2 steps", "clip.max_norm=2.0"], "`clip.max_norm=`: the graph is that of the run", ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refusals(words: list[str], message: str, hint: str, noted: Path, command: Command) -> None:
    result = command("replay", "whole.py", "--run-dir", "r", *words)
    assert (result.code, result.out) == (2, "")
    assert f"error: {message}" in result.err and hint in result.err
    assert "Traceback" not in result.err


@pytest.mark.full
def test_before_the_oldest_checkpoint_of_a_fork(noted: Path, command: Command) -> None:
    words = [*KEEPING[:-1], "finish.after=4 epochs", "--fork", "r", "--run-dir", "forked", "--quiet"]
    assert command("run", "whole.py", *words).code == 0
    result = command("replay", "whole.py", "--run-dir", "forked", "--to", "2 steps")
    assert result.code == 2
    assert "2 steps is before the oldest checkpoint, 000001-step-9, and the run started from 0" in result.err
    assert "name a moment after 9 steps, or the checkpoint itself: --to 000001-step-9" in result.err
    result = command("replay", "whole.py", "--run-dir", "forked", "--to", "9 steps")
    assert "9 steps is just before the oldest checkpoint, 000001-step-9, and the run" in result.err
    assert command("replay", "whole.py", "--run-dir", "forked", "--to", "10 steps").code == 0


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
    fails: str, expected: str, folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = FAILING.replace("guarded = ", "graph = ") if fails == "guard" else FAILING
    (folder / "train.py").write_text(text)
    failed = command("run", "train.py", f"fails={fails}", "finish.after=2 epochs", "--run-dir", "r", "--quiet")
    assert failed.code == 1
    (line,) = re.findall(r"replay it: (graphtrain replay train.py --run-dir r .*)", failed.err)
    assert expected in line
    node, runs = line.split()[-3], int(line.split()[-1])
    monkeypatch.setattr("sys.stdin", io.StringIO(f"p trainer.read('{node}.runs')\np trainer.advance()\nq\n"))
    shown = command(*shlex.split(line)[1:], "--pdb")
    assert shown.code == 0 and f", next node {node} (replayed from 00000" in shown.out, shown
    assert f"(Pdb) {runs}\n" in shown.out
    assert f"(Pdb) *** raised in node `{node}`" in shown.out
