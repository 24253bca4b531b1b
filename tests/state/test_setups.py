"""Set-ups that people use: cut, resumed in a fresh process, and compared bit for bit with the run that was never cut.

What a resume reports is part of the table: where it says that it is exact, nothing may differ.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import random
import shutil
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer
from graphtrain.storage.encoding import Tensors, pack
from tests.state.setups import data, models, objects, optimizers
from tests.state.setups.rows import ROWS, Row

EPOCHS = 3
TABLES = (models, optimizers, objects, data)


def trainer_of(row: Row, run_dir: Path, lines: list[str]) -> Trainer:
    graph = Graph.load("fit").set("finish", after=f"{EPOCHS} epochs").set("checkpoint", every="never")
    for name, parameters in row.parameters.items():
        graph = graph.set(name, **parameters)
    torch.manual_seed(1)
    random.seed(1)
    return Trainer(graph, run_dir, display=None, notify=lines.append, **row.make())


def result_of(trainer: Trainer, run_dir: Path) -> dict[str, Any]:
    tensors = Tensors("result")
    optimizer = trainer.resources["optimizer"]
    packed = pack([trainer.resources["model"].state_dict(), optimizer.state_dict()], "result", tensors)
    digest = hashlib.sha256(packed)
    for tensor in tensors.named.values():
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    metrics = (run_dir / "metrics.jsonl").read_text(encoding="utf-8")
    return {"weights and optimizer": digest.hexdigest(), "digest": trainer.digest(), "metrics": metrics}


def whole(row: Row, folder: Path, cuts: list[int]) -> dict[str, Any]:
    """Train to the end, and keep a copy of the run directory at each cut; those that are no save point move on."""
    lines: list[str] = []
    trainer = trainer_of(row, folder / "whole", lines)
    transitions = 0
    for number, cut in enumerate(sorted(cuts)):
        while transitions < cut and trainer.position != "end":
            trainer.advance()
            transitions += 1
        trainer.save()
        shutil.copytree(folder / "whole", folder / f"cut{number}")
    trainer.run()
    return {**result_of(trainer, folder / "whole"), "lines": lines}


def resumed(row: Row, folder: Path) -> dict[str, Any]:
    lines: list[str] = []
    trainer = trainer_of(row, folder, lines)
    trainer.run()
    return {**result_of(trainer, folder), "lines": lines}


def _child(function: Any, arguments: tuple[Any, ...], answer: Path) -> None:
    try:
        torch.set_num_threads(1)
        found = function(*arguments)
    except BaseException as error:
        found = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    answer.write_text(json.dumps(found), encoding="utf-8")


def in_a_process_of_its_own(function: Any, *arguments: Any, folder: Path) -> dict[str, Any]:
    answer = folder / "answer.json"
    process = multiprocessing.get_context("fork").Process(target=_child, args=(function, arguments, answer))
    process.start()
    process.join(60)
    assert process.exitcode == 0, f"exit code {process.exitcode}"
    return dict(json.loads(answer.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", list(ROWS))
def test_a_resume_is_exact_where_it_says_so(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    cuts = random.Random(name).sample(range(3, 120), 2)
    expected = in_a_process_of_its_own(whole, row, tmp_path, cuts, folder=tmp_path)
    assert "error" not in expected, expected["traceback"]
    for number in range(len(cuts)):
        actual = in_a_process_of_its_own(resumed, row, tmp_path / f"cut{number}", folder=tmp_path)
        assert "error" not in actual, actual["traceback"]
        (line,) = [line for line in actual["lines"] if line.startswith("resumed ")]
        if row.reports == "exact":
            assert line.endswith("exact"), line
            for what in ("weights and optimizer", "metrics", "digest"):
                assert actual[what] == expected[what], f"{what} after {line}"
        else:
            assert row.reports in line, line
