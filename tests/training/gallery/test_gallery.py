"""Promise 8: each procedure of the gallery equals its loop by hand, resumes anywhere, and trains at two ranks."""

from __future__ import annotations

import functools
import json
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import GraphtrainError, Outcome, Trainer
from tests.fake_ranks import run_ranks
from tests.procedure import Procedure
from tests.shipped import PROCEDURES as SHIPPED
from tests.shipped import ROOT
from tests.training.gallery.procedures import all_procedures
from tests.world import assert_as_by_hand, assert_exact, assert_same, seed_generators
from tools.site.gallery import RESULTS, command, gallery

PROCEDURES = all_procedures()


@pytest.fixture(params=PROCEDURES)
def procedure(request: pytest.FixtureRequest) -> Procedure:
    return PROCEDURES[request.param]


def finished(trainer: Trainer) -> Trainer:
    assert trainer.run() is Outcome.FINISHED
    return trainer


# ---- what it is


@pytest.mark.first(6)
def test_it_has_no_problem(procedure: Procedure) -> None:
    assert procedure.graph().check() == []
    assert not [problem for problem in procedure.graph().dry_run().check() if problem.severity == "error"]
    first = procedure.toml.read_text().splitlines()[0]
    assert first.startswith("# ") and first.endswith(".")


@pytest.mark.sweep
def test_its_example_learns(procedure: Procedure, tmp_path: Path) -> None:
    example = procedure.example
    words = shlex.split(command(procedure.name).replace(str(example.relative_to(ROOT)), str(example)))
    words = [sys.executable, "-m", *words, "--quiet", "--run-dir", "run"]
    subprocess.run(words, cwd=tmp_path, check=True)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    metric, level, baseline = RESULTS[procedure.name]
    *_, value = [row[metric] for row in rows if metric in row]
    assert value >= level if level > baseline else value <= level


def test_the_page_of_the_gallery_has_each() -> None:
    assert re.findall(r"^### (\w+)$", gallery(), re.MULTILINE) == [*PROCEDURES]
    assert {*SHIPPED} <= {*PROCEDURES}


# ---- what it does


@pytest.mark.second(8)
@pytest.mark.first(5)
def test_it_equals_the_loop_by_hand(procedure: Procedure, tmp_path: Path) -> None:
    def loop(resources: dict[str, Any]) -> None:
        seed_generators(0)
        procedure.by_hand(resources)

    assert_as_by_hand(procedure.world, procedure.compared, loop=loop, run_dir=tmp_path)


@pytest.mark.second(3)
@pytest.mark.full
def test_some_cuts_are_exact(procedure: Procedure, tmp_path: Path) -> None:
    cuts = random.Random(procedure.name).sample(range(1, 60), 3)
    assert_exact(procedure.world, tmp_path, at=cuts)


@pytest.mark.sweep
def test_many_cuts_are_exact(procedure: Procedure, tmp_path: Path) -> None:
    assert_exact(procedure.world, tmp_path, at=25)


def on_two_ranks(procedure: Procedure, run_dir: Path | None, advance: int = 0) -> list[Trainer]:
    def program(ranks: Any) -> Trainer:
        trainer = procedure.world.trainer(run_dir)
        if not advance:
            return finished(trainer)
        trainer.advance(advance)
        trainer.save()
        return trainer

    return run_ranks(2, program)


@pytest.mark.second(2)
@pytest.mark.full
def test_two_ranks_have_one_state_and_resume_exactly(procedure: Procedure, tmp_path: Path) -> None:
    if procedure.one_rank_only:
        with pytest.raises(GraphtrainError, match=procedure.one_rank_only):
            on_two_ranks(procedure, None)
        return
    left, right = on_two_ranks(procedure, tmp_path / "whole")
    for name in procedure.compared:
        if isinstance(left.resources[name], torch.nn.Module):
            assert_same(*(dict(each.resources[name].named_parameters()) for each in (left, right)))
    on_two_ranks(procedure, tmp_path / "cut", random.Random(procedure.name).randrange(3, 20))
    for whole, resumed in zip((left, right), on_two_ranks(procedure, tmp_path / "cut"), strict=True):
        assert resumed.digest() == whole.digest()


BAD = [(name, wrong) for name, procedure in PROCEDURES.items() for wrong in procedure.bad]


@pytest.mark.first(7)
@pytest.mark.parametrize(("name", "wrong"), BAD, ids=lambda value: value.replace(" ", "_"))
def test_bad_input_is_an_error_before_anything_trains(name: str, wrong: str) -> None:
    change, message = PROCEDURES[name].bad[wrong]
    trained: list[Any] = []

    def watched(made: dict[str, Any]) -> Any:
        step = made.get("training_step")

        @functools.wraps(step or print)
        def call(*arguments: Any, **named: Any) -> Any:
            trained.append(arguments)
            return step(*arguments, **named)

        return None if step is None else call

    with pytest.raises((GraphtrainError, ValueError), match=message):
        it = change(PROCEDURES[name].world)
        if problems := it.graph.check():
            raise ValueError("\n".join(map(str, problems)))
        it.but(training_step=watched).trainer().run()
    assert trained == []
