"""Promise 7: what ends a run or an epoch, what judges a validation, and the last row of metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from graphtrain import END_EPOCH, STOP, Graph, Loader, Outcome, UsageError
from tests.fake_ranks import run_ranks
from tests.world import (
    Resources,
    World,
    assert_as_by_hand,
    assert_exact,
    run_through,
    seed_generators,
    small_fit,
    world,
)

BATCHES = 5
Asking = Callable[[int, int], Any]
"""What is asked for at an epoch and a batch of it."""


def data() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(3, 2, generator=draw) for _ in range(BATCHES)]


def squared(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    return loss


# ---- STOP and END_EPOCH


def asked(asking: Asking, epochs: int = 4, train_data: Callable[[], Any] = data) -> World:
    def training_step(model: nn.Module, batch: torch.Tensor, epoch: int, batch_index: int) -> Any:
        loss, ask = squared(model, batch), asking(epoch, batch_index)
        return loss if ask is None else (loss, ask)

    return world(
        small_fit(epochs=epochs, clip=None, validate_every="never"),
        model=lambda: nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.3), nn.Linear(4, 1)),
        data=lambda: {"train_data": train_data()},
        training_step=training_step,
    )


ASKING: dict[str, Asking] = {
    "stop in mid-window": lambda epoch, batch: STOP if (epoch, batch) == (1, 2) else None,
    "stop where a window ends": lambda epoch, batch: STOP if (epoch, batch) == (1, 3) else None,
    "stop at once": lambda epoch, batch: STOP,
    "stop with the last batch": lambda epoch, batch: STOP if (epoch, batch) == (1, BATCHES - 1) else None,
    "end every epoch": lambda epoch, batch: END_EPOCH if batch == 2 else None,
    "end every epoch at once": lambda epoch, batch: END_EPOCH,
    "end an epoch with its last batch": lambda epoch, batch: END_EPOCH if batch == BATCHES - 1 else None,
    "end some, then stop": lambda epoch, batch: STOP if epoch == 2 else END_EPOCH if batch == epoch + 1 else None,
}


@pytest.mark.parametrize("name", ASKING)
def test_what_a_step_function_asks_for_is_done_as_by_hand(name: str) -> None:
    count = 0

    def loop(resources: Resources) -> None:
        nonlocal count
        model, optimizer, ask = resources["model"], resources["optimizer"], None
        seed_generators(11)
        for epoch in range(4):
            for number, batch in enumerate(resources["train_data"], 1):
                (squared(model, batch) / 2).backward()  # type: ignore[no-untyped-call]
                count, ask = count + 1, ASKING[name](epoch, number - 1)
                if number % 2 == 0 or number == BATCHES or ask is not None:
                    optimizer.step()
                    optimizer.zero_grad()
                    resources["scheduler"].step()
                if ask is not None:
                    break
            if ask is STOP:
                break

    trainer = assert_as_by_hand(asked(ASKING[name]), loop=loop)
    assert trainer.read("next_batch.batches") == count


class Endless:
    def __iter__(self) -> Any:
        number = 0
        while True:
            number += 1
            yield torch.full((3, 2), number / 10)


DATA: dict[str, Callable[[], Any]] = {
    "a list": data,
    "a loader": lambda: Loader(torch.randn(15, 2), batch_size=3, shuffle=True),
    "a data loader": lambda: DataLoader(torch.randn(15, 2), batch_size=3, shuffle=True),  # type: ignore[arg-type]
    "data without a length": Endless,
}


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("name", ["end every epoch", "end some, then stop"])
def test_epochs_of_any_data_that_end_are_exact_through_cuts(name: str, kind: str, tmp_path: Path) -> None:
    whole = assert_exact(asked(ASKING[name], 3, DATA[kind]), tmp_path, at=4)
    assert whole.trainer.read("next_batch.batches") == (9 if name == "end every epoch" else 6)


@pytest.mark.parametrize("alone", [True, False])
def test_a_validation_stops_the_run_or_ends_early(alone: bool) -> None:
    seen: list[int] = []

    def validation_step(model: nn.Module, batch: torch.Tensor, epoch: int) -> Any:
        seen.append(epoch)
        ask = [END_EPOCH, STOP][epoch]
        return ask if alone else ({"loss": float(len(seen))}, ask)

    it = asked(lambda epoch, batch: None).but(val_data=data()[:3], validation_step=lambda made: validation_step)
    trainer = it.but(it.graph.set("validate", every="1 epochs")).trainer()
    assert trainer.run() is Outcome.FINISHED
    assert seen == [0, 1, 1, 1]  # the validation that stops the run is completed
    rows = [row["val/loss"] for row in trainer.metrics if "val/loss" in row]
    assert rows == ([] if alone else [1.0, 3.0])


def test_what_cannot_be_asked_for_is_refused() -> None:
    it = asked(ASKING["stop at once"])
    with pytest.raises(UsageError, match="`training_step` must return a scalar loss"):
        it.but(training_step=lambda made: lambda model, batch: STOP).trainer().run()
    graph = it.graph.guard("ending", "step.steps >= 5").set("finish", after="never")
    with pytest.raises(UsageError, match="returned STOP, and no guard reads the `due` of a node with `after`"):
        it.but(graph).trainer().run()


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("ask", [STOP, END_EPOCH])
@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_that_asks_is_enough_also_after_a_cut(rank: int, ask: Any, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(1)
    batches = [torch.randn(3, 2, generator=draw) for _ in range(11)]
    # Batches of an epoch go to the ranks in turn.
    it = asked(lambda epoch, batch: ask if batch % 2 == rank and batch >= 4 else None, 2, lambda: batches)
    it = it.but(it.graph.set("checkpoint", mode="sync"), model=lambda made: made["model"].eval())  # without dropout

    def run(run_dir: Path | None, cut: int = 0) -> list[Any]:
        def program(ranks: Any) -> Any:
            trainer = it.trainer(run_dir)
            if cut:
                trainer.advance(cut)
                trainer.save()
                return None
            assert trainer.run() is Outcome.FINISHED
            return trainer.digest(), trainer.read("next_batch.batches"), trainer.resources["model"][0].weight.tolist()

        return run_ranks(2, program)

    whole = run(None)
    assert whole[0][1:] == whole[1][1:]
    assert (whole[0][1] == 8) if ask is STOP else (whole[0][1] < 22)  # all learn of it when the next is fetched
    run(tmp_path, 16)
    assert run(tmp_path) == whole


# ---- what judges a validation

FIT = small_fit(epochs=8, accumulate=1, clip=None, log_every="never", validate_every="1 epochs")


def judged(graph: Graph, values: Iterable[float] = (), **more: Any) -> World:
    """A run of which the validations give these values, one after the other."""

    def validation_step() -> Any:
        given = iter(values)
        return lambda model, batch: {"loss": next(given)}

    it = world(
        graph,
        model=lambda: nn.Linear(2, 1),
        optimizer="SGD",
        scheduler="none",
        data=lambda: data()[:2],
        training_step=squared,
    )
    it = it.but(
        val_data=[torch.ones(4, 2)],
        scheduler=None,
        optimizer=lambda made: torch.optim.SGD(made["model"].parameters(), lr=1e-3),
    )
    return it.but(**{"validation_step": lambda made: validation_step(), **more})


@pytest.mark.first(5)
@pytest.mark.parametrize(
    ("values", "parameters", "epochs"),
    [
        ([5, math.nan, 5, 3, 3, 3, 3, 3], {"patience": 9}, 2),
        ([3, 2, 2, 2, 2, 1, 1, 1], {"patience": 3}, 5),
        ([3, 2, 2, 2, 1, 1, 1, 1], {"patience": 3}, 8),
        ([3, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4, 2.3], {"patience": 2, "min_delta": 0.5}, 3),
        ([1, 2, 3, 3, 2, 1, 1, 1], {"mode": "max", "patience": 1}, 4),
        ([5, 4, 0.5, 3, 3, 3, 3, 3], {"stopping_threshold": 1, "patience": 9}, 3),
        ([5, 40, 5, 3, 3, 3, 3, 3], {"divergence_threshold": 10, "patience": 9}, 2),
        ([0.1, 0.9, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], {"mode": "max", "stopping_threshold": 0.8, "patience": 9}, 2),
        ([5, math.nan, 5, 3, 3, 3, 3, 3], {"patience": 9, "check_finite": False}, 8),
        ([math.nan, math.nan, 1, 1, 1, 1, 1, 1], {"patience": 2, "check_finite": False}, 2),
        ([1, 2, 3, 4, 5, 6, 7, 8], {"patience": 1, "min_epochs": 4}, 4),
        ([1, 2, 3, 0, 5, 6, 7, 8], {"patience": 2, "min_epochs": 4}, 6),
    ],
)
def test_a_run_stops_when_it_is_enough_and_says_why(values: list[float], parameters: Any, epochs: float) -> None:
    lines: list[str] = []
    trainer = judged(FIT.overlay("early_stop").set("early_stop", **parameters), values).trainer(lines=lines)
    assert trainer.run() is Outcome.FINISHED
    assert trainer.read("next_batch.epochs") == epochs
    assert epochs == 8 or any(line.startswith("early_stop: val/loss ") for line in lines)


PLATEAU = {"scheduler": lambda made: ReduceLROnPlateau(made["optimizer"], patience=1, factor=0.5)}
MONITORS: list[tuple[Graph, str, dict[str, Any]]] = [
    (FIT.overlay("early_stop"), "early_stop.monitor", {}),
    (FIT.overlay("plateau"), "plateau.monitor", PLATEAU),
    (FIT, "checkpoint.best", {}),
]


@pytest.mark.parametrize(("graph", "parameter", "more"), MONITORS)
def test_a_monitor_needs_a_metric_that_is_recorded_and_a_mode(graph: Graph, parameter: str, more: Any) -> None:
    name, _, key = parameter.partition(".")
    mode = "best_mode" if key == "best" else "mode"
    trainer = judged(graph.set(name, **{key: "val_los", mode: "min"}), [1] * 8, **more).trainer()
    with pytest.raises(UsageError, match=f"no row of metrics has `val_los`, which {parameter}") as caught:
        trainer.run()
    assert caught.value.hint.startswith("did you mean `val/loss`?")
    assert trainer.read("validate.runs") == 1 and trainer.state == "stopped"
    (problem,) = graph.set(name, **{key: "val/width"}).check()
    assert problem.code == "G104" and f'{mode} = "max"' in problem.hint
    assert graph.set(name, **{key: "val/width", mode: "max"}).check() == []
    for known in ("val/loss", "val/top1_error", "perplexity", "val/bits_per_byte", "val/accuracy", "val/f1"):
        assert graph.set(name, **{key: known}).check() == []


def test_a_plateau_lowers_the_rate_and_takes_no_other_scheduler() -> None:
    values = [3, 2, 2, 2, 1, 1, 1, 1]
    trainer = judged(FIT.overlay("plateau"), values, **PLATEAU).trainer()
    rate = trainer.resources["optimizer"].param_groups[0]["lr"]
    trainer.run()
    assert trainer.resources["optimizer"].param_groups[0]["lr"] == rate / 4
    other = judged(
        FIT.overlay("plateau"), values, scheduler=lambda made: torch.optim.lr_scheduler.StepLR(made["optimizer"], 1)
    )
    with pytest.raises(UsageError, match="plateau: `scheduler` is a StepLR, whose steps take no metric"):
        other.trainer().run()


def test_the_decay_of_an_average_grows_with_its_updates() -> None:
    """As TensorFlow's ExponentialMovingAverage(0.3, num_updates) has it; every step raises the weight by one."""

    def zero() -> nn.Module:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        return model

    it = world(
        FIT.insert("ema", after="step", decay=0.3, warmup=True).set("validate", every="never"),
        model=zero,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        scheduler="none",
        data=lambda: [torch.ones(1, 1)] * 2,
        training_step=lambda model, batch: -model(batch).sum(),
    )
    trainer, mean = it.trainer(), 0.0
    for updates in range(8):
        trainer.run(until=f"{updates + 1} steps")
        decay = min(0.3, (1 + updates) / (10 + updates))
        mean = decay * mean + (1 - decay) * (updates + 1)
        assert trainer.resources["average"].weight.item() == pytest.approx(mean)
    assert Graph.load("fit").overlay("ema").nodes["ema"].parameters == {"decay": 0.999, "warmup": True}


