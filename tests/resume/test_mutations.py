"""Every promise has a mutation that breaks it: with each of these, the comparison of cuts must fail (10)."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import GraphtrainError
from graphtrain.nodes import _opened
from graphtrain.program import run_state
from graphtrain.program.run_state import RunState
from graphtrain.program.stateful_objects import StatefulObjects
from graphtrain.program.triggers import Every
from graphtrain.report.recorder import Recorder
from graphtrain.resume import restore
from graphtrain.state import objects
from graphtrain.storage.encoding import Packed
from tests.world import Course, run_through, world

Mutation = Callable[[pytest.MonkeyPatch], None]
# In a window, in a validation, before what a step makes due, around the batch that thaws, in the second epoch.
CUTS = (3, 13, 19, 34, 57, 92, 105)


def change_saved(monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the state between the disk and the run, as if it had been saved so."""
    for name in ("restore", "restore_after_setup"):
        original = getattr(StatefulObjects, name)

        def changed(self: StatefulObjects, state: RunState, *rest: Any, original: Any = original) -> Any:
            saved = {section: dict(parts) for section, parts in state.sections().items()}
            change(saved)
            return original(self, RunState.of(saved), *rest)

        monkeypatch.setattr(StatefulObjects, name, changed)


def of_modules_without(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    def change(saved: dict[str, Any]) -> None:
        saved["modules"] = {name: {**state, part: {}} for name, state in saved["modules"].items()}

    change_saved(monkeypatch, change)


def progress_without(monkeypatch: pytest.MonkeyPatch, node: str, **fields: Any) -> None:
    change_saved(monkeypatch, lambda saved: saved["progress"].update({node: {**saved["progress"][node], **fields}}))


def random_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StatefulObjects, "restore_after_setup", lambda self, state: None)
    monkeypatch.setattr(_opened, "RandomAside", lambda generators: nullcontext())


def one_generator_not_saved(name: str) -> Mutation:
    """Of Python's, NumPy's and torch's, one."""

    def mutation(monkeypatch: pytest.MonkeyPatch) -> None:
        original = StatefulObjects.restore_after_setup

        def changed(self: StatefulObjects, state: RunState) -> None:
            now = run_state.capture_random()[name]
            original(self, replace(state, random={**state.random, name: now}))

        monkeypatch.setattr(StatefulObjects, "restore_after_setup", changed)

    mutation.__name__ = f"{name}_not_saved"
    return mutation


