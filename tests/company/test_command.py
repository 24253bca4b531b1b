"""Promise 20: `graphtrain run --lightning` and `show --lightning`: a module without a script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("lightning")

from tests.looking.conftest import Command

pytestmark = pytest.mark.filterwarnings("ignore")

NET = """
import torch
from lightning.pytorch import LightningDataModule, LightningModule


class Net(LightningModule):
    def __init__(self, lr: float = 0.1):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        loss = self.layer(batch[0]).square().mean()
        self.log("train_loss", loss)
        return loss

    def on_train_epoch_end(self):
        self.log("rate", self.hparams.lr)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


def net(lr: float = 0.1):
    return Net(lr)


class Data(LightningDataModule):
    def __init__(self, size: int = 3):
        super().__init__()
        self.size = size

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8 * self.size, 4)), 8)
"""


@pytest.fixture
def net(folder: Path) -> Path:
    (folder / "net.py").write_text(NET)
    return folder


@pytest.mark.full
def test_a_module_is_trained_and_resumed(net: Path, command: Command) -> None:
    words = ["run", "--lightning", "net.py:Net", "--data", "net.py:Data", "lr=0.05", "size=4", "max_epochs=2"]
    words += ["log.every=1 steps", "--run-dir", "run", "--quiet"]
    stopped = command(*words, "--until", "3 steps")
    assert stopped.code == 0, stopped.err
    assert command(*words).code == 0
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "train_loss" in row] == [*range(1, 9)]
    assert [row["rate"] for row in rows if "rate" in row] == pytest.approx([0.05, 0.05])


@pytest.mark.full
def test_a_run_of_a_module_is_repeated(net: Path, command: Command) -> None:
    module = ["--lightning", "net.py:Net", "--data", "net.py:Data"]
    words = ["lr=0.05", "size=4", "max_epochs=2", "checkpoint.every=2 steps", "checkpoint.keep=9", "--quiet"]
    assert command("run", *module, *words, "--run-dir", "run").code == 0
    shown = command("replay", *module, "--run-dir", "run", "--to", "3 steps", "--node", "train_batch")
    assert shown.code == 0, shown.err
    assert "step 3, epoch 1, batch 4/4" in shown.out and "layer.weight" in shown.out and "unchanged: exact" in shown.err
    verified = command("verify", *module, "--run-dir", "run")
    assert verified.code == 0, verified.err
    assert "4 spans: bitwise equal" in verified.out
    longer = ["run", *module, *words, "finish.after=3 epochs", "--graph", "saved", "--run-dir", "run"]
    assert command(*longer).code == 0
    assert command("run", *module, *words, "--run-dir", "forked", "--fork", "run", "finish.after=4 epochs").code == 0
    assert "step 16" in command("status", "forked").out


@pytest.mark.parametrize("name", ["run", "replay", "verify"])
def test_without_a_script_and_a_module(name: str, folder: Path, command: Command) -> None:
    result = command(name, *(["--run-dir", "run"] if name != "replay" else ["--run-dir", "run", "--to", "newest"]))
    assert result.code == 2
    assert "Missing argument 'SCRIPT[:FUNCTION]', or --lightning MODULE:CLASS." in result.err
    assert "Traceback" not in result.err


def test_the_procedure_of_a_module_is_shown(net: Path, command: Command) -> None:
    shown = command("show", "--lightning", "net.py:Net", "--data", "net.py:Data", "max_epochs=2")
    assert shown.code == 0, shown.err
    assert "on_train_epoch_end" in shown.out and "2 epochs" in shown.out
    assert command("show", "--lightning", "net.py:net", "--data", "net.py:Data", "max_epochs=2").out == shown.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lightning", "net.py:Nett", "--data", "net.py:Data"], "did you mean net.py:Net?"),
        (["--lightning", "net.py"], "expected MODULE:CLASS"),
        (["--lightning", "nothing_here:Net"], "nothing_here cannot be imported"),
        (["--lightning", "net.py:Data"], "takes a LightningModule; got"),
        (["--lightning", "net.py:Net", "--data", "net.py:Data", "max_epoch=3"], "did you mean `max_epochs`?"),
        (["--lightning", "net.py:Net", "--data", "net.py:Data", "max_epochs=two"], "expected an integer, got 'two'"),
        (["--lightning", "net.py:Net", "--data", "net.py:Data", "lr=fast"], 'Net: lr: expected a number, got "fast"'),
        (["--lightning", "net.py:net", "--data", "net.py:Data", "lr=fast"], 'net: lr: expected a number, got "fast"'),
        (["--lightning", "net.py:Net", "--data", "net.py:Data", "size=x"], 'Data: size: expected an integer, got "x"'),
    ],
)
def test_what_cannot_be_named(net: Path, command: Command, words: list[str], message: str) -> None:
    result = command("run", *words)
    assert result.code == 2
    assert message in result.err