def test_a_validation_before_training_moves_nothing() -> None:
    def shuffled(made: Any) -> DataLoader[Any]:
        samples = torch.rand(12, 2, generator=torch.Generator().manual_seed(3))
        return DataLoader(samples, batch_size=2, shuffle=True)  # type: ignore[arg-type]

    graph = FIT.set("validate/next_batch", limit=2).set("finish", after="2 epochs")
    it = judged(graph, val_data=shuffled, validation_step=lambda made: lambda model, batch: {"loss": batch.mean()})
    plain, checked = (run_through(it.but(each), None).trainer.metrics for each in (graph, graph.overlay("sanity")))
    assert checked[0]["step"] == 0 and "sanity/loss" in checked[0]
    assert checked[1:] == plain


def test_a_checkpoint_is_made_before_each_validation(tmp_path: Path) -> None:
    def failing(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("the validation is broken")

    graph = FIT.overlay("save_first").set("finish", after="2 epochs")
    with pytest.raises(ArithmeticError):
        judged(graph, validation_step=lambda made: failing).trainer(tmp_path).run()
    trainer = judged(graph, [1.0] * 8).trainer(tmp_path)
    assert trainer.advance(0) == "validate", "what was trained before the validation is not lost"
    assert trainer.run() is Outcome.FINISHED and trainer.read("save_first.runs") == 2


@pytest.mark.parametrize("cut", [False, True])
def test_batch_norm_layers_have_their_momentum_again(cut: bool, tmp_path: Path) -> None:
    graph = FIT.overlay("swa", "update_bn").set("finish", after="2 steps").set("swa", every="1 steps")
    it = world(
        graph.set("validate", every="never"),
        model=lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=0.3), nn.Linear(2, 1)),
        data=lambda: data()[:2],
        training_step=squared,
    ).but(val_data=None)
    trainer = it.trainer(tmp_path)
    if cut:
        while trainer.position != "update_bn/eval_batch":
            trainer.advance()
        assert trainer.resources["swa_model"][1].momentum is None
        trainer.save()
        trainer = it.trainer(tmp_path)
    trainer.run()
    layer = trainer.resources["swa_model"][1]
    assert (layer.momentum, layer.num_batches_tracked) == (0.3, 2)


