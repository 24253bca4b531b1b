"""Promise 20: every public name of Lightning's module and Trainer works, or says what does it here."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning")

from lightning.pytorch import LightningModule
from lightning.pytorch import Trainer as LightningTrainer

from graphtrain import UsageError
from graphtrain.adapters.lightning import setup
from tests.company.modules import Base, Validated, data, val
from tests.company.names import FLAGS, MODULE, TRAINER, TRIED
from tests.company.peer import ran

pytestmark = pytest.mark.filterwarnings("ignore")


def public(of: type, base: type) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_") and name not in dir(base)}


def test_every_name_of_a_module_has_a_row() -> None:
    assert public(LightningModule, torch.nn.Module) == set(MODULE)


def test_every_name_of_the_trainer_has_a_row() -> None:
    made = LightningTrainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
    attributes = {name for name in vars(made) if not name.startswith("_")}
    assert public(LightningTrainer, object) | attributes == set(TRAINER)
    assert set(inspect.signature(LightningTrainer).parameters) == set(FLAGS)


# ---- what is called


PREFIX = "called:"  # it is printed, since whatever counts is restored with the run


def stepped(module: Any) -> Any:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


# What a module has that Lightning's own does not have, or that has to be more than it is there.
OWN: dict[str, Any] = {
    "configure_optimizers": stepped,
    "configure_callbacks": lambda self: [],
    "test_step": lambda self, batch, batch_idx: None,
    "predict_step": lambda self, batch, batch_idx: self(batch[0]),
    "train_dataloader": lambda self: data(3),
    **{f"{stage}_dataloader": lambda self: val() for stage in ("val", "test", "predict")},
}


def noting(name: str) -> Any:
    inner = OWN.get(name) or getattr(Validated, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        print(PREFIX, name)
        return inner(self, *args, **kwargs)

    method.__signature__ = inspect.signature(inner)  # type: ignore[attr-defined]
    return method


# Not beside `configure_model`: "configure_sharded_model".
CALLED = [name for name, answer in MODULE.items() if answer == "called" and name != "configure_sharded_model"]
Noted = type("Noted", (Validated,), {name: noting(name) for name in CALLED})


class Sharded(Base):
    def configure_sharded_model(self) -> None:  # not beside `configure_model`
        print(PREFIX, "configure_sharded_model")


def test_everything_that_a_module_overrides_is_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = Noted()
    for until in ("1 epochs", None):
        graph, resources = setup(module, max_epochs=2)
        ran(graph, resources, until, run_dir=tmp_path)
    setup(Sharded(), train_dataloaders=data(1))
    for stage in ("test", "predict"):
        graph, resources = setup(module, stage=stage)
        more = {"predictions_file": str(tmp_path / "predicted.jsonl")} if stage == "predict" else {}
        ran(graph, resources, **more)
    printed = capsys.readouterr().out.splitlines()
    calls = {line.removeprefix(PREFIX).strip() for line in printed if line.startswith(PREFIX)}
    assert {name for name, answer in MODULE.items() if answer == "called"} == calls


# ---- what works in a step, and what says where it is done


class Trying(Base):
    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        for owner, rows in ((self, MODULE), (self.trainer, TRAINER)):
            for name, answer in rows.items():
                if answer == "works" or answer.startswith("["):
                    with torch.enable_grad():
                        self.outcomes[f"{type(owner).__name__}.{name}"] = self.outcome(owner, name, answer)

    def outcome(self, owner: Any, name: str, answer: str) -> str:
        try:
            TRIED[name](owner) if owner is self and name in TRIED else getattr(owner, name)
        except AttributeError as error:
            return "" if answer.startswith("[") and answer.strip("[]") in str(error) else f"raises {error}"
        return "" if answer == "works" else "raises nothing"


def test_every_name_works_in_a_step_or_says_what_does_it_here() -> None:
    module = Trying()
    graph, resources = setup(module, train_dataloaders=data(1), max_epochs=1)
    ran(graph, resources)
    assert len(module.outcomes) > 100
    assert {name: outcome for name, outcome in module.outcomes.items() if outcome} == {}


@pytest.mark.parametrize("name", FLAGS)
def test_every_argument_of_the_trainer_is_an_edit_or_says_where_it_is_done(name: str) -> None:
    answer, value = FLAGS[name]
    given = {"train_dataloaders": data(), "val_dataloaders": val(), name: value}
    if answer.startswith("["):
        with pytest.raises(UsageError, match=re.escape(answer.strip("[]"))):
            setup(Validated(), **given)
        return
    graph, _ = setup(Validated(), **given)
    assert graph.check() == []
    plain, _ = setup(Validated(), train_dataloaders=data(), val_dataloaders=val())
    assert (graph != plain) == (answer == "edit")
