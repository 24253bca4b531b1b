"""Weights that are loaded, followed and trained by their names: tied, supplied, frozen and compiled ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from graphtrain import CheckpointError, Graph, Trainer, UsageError, fit

INPUTS = [torch.linspace(-1, 1, 32).reshape(8, 4) * number for number in range(1, 6)]


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


def trainer(
    model: nn.Module, run_dir: Path | None = None, trained: Iterable[Any] = (), graph: Graph | None = None, **more: Any
) -> Trainer:
    optimizer = torch.optim.AdamW(list(trained) or model.parameters(), lr=0.01)
    more = {"notify": lambda line: None, "train_data": INPUTS, "seed": 3, **more}
    step: Callable[..., Any] = lambda model, batch: model(batch).square().mean()  # noqa: E731
    graph = fit(epochs=2) if graph is None else graph
    return Trainer(graph, run_dir=run_dir, display=None, model=model, optimizer=optimizer, training_step=step, **more)


# ---- tied


def tied(how: str) -> Net:
    model = Net()
    if how == "a module":
        model.head = model.body[0]
    else:
        weight = model.body[0].weight
        model.head.weight = weight if how == "a parameter" else nn.Parameter(weight.detach().t())
    return model


TIED = pytest.mark.parametrize("how", ["a parameter", "a module", "a transposed view"])


@TIED
def test_different_weights_are_not_loaded_into_tied_ones(how: str, tmp_path: Path) -> None:
    trainer(Net(), tmp_path).run(until="2 steps")
    lost = r"body\.0\.weight: in the memory of head\.weight in the module, and has other values in the file"
    model = tied(how)
    before = model.side.weight.clone()
    with pytest.raises(UsageError, match=lost):
        trainer(model).load(tmp_path / "newest")
    assert torch.equal(model.side.weight, before), "nothing is half loaded"
    with pytest.raises(CheckpointError, match=f"the state of `model` no longer fits: {lost}"):
        trainer(tied(how), tmp_path).run()


@pytest.mark.full
@TIED
def test_tied_weights_are_loaded_where_they_are_equal_or_one_is_chosen(how: str, tmp_path: Path) -> None:
    trainer(Net(), tmp_path / "plain").run(until="2 steps")
    trainer(tied(how), tmp_path / "tied").run(until="2 steps")
    model = tied(how)
    trainer(model).load(tmp_path / "plain" / "newest", only=["head.*", "side.*"])
    (checkpoint,) = (tmp_path / "plain" / "checkpoints").iterdir()
    assert torch.equal(model.head.weight, load_file(checkpoint / "model.safetensors")["head.weight"])
    for other in (tied(how), Net()):
        trainer(other).load(tmp_path / "tied" / "newest")
    assert resumed(tied(how), tmp_path / "tied").endswith(": exact")


def resumed(model: nn.Module, run_dir: Path, **more: Any) -> str:
    """The line about a resume."""
    said: list[str] = []
    trainer(model, run_dir, notify=said.append, **more).run()
    return next(line for line in said if line.startswith("resumed"))


# ---- a part of the weights


def test_a_new_head_begins_with_the_body_of_another_run(tmp_path: Path) -> None:
    trainer(Net(), tmp_path).run(until="2 steps")
    saved = load_file(next((tmp_path / "checkpoints").iterdir()) / "model.safetensors")
    model = Net(width=2, seed=1)
    head, side = model.head.weight.clone(), model.side.weight.clone()
    with pytest.raises(UsageError, match=r"head.weight: float32 \(4, 4\) in the file, float32 \(2, 4\)") as caught:
        trainer(model).load(tmp_path / "newest")
    assert "load only what fits: --init-only 'PATTERN'" in caught.value.hint
    trainer(model).load(tmp_path / "newest", only="body.*")
    state = model.state_dict()
    assert all(torch.equal(state[name], saved[name]) for name in saved if name.startswith("body."))
    assert torch.equal(model.head.weight, head) and torch.equal(model.side.weight, side)
    for only, message in (("bdy.*", r"no weight has a name like `bdy\.\*`"), ("*.weight", r"head\.weight: float32")):
        with pytest.raises(UsageError, match=message):
            trainer(model).load(tmp_path / "newest", only=only)


# ---- an average that was supplied


def test_a_model_that_cannot_be_copied_says_how_an_average_begins_as_it(tmp_path: Path) -> None:
    def model() -> nn.Module:
        made = Net()
        with pytest.warns(FutureWarning):
            nn.utils.weight_norm(made.side)
        return made

    graph = fit(epochs=2).overlay("ema")
    with pytest.raises(UsageError, match="cannot be copied") as caught:
        trainer(model(), graph=graph)
    assert caught.value.hint.endswith("average.load_state_dict(model.state_dict())")


def test_an_average_follows_parameters_of_several_types(tmp_path: Path) -> None:
    model = Net().requires_grad_(False)
    model.side.bfloat16()
    model.register_parameter("waves", nn.Parameter(torch.ones(2, dtype=torch.complex64)))
    average = copy.deepcopy(model).float()
    average.body.double()
    graph = fit(epochs=1).overlay("ema").set("ema", decay=0.5, warmup=False)
    step: Callable[..., Any] = lambda model, batch: model.waves.real.sum() + model.head.weight.sum() * 0  # noqa: E731
    model.waves.requires_grad_(True)
    with torch.no_grad():
        model.side.bias.fill_(2)
        average.side.bias.fill_(0)
    Trainer(
        graph,
        model=model,
        average=average,
        optimizer=torch.optim.SGD([model.waves], lr=0.0),
        training_step=step,
        train_data=INPUTS[:1],
        display=None,
        notify=lambda line: None,
    ).run()
    assert torch.equal(average.side.bias, torch.ones(4))
    assert average.body[0].weight.dtype == torch.float64


# ---- the parameters of an optimizer


@pytest.mark.parametrize(
    ("trained", "message"),
    [
        ("body side", "no longer `model.head.weight`"),
        ("body side head", None),
        ("side head body", "other groups, or another order"),
        ("body head more", r"no longer `model.side.weight`, .* and now `model.more.weight`, "),
        ("body|side|head", "other groups, or another order"),
    ],
)
def test_parameters_that_came_and_went_are_named(trained: str, message: str | None, tmp_path: Path) -> None:
    def of(names: str) -> tuple[nn.Module, list[Any]]:
        model = Net()
        model.more = nn.Linear(4, 4)
        groups = [
            [p for name in group.split() for p in getattr(model, name).parameters()] for group in names.split("|")
        ]
        return model, groups[0] if len(groups) == 1 else [{"params": group} for group in groups]

    model, groups = of("body side head")
    trainer(model, tmp_path, groups).run(until="2 steps")
    model, groups = of(trained)
    if message is None:
        trainer(model, tmp_path, groups).run()
        return
    with pytest.raises(
        CheckpointError, match=f"`optimizer` does not have the parameters of the saved run: .*{message}"
    ):
        trainer(model, tmp_path, groups).run()


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
    whole = trainer(compiled("plain"), graph=graph)
    whole.run()
    trainer(compiled(before), tmp_path, graph=graph).run(until="3 batches")
    assert "exact except for what changed: torch.compile" in resumed(compiled(after), tmp_path, graph=graph)
    newest = sorted((tmp_path / "checkpoints").iterdir())[-1]
    for name in ("model", "average"):
        expected, saved = whole.resources[name].state_dict(), load_file(newest / f"{name}.safetensors")
        assert saved.keys() == expected.keys() and all(torch.equal(saved[key], expected[key]) for key in expected)
    for how in (before, after):
        model = compiled(how)
        trainer(model).load(newest, model="average")
        assert torch.equal(model.head.weight, expected["head.weight"])
    further = fit(epochs=3, accumulate=2).overlay("ema")
    assert "torch.compile" not in resumed(compiled(after), tmp_path, graph=further)