# ---- the last row: what `log` has gathered when the run ends


def logged(ending: str, every: str = "4 steps", edit: Callable[[Graph], Graph] = lambda graph: graph) -> World:
    """The loss of batch n is n, with one sample in each."""
    graph = small_fit(epochs=None, accumulate=1, log_every=every, validate_every="never").set("finish", after=ending)
    return world(
        edit(graph),
        model=lambda: nn.Linear(1, 1),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        scheduler="none",
        data=lambda: [torch.full((1, 1), float(number)) for number in range(10)],
        training_step=lambda model, batch: 0 * model(batch).mean() + batch.mean(),
    )


ROWS = [{"step": 4, "epoch": 0.4, "loss": 1.5, "lr": 0.5}, {"step": 7, "epoch": 0.7, "loss": 5.0, "lr": 0.5}]


def rows_of(it: World) -> list[dict[str, Any]]:
    return run_through(it, None).trainer.metrics


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_run_that_continues_has_the_other_rows_of_the_longer_one(is_resumed: bool, tmp_path: Path) -> None:
    assert rows_of(logged("7 steps")) == ROWS
    trainer = logged("6 steps").trainer(tmp_path)
    trainer.run()
    if is_resumed:
        trainer = logged("10 steps").trainer(tmp_path)
    else:
        trainer.rewire(logged("10 steps").graph)
    assert trainer.run() is Outcome.FINISHED
    losses = [(row["step"], row["loss"]) for row in trainer.metrics if "loss" in row]
    assert losses == [(4, 1.5), (6, 4.5), (8, 5.5), (10, 8.5)]
    whole = run_through(logged("10 steps"), None)
    assert trainer.digest() == whole.digest
    assert [row for row in trainer.metrics if row["step"] != 6] == whole.trainer.metrics


