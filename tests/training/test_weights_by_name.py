"""Promises 13 and 14: weights are loaded by their names: tied ones, a part of them, those of compiled models."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from graphtrain import CheckpointError, Graph, Trainer, UsageError, fit
from tests.training.tiny import tiny
from tests.world import said_at_resume

INPUTS = [torch.linspace(-1, 1, 32).reshape(8, 4) * number for number in range(1, 6)]
TWO = fit(epochs=2)


class Net(nn.Module):
    def __init__(self, width: int = 4, seed: int = 0) -> None:
        torch.manual_seed(seed)
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4))
        self.side = nn.Linear(4, 4)
        self.head = nn.Linear(4, width, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.side(self.body(inputs)))
        return output


def training(
    model: nn.Module, run_dir: Path | None = None, trained: Iterable[Any] = (), graph: Graph = TWO, **more: Any
) -> Trainer:
    optimizer = torch.optim.AdamW(list(trained) or model.parameters(), lr=0.01)
    return tiny(graph, run_dir, model=model, optimizer=optimizer, train_data=INPUTS, **more)


def resumed(model: nn.Module, run_dir: Path, **more: Any) -> str:
    """The line about a resume."""
    said: list[str] = []
    training(model, run_dir, said=said, **more).run()
    return said_at_resume(said)


# ---- tied


def tied(how: str) -> Net:
    model = Net()
    weight = model.body[0].weight
    if how == "a module":
        model.head = model.body[0]
    else:
        model.head.weight = weight
    return model


@pytest.mark.parametrize("how", ["a parameter", "a module"])
def test_tied_weights_are_loaded_where_they_are_equal_or_one_is_chosen(how: str, tmp_path: Path) -> None:
    plain, tied_run = tmp_path / "plain", tmp_path / "tied"
    training(Net(), plain).run(until="2 steps")
    lost = r"body\.0\.weight: in the memory of head\.weight in the module, and has other values in the file"
    model = tied(how)
    before = model.side.weight.clone()
    with pytest.raises(UsageError, match=lost):
        training(model).load(plain / "newest")
    assert torch.equal(model.side.weight, before), "nothing is half loaded"
    with pytest.raises(CheckpointError, match=r"no longer `model\.head\.weight`"):
        training(tied(how), plain).run()
    training(model).load(plain / "newest", only=["head.*", "side.*"])
    (checkpoint,) = (plain / "checkpoints").iterdir()
    assert torch.equal(model.head.weight, load_file(checkpoint / "model.safetensors")["head.weight"])
    training(tied(how), tied_run).run(until="2 steps")
    for other in (tied(how), Net()):
        training(other).load(tied_run / "newest")
    assert resumed(tied(how), tied_run).endswith(": exact")


# ---- a part of the weights


def test_a_new_head_begins_with_the_body_of_another_run(tmp_path: Path) -> None:
    training(Net(), tmp_path).run(until="2 steps")
    saved = load_file(next((tmp_path / "checkpoints").iterdir()) / "model.safetensors")
    model = Net(width=2, seed=1)
    head, side = model.head.weight.clone(), model.side.weight.clone()
    with pytest.raises(UsageError, match=r"head.weight: float32 \(4, 4\) in the file, float32 \(2, 4\)") as caught:
        training(model).load(tmp_path / "newest")
    assert "load only what fits: --init 'NAME.PATTERN=FILE'" in caught.value.hint
    training(model).load(tmp_path / "newest", only="body.*")
    state = model.state_dict()
    assert all(torch.equal(state[name], saved[name]) for name in saved if name.startswith("body."))
    assert torch.equal(model.head.weight, head) and torch.equal(model.side.weight, side)
    for only, message in (("bdy.*", r"no weight has a name like `bdy\.\*`"), ("*.weight", r"head\.weight: float32")):
        with pytest.raises(UsageError, match=message):
            training(model).load(tmp_path / "newest", only=only)


# ---- the parameters of an optimizer


def parts(names: str) -> tuple[nn.Module, list[Any]]:
    """A model, and some of its modules in one group or several."""
    model = Net()
    model.more = nn.Linear(4, 4)
    groups = [[p for name in group.split() for p in getattr(model, name).parameters()] for group in names.split("|")]
    return model, groups[0] if len(groups) == 1 else [{"params": group} for group in groups]


@pytest.mark.parametrize(
    ("trained", "message"),
    [
        ("body side", "no longer `model.head.weight`"),
        ("body side head", None),
        ("side head body", "other groups, or another order"),
        ("body head more", r"no longer `model.side.bias`, .* and now `model.more.bias`, "),
        ("body|side|head", "other groups, or another order"),
    ],
)
def test_parameters_that_came_and_went_are_named(trained: str, message: str | None, tmp_path: Path) -> None:
    model, groups = parts("body side head")
    training(model, tmp_path, groups).run(until="2 steps")
    model, groups = parts(trained)
    again = training(model, tmp_path, groups)
    if message is None:
        again.run()
        return
    expected = f"`optimizer` does not have the parameters of the saved run: .*{message}"
    with pytest.raises(CheckpointError, match=expected):
        again.run()


# ---- torch.compile


def compiled(how: str) -> nn.Module:
    model: Any = Net()
    if "block" in how:
        model.body[0] = torch.compile(model.body[0], backend="eager")
        model.body = torch.compile(model.body, backend="eager")
    return torch.compile(model, backend="eager") if "whole" in how else model  # type: ignore[return-value]


@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "after"), [("plain", "whole"), ("whole", "plain"), ("plain", "whole, block"), ("block", "plain")]
)
def test_compiled_and_plain_models_load_the_checkpoints_of_each_other(before: str, after: str, tmp_path: Path) -> None:
    graph = fit(epochs=2, accumulate=2).overlay("ema").overlay("gradient_norm")
    whole = training(compiled("plain"), graph=graph)
    whole.run()
    training(compiled(before), tmp_path, graph=graph).run(until="3 batches")
    assert "exact except for what changed: torch.compile" in resumed(compiled(after), tmp_path, graph=graph)
    newest = sorted((tmp_path / "checkpoints").iterdir())[-1]
    for name in ("model", "average"):
        expected, saved = whole.resources[name].state_dict(), load_file(newest / f"{name}.safetensors")
        assert saved.keys() == expected.keys() and all(torch.equal(saved[key], expected[key]) for key in expected)
    for how in (before, after):
        model = compiled(how)
        training(model).load(newest, model="average")
        assert torch.equal(model.head.weight, expected["head.weight"])
    further = fit(epochs=3, accumulate=2).overlay("ema")
    assert "torch.compile" not in resumed(compiled(after), tmp_path, graph=further)
