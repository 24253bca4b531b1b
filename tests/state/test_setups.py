"""Set-ups that people use: cut, resumed in another process, and compared bit for bit with the run that was never cut.

What a resume reports is part of the table: where it says that it is exact, nothing may differ.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from graphtrain.errors import GraphtrainError
from tests.state.setups.cutting import (
    COMPARED,
    TRANSITIONS,
    forked,
    in_a_fresh_interpreter,
    result_of,
    resumed,
    trainer_of,
    whole,
)
from tests.state.setups.mutations import resumed_without
from tests.state.setups.rows import Row
from tests.state.setups.table import ROWS

CUTS = 6
EXACT = [name for name, row in ROWS.items() if row.is_exact]
# Of every kind of object some: what was restored once is saved again, and restored again.
CUT_TWICE = [
    "hidden_state",
    "old_weight_norm",
    "view_of_a_buffer_that_is_not_persistent",
    "replay_buffer",
    "task_object",
    "list_that_holds_itself",
    "lookahead_around_adam",
    "data_that_caches",
]


# What the rule says, point by point, and rows that would fail without it.
POINTS = {
    "what is reachable": """closures_within_closures attributes_of_base_classes global_of_another_module
        module_imported_within_a_function private_slots mutable_default partial_with_a_tensor hook_of_a_parameter
        loggers_locks_and_threads hook_of_all_modules
        step_that_is_wrapped""",
    "what has changed": """momentum_of_batch_norm_that_is_annealed counter_in_forward hidden_state generators_of_torch
        running_mean_written_through_data lambda_with_a_counter optimizer_with_an_attribute generators_of_numpy
        generators_of_numpy_of_the_old_kind generators_of_python array_of_python_that_grows numbers_in_shared_memory
        seeds_that_spawn generator_of_the_users_own keys_of_a_weak_dictionary""",
    "what a state_dict covers": """object_with_a_state_dict state_dict_that_grows second_optimizer_in_a_closure
        schedules_in_a_list data_that_keeps_its_own_position schedule_that_draws model_of_a_trainer_that_is_kept""",
    "identity": """shared_list_in_two_places views_of_tensors views_of_arrays new_views_of_one_new_tensor
        detached_rows_and_windows_of_one_memory windows_of_a_new_array leaf_with_a_gradient flat_gradient_buffer
        one_module_under_two_names class_methods_that_are_exchanged state_of_an_optimizer_that_is_read
        average_by_the_identity_of_parameters gradients_that_leave_their_buffer rows_of_a_large_memory
        views_of_a_kept_array lists_that_change_places overlapping_new_arrays_of_records""",
    "restoring": """adam_whose_groups_share_a_rate group_added_in_mid_run frozen_and_released_in_mid_run
        attributes_added_and_deleted lazy_modules_that_the_first_batch_initialises user_objects_that_are_new
        lazy_conjugates outputs_kept_after_the_backward_pass values_of_the_standard_library_that_are_new""",
    "what setup makes otherwise": "random_setup submodule_added_in_mid_run parameter_exchanged_in_mid_run",
    "data": """batches_changed_in_place data_that_grows data_that_caches curriculum_that_training_sets lazy_generator
        sampler_that_counts_epochs file_that_is_opened_late stream_of_hugging_face
        new_batches_that_are_kept samples_of_two_worker_processes data_that_iterates_over_itself
        own_loader_with_workers_over_data_that_counts_in_a_global""",
    "what is unknown": """cycle generator_function open_file closure_made_during_training hook_registered_in_mid_run
        trainer_that_is_kept_over_one_model output_kept_with_its_graph old_weight_norm weak_set_that_grows
        graph_kept_from_batch_to_batch""",
    "the digest": "names_in_a_set metric_with_states_as_attributes average_as_an_attribute deque_of_losses",
    "bounds": """too_many_objects too_deep very_long_list many_tensors_in_a_list too_many_bytes group_of_many_parameters
        many_tensors_with_a_state_dict many_samples_that_change some_numbers_of_a_large_array""",
}
# What people use, and the rows that have it.
USED = {
    "old and parametrized weight norm": "old_weight_norm parametrized_weight_norm",
    "spectral norm": "spectral_norm old_spectral_norm",
    "torchmetrics in mid-validation": "metric_of_torchmetrics_in_mid_validation metrics_of_torchmetrics_in_a_model",
    "GradScaler between unscale_ and update": "grad_scaler_between_unscale_and_update",
    "pruning": "pruned pruned_further_in_mid_run",
    "lazy modules": "lazy_modules lazy_modules_that_the_first_batch_initialises",
    "orthogonal parametrization": "orthogonal_parametrization",
    "views and flat gradient buffers": "view_of_a_buffer_that_is_not_persistent views_of_tensors flat_gradient_buffer",
    "replay buffers": "replay_buffer replay_buffer_in_a_model",
    "closures, globals, class attributes": "counter_in_a_closure global_counter class_attributes",
    "generators of four libraries": """generators_of_torch generators_of_numpy generators_of_numpy_of_the_old_kind
        generators_of_python""",
    "lazy generators with 0 and 2 workers": """lazy_generator lazy_generator_in_two_workers
        lazy_generator_of_the_own_loader lazy_generator_in_two_workers_of_the_own_loader""",
    "epoch counters": "data_with_set_epoch sampler_that_counts_epochs own_loader_with_a_sampler_that_counts_epochs",
    "growing and caching data": "data_that_grows iterable_that_grows data_that_caches own_loader_over_data_that_caches",
    "batches changed in place": """batches_changed_in_place batches_as_dictionaries views_of_a_kept_tensor
        new_dictionaries_of_kept_tensors one_tensor_twice_in_a_batch""",
    "data sets of Hugging Face": "data_set_of_hugging_face stream_of_hugging_face",
    "torch.compile by the user": "compiled_model compiled_in_place compiled_step_function compiled_forward",
    "two trainers over one model": "two_trainers_over_one_model trainer_that_is_kept_over_one_model",
    "one module under two names": "one_module_under_two_names",
    "a state_dict that grows": "state_dict_that_grows",
    "__getattr__ that raises": "getattr_that_raises getattr_of_a_plain_object_that_raises",
    "properties that compute": "state_behind_a_property getattr_that_raises",
}
NAMED = {name for table in (POINTS, USED) for names in table.values() for name in names.split()} | {*CUT_TWICE}


def test_every_point_of_the_rule_has_three_rows_and_all_that_people_use_has_one() -> None:
    """Proving cuts and files of strangers have tests of their own: `test_verify_cuts.py`, `test_forged.py`."""
    assert all(len(names.split()) >= 3 for names in POINTS.values())
    assert not NAMED - ROWS.keys()
    assert len(ROWS) >= 150


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A row, whose library is imported before processes are forked."""
    if library := ROWS[request.param].requires:
        pytest.importorskip(library)
    return str(request.param)


