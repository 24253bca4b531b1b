"""What a resume costs, whatever it loads: every byte is hashed once, nothing is encoded twice (promises 10, 12)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import CheckpointError, Graph, Trainer

LARGE = 16 << 20


class Table:
    """A resource with a state."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values, self.saved = values, 0

    def state_dict(self) -> dict[str, Any]:
        self.saved += 1
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state["values"]


class Changing(Table):
    """One whose state is changed when it is loaded, in a way that no counter of torch sees."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state["values"]
        self.values.numpy()[-1] += 1


def run_with(run_dir: Path, table: Table, model: nn.Module | None = None, **more: Any) -> Trainer:
    torch.manual_seed(0)
    model = model or nn.Linear(1, 1)
    return Trainer(
        Graph.load("fit").set("finish", after="6 batches").set("accumulate", every=2),
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=lambda line: None,
        not_state=["table.saved"],
        model=model,
        optimizer=torch.optim.Adam(model.parameters()),
        train_data=[torch.ones(1, 1)] * 6,
        training_step=lambda model, batch: model(batch).sum(),
        table=table,
        **more,
    )


def test_a_resume_asks_for_a_state_no_more_often_than_it_compares_it(tmp_path: Path) -> None:
    run_with(tmp_path, Table(torch.ones(3))).run(until="3 batches")
    again = run_with(tmp_path, table := Table(torch.zeros(3)))
    table.saved = 0
    again.advance()
    assert table.saved <= 4, "listed, put back, compared, and digested"


def test_state_that_is_changed_while_it_is_loaded_is_refused(tmp_path: Path) -> None:
    run_with(tmp_path, Changing(torch.ones(LARGE // 4))).run(until="3 batches")
    with pytest.raises(CheckpointError, match="the loaded state is not the saved state"):
        run_with(tmp_path, Changing(torch.zeros(1))).advance()


class Remembering(nn.Linear):
    """A layer that keeps the tensor that is loaded, as some that are quantized do."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.kept = torch.arange(3.0)

    def get_extra_state(self) -> torch.Tensor:
        return self.kept

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.kept = state


class Growing(nn.Linear):
    """A layer with a buffer of any size, which a hook puts in its place."""

    def __init__(self) -> None:
        super().__init__(1, 1)
        self.register_buffer("seen", torch.arange(3.0))
        self.register_load_state_dict_pre_hook(self.put)

    @staticmethod
    def put(module: nn.Module, state: dict[str, torch.Tensor], prefix: str, *_: Any) -> None:
        module.seen = state[f"{prefix}seen"]


def patched() -> nn.Linear:
    """One whose object has a method of its own."""
    model = nn.Linear(1, 1)
    model.register_buffer("seen", torch.arange(3.0))

    def load(state: dict[str, torch.Tensor]) -> None:
        nn.Module.load_state_dict(model, state)
        model.seen = state["seen"]

    model.load_state_dict = load  # type: ignore[method-assign, assignment]
    return model


@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(1, 1), Remembering, Growing, patched], ids=["copies", "keeps", "hook", "method"]
)
def test_nothing_of_a_run_stays_in_the_files_of_its_checkpoint(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    run_with(tmp_path, Table(torch.ones(3)), make(), gradients=nn.Linear(2, 2)).run(until="3 batches")
    again = run_with(tmp_path, Table(torch.ones(3)), make(), gradients=nn.Linear(2, 2))
    again.advance(0)
    loaded = again.digest()
    (path,) = (tmp_path / "checkpoints").iterdir()
    assert (path / "gradients.safetensors").stat().st_size > 0, "of the open window, and of the module of that name"
    for file in path.iterdir():
        file.write_bytes(bytes(file.stat().st_size))
    assert again.digest() == loaded
