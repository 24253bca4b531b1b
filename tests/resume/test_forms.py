"""Modules and optimizers that training gives another form: put back, or reported at the save (10, 11)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import CheckpointError, Graph, Trainer
from tests.world import said_at_resume, says_exact

CHANGED_AT, CUT_AT = 3, 5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 1)
        self.head = nn.Linear(16, 3)
        self.register_buffer("mean", None)
        self.register_buffer("scale", None, persistent=False)
        self.register_buffer("shift", torch.ones(3))
        self.register_buffer("bank", torch.zeros(2))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(self.conv(x).flatten(1)) * self.frozen
        for part in (self.mean, self.scale, self.shift, getattr(self, "late", None), getattr(self, "later", None)):
            if part is not None:
                y = y + part
        return y + self.bank.mean()


Change = Callable[[Any, Any], object]


class Task:
    """A step that changes something once."""

    def __init__(self, change: Change, optimizer: Any) -> None:
        self.change, self.optimizer, self.calls = change, optimizer, 0

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        self.calls += 1
        if self.calls == CHANGED_AT:
            self.change(model, self.optimizer)
        return torch.nn.functional.dropout(model(batch), 0.1).square().mean()


def trainer_of(change: Change, run_dir: Path, model: Callable[[], nn.Module] = Net) -> tuple[Trainer, list[str]]:
    torch.set_num_threads(1)  # undone after each test; others want the processors too
    torch.manual_seed(0)
    net, lines = model(), []
    parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
    groups = [{"params": parameters[:1]}, {"params": parameters[1:]}]
    optimizer = torch.optim.AdamW(groups, lr=0.02)
    generator = torch.Generator().manual_seed(1)
    trainer = Trainer(
        Graph.load("fit").set("finish", after="8 batches").set("checkpoint", every="never"),
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=lines.append,
        model=net,
        optimizer=optimizer,
        train_data=[torch.randn(3, 2, 2, 2, generator=generator) for _ in range(4)],
        training_step=Task(change, optimizer),
    )
    return trainer, lines


def fill(name: str, value: Any) -> Change:
    return lambda model, optimizer: setattr(model, name, value)


def thaw(model: Any, optimizer: Any) -> None:
    model.frozen.requires_grad_(True)
    optimizer.add_param_group({"params": [model.frozen], "lr": 0.5})


def grow(model: Any, optimizer: Any) -> None:
    model.bank = torch.cat([model.bank, torch.ones(2)])


def grow_head(model: Any, optimizer: Any) -> None:
    """In place, with all that refers to its former shape."""
    for tensor in (model.head.weight, model.head.bias, model.shift):
        tensor.data = torch.cat([tensor.data, tensor.data[:1]])
        tensor.grad = None
    model.frozen.data = torch.ones(4)
    model.head.out_features = 4
    for parameter in (model.head.weight, model.head.bias):
        optimizer.state[parameter].clear()


LOADABLE: dict[str, Change] = {
    "a group that is added": thaw,
    "a buffer of another shape": grow,
    "nothing": lambda model, optimizer: None,
    "a buffer that was None": fill("mean", torch.full((3,), 0.25)),
    "a buffer that becomes None": fill("shift", None),
    "a buffer of another dtype": lambda model, optimizer: model._buffers.update(shift=model.shift.double()),
}


@pytest.mark.first(2)
@pytest.mark.parametrize(("name", "model"), [*((name, Net) for name in LOADABLE), ("nothing", lambda: lazy())])
def test_what_can_be_loaded_is_put_back_without_a_report(
    name: str, model: Callable[[], nn.Module], tmp_path: Path
) -> None:
    whole, _ = trainer_of(LOADABLE[name], tmp_path / "whole", model)
    whole.run()
    first, lines = trainer_of(LOADABLE[name], tmp_path / "cut", model)
    first.run(until=f"{CUT_AT} batches")
    first.save()
    assert not [line for line in lines if "exact" in line]
    second, lines = trainer_of(LOADABLE[name], tmp_path / "cut", model)
    second.run()
    assert says_exact(said_at_resume(lines))
    assert second.digest() == whole.digest()


def lazy() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 2))


def replace_head(model: Any, optimizer: Any) -> None:
    model.head.weight = nn.Parameter(torch.ones(3, 16))


def shrink_group(model: Any, optimizer: Any) -> None:
    optimizer.state.pop(optimizer.param_groups[1]["params"].pop())


def append_layers(model: Any, optimizer: Any) -> None:
    model.more = nn.Linear(2, 2)
    optimizer.add_param_group({"params": list(model.more.parameters())})


OTHERS = "optimizer: parameter groups changed since `setup`: other parameters, or another order; "
OF_MODEL = "model: parameters or buffers changed since `setup`: "
LOST: dict[str, tuple[Change, str]] = {
    "a parameter that appears": (
        lambda model, optimizer: model.register_parameter("extra", nn.Parameter(torch.ones(2))),
        f"{OF_MODEL}`extra`; a resume with this `setup` is refused, or not exact: create all of it in `setup`, and let "
        "training switch it on (docs/gallery.md, A model that grows)",
    ),
    "layers that are appended": (append_layers, f"{OF_MODEL}`more.weight`, `more.bias`; "),
    "one that goes": (lambda model, optimizer: model.head.register_parameter("bias", None), f"{OF_MODEL}`head.bias`; "),
    "one of another shape": (
        lambda model, optimizer: setattr(model, "frozen", nn.Parameter(torch.ones(1))),
        f"{OF_MODEL}`frozen`; ",
    ),
    "another one": (replace_head, f"{OF_MODEL}`head.weight`; "),
    "parameters that get another shape": (grow_head, f"{OF_MODEL}`frozen`, `head.weight`, `head.bias`; "),
    "one that gets another dtype": (
        lambda model, optimizer: setattr(model.frozen, "data", model.frozen.data.bfloat16()),
        f"{OF_MODEL}`frozen`; ",
    ),
    "a group without one": (shrink_group, OTHERS),
    "groups that changed places": (lambda model, optimizer: optimizer.param_groups.reverse(), OTHERS),
    "something new in a group": (
        lambda model, optimizer: optimizer.param_groups[0]["params"].append(nn.Parameter(torch.ones(1))),
        OTHERS,
    ),
    "a group with something new": (
        lambda model, optimizer: optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]}),
        OTHERS,
    ),
}
LOADED = {"another one", "one that gets another dtype"}


@pytest.mark.first(3)
@pytest.mark.parametrize("name", list(LOST))
def test_what_the_same_setup_could_not_load_is_told_at_the_save_and_refused(name: str, tmp_path: Path) -> None:
    change, expected = LOST[name]
    trainer, lines = trainer_of(change, tmp_path)
    trainer.run(until=f"{CUT_AT} batches")
    trainer.save()
    (said,) = [line for line in lines if "resume" in line]
    assert said.startswith(expected)
    second, resumed = trainer_of(change, tmp_path)
    if name not in LOADED:
        with pytest.raises(CheckpointError):
            second.advance(0)
    else:
        second.advance(0)
        assert any(line.startswith("resumed ") and said in line for line in resumed)


@pytest.mark.full
def test_the_state_of_a_generator_that_does_not_exist_any_more_is_named(tmp_path: Path) -> None:
    class Data(list[torch.Tensor]):
        generator: torch.Generator | None = None

    def trained(*, generator: bool, **more: Any) -> Trainer:
        trainer, lines = trainer_of(LOADABLE["nothing"], tmp_path)
        data = Data(trainer.resources["train_data"])
        data.generator = torch.Generator() if generator else None
        resources = {**trainer.resources, "train_data": data}
        return Trainer(trainer.graph, run_dir=tmp_path, display=None, notify=lines.append, **resources, **more)

    first = trained(generator=True)
    first.run(until="2 batches")
    first.save()
    with pytest.raises(CheckpointError, match=r"the state of `train_data.*generator.*does not exist now") as raised:
        trained(generator=False).run()
    assert 'not_state=["train_data' in raised.value.hint
    trained(generator=False, not_state="train_data").run()


def test_what_earlier_versions_did_not_save_is_reported(tmp_path: Path) -> None:
    def trained(*, teacher: bool) -> tuple[Trainer, list[str]]:
        trainer, lines = trainer_of(LOADABLE["nothing"], tmp_path)
        if teacher:
            trainer.resources["training_step"].held = [
                layer := nn.Linear(1, 1),
                torch.optim.SGD(layer.parameters(), lr=0.1),
            ]
        return trainer, lines

    first, _ = trained(teacher=False)
    first.run(until="2 batches")
    first.save()
    second, lines = trained(teacher=True)
    second.run()
    (line,) = [line for line in lines if line.startswith("resumed ")]
    assert "training_step.held[0] new, as set up" in line


def test_an_optimizer_whose_state_cannot_be_read_is_named(tmp_path: Path) -> None:
    trainer, _ = trainer_of(lambda model, optimizer: optimizer.param_groups.pop(), tmp_path)
    with pytest.raises(CheckpointError, match="`optimizer` cannot be saved: its state_dict raised KeyError"):
        trainer.run()
