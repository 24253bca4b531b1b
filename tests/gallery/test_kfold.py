"""What the graph `kfold` leaves: the folds of scikit-learn, metrics of what was held out, and the ensemble."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sklearn.model_selection import KFold

from graphtrain import UsageError
from graphtrain.graphs.gallery.kfold.begin_fold import BeginFold
from graphtrain.state.random import seed_everything
from tests.gallery.procedure import tensors
from tests.gallery.procedures.kfold import EPOCHS, FOLDS, PROCEDURE, SAMPLES, folds_of, training_step


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