@pytest.mark.parametrize("it", [logged("7 steps", "never"), logged("7 steps", edit=lambda graph: graph.remove("log"))])
def test_without_log_there_is_a_row_only_where_there_is_no_other(it: World) -> None:
    assert rows_of(it) == [{"step": 7, "epoch": 0.7, "loss": 3.0, "lr": 0.5}]
    validated = it.but(it.graph.set("validate", every="5 steps"), val_data=[torch.ones(1, 1)])
    assert [list(row) for row in rows_of(validated)] == [["step", "epoch", "val/loss"]]


def rounds(ending: str, every: str, clock: str = "") -> World:
    """Round after round, each a whole `fit`."""
    graph = Graph.loads(
        f"""
        format = 1
        start = "begin"
        [nodes]
        begin = {{ use = "choice" }}
        train = {{ graph = "fit" }}
        decide = {{ use = "choice" }}
        [guards]
        done = "train.runs == 2"
        [edges]
        begin = ["train"]
        train = ["decide"]
        decide = ["end if done", "begin"]
        {clock}
        """
    )
    body = logged(ending, every).graph
    return logged(ending).but(graph.set("train", graph=body), val_data=None)


def test_a_body_that_ends_records_its_last_steps_and_the_next_one_begins_with_none() -> None:
    rows = rows_of(rounds("7 steps", "4 steps", clock='[clock]\nrounds = "train.runs"'))
    assert rows == [{**row, "rounds": number} for number in range(2) for row in ROWS]
    assert rows_of(rounds("3 steps", "never")) == [], "a finish inside a body ends no run"


@pytest.mark.full
@pytest.mark.parametrize("it", [rounds("3 steps", "2 steps"), logged("7 steps")])
def test_the_last_rows_are_exact_through_cuts(it: World, tmp_path: Path) -> None:
    assert_exact(it, tmp_path, at=5)
