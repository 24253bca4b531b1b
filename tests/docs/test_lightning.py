"""The module that the page about Lightning ports ends with the weights that Lightning gives it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer
from tests.docs.execution import read_blocks, read_page, without_fences

PAGE = Path(__file__).parents[2] / "docs" / "coming-from.md"

# The module of the page, trained by Lightning with the flags that the ported one has as parameters.
_BEFORE = """
import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from net import Data, Net

torch.manual_seed(0)
module = Net()
trainer = L.Trainer(
    max_epochs=3,
    accumulate_grad_batches=4,
    gradient_clip_val=1.0,
    val_check_interval=0.25,
    log_every_n_steps=10,
    callbacks=[ModelCheckpoint(every_n_epochs=1, save_top_k=-1)],
)
trainer.fit(module, Data())
torch.save(module.state_dict(), "before.pt")
"""


@pytest.mark.second(9)
@pytest.mark.full
def test_the_ported_module_ends_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    files = {block.words[0]: block.text for block in read_blocks(PAGE) if block.words}
    (tmp_path / "net.py").write_text(files["net.py"], encoding="utf-8")
    command = [sys.executable, "-c", _BEFORE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    expected = torch.load(tmp_path / "before.pt", weights_only=True)

    namespace: dict[str, Any] = {"__name__": "train"}
    exec(files["train.py"], namespace)  # noqa: S102  # our own page
    torch.manual_seed(0)
    trainer = Trainer(namespace["graph"], device="cpu", display=None, notify=lambda line: None, **namespace["setup"]())
    trainer.run()
    actual = trainer.resources["model"].state_dict()
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in actual)
    assert trainer.read("step.steps") == 3 * 2


def test_the_table_of_a_batch_has_every_node_of_fit_in_its_order() -> None:
    text = without_fences(read_page(PAGE))
    table = text.partition("## Hooks")[2].partition("\n## ")[0]
    assert [row.split("`")[1] for row in table.splitlines() if row.startswith("| `")] == [*Graph.load("fit").nodes]
