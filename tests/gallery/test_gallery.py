"""The contract of the gallery: each procedure is sound, the loop by hand bit for bit, and resumes anywhere."""

from __future__ import annotations

import ast
import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import GraphtrainError, Outcome, Trainer
from graphtrain.ranks import Ranks
from graphtrain.state.random import seed_everything
from tests.command.conftest import Command
from tests.gallery.procedure import Procedure, assert_equal, tensors
from tests.gallery.procedures import all_procedures
from tests.ranks.fake_ranks import run_ranks

PROCEDURES = all_procedures()


@pytest.fixture(params=PROCEDURES)
def procedure(request: pytest.FixtureRequest) -> Procedure:
    return PROCEDURES[request.param]


def finished(trainer: Trainer) -> Trainer:
    assert trainer.run() is Outcome.FINISHED
    return trainer


def transitions_of(trainer: Trainer) -> int:
    """Of the whole run, which it makes."""
    count = 0
    while trainer.position != "end":
        trainer.advance()
        count += 1
    return count


# ---- what it is


@pytest.mark.first(6)
def test_it_has_no_problem(procedure: Procedure) -> None:
    assert procedure.graph().check() == []
    assert not [problem for problem in procedure.graph().dry_run().check() if problem.severity == "error"]
    first = procedure.toml.read_text().splitlines()[0]
    assert first.startswith("# ") and first.endswith(".")


def test_its_example_subclasses_nothing_of_graphtrain(procedure: Procedure) -> None:
    script = ast.parse(procedure.example.read_text())
    imported = {
        alias.asname or alias.name
        for node in ast.walk(script)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("graphtrain")
        for alias in node.names
    }
    bases = [ast.unparse(base) for node in ast.walk(script) if isinstance(node, ast.ClassDef) for base in node.bases]
    assert not [base for base in bases if base.partition(".")[0] in {*imported, "graphtrain"}]
    assigned = {
        target.id
        for node in script.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    assert assigned >= {"METRIC", "BASELINE", "LEVEL"}


# ---- what it does


@pytest.mark.second(4)
@pytest.mark.full
def test_it_equals_the_loop_by_hand(procedure: Procedure, tmp_path: Path) -> None:
    trained = finished(procedure.trainer(tmp_path))
    resources = procedure.resources()
    has_model = isinstance(resources.get("model"), torch.nn.Module)  # and no Factory, or none at all
    before = tensors(procedure.resources(), ("model",)) if has_model else {}
    seed_everything(0)
    procedure.by_hand(resources)
    assert_equal(tensors(resources, procedure.compared), tensors(trained.resources, procedure.compared))
    if before:  # that nothing trains would be equal too
        after = tensors(resources, ("model",))
        assert any(not torch.equal(value, after[path]) for path, value in before.items())


def expect_exact_cuts(procedure: Procedure, folder: Path, cuts: Iterator[int] | list[int], whole: Trainer) -> None:
    for cut in cuts:
        first = procedure.trainer(folder / str(cut))
        first.advance(cut)
        first.save()
        second = finished(procedure.trainer(folder / str(cut)))
        assert second.digest() == whole.digest(), f"cut {cut}, before {first.position}"
        assert_equal(tensors(second.resources, procedure.compared), tensors(whole.resources, procedure.compared))
        assert second.metrics == whole.metrics, f"cut {cut}, before {first.position}"


def some(procedure: Procedure, transitions: int, count: int) -> list[int]:
    return sorted(random.Random(procedure.name).sample(range(1, transitions), count))


@pytest.mark.second(1)
@pytest.mark.full
def test_some_cuts_are_exact(procedure: Procedure, tmp_path: Path) -> None:
    whole = procedure.trainer(tmp_path / "whole")
    transitions = transitions_of(whole)
    expect_exact_cuts(procedure, tmp_path, some(procedure, transitions, 3), whole)


@pytest.mark.sweep
def test_all_cuts_are_exact(procedure: Procedure, tmp_path: Path) -> None:
    whole = procedure.trainer(tmp_path / "whole")
    transitions = transitions_of(whole)
    expect_exact_cuts(procedure, tmp_path, list(range(1, transitions)), whole)


# ---- several ranks


def on_two_ranks(procedure: Procedure, run_dir: Path | None, advance: int = 0) -> list[Trainer]:
    def program(ranks: Ranks) -> Trainer:
        trainer = procedure.trainer(run_dir)
        if advance:
            trainer.advance(advance)
            trainer.save()
            return trainer
        return finished(trainer)

    return run_ranks(2, program)


@pytest.mark.second(1)
@pytest.mark.full
def test_two_ranks_have_one_state_and_resume_exactly(procedure: Procedure, tmp_path: Path) -> None:
    if procedure.one_rank_only:
        with pytest.raises(GraphtrainError, match=procedure.one_rank_only):
            on_two_ranks(procedure, None)
        return
    left, right = on_two_ranks(procedure, tmp_path / "whole")
    weights = tuple(name for name in procedure.compared if isinstance(left.resources[name], torch.nn.Module))
    for name in weights:
        parameters = [dict(each.resources[name].named_parameters()) for each in (left, right)]
        assert_equal(*parameters)
    cut = random.Random(procedure.name).randrange(3, 20)
    on_two_ranks(procedure, tmp_path / "cut", cut)
    for whole, resumed in zip((left, right), on_two_ranks(procedure, tmp_path / "cut"), strict=True):
        assert resumed.digest() == whole.digest()
        assert_equal(tensors(resumed.resources, procedure.compared), tensors(whole.resources, procedure.compared))


# ---- bad input


BAD = [(name, wrong) for name, procedure in PROCEDURES.items() for wrong in procedure.bad]


@pytest.mark.second(21)
@pytest.mark.first(6)
@pytest.mark.parametrize(("name", "wrong"), BAD, ids=lambda value: value.replace(" ", "_"))
def test_bad_input_is_an_error_before_anything_trains(name: str, wrong: str) -> None:
    procedure = PROCEDURES[name]
    change, message = procedure.bad[wrong]
    trained: list[Any] = []
    with pytest.raises((GraphtrainError, ValueError), match=message):
        graph, resources = change(procedure.graph(), procedure.resources())
        step = resources.get("training_step")
        if callable(step):

            @functools.wraps(step)
            def watched(*arguments: Any, **named: Any) -> Any:
                trained.append(arguments)
                return step(*arguments, **named)

            resources["training_step"] = watched
        problems = graph.check()
        if problems:
            raise ValueError("\n".join(map(str, problems)))
        procedure.trainer(graph=graph, resources=resources).run()
    assert trained == []


# ---- the example


@pytest.mark.sweep
def test_its_example_learns(procedure: Procedure, folder: Path, command: Command) -> None:
    script = procedure.example
    constants = {
        target.id: ast.literal_eval(node.value)
        for node in ast.parse(script.read_text()).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in ("METRIC", "BASELINE", "LEVEL")
    }
    ended = command("run", str(script), "--quiet", "--run-dir", "run")
    assert ended.code == 0, ended.err
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    *_, value = [row[constants["METRIC"]] for row in rows if constants["METRIC"] in row]
    is_higher_better = constants["LEVEL"] > constants["BASELINE"]
    assert value >= constants["LEVEL"] if is_higher_better else value <= constants["LEVEL"]
