"""Promise 16: `graphtrain verify`: a sound run is proved, and lost state is told from what cannot be repeated."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Graph, Trainer
from tests.looking.conftest import Command
from tests.looking.running import TINY, Result, contents, forget
from tests.world import seed_generators

# Everything that a resume must bring back: shuffling, augmentation, dropout, batch norm, a schedule, validation.
WHOLE = """\
import random

import numpy
import torch
from torch.utils.data import DataLoader, Dataset

from graphtrain import Loader


class Augmented(Dataset):
    def __init__(self):
        self.inputs = torch.randn(23, 4)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        noise = torch.randn(4) * 0.1 + random.random() + numpy.random.rand()
        return self.inputs[index] + noise.float(), self.inputs[index].sum(0, keepdim=True)


def training_step(model, batch):
    inputs, targets = batch
    return torch.nn.functional.mse_loss(model(inputs), targets)


def setup(lr: float = 0.01, plain: bool = False):
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(6, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    loader = DataLoader if plain else Loader
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
        "train_data": loader(Augmented(), 3, shuffle=True),
        "val_data": loader(Augmented(), 5),
        "training_step": training_step,
    }
"""

SETTINGS = ["accumulate.every=3", "clip.max_norm=1.0", "validate.every=0.5 epochs", "log.every=1 steps"]
KEEPING = [*SETTINGS, "checkpoint.every=5 batches", "checkpoint.keep=100", "finish.after=3 epochs"]

# A data set with a counter that no checkpoint holds, a step that asks the operating system, a clock, a global counter.
COUNTING = TINY.replace(
    "import torch\n",
    "import itertools\nimport torch\n\nclass Counting:\n"
    "    def __init__(self):\n        self.reads = itertools.count(1)\n\n"
    "    def __len__(self):\n        return 6\n\n    def __getitem__(self, index):\n"
    "        if index >= 6:\n            raise IndexError(index)\n"
    "        return torch.full((2, 2), float(next(self.reads)))\n",
).replace("[torch.randn(2, 2) for _ in range(batches)]", "Counting()")
GLOBAL_ITERATOR = TINY.replace(
    "def training_step(model, batch):\n",
    "import itertools\n\nreads = itertools.count(1)\n\n"
    "def training_step(model, batch):\n    batch = batch + next(reads)\n",
)
OF_THE_SYSTEM = TINY.replace("import torch\n", "import os\nimport torch\n").replace(
    "    return model(batch)", "    batch = batch + os.urandom(1)[0] / 7\n    return model(batch)"
)


def trainer_of(script: str, graph: Graph | str, **options: Any) -> Trainer:
    """What the command sets up for the run directory `r`, in this process."""
    sys.path.insert(0, str(Path.cwd()))
    setup = importlib.import_module(script.removesuffix(".py")).setup
    seed_generators(0)
    about = {"command": "as by the command", "script": script}
    return Trainer(
        graph, **{"run_dir": "r", "notify": lambda line: None, "display": None, "about": about, **options}, **setup()
    )


def rows(result: Result) -> list[list[str]]:
    """From, to and result of each span."""
    found = re.findall(r"^(\S.*) to (\S+): (equal|cannot be replayed|\d+ fields? differ)", result.out, re.MULTILINE)
    return [[*cells[:2], re.sub(r"\d+ fields? ", "", cells[2])] for cells in found]


def differing(result: Result) -> list[str]:
    """The paths of the fields that are named as different."""
    return re.findall(
        r"^  ((?:progress|random|slots|modules|resources|optimizers|gradients|metrics)/[^:]+): ",
        result.out,
        re.MULTILINE,
    )


@pytest.mark.full
def test_a_run_that_was_interrupted_and_resumed_is_proved(folder: Path, command: Command) -> None:
    (folder / "whole.py").write_text(WHOLE)
    words = ["run", "whole.py", "lr=0.02", *KEEPING, "--seed", "5", "--run-dir", "r", "--quiet"]
    assert command(*words, "--until", "7 batches").code == 0
    assert command(*words).code == 0
    before = contents(folder / "r")
    result = command("verify", "whole.py", "--run-dir", "r")
    assert (result.code, result.err) == (0, "code, arguments, data, versions, threads unchanged: exact\n")
    assert contents(folder / "r") == before, "the run directory is only read"
    names = sorted(one.name for one in (folder / "r" / "checkpoints").iterdir())
    found = rows(result)
    assert [row[:2] for row in found] == [list(pair) for pair in zip(["the beginning", *names], names, strict=False)]
    assert {row[-1] for row in found} == {"equal"}
    assert result.out.rstrip().endswith(f"{len(names)} spans: bitwise equal")


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("position", ["validate/eval_batch", "clip", "train_batch", "step", "zero_grad", "end_epoch"])
def test_checkpoints_at_odd_places(position: str, folder: Path, command: Command) -> None:
    """Inside a validation, inside an open window, between a step and the clearing of its gradients."""
    (folder / "whole.py").write_text(WHOLE)
    graph = Graph.load("fit").set("accumulate", every=3).set("clip", max_norm=1.0).set("validate", every="0.5 epochs")
    graph = graph.set("log", every="1 steps").set("checkpoint", every="never", keep=9)
    trainer = trainer_of("whole.py", graph)
    for arrivals in (1, 7 if "/" in position else 2):
        for _ in range(arrivals):  # the second is not the next one: inside a window, inside the next validation
            trainer.advance()
            while trainer.position != position:
                trainer.advance()
        trainer.save()
        assert trainer.position == position
    result = command("verify", "whole.py", "--run-dir", "r")
    assert (result.code, [row[-1] for row in rows(result)]) == (0, ["equal", "equal"]), result.out


BARE = """\
format = 1
name   = "bare"
start  = "next_batch"

