"""Runs of a row: to its end, with copies of its run directory at some transitions; and resumed from such a copy.

As a program it resumes one row in an interpreter of its own: `python -m tests.state.setups.cutting ROW FOLDER ANSWER`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
import torch._dynamo  # here once, and not in every copy of this process: the first step of an optimizer imports it

from graphtrain import Graph, Trainer
from graphtrain.errors import GraphtrainError
from graphtrain.storage.encoding import Tensors, pack
from tests.forkserver import CONTEXT
from tests.state.setups.rows import Row
from tests.state.setups.table import ROWS

# Of about 90: at the last ones nothing of the training is left.
TRANSITIONS = range(3, 85)
COMPARED = ("weights and optimizer", "metrics", "digest")

_SECONDS = 300


def trainer_of(row: Row, run_dir: Path, lines: list[str], epochs: int = 2) -> Trainer:
    """A trainer that saves only when it is asked to."""
    graph = Graph.load("fit").set("finish", after=f"{epochs} epochs").set("checkpoint", every="never")
    graph = graph.set("schedule", every="1 steps")
    for name, parameters in row.parameters.items():
        graph = graph.set(name, **parameters)
    torch.manual_seed(1)
    random.seed(1)
    numpy.random.seed(1)
    return Trainer(graph, seed=0, run_dir=run_dir, display=None, notify=lines.append, **row.make())


def result_of(trainer: Trainer, run_dir: Path) -> dict[str, Any]:
    """What is compared of two runs: the digest has all that is reachable."""
    tensors = Tensors("result")
    optimizer = trainer.resources["optimizer"]
    packed = pack([trainer.resources["model"].state_dict(), optimizer.state_dict()], "result", tensors)
    digest = hashlib.sha256(packed)
    for tensor in tensors.named.values():
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    metrics = (run_dir / "metrics.jsonl").read_text(encoding="utf-8")
    return {"weights and optimizer": digest.hexdigest(), "digest": trainer.digest(), "metrics": metrics}


def whole(name: str, folder: Path, cuts: Sequence[int]) -> dict[str, Any]:
    """Train to the end, and keep a copy of the run directory at each cut."""
    lines: list[str] = []
    trainer = trainer_of(ROWS[name], folder / "whole", lines)
    return _to_the_end(trainer, folder / "whole", folder, cuts, lines)


def resumed(name: str, folder: Path, cuts: Sequence[int] = ()) -> dict[str, Any]:
    """Resume the run in a folder to its end, and keep copies of it: `again0` is that of the first cut."""
    lines: list[str] = []
    trainer = trainer_of(ROWS[name], folder, lines)
    return _to_the_end(trainer, folder, folder.parent / "again", cuts, lines)


def _to_the_end(trainer: Trainer, run_dir: Path, folder: Path, cuts: Sequence[int], lines: list[str]) -> dict[str, Any]:
    transitions = 0
    try:
        for number, cut in enumerate(sorted(cuts)):
            trainer.advance(cut - transitions)
            transitions = cut
            trainer.save()
            shutil.copytree(run_dir, folder / f"cut{number}")
        trainer.run()
    except GraphtrainError as error:
        return {"refused": str(error)}
    return result_of(trainer, run_dir) | {"lines": lines}


def _answer(function: Any, arguments: tuple[Any, ...], file: Path) -> None:
    try:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        answer = function(*arguments)
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    file.write_text(json.dumps(answer), encoding="utf-8")


def forked(function: Any, *arguments: Any, file: Path) -> dict[str, Any]:
    """What a function returns in a process of its own."""
    process = CONTEXT.Process(target=_answer, args=(function, arguments, file))
    process.start()
    process.join(_SECONDS)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0, f"exit code {process.exitcode}"
    return _read(file)


def in_a_fresh_interpreter(name: str, folder: Path, *, file: Path) -> dict[str, Any]:
    """What `resumed` returns in a new interpreter, with other hashes of strings and other addresses."""
    command = [sys.executable, "-m", "tests.state.setups.cutting", name, str(folder), str(file)]
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(root)}
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, cwd=root, env=environment, timeout=_SECONDS, check=False)
    return _read(file)


def _read(file: Path) -> dict[str, Any]:
    answer = dict(json.loads(file.read_text(encoding="utf-8")))
    file.unlink()
    assert "error" not in answer, answer["traceback"]
    return answer


if __name__ == "__main__":
    _answer(resumed, (sys.argv[1], Path(sys.argv[2])), Path(sys.argv[3]))
