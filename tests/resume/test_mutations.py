"""Every guarantee has a mutation that breaks it: with each of these, the comparison of cuts must fail (promise 10)."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import GraphtrainError
from graphtrain.nodes import _reading
from graphtrain.program import run_state
from graphtrain.program.run_state import AFTER_SETUP, RunState
from graphtrain.program.stateful_objects import StatefulObjects
from graphtrain.program.triggers import Every
from graphtrain.report.recorder import Recorder
from graphtrain.resume import restore
from graphtrain.state import objects
from graphtrain.state.generators import capture_random
from graphtrain.storage.encoding import Encoded
from tests.world import Course, run_through, world

Mutation = Callable[[pytest.MonkeyPatch], None]
# In a window, in a validation, before what a step makes due, around the batch that thaws, in the second epoch.
CUTS = (3, 13, 19, 34, 57, 92, 105)


def saved(change: Callable[[dict[str, Any]], object]) -> Mutation:
    """The state is changed between the disk and the run, as if it had been saved so."""

    original = run_state.restore

    def changed(self: Any, state: RunState, *rest: Any) -> Any:
        sections = {section: dict(parts) for section, parts in state.items()}
        change(sections)
        return original(self, sections, *rest)

    return replaced(run_state, "restore", changed)


def without_part(part: str) -> Mutation:
    """Of modules nothing of this kind is saved."""
    return saved(lambda it: it.update(modules={name: {**state, part: {}} for name, state in it["modules"].items()}))


def progress(node: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Mutation:
    """The progress of a node is another one."""
    return saved(lambda it: it["progress"].update({node: {**it["progress"][node], **change(it["progress"][node])}}))


def replaced(owner: Any, name: str, value: Any) -> Mutation:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, value)


def random_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    original = run_state.restore

    def restore_early(self: Any, state: RunState, sections: Any, *rest: Any) -> Any:
        return original(self, state, [name for name in sections if name not in AFTER_SETUP], *rest)

    monkeypatch.setattr(run_state, "restore", restore_early)
    monkeypatch.setattr(_reading, "PreservedRandom", lambda generators: nullcontext())


def generator_not_saved(name: str) -> Mutation:
    """Of Python's, NumPy's and torch's, one."""
    return saved(lambda it: it["random"].update({name: capture_random()[name]}))


def random_drawn_from_by_the_iterator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random generators are set aside while an epoch is reopened, and restored after it; without both they move."""
    original = run_state.restore

    def restore_all(self: StatefulObjects, state: RunState, sections: Any, *rest: Any) -> Any:
        return original(self, state, [*sections, *AFTER_SETUP] if "progress" in sections else (), *rest)

    monkeypatch.setattr(run_state, "restore", restore_all)
    monkeypatch.setattr(_reading, "PreservedRandom", lambda generators: nullcontext())


def pending_validation_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Every.start

    def start(self: Every) -> None:
        original(self)
        if self._fields["fired"]:
            self.fire()

    monkeypatch.setattr(Every, "start", start)


def slots_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = StatefulObjects.decoded

    def changed(self: StatefulObjects, value: Any) -> Any:
        is_batch = isinstance(value, Encoded) and value.part == "slots['batch']"
        found = decoded(self, value)
        return tuple(map(torch.zeros_like, found)) if is_batch else found

    monkeypatch.setattr(StatefulObjects, "decoded", changed)


nothing: Any = lambda *arguments: None  # noqa: E731
# name -> the mutation, and whether the digest notices it at once
MUTATIONS: dict[str, tuple[Mutation, bool]] = {
    "gradients": (saved(lambda it: it.update(gradients={name: {} for name in it["gradients"]})), True),
    "random states": (random_not_saved, True),
    "slots": (slots_not_saved, True),
    "the position in the window": (progress("accumulate", lambda fields: {"count": 0}), True),
    "modes": (without_part("training"), True),
    "frozen flags": (without_part("requires_grad"), True),
    "buffers": (without_part("buffers"), True),
    "the optimizer": (replaced(objects, "load_optimizer", nothing), True),
    "a parameter of no module": (saved(lambda it: it.pop("reachable", None)), False),
    "Python's random state": (generator_not_saved("python"), False),
    "NumPy's random state": (generator_not_saved("numpy"), False),
    "torch's random state": (generator_not_saved("torch"), False),
    "random numbers that an iterator draws": (random_drawn_from_by_the_iterator, False),
    "a validation that is pending": (pending_validation_dropped, False),
    "when it was last validated": (
        progress("validate", lambda fields: {"fired": {unit: [0, 1, None] for unit in fields["fired"]}}),
        False,
    ),
    "the position in the data": (
        progress("next_batch", lambda fields: {"epoch_batches": max(fields["epoch_batches"] - 1, 0)}),
        False,
    ),
    "the scheduler": (replaced(torch.optim.lr_scheduler.LRScheduler, "load_state_dict", nothing), False),
    "sums of metrics": (replaced(Recorder, "load_state_dict", nothing), False),
}


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


# A `Loader` seeds Python and NumPy for each batch.
OF_A_DATALOADER = ["Python's random state", "NumPy's random state", "random numbers that an iterator draws"]
ROWS = [(name, "Loader") for name in reversed(MUTATIONS) if name not in OF_A_DATALOADER]
ROWS += [(name, "DataLoader") for name in (*OF_A_DATALOADER, "the position in the data")]


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Detected call of")  # a schedule whose optimizer has stepped in another process
@pytest.mark.parametrize(("name", "kind"), ROWS)
def test_a_mutation_is_noticed_by_the_comparison(
    name: str, kind: str, cuts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_kind = cuts(kind)
    MUTATIONS[name][0](monkeypatch)
    # Without the digest that is compared after loading: the comparison of what follows has to notice by itself.
    monkeypatch.setattr(restore, "_expect_digest", lambda *of_a_checkpoint, **how: None)
    assert any(differences(of_kind, kind, tmp_path))


@pytest.mark.second(4)
@pytest.mark.first(2)
@pytest.mark.parametrize("name", [name for name, (_, is_at_once) in MUTATIONS.items() if is_at_once])
def test_lost_state_is_noticed_at_once_by_the_digest(
    name: str, cuts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_kind = cuts("Loader")
    MUTATIONS[name][0](monkeypatch)
    assert any("the loaded state is not the saved state" in line for line in differences(of_kind, "Loader", tmp_path))