def cuts_of(name: str, count: int) -> list[int]:
    return sorted(random.Random(name).sample(TRANSITIONS, count))


def check(name: str, expected: dict[str, Any], actual: dict[str, Any]) -> None:
    """What is reported is what the table says, and where that is "exact", nothing differs."""
    row = ROWS[name]
    if row.reports.startswith("refused: "):
        assert row.reports.removeprefix("refused: ") in actual.get("refused", f"not refused: {actual}")
        return
    assert "refused" not in actual, actual["refused"]
    (line,) = [line for line in actual["lines"] if line.startswith("resumed ")]
    if not row.is_exact and "not exact" in line:
        assert row.reports in line, line
        return
    assert line.endswith("exact") and "not exact" not in line, line
    for what in COMPARED:
        assert actual[what] == expected[what], f"{what} after {line}"


# Rows that change what the process has once: classes, globals, hooks of all modules.
OF_THE_PROCESS = {
    "attributes_of_base_classes",
    "class_attributes",
    "flags",
    "data_that_counts_in_a_global",
    "own_loader_over_data_that_counts_in_a_global",
    "function_of_another_module",
    "global_counter",
    "global_list",
    "global_of_another_module",
    "global_that_is_made_during_training",
    "hook_for_one_step",
    "hook_of_all_modules",
    "import_within_a_function",
    "method_that_is_exchanged",
    "module_imported_within_a_function",
}
FILES = {name for name in ROWS if "file" in name}  # which they leave open
# Rows for what a new process has otherwise, and those that take a second or more.
NOT_IN_THIS_PROCESS = (
    OF_THE_PROCESS
    | FILES
    | {
        "average_by_the_identity_of_parameters",
        "compiled_model",
        "function_of_a_library_that_is_exchanged",
        "metric_of_torchmetrics_in_mid_validation",
        "metrics_of_torchmetrics_in_a_model",
        "objects_in_70_lists_of_300",
        "samples_of_two_workers_of_the_own_loader",
        "too_many_objects",
    }
)
# The cut of each other row is among the six of the sweep, below; so is that of some whose workers take 10 s to start.
SLOW = {"lazy_generator_in_two_workers", "own_loader_with_workers_over_data_that_counts_in_a_global"}
FORKED = [*sorted(OF_THE_PROCESS), *sorted(FILES), *sorted(NAMED - SLOW - OF_THE_PROCESS - FILES)[::3]]