[nodes]
next_batch  = {}
train_batch = {}
step        = {}
count_up    = {}
zero_grad   = {}

[guards]
enough = "step.steps >= 9"

[edges]
next_batch  = ["train_batch"]
train_batch = ["step"]
step        = ["count_up"]
count_up    = ["zero_grad"]
zero_grad   = ["end if enough", "next_batch"]
"""


@pytest.mark.full
def test_a_graph_without_a_clock_with_a_kind_of_the_script(folder: Path, command: Command) -> None:
    kind = (
        "from graphtrain import node, progress\n\n@node\nclass CountUp:\n    seen: int = progress(0)\n\n"
        "    def __call__(self):\n        self.seen += 2\n\n"
    )
    (folder / "mine.py").write_text(kind + TINY)
    (folder / "bare.toml").write_text(BARE)
    trainer = trainer_of("mine.py", "bare.toml")
    for transitions in (7, 16):
        trainer.advance(transitions)
        trainer.save()
    trainer.run()
    result = command("verify", "mine.py", "--run-dir", "r")
    assert result.code == 0, result.out
    assert {row[-1] for row in rows(result)} == {"equal"}


# --- What is found ---------------------------------------------------------------------------------------------------


@pytest.mark.second(1)
@pytest.mark.parametrize(
    "script", [COUNTING, GLOBAL_ITERATOR], ids=["an iterator in the data set", "an iterator in a global variable"]
)
def test_state_that_is_lost_is_named(script: str, folder: Path, command: Command) -> None:
    (folder / "mine.py").write_text(script)
    words = ["run", "mine.py", "checkpoint.every=3 batches", "checkpoint.keep=9", "finish.after=12 batches"]
    assert command(*words, "--run-dir", "r", "--quiet").code == 0
    forget("mine")
    before = contents(folder / "r")
    result = command("verify", "mine.py", "--run-dir", "r")
    assert result.code == 1
    # The earlier batches of an epoch are drawn again on a resume, so the data set loses its count with the epoch.
    sound = 2 if script is COUNTING else 1
    assert [row[-1] for row in rows(result)][: sound + 1] == [*["equal"] * sound, "differ"]
    assert " depends on something that was not saved, or not restored" in result.out
    assert differing(result)[0] == "resources/model/weight"
    assert re.search(r"resources/model/weight: 2 of 2 elements, by at most [\d.e+-]+, first at \[0, 0\]: ", result.out)
    assert "the computation is not repeatable" not in result.out
    assert contents(folder / "r") == before


@pytest.mark.full
def test_a_computation_that_is_not_repeatable_is_told_from_lost_state(folder: Path, command: Command) -> None:
    (folder / "mine.py").write_text(OF_THE_SYSTEM)
    words = ["run", "mine.py", "checkpoint.every=3 batches", "checkpoint.keep=9", "finish.after=6 batches"]
    assert command(*words, "--run-dir", "r", "--quiet").code == 0
    result = command("verify", "mine.py", "--run-dir", "r")
    assert result.code == 1
    assert rows(result)[0][::2] == ["the beginning", "differ"]
    assert "Nothing was resumed here, so the computation is not repeatable" in result.out
    assert differing(result)


# Each is a field that a script loses in another way: the comparison must see every one.
LOSSES = {
    "gradients/model/weight": ("model.weight.grad.add_(1)", "accumulate.every=4"),
    "modules/model/training/": ("model.train(False)", "accumulate.every=1"),
    "random/python": ("import random; random.random()", "accumulate.every=1"),
    "random/numpy/state/pos": ("import numpy; numpy.random.rand()", "accumulate.every=1"),
    "random/torch": ("torch.rand(1)", "accumulate.every=1"),
}


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("path", LOSSES)
def test_every_kind_of_field_is_compared(path: str, folder: Path, command: Command) -> None:
    """A function that does something in the run and not in the replay: it looks for a file."""
    deed, setting = LOSSES[path]
    script = TINY.replace("import torch\n", "import pathlib\nimport torch\n").replace(
        "    return model(batch).square().mean()\n",
        "    loss = model(batch).square().mean()\n"
        f"    if step >= 0 and pathlib.Path('running').exists() and index == 2:\n        {deed}\n    return loss\n",
    )
    script = script.replace("(model, batch):", "(model, batch, step, batch_index):").replace(
        "index == 2", "batch_index == 2"
    )
    (folder / "mine.py").write_text(script)
    (folder / "running").touch()
    words = ["run", "mine.py", setting, "checkpoint.every=3 batches", "checkpoint.keep=9", "finish.after=1 epochs"]
    assert command(*words, "--run-dir", "r", "--quiet").code == 0
    (folder / "running").unlink()
    result = command("verify", "mine.py", "--run-dir", "r")
    assert result.code == 1
    assert any(one.startswith(path) for one in differing(result)), result.out


# --- Which spans there are -------------------------------------------------------------------------------------------


@pytest.mark.full
def test_last(tiny: Path, command: Command) -> None:
    words = ["run", "tiny.py", "checkpoint.keep=9", "finish.after=4 epochs", "--until", "14 batches"]
    words += ["--run-dir", "r", "--quiet"]
    assert command(*words).code == 0
    names = sorted(one.name for one in (tiny / "r" / "checkpoints").iterdir())
    result = command("verify", "tiny.py", "--run-dir", "r", "--last", "1")
    assert (result.code, [row[:2] for row in rows(result)]) == (0, [names[-2:]])
    everything = command("verify", "tiny.py", "--run-dir", "r", "--last", "99")
    assert [row[0] for row in rows(everything)] == ["the beginning", *names[:-1]]


@pytest.mark.full
def test_arguments_come_from_the_run_and_from_the_command_line(folder: Path, command: Command) -> None:
    signature = "import math\nfrom pathlib import Path\nfrom typing import Any\n\ndef setup(lr: float, path: Path, "
    signature += "most: float = 1.0, sizes: list[int] = [1], name: str = 'x', **rest: Any):\n    batches = 4\n"
    signature += "    assert (path, most, sizes, name) == (Path('a b/c'), math.inf, [1, 2], '3'), (path, most, sizes)\n"
    body = TINY.split('name: str = "tiny"):\n')[1]
    (folder / "mine.py").write_text(TINY.split("def setup")[0] + signature + body)
    words = ["lr=1", "path=a b/c", "most=inf", "sizes=[1, 2]", 'name="3"', "checkpoint.keep=9", "finish.after=2 epochs"]
    run = command("run", "mine.py", *words, "--run-dir", "r", "--quiet")
    assert run.code == 0, run.err
    assert command("verify", "mine.py", "--run-dir", "r").code == 0
    changed = command("verify", "mine.py", "lr=2", "--run-dir", "r")
    assert changed.err.startswith("exact except for what changed: lr 1.0 -> 2.0")
    assert changed.code == 1, "from the beginning, with another learning rate"
    assert [row[-1] for row in rows(changed)] == ["differ", "equal"]
    assert "This changed since the run, and may be the reason: lr 1.0 -> 2.0." in changed.out


@pytest.mark.full
@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ("--run-dir first", "--init model=first/newest --run-dir r", ""),
        (
            "--run-dir first",
            "--fork first --run-dir r",
            "skipped the beginning to 000001-step-4: the run started from first/checkpoints/0",
        ),
        ("--run-dir r", "lr=0.05 --from-setup optimizer.lr --run-dir r", "hyper-parameters were changed in between"),
    ],
)
def test_how_a_run_began_is_gone_through_again(first: str, then: str, said: str, tiny: Path, command: Command) -> None:
    run = ["run", "tiny.py", "checkpoint.keep=9"]
    assert command(*run, "finish.after=1 epochs", *first.split()).code == 0
    assert command(*run, "finish.after=3 epochs", *then.split()).code == 0
    result = command("verify", "tiny.py", "--run-dir", "r")
    assert result.code == 0 and said in result.err, result
    assert {row[-1] for row in rows(result)} == {"equal"}


@pytest.mark.full
def test_how_a_run_began_must_be_known(tiny: Path, command: Command) -> None:
    graph = Graph.load("fit").set("checkpoint", keep=9).set("finish", after="2 epochs")
    trainer_of("tiny.py", graph, about=None).run()
    result = command("verify", "tiny.py", "--run-dir", "r")
    assert result.code == 0
    assert (
        "000001-step-4: the run was not started by the `graphtrain` command, so the seed of its setup is not known"
        in result.err
    )
    assert rows(result)[0][:2] == ["000001-step-4", "000003-step-8"]
    (tiny / "r" / "starts.jsonl").write_text("[1]\n")
    assert "how the run started is not known" in command("verify", "tiny.py", "--run-dir", "r").err


def test_a_graph_that_was_rewired_between_two_checkpoints(tiny: Path, command: Command) -> None:
    graph = Graph.load("fit").set("checkpoint", every="4 batches", keep=99)
    trainer = trainer_of("tiny.py", graph)
    trainer.run(until="6 batches")
    trainer.rewire(graph.set("accumulate", every=2))
    trainer.run(until="12 batches")
    result = command("verify", "tiny.py", "--run-dir", "r")
    assert result.code == 0, result.out
    names = sorted(one.name for one in (tiny / "r" / "checkpoints").iterdir())
    assert f"skipped {names[1]} to {names[2]}: the graph was rewired in between" in result.err
    assert [row[:2] for row in rows(result)][1] == names[:2]


def test_state_that_cannot_be_loaded_back_is_reported_for_its_span(folder: Path, command: Command) -> None:
    """A resource whose state is not loaded exactly: no replay from there can be begun."""
    forgetful = TINY.replace(
        "def setup",
        "class Forgetful:\n    seen = 0\n    def state_dict(self):\n        return {'seen': self.seen}\n"
        "    def load_state_dict(self, state):\n        self.seen = 0\n\nforgetful = Forgetful()\n\ndef setup",
    ).replace("def training_step(model, batch):\n", "def training_step(model, batch):\n    forgetful.seen += 1\n")
    forgetful = forgetful.replace('"model": model,', '"model": model, "counter": forgetful,')
    (folder / "mine.py").write_text(forgetful)
    words = ["run", "mine.py", "checkpoint.every=2 batches", "checkpoint.keep=9", "finish.after=1 epochs"]
    assert command(*words, "--run-dir", "r", "--quiet").code == 0
    forget("mine")
    result = command("verify", "mine.py", "--run-dir", "r")
    assert result.code == 1
    assert [row[-1] for row in rows(result)] == ["equal", "cannot be replayed"]
    assert "the loaded state is not the saved state" in result.out
