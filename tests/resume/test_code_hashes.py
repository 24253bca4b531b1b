"""Code that is in no file, as that of a notebook, is compared at a resume."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer
from graphtrain.resume.code_hashes import code_hash, code_hashes
from graphtrain.resume.provenance import code_changes
from graphtrain.state.reachable import Reachable

STEP = """
SCALE = 2.0

def helper(loss):
    return loss * SCALE

def training_step(model, batch, power=2, *, sign=1):
    return helper(model(batch).abs() ** power).mean() * sign
"""


def session(source: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a cell defines."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(__import__("sys").modules, "__main__", module)
    exec(compile(source, "<ipython-input-1>", "exec"), vars(module))  # noqa: S102 - the source is above
    return vars(module)


def line_of(source: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, lines = torch.nn.Linear(2, 1), []
    monkeypatch.chdir(run_dir.parent)
    trainer = Trainer(
        Graph.load("fit").set("finish", after="8 batches").set("checkpoint", every="never"),
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=lines.append,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        train_data=[torch.ones(2, 2)] * 4,
        training_step=session(source, monkeypatch)["training_step"],
    )
    trainer.advance(3)
    trainer.save()
    return next((line for line in lines if line.startswith("resumed ")), "")


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("", "", ""),
        ("\ndef helper", "\n\n\ndef helper", ""),
        (".abs()", ".square()", "training_step()"),
        ("** power", "** (power + 1)", "training_step()"),
        ("power=2", "power=3", "training_step()"),
        ("sign=1", "sign=-1", "training_step()"),
        ("loss * SCALE", "loss + SCALE", "__main__:helper()"),
        ("SCALE = 2.0", "SCALE = 3.0", "__main__:SCALE differs"),
    ],
)
def test_a_cell_that_was_changed_is_named(
    old: str, new: str, changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert line_of(STEP, tmp_path / "r", monkeypatch) == ""
    line = line_of(STEP.replace(old, new, 1), tmp_path / "r", monkeypatch)
    if changed:
        assert changed in line
        assert not line.endswith("unchanged: exact")
    else:
        assert line.endswith("code, data, versions, threads unchanged: exact")


def test_what_is_hashed() -> None:
    def inner(constants: str) -> types.FunctionType:
        namespace: dict[str, Any] = {}
        exec(f"def step(x):\n    def within(y):\n        return y in {constants}\n    return within(x)", namespace)  # noqa: S102
        return namespace["step"]  # type: ignore[no-any-return]

    assert code_hash(inner("{'a', 'b'}")) == code_hash(inner("{'b', 'a'}"))
    assert code_hash(inner("(1, 2)")) != code_hash(inner("(1, 2.0)"))
    assert code_hash(inner("(0.0, 1)")) != code_hash(inner("(-0.0, 1)"))
    reachable = Reachable({"made": inner("'ab'"), "of a file": code_hash, "of a test": line_of})
    assert set(code_hashes(reachable, lambda file: file == __file__)) == {"made"}
    assert "of a test" in code_hashes(reachable, lambda file: False)


def test_a_notebook_of_an_earlier_version_is_not_known() -> None:
    now = {"script": "", "code": {}, "functions": {"training_step": "aa"}}
    assert code_changes({"script": "", "code": {}}, now) is None
    assert code_changes(now, now) == []
