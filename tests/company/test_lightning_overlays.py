"""Promises 2 and 20: every shipped overlay trains a LightningModule, or says why not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics

pytest.importorskip("lightning")

from graphtrain import GraphError, Trainer, UsageError
from graphtrain.adapters.lightning import setup
from tests.company import modules
from tests.company.modules import Validated, data, val
from tests.company.peer import assert_cut
from tests.shipped import OVERLAYS

pytestmark = pytest.mark.filterwarnings("ignore")


class Named(Validated):
    """Logs `val/loss`, which some overlays follow."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val/loss", self.loss(batch))


class ManualNamed(modules.Manual):
    validation_step = Named.validation_step


def _tail(model: Any) -> Any:
    return torch.optim.SGD(model.net[4].parameters(), lr=0.1)


# Parameters and resources that an overlay needs, and what is said; empty where it trains.
NEEDED: dict[str, tuple[dict[str, dict[str, Any]], dict[str, Any], str]] = {
    "distill": ({}, {"teacher": torch.nn.Linear(4, 1), "teacher_step": lambda model, batch: model(batch[0])},
        "`training_step` of a LightningModule receives no `teacher_output`"),
    "early_stop": ({"early_stop": {"monitor": "val/loss"}}, {}, ""),
    "plateau": ({}, {"scheduler": lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)}, ""),
    "token_windows": ({"train_batch": {"per": "samples"}}, {}, ""),
    "unfreeze": ({}, {"body_optimizer": lambda optimizer: optimizer}, ""),
    "update_bn": ({}, {}, "`swa_model` is read by"),
    "val_guided": ({"guide": {"metric": "guiding/val/loss"}}, {"guiding_data": val()}, ""),
}  # fmt: skip


def overlaid(base: type, name: str, folder: Path | None = None) -> Trainer:
    """A module with an overlay, or several with a plus between them."""
    torch.manual_seed(0)
    graph, resources = setup(base(), train_dataloaders=data(), val_dataloaders=val(), max_epochs=2, log_every_n_steps=1)
    for each in name.split("+"):
        parameters, more, _ = NEEDED.get(each, ({}, {}, ""))
        graph = graph.overlay(each)
        for node, values in parameters.items():
            graph = graph.set(node, **values)
        for key, value in more.items():
            own = key in ("body_optimizer", "scheduler")  # which are made for the module
            made = _tail(resources["model"]) if key == "body_optimizer" else resources["optimizer"]
            resources[key] = value(made) if own else value
    given = {"device": "cpu", "display": None, "notify": lambda line: None, "seed": 1, "run_dir": folder}
    every = "9 epochs" if name == "rollback" else "never"
    return Trainer(graph.set("checkpoint", every=every), **given, **resources)


@pytest.mark.second(9)
@pytest.mark.parametrize("name", [*sorted(OVERLAYS), "swa+update_bn", "ema+sanity"])
def test_an_overlay_trains_a_module_or_says_why_not(name: str, tmp_path: Path) -> None:
    message = NEEDED.get(name, ({}, {}, ""))[2]
    if message:
        with pytest.raises((GraphError, UsageError), match=message):
            overlaid(Named, name).run()
        return
    trainer = overlaid(Named, name, tmp_path)
    trainer.run()
    assert {"train_loss", "val/loss"} <= {metric for row in trainer.metrics for metric in row}


# On a module that steps its optimizers itself: these train, and others are errors about the nodes that are not there.
OF_MANUAL = ("carry", "early_stop", "ema", "sanity", "save_first", "swa", "swa+update_bn")


@pytest.mark.parametrize("name", [*OF_MANUAL, *sorted({*OVERLAYS} - {*OF_MANUAL})])
def test_an_overlay_trains_a_module_that_steps_itself_or_names_the_nodes_that_are_not_there(name: str) -> None:
    if name in OF_MANUAL:
        overlaid(ManualNamed, name).run()
        return
    with pytest.raises((GraphError, UsageError), match=r"there is no |nothing supplies it"):
        overlaid(ManualNamed, name)


class Gathering(Named):
    """Gathers what it validates, with a metric and in a list, and logs it where the validation ends."""

    def __init__(self) -> None:
        super().__init__()
        self.error, self.seen = torchmetrics.MeanSquaredError(), []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.error(self(batch[0]), batch[1])
        self.log("val/error", self.error)
        self.seen.append(self.loss(batch))

    def on_validation_epoch_end(self) -> None:
        self.log("val/seen", torch.stack(self.seen).mean())
        self.seen.clear()


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("base", [Gathering, ManualNamed])
def test_an_average_of_a_module_is_validated_as_the_module_is_and_resumed(base: type, tmp_path: Path) -> None:
    whole = assert_cut(lambda folder: overlaid(base, "ema", folder), 4, tmp_path)
    average = copy.deepcopy(whole.resources["average"]).eval()
    with torch.no_grad():
        expected = torch.stack([average.loss(batch) for batch in val()]).mean()
    for name in ("val/loss", "val/error", "val/seen") if base is Gathering else ("val/loss",):
        assert whole.metrics[-1][name] == float(expected)


def test_a_check_before_training_is_no_part_of_the_first_validation() -> None:
    plain, checked = overlaid(Named, "carry"), overlaid(Named, "sanity")
    plain.run()
    checked.run()
    assert "sanity/val/loss" in checked.metrics[0]
    assert [row["val/loss"] for row in checked.metrics if "val/loss" in row] == [
        row["val/loss"] for row in plain.metrics if "val/loss" in row
    ]
    with pytest.raises(UsageError, match="`sanity` calls no hook, so not on_validation_epoch_end"):
        overlaid(Gathering, "sanity").run()