def random_drawn_from_by_the_iterator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random generators are set aside while an epoch is reopened, and restored after it; without both they move."""
    original, late = StatefulObjects.restore, StatefulObjects.restore_after_setup

    def early(self: StatefulObjects, state: RunState, *rest: Any) -> Any:
        not_restored = original(self, state, *rest)
        late(self, state)
        return not_restored

    monkeypatch.setattr(StatefulObjects, "restore", early)
    monkeypatch.setattr(StatefulObjects, "restore_after_setup", lambda self, state: None)
    monkeypatch.setattr(_opened, "RandomAside", lambda generators: nullcontext())


def gradients_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    change_saved(monkeypatch, lambda saved: saved.update(gradients={name: {} for name in saved["gradients"]}))


def modes_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    of_modules_without(monkeypatch, "training")


def frozen_flags_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    of_modules_without(monkeypatch, "requires_grad")


def buffers_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    of_modules_without(monkeypatch, "buffers")


def pending_validation_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Every.start

    def start(self: Every) -> None:
        original(self)
        if self._record.fired:
            self.fire()

    monkeypatch.setattr(Every, "start", start)


def last_firing_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(saved: dict[str, Any]) -> None:
        validate = dict(saved["progress"]["validate"])
        validate["fired"] = {unit: [0, 1, None] for unit in validate["fired"]}
        saved["progress"]["validate"] = validate

    change_saved(monkeypatch, change)


def position_in_the_window_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    progress_without(monkeypatch, "accumulate", count=0)


def data_position_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(saved: dict[str, Any]) -> None:
        fetched = dict(saved["progress"]["next_batch"])
        fetched["epoch_batches"] = max(fetched["epoch_batches"] - 1, 0)
        saved["progress"]["next_batch"] = fetched

    change_saved(monkeypatch, change)


def slots_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = StatefulObjects.decoded

    def changed(self: StatefulObjects, value: Any) -> Any:
        is_batch = isinstance(value, Packed) and value.part == "slots['batch']"
        found = decoded(self, value)
        return tuple(map(torch.zeros_like, found)) if is_batch else found

    monkeypatch.setattr(StatefulObjects, "decoded", changed)


def scheduler_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.lr_scheduler.LRScheduler, "load_state_dict", lambda self, state: None)


def sums_of_metrics_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "load_state_dict", lambda self, state: None)


def optimizer_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "load_optimizer", lambda optimizer, state: None)


def parameter_of_no_module_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "restore_optimizer", lambda optimizer, state, owned: None)


MUTATIONS: list[tuple[Mutation, str]] = [
    (random_not_saved, "Loader"),
    (one_generator_not_saved("python"), "DataLoader"),
    (one_generator_not_saved("numpy"), "DataLoader"),
    (one_generator_not_saved("torch"), "Loader"),
    (random_drawn_from_by_the_iterator, "DataLoader"),
    (gradients_not_saved, "Loader"),
    (modes_not_saved, "Loader"),
    (frozen_flags_not_saved, "Loader"),
    (buffers_not_saved, "Loader"),
    (pending_validation_dropped, "Loader"),
    (last_firing_dropped, "Loader"),
    (position_in_the_window_dropped, "Loader"),
    (data_position_off_by_one, "Loader"),
    (data_position_off_by_one, "DataLoader"),
    (slots_not_saved, "Loader"),
    (scheduler_not_saved, "Loader"),
    (sums_of_metrics_not_saved, "Loader"),
    (optimizer_not_saved, "Loader"),
    (parameter_of_no_module_not_saved, "Loader"),
]


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Course, Path]]:
    """The run never cut, and the folder with some cuts of it, for a kind of data; made once."""

    @functools.cache
    def of(kind: str) -> tuple[Course, Path]:
        folder = tmp_path_factory.mktemp("cuts")
        whole = run_through(world(data=kind), folder / "whole")
        run_through(world(data=kind), folder / "saved", CUTS, folder)
        return whole, folder

    return of


def differences(of_kind: tuple[Course, Path], kind: str, tmp_path: Path) -> Iterator[str]:
    """What the comparison finds after each cut; an error counts as a difference."""
    whole, folder = of_kind
    for cut in CUTS:
        run_dir = Path(shutil.copytree(folder / f"cut-{cut}", tmp_path / f"{cut}"))
        try:
            after = run_through(world(data=kind), run_dir)
        except GraphtrainError as error:
            yield error.message
        else:
            if (after.digest, after.metrics) != (whole.digest, whole.metrics):
                yield f"cut {cut}"


@pytest.mark.full
@pytest.mark.parametrize("kind", ["Loader", "DataLoader"])
def test_without_a_mutation_every_cut_is_equal(kind: str, cuts: Any, tmp_path: Path) -> None:
    assert not [*differences(cuts(kind), kind, tmp_path)]


@pytest.mark.second(4)
@pytest.mark.full
@pytest.mark.parametrize(("mutation", "kind"), MUTATIONS, ids=lambda value: getattr(value, "__name__", value))
def test_a_mutation_is_noticed_by_the_comparison(
    mutation: Mutation, kind: str, cuts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_kind = cuts(kind)
    mutation(monkeypatch)
    # Without the digest that is compared after loading: the comparison of what follows has to notice by itself.
    monkeypatch.setattr(restore, "_expect_digest", lambda *of_a_checkpoint, **how: None)
    assert any(differences(of_kind, kind, tmp_path))


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize(
    "mutation",
    [gradients_not_saved, random_not_saved, modes_not_saved, frozen_flags_not_saved, buffers_not_saved,
     optimizer_not_saved, parameter_of_no_module_not_saved, position_in_the_window_dropped, slots_not_saved],
)  # fmt: skip
def test_lost_state_is_noticed_at_once_by_the_digest(
    mutation: Mutation, cuts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_kind = cuts("Loader")
    mutation(monkeypatch)
    assert any("the state loaded is not the state saved" in line for line in differences(of_kind, "Loader", tmp_path))
