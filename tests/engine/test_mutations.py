"""Every promise has a mutation that breaks it: with each of these, the comparison with the run never cut must fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain.data.source import Replayed
from graphtrain.engine import capture, resumption
from graphtrain.engine.capture import State
from graphtrain.engine.triggers import Every
from graphtrain.errors import CheckpointError
from graphtrain.graph import Graph
from graphtrain.metrics.recorder import Recorder
from tests.engine.small_run import small_graph, small_trainer

Mutation = Callable[[pytest.MonkeyPatch], None]


def outcome_of_cuts(tmp_path: Path, loader: str, graph: Graph | None = None) -> tuple[Any, list[Any]]:
    """What the run never cut became, and what it became after each of some cuts; an error counts as a difference."""
    whole = small_trainer(loader=loader, graph=graph)
    whole.run()
    results = []
    for transitions in (2, 3, 7, 13, 14, 19, 22, 35, 44, 60, 64):
        run_dir = tmp_path / str(transitions)
        first = small_trainer(run_dir, loader=loader, graph=graph)
        first.advance(transitions)
        first.save()
        second = small_trainer(run_dir, loader=loader, graph=graph)
        try:
            second.run()
            results.append((second.digest(), second.metrics))
        except CheckpointError as error:
            results.append(str(error))
    return (whole.digest(), whole.metrics), results


def drop_from_tree(monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the tree between the disk and the run, as if it had been saved so."""
    for name in ("restore_objects", "restore_progress", "restore_generators"):
        original = getattr(State, name)

        def changed(self: State, tree: dict[str, Any], *rest: Any, original: Any = original) -> None:
            tree = {section: dict(parts) for section, parts in tree.items()}
            change(tree)
            original(self, tree, *rest)

        monkeypatch.setattr(State, name, changed)


def without_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the digest check pass, so that it is the sweep that has to notice."""
    monkeypatch.setattr(resumption, "_expect_digest", lambda *of_a_checkpoint: None)


def gradients_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    drop_from_tree(monkeypatch, lambda tree: tree.update(gradients={"model": {}}))


def random_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(State, "restore_generators", lambda self, tree: None)


def random_restored_before_the_iterator(monkeypatch: pytest.MonkeyPatch) -> None:
    original = State.restore_objects
    late = State.restore_generators

    def early(self: State, tree: Any, *rest: Any) -> None:
        original(self, tree, *rest)
        late(self, tree)

    monkeypatch.setattr(State, "restore_objects", early)
    monkeypatch.setattr(State, "restore_generators", lambda self, tree: None)


def data_position_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Replayed.reopen
    monkeypatch.setattr(
        Replayed, "reopen", lambda self, epoch, drawn, state: original(self, epoch, max(drawn - 1, 0), state)
    )


def pending_validation_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Every.start

    def start(self: Every) -> None:
        original(self)
        if self._record.fired:
            self.fire()

    monkeypatch.setattr(Every, "start", start)


def last_firing_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(tree: dict[str, Any]) -> None:
        validate = dict(tree["progress"]["validate"])
        validate["fired"] = {unit: [0, 1, None] for unit in validate["fired"]}
        tree["progress"]["validate"] = validate

    drop_from_tree(monkeypatch, change)


def scheduler_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.lr_scheduler.LRScheduler, "load_state_dict", lambda self, state: None)


def modes_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "restore_module", lambda module, state: None)


def means_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorder, "load_state_dict", lambda self, state: None)


def optimizer_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "load_optimizer", lambda optimizer, state: None)


MUTATIONS: list[tuple[Mutation, str]] = [
    (gradients_not_saved, "Loader"),
    (random_not_saved, "Loader"),
    (random_restored_before_the_iterator, "DataLoader"),
    (data_position_off_by_one, "DataLoader"),
    (pending_validation_dropped, "Loader"),
    (last_firing_dropped, "Loader"),
    (scheduler_not_saved, "Loader"),
    (modes_not_saved, "Loader"),
    (means_not_saved, "Loader"),
    (optimizer_not_saved, "Loader"),
]


@pytest.mark.parametrize("loader", ["Loader", "DataLoader"])
def test_without_a_mutation_every_cut_is_equal(loader: str, tmp_path: Path) -> None:
    whole, cuts = outcome_of_cuts(tmp_path, loader)
    assert [cut == whole for cut in cuts] == [True] * len(cuts)


@pytest.mark.parametrize(("mutation", "loader"), MUTATIONS, ids=lambda one: getattr(one, "__name__", one))
def test_a_mutation_is_noticed_by_the_sweep(
    mutation: Mutation, loader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    without_digest(monkeypatch)
    # A long decay, so that no further step hides a scheduler or a mean that was lost.
    whole, cuts = outcome_of_cuts(tmp_path, loader, small_graph())
    assert any(cut != whole for cut in cuts)


@pytest.mark.parametrize("mutation", [gradients_not_saved, random_not_saved, modes_not_saved, optimizer_not_saved])
def test_lost_state_is_noticed_at_once_by_the_digest(
    mutation: Mutation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    _, cuts = outcome_of_cuts(tmp_path, "Loader")
    assert any("the state loaded is not the state saved" in cut for cut in cuts if isinstance(cut, str))
