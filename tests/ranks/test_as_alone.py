"""Promise 17: ranks come to the weights, rows and counters of one process, though some have no batch in a round.

Gradients and metrics count as in one process with as many micro-batches in a step; sums differ in their order only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from graphtrain import Graph, Loader, node
from tests.fake_ranks import FakeRank, run_ranks
from tests.shipped import OVERLAYS
from tests.world import Augmented, World, small_fit, world


def samples(number: int) -> TensorDataset:
    """Without noise."""
    made = Augmented(number)
    return TensorDataset(made.inputs.double(), made.targets)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def loader(number: int = 22) -> Loader:
    return Loader(samples(number), batch_size=2, shuffle=True)


class Early:
    """Data that gives fewer batches than it says, or more."""

    def __init__(self, length: int, says: int) -> None:
        self.length, self.says = length, says

    def __len__(self) -> int:
        return self.says

    def __iter__(self) -> Iterator[Any]:
        return iter(unequal([2] * self.length))


class Lists(list[Any]):
    """Lists of samples that are fewer than they say."""

    def __len__(self) -> int:
        return 9


class Rare(nn.Module):
    """A layer that some batches do not use, so that ranks lack its gradient; one that none uses, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rare, self.unused = nn.Linear(6, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.frozen(self.first(inputs)))
        output: torch.Tensor = self.rare(hidden) if inputs[0, 0] > 0 else hidden
        return output


def unequal(sizes: list[int]) -> list[Any]:
    """Batches of these sizes, as a list."""
    tensors = samples(sum(sizes)).tensors
    return list(zip(*(tensor.split(sizes) for tensor in tensors), strict=True))


def sometimes(model: Any, batch: Any, batch_index: int) -> dict[str, Any]:
    """A metric that only some batches have."""
    metrics = {"loss": loss_of(model, batch), "index": float(batch_index)}
    return metrics | ({"rare": 3.0 + batch_index} if batch_index in (2, 3) else {})


def with_a_test(graph: Graph) -> Graph:
    given = {"at": "decide", "before": "checkpoint", "reads": {"val_data": "test_data"}, "every": "1 steps"}
    return graph.insert("test", graph="evaluate", **given).set("test/begin_evaluation", split="test")


@node(family="compute")
def look(loss: torch.Tensor) -> None:
    """There is a loss wherever this is called."""
    assert loss.ndim == 0


INNER = 'format = 1\nname = "inner"\nstart = "train_batch"\noutputs = ["loss"]\n\n[nodes]\ntrain_batch = {}\n\n'
INNER += '[edges]\ntrain_batch = ["end"]\n'


def in_a_body(graph: Graph) -> Graph:
    """A body in which an outer batch is trained on."""
    graph = graph.replace("train_batch", "choice").set("train_batch", graph=Graph.loads(INNER))
    return graph.insert("look", look, after="train_batch")


def by_tokens(model: nn.Module, batch: Any) -> dict[str, Any]:
    tokens = 1 + batch[1]
    losses = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return {"loss": (losses * tokens).sum(), "tokens": tokens.sum()}


SIZES = [1, 4, 2, 3, 1, 2, 5]
# What is special -> the micro-batches of a window, and arguments of `world`.
ROWS: dict[str, tuple[int, dict[str, Any]]] = {
    "a short last window": (4, {}),
    "windows of many rounds": (12, {}),
    "fewer batches than ranks": (4, {"data": lambda: loader(3)}),
    "one batch": (4, {"data": lambda: loader(1)}),
    "fewer batches than it says": (4, {"data": lambda: Early(5, 7)}),
    "more batches than it says": (4, {"data": lambda: Early(7, 5)}),
    "fewer lists than they say": (
        4,
        {"data": lambda: Loader(samples(22), batch_sampler=Lists([[0, 1, 2], [3], [4, 5], [6, 7], [8]]))},
    ),
    "a layer that is rarely used": (4, {"model": Rare}),
    "several validations": (
        12,
        {"edit": with_a_test, "val_data": lambda: unequal([2, 1, 5]), "test_data": lambda: unequal([1])},
    ),
    "a metric that is sometimes there": (
        12,
        {
            "edit": lambda graph: graph.overlay("sanity").set("sanity/next_batch", limit=3),
            "val_data": lambda: Loader(samples(15), batch_size=3),
            "validation_step": lambda: sometimes,
        },
    ),
    "means by samples": (4, {"data": lambda: unequal(SIZES), "val_data": lambda: unequal(SIZES)}),
    "means by what a function counts": (
        4,
        {"data": lambda: unequal(SIZES), "batch_size": lambda: lambda batch: 10 * len(batch[0]) + 1},
    ),
    "a body that trains": (4, {"edit": in_a_body}),
    "by tokens, carried over epochs": (4, {"overlays": ("token_windows", "carry"), "training_step": by_tokens}),
    "by tokens, dropped": (4, {"overlays": ("token_windows", "drop"), "training_step": by_tokens}),
}