IN_THIS_PROCESS = [name for name in ROWS if name not in NOT_IN_THIS_PROCESS]


@pytest.mark.second(5)
@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.sweep] * (number % 4 > 0)) for number, name in enumerate(IN_THIS_PROCESS)],
    indirect=True,
)
def test_a_resume_in_the_same_process_is_exact_where_it_says_so(name: str, tmp_path: Path) -> None:
    """From one cut of a single epoch."""
    row = ROWS[name]
    try:
        expected = _in_this_process(row, tmp_path / "whole")
        _in_this_process(row, tmp_path / "cut", until="4 steps")
        actual = _in_this_process(row, tmp_path / "cut")
    except GraphtrainError as error:
        expected = actual = {"refused": str(error)}
    check(name, expected, actual)


def _in_this_process(row: Row, run_dir: Path, until: str | None = None) -> dict[str, Any]:
    lines: list[str] = []
    trainer = trainer_of(row, run_dir, lines, epochs=1)
    trainer.run(until=until)
    return {} if until else result_of(trainer, run_dir) | {"lines": lines}


@pytest.mark.second(2)
@pytest.mark.first(1)
@pytest.mark.parametrize("name", FORKED, indirect=True)
def test_a_resume_is_exact_where_it_says_so(name: str, tmp_path: Path) -> None:
    expected = forked(whole, name, tmp_path, cuts_of(name, 1), file=tmp_path / "answer")
    is_refused = "refused" in expected
    check(
        name, expected, expected if is_refused else forked(resumed, name, tmp_path / "cut0", file=tmp_path / "answer")
    )


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("name", CUT_TWICE, indirect=True)
def test_a_resume_of_a_resume_is_exact(name: str, tmp_path: Path) -> None:
    check_cut_twice(name, tmp_path, forked(whole, name, tmp_path, [20], file=tmp_path / "answer"))


def check_cut_twice(name: str, folder: Path, expected: dict[str, Any]) -> None:
    (folder / "again").mkdir()
    check(name, expected, forked(resumed, name, folder / "cut0", [5], file=folder / "answer"))
    check(name, expected, forked(resumed, name, folder / "again" / "cut0", file=folder / "answer"))


@pytest.mark.sweep
@pytest.mark.parametrize("name", ROWS, indirect=True)
def test_every_row_from_six_cuts(name: str, tmp_path: Path) -> None:
    """One in a fresh interpreter; and saving itself changes nothing of the run."""
    row, file = ROWS[name], tmp_path / "answer"
    cuts = cuts_of(name, CUTS)
    expected = forked(whole, name, tmp_path / "never cut", (), file=file)
    saved = forked(whole, name, tmp_path, cuts, file=file)
    if "refused" in saved:
        check(name, expected, saved)
        return
    if row.is_exact:
        assert {what: saved[what] for what in COMPARED} == {what: expected[what] for what in COMPARED}
    answers = [in_a_fresh_interpreter(name, tmp_path / "cut3", file=file)]
    answers += [forked(resumed, name, tmp_path / f"cut{number}", file=file) for number in range(CUTS) if number != 3]
    for actual in answers:
        check(name, expected, actual)
    if row.is_exact:
        again = tmp_path / "twice"
        again.mkdir()
        check_cut_twice(name, again, forked(whole, name, again, cuts[:1], file=file))
    elif not row.bound and not row.reports.startswith("refused"):
        # Where the cut is before what cannot be saved, the resume is exact, and was compared.
        reported = [actual for actual in answers if "not exact" in str(actual["lines"])]
        assert any(actual[what] != expected[what] for actual in reported for what in COMPARED[:2])


@pytest.mark.sweep
@pytest.mark.parametrize("name", EXACT, indirect=True)
def test_an_exact_row_diverges_without_what_it_needs(name: str, tmp_path: Path) -> None:
    """From one of six cuts; a row that says that it needs nothing does not."""
    row, file = ROWS[name], tmp_path / "answer"
    expected = forked(whole, name, tmp_path, cuts_of(name, CUTS), file=file)
    is_equal = (
        all(expected[what] == actual.get(what) for what in COMPARED[:2])
        for number in (3, 1, 4, 2, 5, 0)
        for actual in (forked(resumed_without, row.needs, name, tmp_path / f"cut{number}", file=file),)
    )
    assert all(is_equal) if row.stateless else not all(is_equal)
