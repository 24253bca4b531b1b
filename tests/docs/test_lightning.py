"""The module that the page about Lightning ports ends with the weights that Lightning gives it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer
from tests.docs.execution import read_blocks, without_fences

PAGE = Path(__file__).parents[2] / "docs" / "coming-from-lightning.md"

# 33 batches, so that the last window is incomplete; each side saves its final weights.
_DATA = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
inputs = torch.randn(33 * 16, 8)
train = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 16)
val = DataLoader(TensorDataset(inputs[:128], inputs[:128].sum(1, keepdim=True)), 64)
torch.manual_seed(0)
"""
_BEFORE = """
import before

models = []
before.Net = type("Net", (before.Net,), {"on_fit_end": lambda self: models.append(self)})
before.fit(train, val)
torch.save(models[0].state_dict(), "before.pt")
"""


@pytest.mark.second(9)
@pytest.mark.full
def test_the_ported_module_ends_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    files = {block.words[0]: block.text for block in read_blocks(PAGE) if block.words}
    for name in ("before.py", "net.toml"):
        (tmp_path / name).write_text(files[name], encoding="utf-8")
    command = [sys.executable, "-c", _DATA + _BEFORE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    expected = torch.load(tmp_path / "before.pt", weights_only=True)

    namespace: dict[str, Any] = {"__name__": "train"}
    exec(_DATA + files["train.py"], namespace)  # noqa: S102  # our own page
    resources = namespace["setup"]()
    torch.manual_seed(0)
    model = namespace["Net"]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    resources |= {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=24),
        "train_data": namespace["train"],
        "val_data": namespace["val"],
    }
    trainer = Trainer("net.toml", device="cpu", display=None, notify=lambda line: None, **resources)
    trainer.run()
    actual = model.state_dict()
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in actual)
    assert trainer.read("step.steps") == 3 * 9


def test_the_table_of_a_batch_has_every_node_of_fit_in_its_order() -> None:
    text = without_fences(PAGE.read_text(encoding="utf-8"))
    table = text.partition("## A batch, from hook to hook")[2].partition("\n## ")[0]
    assert [row.split("`")[1] for row in table.splitlines() if row.startswith("| `")] == [*Graph.load("fit").nodes]
