"""Cut at every save point, resume in a separate process: equal to the run never cut, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.resume.full_run import BATCH_SIZE, KINDS, SAMPLES, full_graph, full_trainer
from tests.resume.sweep import sweep

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata asks torch for it
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than there may be cores
]

WITH_WORKERS = ["Loader", "DataLoader", "own generator", "lazy sampler", "stream", "StatefulDataLoader"]
IN_FULL = [(kind, 0) for kind in KINDS] + [(kind, 2) for kind in WITH_WORKERS] + [("Loader", 4)]


def needs(kind: str) -> None:
    if kind == "StatefulDataLoader":
        pytest.importorskip("torchdata.stateful_dataloader")


@pytest.mark.sweep
@pytest.mark.parametrize(("kind", "workers"), IN_FULL)
def test_every_cut_is_exact(
    kind: str, workers: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    needs(kind)
    cuts = sweep(tmp_path, kind, workers)
    record_property("sweep", [kind, str(workers), cuts])
    assert cuts > 100


@pytest.mark.sweep
@pytest.mark.parametrize(("workers", "then"), [(0, 2), (2, 0), (2, 4), (4, 2)])
def test_every_cut_is_exact_with_another_number_of_workers(
    workers: int, then: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    cuts = sweep(tmp_path, "Loader", workers, then=then)
    record_property("sweep", ["Loader", f"{workers}, then {then}", cuts])
    assert cuts > 100


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_some_cuts_are_exact(kind: str, tmp_path: Path) -> None:
    """Never the same place in a window or an epoch: the stride is prime to both."""
    needs(kind)
    assert sweep(tmp_path, kind, 0, stride=11 if kind == "Loader" else 53) >= 2


def test_the_run_has_everything_that_a_resume_can_get_wrong() -> None:
    """Otherwise the sweep would prove less than it claims."""
    assert SAMPLES // BATCH_SIZE % 4, "the last window of an epoch is short"
    trainer = full_trainer()
    seen = set()
    thawed = set()
    position = ""
    while position != "end":
        position = trainer.advance()
        model = trainer.resources["model"]
        open_window = bool(trainer.progress["accumulate"]["count"])
        inside = trainer.progress["next_batch"]["epoch_batches"] not in (0, SAMPLES // BATCH_SIZE)
        seen.add((position, open_window, inside))
        thawed.add((model.frozen.weight.requires_grad, model.norm.training))
    assert {
        ("validate/eval_batch", True, True),
        ("validate", True, True),
        ("train_batch", True, True),
        ("zero_grad", True, True),
        ("clip", True, False),
        ("schedule", False, True),
    } <= seen
    assert {(False, True), (True, False)} <= thawed
    assert trainer.graph == full_graph()
    for name in ("accuracy", "epoch/accuracy", "val/loss"):
        assert len({row[name] for row in trainer.metrics if name in row}) > 1
