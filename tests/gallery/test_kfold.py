"""What the graph `kfold` leaves: the folds of scikit-learn, metrics of what was held out, and the ensemble."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.model_selection import KFold

from graphtrain import UsageError
from graphtrain.graphs.gallery.kfold.begin_fold import BeginFold
from graphtrain.ranks import Ranks
from graphtrain.state.random import seed_everything
from tests.gallery.procedure import tensors
from tests.gallery.procedures.kfold import EPOCHS, FOLDS, PROCEDURE, SAMPLES, folds_of, training_step
from tests.ranks.fake_ranks import run_ranks


def test_the_folds_are_those_of_scikit_learn() -> None:
    for samples in range(2, 12):
        for folds in range(2, samples + 1):
            expected = [(kept.tolist(), held.tolist()) for kept, held in KFold(folds).split(range(samples))]
            begin_fold = BeginFold()
            begin_fold.folds = folds
            assert [begin_fold(range(samples), fold) for fold in range(folds)] == expected


@pytest.mark.full
def test_rows_have_the_fold_and_metrics_are_of_what_was_held_out() -> None:
    trainer = PROCEDURE.trainer()
    trainer.run()
    resources = PROCEDURE.resources()
    seed_everything(0)
    PROCEDURE.by_hand(resources)
    data, ensemble = resources["train_data"].dataset, resources["ensemble"].eval()
    losses = []
    for model, held_out in zip(ensemble, folds_of(SAMPLES, FOLDS), strict=True):
        with torch.no_grad():
            losses.append(float(training_step(model, data[held_out])))
    rows = [row for row in trainer.metrics if "val/loss" in row]
    assert [row["fold"] for row in rows] == [fold for fold in range(FOLDS) for _ in range(EPOCHS)]
    assert [row["val/loss"] for row in rows[EPOCHS - 1 :: EPOCHS]] == pytest.approx(losses)
    total = sum(loss * len(held_out) for loss, held_out in zip(losses, folds_of(SAMPLES, FOLDS), strict=True))
    [*_, last] = [row for row in trainer.metrics if "out_of_fold/loss" in row]
    assert last["out_of_fold/loss"] == pytest.approx(total / SAMPLES)
    assert last["fold"] == FOLDS - 1
    models = [tensors({"model": model}, ("model",)) for model in ensemble]
    assert all(not torch.equal(model["model.0.weight"], models[0]["model.0.weight"]) for model in models[1:])


def test_batches_of_a_list_count_by_their_samples() -> None:
    batches = list(PROCEDURE.resources()["train_data"].dataset.split([6, 5, 2]))
    trainer = PROCEDURE.trainer(resources={**PROCEDURE.resources(), "train_data": batches, "val_data": batches})
    trainer.run()
    losses = [row["val/loss"] for row in trainer.metrics if "val/loss" in row][EPOCHS - 1 :: EPOCHS]
    [*_, last] = [row["out_of_fold/loss"] for row in trainer.metrics if "out_of_fold/loss" in row]
    assert last == pytest.approx((6 * losses[0] + 5 * losses[1] + 2 * losses[2]) / 13)


@pytest.mark.full
def test_cuts_in_the_second_fold_are_exact(tmp_path: Path) -> None:
    """A few of them; the sweep of the gallery makes all cuts."""
    whole = PROCEDURE.trainer()
    positions: list[tuple[int, Any]] = []
    while whole.position != "end":
        positions.append((whole.read("end_fold.runs"), whole.position))
        whole.advance()
    second = [cut for cut, (fold, _) in enumerate(positions) if fold == 1]
    assert {positions[cut][1] for cut in second} > {"begin_fold", "renew", "fit/train_batch", "fit/validate/eval_batch"}
    for cut in (second[1], second[len(second) // 2]):
        first = PROCEDURE.trainer(tmp_path / str(cut))
        first.advance(cut)
        first.save()
        resumed = PROCEDURE.trainer(tmp_path / str(cut))
        resumed.run()
        assert (resumed.digest(), resumed.metrics) == (whole.digest(), whole.metrics), positions[cut]


@pytest.mark.full
def test_another_number_of_folds_is_refused_once_one_is_over(tmp_path: Path) -> None:
    """The parts would overlap those that are over."""
    first = PROCEDURE.trainer(tmp_path)
    while first.read("end_fold.runs") == 0:
        first.advance()
    first.save()
    more = PROCEDURE.graph().set("begin_fold", folds=FOLDS + 1)
    message = "begin_fold.folds = 4: the data was divided into 3 parts, of which 1 have been held out"
    with pytest.raises(UsageError, match=message):
        PROCEDURE.trainer(tmp_path, graph=more).run()


def test_a_fold_goes_without_an_ensemble_and_without_validation() -> None:
    resources = {name: value for name, value in PROCEDURE.resources().items() if name not in ("ensemble", "val_data")}
    trainer = PROCEDURE.trainer(resources={**resources, "validation_step": None})
    trainer.run()
    assert trainer.read("end_fold.runs") == FOLDS
    assert not [row for row in trainer.metrics if any("out_of_fold" in name for name in row)]


@pytest.mark.sweep
def test_two_ranks_resume_in_the_second_fold(tmp_path: Path) -> None:
    def ends(run_dir: Path, advance: int) -> list[tuple[str, Any]]:
        def program(ranks: Ranks) -> tuple[str, Any]:
            trainer = PROCEDURE.trainer(run_dir)
            if advance:
                trainer.advance(advance)
                trainer.save()
                assert trainer.read("end_fold.runs") == 1
            else:
                trainer.run()
            return trainer.digest(), trainer.metrics

        return run_ranks(2, program)

    whole = ends(tmp_path / "whole", 0)
    for advance in (48, 55, 62):
        ends(tmp_path / str(advance), advance)
        assert ends(tmp_path / str(advance), 0) == whole
