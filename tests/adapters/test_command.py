"""`graphtrain run --lightning` and `show --lightning`: a module without a script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("lightning")

from tests.command.conftest import Command, command, folder  # noqa: F401

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


class Data(LightningDataModule):
    def __init__(self, size: int = 3):
        super().__init__()
        self.size = size

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8 * self.size, 4)), 8)
"""


@pytest.fixture
def net(folder: Path) -> Path:  # noqa: F811
    (folder / "net.py").write_text(NET)
    return folder


@pytest.mark.full
def test_a_module_is_trained_and_resumed(net: Path, command: Command) -> None:  # noqa: F811
    words = ["run", "--lightning", "net.py:Net", "--data", "net.py:Data", "lr=0.05", "size=4", "max_epochs=2"]
    words += ["log.every=1 steps", "--run-dir", "run", "--quiet"]
    stopped = command(*words, "--until", "3 steps")
    assert stopped.code == 0, stopped.err
    assert command(*words).code == 0
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "train_loss" in row] == [*range(1, 9)]
    assert [row["rate"] for row in rows if "rate" in row] == pytest.approx([0.05, 0.05])


def test_the_procedure_of_a_module_is_shown(net: Path, command: Command) -> None:  # noqa: F811
    shown = command("show", "--lightning", "net.py:Net", "--data", "net.py:Data", "max_epochs=2")
    assert shown.code == 0, shown.err
    assert "on_train_epoch_end" in shown.out and "2 epochs" in shown.out
    same = command("show", "--adapter", "lightning=net.py:Net", "--data", "net.py:Data", "max_epochs=2")
    assert same.out == shown.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lightning", "net.py:Nett", "--data", "net.py:Data"], "did you mean net.py:Net?"),
        (["--lightning", "net.py"], "expected MODULE:CLASS"),
        (["--lightning", "nothing_here:Net"], "there is no module `nothing_here`"),
        (["--lightning", "net.py:Data"], "takes a LightningModule; got"),
        (["--lightning", "net.py:Net", "--data", "net.py:Data", "max_epoch=3"], "did you mean `max_epochs`?"),
        (["--lightning", "net.py:Net", "lr=0.1,0.2"], "write a command for each value"),
        (["--adapter", "keras=net.py:Net"], "there is no adapter `keras`"),
        (["--adapter", "net.py:Net"], "expected NAME=MODULE:CLASS"),
    ],
)
def test_what_cannot_be_named(net: Path, command: Command, words: list[str], message: str) -> None:  # noqa: F811
    result = command("run", *words)
    assert result.code == 2
    assert message in result.err
