"""Promises 10 and 11: every row of the table is cut and resumed, and is exact if, and only if, it says so."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # here once, not in every copy of this process: the first step of an optimizer imports it

from graphtrain import fit, node
from tests.resume.setups import ROWS
from tests.resume.setups.mutations import outcome_without
from tests.rows import outcome, seeded, squared
from tests.world import World, assert_exact, in_a_process

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore")
# What is saved is what was restored, of every kind of object some.
CUT_TWICE = {
    "hidden_state",
    "old_weight_norm",
    "view_of_a_buffer_that_is_not_persistent",
    "replay_buffer",
    "task_object",
    "list_that_holds_itself",
    "lookahead_around_adam",
    "data_that_caches",
}
# Rows that change what the process has once: classes, globals, hooks of all modules, modules, files that are open.
OF_THE_PROCESS = {
    "attributes_of_base_classes",
    "class_attributes",
    "data_that_counts_in_a_global",
    "default_that_is_changed",
    "flags",
    "global_counter",
    "global_of_another_module",
    "global_that_is_made_during_training",
    "hook_of_all_modules",
    "lookahead_around_adam",  # torch wraps `step` of its class, from which that of another row is derived
    "module_first_imported_by_the_step",
    "only_object_of_a_class",
    "own_loader_with_workers_over_data_that_counts_in_a_global",
    "slot_that_a_state_dict_alone_leads_to",
} | {name for name in ROWS if "file" in name}
# A second or more, for what they import or for their size.
SLOW = {
    "compiled_model",
    "data_set_of_hugging_face",
    "frame_of_pandas",
    "group_of_many_parameters",
    "lazy_generator_in_two_workers",
    "objects_in_70_lists_of_300",
    "one_of_100_batches_in_numpy",
    "open_file",
    "own_loader_with_workers_over_data_that_counts_in_a_global",
    "samples_of_two_worker_processes",
    "stream_of_hugging_face",
    "two_trainers_over_one_model",
}
# Every third row is in the first tier: of each kind of state some.
LATER = {name for number, name in enumerate(ROWS) if number % 3 or name in SLOW}
TIERS = [pytest.param(name, marks=[pytest.mark.full] * (name in LATER)) for name in ROWS]
CUTS = 6


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A row, whose library is imported before processes are forked."""
    if library := ROWS[request.param].requires:
        pytest.importorskip(library)
    return str(request.param)


def assert_as_it_says(name: str, expected: dict[str, Any], actual: dict[str, Any]) -> None:
    """What is reported is what the table says, and where that is "exact", nothing differs."""
    row = ROWS[name]
    if row.reports.startswith("refused: "):
        assert row.reports.removeprefix("refused: ") in actual.get("refused", f"not refused: {actual}")
        return
    assert "refused" not in actual, actual["refused"]
    (line,) = [line for line in actual["lines"] if line.startswith("resumed ")]
    if not row.is_exact and "not exact" in line:
        assert row.reports in line, line
        return  # a cut before what cannot be saved is exact
    assert line.endswith("exact") and "not exact" not in line, line
    assert actual["trained"] == expected["trained"], f"weights, optimizer or metrics after {line}"
    assert actual["digest"] == expected["digest"], f"digest after {line}"


def here(act: Callable[[], Any]) -> Any:
    """What a function returns."""
    return act()


@pytest.mark.second(90)
@pytest.mark.first(66)
@pytest.mark.parametrize("name", TIERS, indirect=True)
def test_a_row_that_is_cut_goes_on_as_if_it_had_not_been(name: str, tmp_path: Path) -> None:
    """From one cut of a single epoch."""
    run = in_a_process if name in OF_THE_PROCESS else here
    row, cut = ROWS[name], random.Random(name).randrange(15, 40)
    expected = run(lambda: outcome(row, tmp_path / "whole", [cut], tmp_path, epochs=1))
    is_refused = "refused" in expected
    actual = expected if is_refused else run(lambda: outcome(row, tmp_path / f"cut-{cut}", epochs=1))
    assert_as_it_says(name, expected, actual)


def in_a_fresh_interpreter(name: str, run_dir: Path) -> Any:
    """The outcome in a new interpreter, with other hashes of strings and other addresses."""
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(ROOT)}
    script = getattr(sys.modules["__main__"], "__file__", "")  # none where tests run side by side
    command = [sys.executable, "-m", "tests.rows", name, str(run_dir), str(script)]
    return json.loads(subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True).stdout)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ROWS, indirect=True)
def test_a_row_from_three_cuts_in_processes_of_their_own(name: str, tmp_path: Path) -> None:
    """One is in a fresh interpreter; saving changes nothing; without what it needs, a row diverges from some cut."""
    row, cuts = ROWS[name], sorted(random.Random(name).sample(range(3, 85), CUTS))
    expected = in_a_process(lambda: outcome(row, tmp_path / "whole"))
    saved = in_a_process(lambda: outcome(row, tmp_path / "saved", cuts, tmp_path))
    if "refused" in saved:
        assert_as_it_says(name, expected, saved)
        return
    if row.is_exact:
        assert (saved["trained"], saved["digest"]) == (expected["trained"], expected["digest"]), "by saving"
        for cut in cuts:
            shutil.copytree(tmp_path / f"cut-{cut}", tmp_path / f"without-{cut}")
    again = [cuts[0] // 2] if name in CUT_TWICE else []
    answers = [in_a_fresh_interpreter(name, tmp_path / f"cut-{cuts[3]}")]
    for cut in (cuts[0], cuts[4]):
        answers.append(in_a_process(lambda cut=cut: outcome(row, tmp_path / f"cut-{cut}", again, tmp_path / f"{cut}")))
        if again:
            answers.append(in_a_process(lambda cut=cut: outcome(row, tmp_path / f"{cut}" / f"cut-{again[0]}")))
    for actual in answers:
        assert_as_it_says(name, expected, actual)
    if row.is_exact:
        is_equal = (
            in_a_process(lambda cut=cut: outcome_without(row, tmp_path / f"without-{cut}")).get("trained")
            == expected["trained"]
            for cut in (cuts[number] for number in (3, 1, 4, 2, 5, 0))
        )
        assert all(is_equal) if row.stateless else not all(is_equal)
    elif not row.bound:  # where the cut is before what cannot be saved, the resume is exact, and was compared
        reported = [actual for actual in answers if "not exact" in str(actual["lines"])]
        assert not reported or any(actual["trained"] != expected["trained"] for actual in reported)


@pytest.mark.full
def test_a_leaf_in_a_slot_keeps_its_gradient(tmp_path: Path) -> None:
    """Made by one node, trained on by the step function, handed on by another."""

    @node(writes="leaf")
    def make() -> torch.Tensor:
        return torch.ones(3, requires_grad=True)

    @node(writes="leaf")
    def hand_on(leaf: torch.Tensor) -> torch.Tensor:
        return leaf

    def step(model: Any, batch: Any, leaf: torch.Tensor) -> torch.Tensor:
        weight = 1 if leaf.grad is None else 1 + leaf.grad.abs().sum().item()
        return squared(model, batch) * weight + (batch.mean(0) * leaf).sum()

    graph = fit(epochs=1, save_every="never").insert("make", make, after="begin_epoch")
    graph = graph.insert("hand_on", hand_on, after="train_batch")
    assert_exact(World(graph, lambda: seeded(lambda: torch.nn.Linear(3, 1), training_step=step)), tmp_path, at=[30])
