"""LightningModules of published packages, unchanged: trained as Lightning trains them, and resumed from the middle.

Each package is in an environment of its own, `.venv-NAME`, since they need other versions than the tests have.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning")

from tests.adapters import peer
from tests.adapters.environments import run_elsewhere
from tests.adapters.modules import Case
from tests.adapters.test_lightning import cut, same, series

pytestmark = [pytest.mark.sweep, pytest.mark.filterwarnings("ignore")]

FLAGS: dict[str, Any] = {"max_epochs": 2, "log_every_n_steps": 1}


def chemprop() -> Case:
    """A message-passing network on molecules, with its own batch type, schedule and metrics."""
    from chemprop import data, models, nn

    smiles = ["C" * length + end for length in range(1, 7) for end in ("", "O", "N", "C(=O)O")]

    def loader(names: list[str], shuffle: bool) -> Any:
        points = [data.MoleculeDatapoint.from_smi(name, [float(len(name))]) for name in names]
        return data.build_dataloader(data.MoleculeDataset(points), batch_size=6, shuffle=shuffle, num_workers=0)

    def module() -> Any:
        layers = nn.BondMessagePassing(d_h=16, depth=2, dropout=0.1), nn.MeanAggregation()
        return models.MPNN(*layers, nn.RegressionFFN(input_dim=16, hidden_dim=16), warmup_epochs=1)

    return Case(module, FLAGS, lambda: loader(smiles[:18], True), lambda: loader(smiles[18:], False))


def pytorch_forecasting() -> Case:
    """A temporal fusion transformer, whose steps take batches of its own collation and log by themselves."""
    import pandas
    from pytorch_forecasting import TemporalFusionTransformer, TimeSeriesDataSet

    frame = pandas.DataFrame(
        {"time": [*range(40)] * 2, "series": ["a"] * 40 + ["b"] * 40, "value": torch.linspace(0, 12, 80).sin().tolist()}
    )
    series_of = TimeSeriesDataSet(
        frame, time_idx="time", target="value", group_ids=["series"], max_encoder_length=8, max_prediction_length=2,
        time_varying_unknown_reals=["value"],
    )  # fmt: skip

    def module() -> Any:
        sizes = {"hidden_size": 4, "attention_head_size": 1, "hidden_continuous_size": 4, "dropout": 0.1}
        return TemporalFusionTransformer.from_dataset(series_of, learning_rate=0.01, **sizes)

    def loader(train: bool) -> Any:
        return series_of.to_dataloader(train=train, batch_size=16, num_workers=0)

    return Case(module, {**FLAGS, "gradient_clip_val": 0.1}, lambda: loader(True), lambda: loader(False))


def neuralforecast() -> Case:
    """A forecaster that keeps its data module and counts its steps."""
    import pandas
    from neuralforecast.models import NHITS
    from neuralforecast.tsdataset import TimeSeriesDataModule, TimeSeriesDataset

    frame = pandas.DataFrame(
        {
            "unique_id": ["a"] * 60 + ["b"] * 60,
            "ds": [*range(60)] * 2,
            "y": torch.linspace(0, 12, 120).sin().tolist(),
        }
    )
    dataset, *_ = TimeSeriesDataset.from_df(frame)

    def module() -> Any:
        return NHITS(h=4, input_size=8, mlp_units=[[16, 16]] * 3, max_steps=10, val_check_steps=5, batch_size=2)

    def datamodule() -> Any:
        return TimeSeriesDataModule(dataset=dataset, batch_size=2)

    return Case(module, {"max_steps": 10, "log_every_n_steps": 1}, train=None, datamodule=datamodule)


PACKAGES = {"chemprop": chemprop, "pytorch-forecasting": pytorch_forecasting, "neuralforecast": neuralforecast}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_module_of_a_package_is_trained_as_it_is(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(name.replace("-", "_")) is None:
        run_elsewhere(name, __file__, "lightning==2.6.6", name)
        return
    torch.set_num_threads(1)
    case = PACKAGES[name]()
    expected = peer.by_lightning(case)
    trainer = peer.trainer_of(case)
    trainer.run()
    actual = peer.result_of(trainer)
    assert same(actual.weights, expected.weights)
    assert same(actual.optimizers, expected.optimizers)
    logged = series(actual.rows)
    assert {name: logged.get(name) for name in series(expected.rows)} == series(expected.rows)
    cut(case, 1, tmp_path)