def assert_as_alone(make: Any, window: int, folder: Path | None = None) -> None:
    """At any world size that divides a window, weights, rows and counters are those of one process."""

    def ends(world_size: int) -> list[Any]:
        it: World = make(window // world_size)
        run_dir = folder / f"{world_size}" if folder is not None else None

        def program(ranks: FakeRank) -> tuple[Any, Any, Any]:
            trainer = it.trainer(run_dir)
            trainer.run()
            weights = nn.utils.parameters_to_vector(trainer.resources["model"].parameters()).detach()
            return weights, trainer.metrics, {path: dict(fields) for path, fields in trainer.progress.items()}

        return run_ranks(world_size, program, seed=world_size)

    ((weights, rows, progress),) = ends(1)
    assert rows
    for world_size in (2, 3, 4):
        if window % world_size:
            continue
        for number, (its_weights, its_rows, its_progress) in enumerate(of_ranks := ends(world_size)):
            assert torch.equal(its_weights, of_ranks[0][0]) and its_rows == of_ranks[0][1], (world_size, number)
            torch.testing.assert_close(its_weights, weights, rtol=0, atol=1e-12)
            assert [row.keys() for row in its_rows] == [row.keys() for row in rows]
            for row, expected in zip(its_rows, rows, strict=True):
                assert row == pytest.approx(expected, rel=1e-9, abs=1e-9), (world_size, expected["step"])
            for path, fields in progress.items():
                for name in ("batches", "samples", "epoch", "epochs", "last", "exhausted", "empty", "steps", "count"):
                    assert its_progress[path].get(name) == fields.get(name), (world_size, path, name)


def made(every: int, **options: Any) -> World:
    given = {
        "model": network,
        "optimizer": "SGD with momentum",
        "data": loader,
        "training_step": loss_of,
        "val_data": lambda: unequal([2, 1]),
        **options,
    }
    return world(small_fit(accumulate=every, clip=0.5, validate_every="1 epochs"), **given)


@pytest.mark.second(6)
@pytest.mark.first(2)
@pytest.mark.parametrize("name", ROWS)
def test_it_is_as_in_one_process(name: str) -> None:
    window, options = ROWS[name]
    assert_as_alone(lambda every: made(every, **options), window)


# ---- the shipped overlays


def distilled(model: nn.Module, batch: Any, teacher_output: torch.Tensor) -> torch.Tensor:
    return loss_of(model, batch) + nn.functional.mse_loss(model(batch[0]), teacher_output)


def overlaid(name: str, every: int) -> World:
    """With what an overlay reads beside the resources of `fit`."""
    options: dict[str, Any] = {"overlays": ("swa", name) if name == "update_bn" else (name,)}
    match name:
        case "distill":
            options |= {"teacher": lambda: nn.Linear(6, 3).double(), "training_step": distilled}
            options |= {
                "teacher_step": lambda: lambda model, batch: model(batch[0]),
                "validation_step": lambda: loss_of,
            }
        case "plateau":
            options["scheduler"] = lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        case "val_guided":
            options["guiding_data"] = lambda: unequal([2, 1])
        case "token_windows":
            options["training_step"] = by_tokens
        case "unfreeze":
            options["body_optimizer"] = lambda: None
    it = made(every, **options)
    if name == "rollback":  # ranks look for spikes in the mean of their losses, one process in each loss
        return it.but(it.graph.set(name, deviations=1e6))
    if name == "unfreeze":
        both = {"optimizer": 2, "body_optimizer": 0}
        of: Any = {
            each: lambda made, index=index: torch.optim.SGD(made["model"][index].parameters(), lr=0.1)
            for each, index in both.items()
        }
        return it.but(**of, scheduler=lambda made: None)
    return it


SHORT = ("ema", "early_stop")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if name in SHORT else pytest.mark.sweep) for name in OVERLAYS]
)
def test_an_overlay_trains_on_ranks_as_in_one_process(name: str, tmp_path: Path) -> None:
    assert_as_alone(lambda every: overlaid(name, every), 4, tmp_path if name == "rollback" else None)


# ---- what nodes do where a rank has no batch


def test_what_a_step_function_returned_stays_on_a_rank_without_a_batch() -> None:
    """Five batches on two ranks: the second has none in the last round of an epoch."""
    seen: list[tuple[int, int, Any]] = []

    def step(model: Any, batch: Any, epoch: int, batch_idx: int, hidden: Any = None) -> Any:
        seen.append((epoch, batch_idx, hidden))
        return {"loss": loss_of(model, batch), "hidden": (epoch, batch_idx)}

    def edit(graph: Graph) -> Graph:
        return graph.set("train_batch", writes={"hidden": "hidden"}, keep=["hidden"])

    def program(ranks: FakeRank) -> None:
        it = made(1, edit=edit, data=lambda: unequal([2] * 5), training_step=step, validation_step=lambda: loss_of)
        it.trainer().run()

    run_ranks(2, program)
    of_second = sorted(each for each in seen if each[1] % 2)
    assert of_second == [(0, 1, None), (0, 3, (0, 1)), (1, 1, (0, 3)), (1, 3, (1, 1))]
