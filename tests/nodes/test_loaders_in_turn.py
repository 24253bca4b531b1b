"""Several loaders that are read one after the other, as a validation does: metrics, limits, cuts, ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import DataError, Graph, GraphError, Loader, PlannedRun, Trainer, UsageError, node
from graphtrain.ranks import Ranks
from tests.checks.corpus import in_turn
from tests.ranks.fake_ranks import run_ranks

FIT = Graph.load("fit").set("finish", after="2 epochs").set("log", every="never").set("checkpoint", every="never")
CLEAN, NOISY, OTHER = torch.arange(14.0).view(7, 2), torch.arange(8.0).view(4, 2), torch.arange(6.0).view(3, 2)


class Unsized:
    """Gives its batches and does not say how many."""

    def __init__(self, *batches: torch.Tensor) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.batches)


class Counting:
    """Keeps its own position; each epoch begins where the one before has ended.

    Loaded behind the last batch of an epoch that has not ended, it yields the empty rest of that first.
    """

    def __init__(self) -> None:
        self.number, self.left = 0, -1  # the number of the batch; those left in the epoch, -1 between two

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.left = 3 if self.left < 0 else self.left
        while self.left:
            self.number, self.left = self.number + 1, self.left - 1
            yield torch.full((2, 2), float(self.number))
        self.left = -1

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number, "left": self.left}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number, self.left = state["number"], state["left"]


def loaders() -> dict[str, Any]:
    return {
        "clean": Loader(CLEAN, batch_size=2, shuffle=True),
        "noisy": DataLoader(NOISY, batch_size=3, shuffle=True),
        "other": list(OTHER.split(2)),
        "unsized": Unsized(CLEAN, NOISY),
    }


def make(
    graph: Graph = FIT, run_dir: Path | None = None, val_data: Any = None, said: list[str] | None = None, **more: Any
) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Dropout(0.3))
    supplied = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3),
        "train_data": Loader(torch.ones(9, 2), batch_size=2),
        "val_data": loaders() if val_data is None else val_data,
        "training_step": lambda model, batch: model(batch).square().mean(),
        **more,
    }
    notify = said.append if said is not None else lambda line: None
    return Trainer(graph, seed=0, run_dir=run_dir, display=None, notify=notify, **supplied)


def validations(trainer: Trainer) -> list[dict[str, float]]:
    return [
        {name: value for name, value in row.items() if name.startswith("val/")}
        for row in trainer.metrics
        if any(name.startswith("val/") for name in row)
    ]


# ---- what is measured


def test_metrics_are_those_of_each_loader_and_their_mean() -> None:
    trainer = make()
    trainer.run()
    model = trainer.resources["model"].eval().requires_grad_(False)
    expected = {}
    for name, samples in {"clean": CLEAN, "noisy": NOISY, "other": OTHER, "unsized": torch.cat([CLEAN, NOISY])}.items():
        expected[f"val/{name}/loss"] = float(model(samples).square().mean())
    expected["val/loss"] = sum(expected.values()) / 4
    assert validations(trainer)[-1] == pytest.approx(expected, rel=1e-6)


def test_what_only_some_loaders_give_is_the_mean_of_those() -> None:
    def validation_step(model: Any, batch: Any, loader: str, batch_index: int) -> dict[str, float]:
        return {"f1/macro": 0.5, **({"loss": 2.0 + batch_index} if loader == "b" else {})}

    trainer = make(val_data={"a": [CLEAN], "b": [NOISY, NOISY]}, validation_step=validation_step)
    trainer.run()
    assert validations(trainer)[0] == {
        "val/a/f1/macro": 0.5,
        "val/b/f1/macro": 0.5,
        "val/b/loss": 3.5,  # `batch_index` is that of the whole evaluation
        "val/f1/macro": 0.5,
        "val/loss": 3.5,
    }


def seen_with(graph: Graph, val_data: Any) -> list[tuple[str, int]]:
    seen: list[tuple[str, int]] = []

    def validation_step(model: Any, batch: Any, loader: str) -> dict[str, float]:
        seen.append((loader, len(batch)))
        return {"loss": 1.0}

    make(graph.set("finish", after="1 epochs"), val_data=val_data, validation_step=validation_step).run()
    return seen


@pytest.mark.parametrize(("limit", "counts"), [(1, (1, 1, 1, 1)), (2, (2, 2, 2, 2)), (3, (3, 2, 2, 2))])
def test_a_limit_is_that_of_each_loader(limit: int, counts: tuple[int, ...]) -> None:
    seen = [name for name, _ in seen_with(FIT.set("validate/next_batch", limit=limit), loaders())]
    assert tuple(seen.count(name) for name in loaders()) == counts
    assert seen == sorted(seen, key=[*loaders()].index)


def test_a_limit_may_be_a_share() -> None:
    graph = FIT.set("validate/next_batch", limit=0.5)
    data = {"a": [CLEAN] * 10, "b": Loader(NOISY, batch_size=1)}
    assert [name for name, _ in seen_with(graph, data)] == ["a"] * 5 + ["b"] * 2
    trainer = make(FIT.set("next_batch", limit=0.61), val_data=[CLEAN])
    trainer.run()
    assert trainer.progress["next_batch"]["epoch_batches"] == 3  # of 5 batches
    assert trainer.progress["next_batch"]["epochs"] == 2


def test_steps_ahead_know_of_a_share() -> None:
    planned = PlannedRun(FIT.set("next_batch", limit=0.29))
    assert planned.steps([0] * 100) == 58


@pytest.mark.parametrize("limit", [None, float("inf")])
def test_a_sanity_check_without_a_limit_takes_everything(limit: float | None) -> None:
    graph = FIT.overlay("sanity").set("finish", after="1 batches").set("validate", every="never")
    graph = graph.set("sanity/next_batch", limit=limit) if limit is not None else graph
    count = len(seen_with(graph, loaders()))
    assert count == (10 if limit is not None else 8)


def test_a_sanity_check_moves_no_generator_of_any_loader() -> None:
    def run(graph: Graph) -> list[dict[str, float]]:
        data = {"a": DataLoader(CLEAN, 2, shuffle=True, generator=torch.Generator().manual_seed(3)), "b": [NOISY]}
        trainer = make(graph.set("validate/next_batch", limit=2), val_data=data)
        trainer.run()
        return validations(trainer)

    assert run(FIT.overlay("sanity")) == run(FIT)


def test_the_graph_evaluate_has_several_loaders_too() -> None:
    model = torch.nn.Linear(2, 1)
    data = {"a": [CLEAN], "b": [NOISY]}
    trainer = Trainer("evaluate", model=model, val_data=data, training_step=lambda m, b: m(b).mean(), display=None)
    trainer.run()
    assert [name for name in trainer.metrics[0] if "/" in name] == ["val/a/loss", "val/b/loss", "val/loss"]


# ---- cuts


def end_of(trainer: Trainer) -> tuple[Any, ...]:
    return trainer.digest(), trainer.metrics


def expect_cuts_are_exact(folder: Path, cuts: Iterable[int], graph: Graph, make_data: Any) -> None:
    whole = make(graph, val_data=make_data())
    whole.run()
    for cut in cuts:
        first = make(graph, folder / str(cut), make_data())
        first.advance(cut)
        first.save()
        second = make(graph, folder / str(cut), make_data())
        second.run()
        assert end_of(second) == end_of(whole), f"cut before {first.position}"


def place_of(graph: Graph, loader: str, position: str = "validate/eval_batch", turn: int = 1) -> int:
    """After how many transitions a run is there for the n-th time."""
    trainer, number = make(graph), 0
    while turn:
        trainer.advance()
        number += 1
        fields = trainer.progress["validate/next_batch"]
        turn -= trainer.position == position and fields["loader"] == loader
    return number


@pytest.mark.full
def test_a_cut_in_the_middle_of_a_loader_is_exact(tmp_path: Path) -> None:
    graph = FIT.set("validate", every="0.5 epochs")
    cuts = [place_of(graph, name) for name in loaders()]
    cuts.append(place_of(graph, "clean", "validate/next_batch", turn=5))  # the loader has ended, the next has not begun
    expect_cuts_are_exact(tmp_path, cuts, graph, loaders)


def keeping() -> dict[str, Any]:
    return {"first": Counting(), "second": Counting(), "third": [CLEAN, NOISY]}


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("graph", [FIT, FIT.set("validate", every="0.3 epochs")], ids=["once", "often"])
def test_loaders_that_keep_their_own_position_go_on_from_there(tmp_path: Path, graph: Graph) -> None:
    graph = graph.set("finish", after="1 epochs")
    expect_cuts_are_exact(tmp_path, (41, 53, 59), graph, keeping)


@pytest.mark.sweep
def test_every_cut_is_exact(tmp_path: Path) -> None:
    graph = FIT.set("validate", every="0.5 epochs").set("finish", after="1 epochs")
    expect_cuts_are_exact(tmp_path / "plain", range(1, 90), graph, loaders)
    expect_cuts_are_exact(tmp_path / "keeping", range(1, 80), graph, keeping)


@pytest.mark.sweep
def test_data_loaders_with_workers(tmp_path: Path) -> None:
    def with_workers() -> dict[str, Any]:
        return {"a": Loader(NOISY, batch_size=2, num_workers=1), "b": Loader(CLEAN, batch_size=2, num_workers=1)}

    graph = FIT.set("finish", after="1 epochs")
    expect_cuts_are_exact(tmp_path, [place_of(FIT, "noisy")], graph, with_workers)


# ---- several ranks


def at_ranks(graph: Graph, run_dir: Path | None = None, cut: int = 0, world_size: int = 2) -> list[Any]:
    def program(ranks: Ranks) -> Any:
        trainer = make(graph, run_dir)
        if cut:
            trainer.advance(cut)
            trainer.save()
        else:
            trainer.run()
        return trainer.metrics, trainer.digest()

    return run_ranks(world_size, program)


@pytest.mark.full
def test_ranks_measure_what_one_process_measures() -> None:
    graph = FIT.set("train_batch", reads={"batch": "batch"})
    for world_size in (2, 3):
        of_ranks = at_ranks(graph, world_size=world_size)
        assert all(rows == of_ranks[0][0] for rows, _ in of_ranks)
        first = next(row for row in of_ranks[0][0] if "val/loss" in row)
        assert [name for name in first if name.startswith("val/")] == [
            *(f"val/{name}/loss" for name in loaders()),
            "val/loss",
        ]
    counted = FIT.set("finish", after="1 epochs").set("step", reads={})

    def still(ranks: Ranks | None = None) -> list[dict[str, float]]:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        trainer = make(counted, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
        trainer.run()
        return validations(trainer)

    alone = still()
    for rows in run_ranks(2, still):
        assert rows[0] == pytest.approx(alone[0])


@pytest.mark.full
def test_a_cut_of_ranks_in_any_loader_is_exact(tmp_path: Path) -> None:
    whole = at_ranks(FIT)
    for cut in (27, 39):
        at_ranks(FIT, tmp_path / str(cut), cut)
        assert at_ranks(FIT, tmp_path / str(cut)) == whole


# ---- what is refused


@pytest.mark.parametrize(
    ("val_data", "message"),
    [
        ({"a": [CLEAN], "b": []}, "the loader `b` gave no batch"),
        ({"a": Unsized(), "b": [CLEAN]}, "the loader `a` gave no batch"),
        ({"a/b": [CLEAN]}, "a loader is named 'a/b'"),
        ({1: [CLEAN]}, "a loader is named 1"),
    ],
)
def test_loaders_that_cannot_be_read_are_refused(val_data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make(val_data=val_data).run()


@pytest.mark.parametrize("val_data", [{}, {"inputs": CLEAN, "targets": NOISY}])
def test_a_mapping_that_holds_no_loaders_is_refused(val_data: Any) -> None:
    with pytest.raises(GraphError, match="G309: `val_data` is a mapping"):
        make(val_data=val_data)


@pytest.mark.parametrize(
    ("limit", "data", "message"),
    [
        (0.01, [CLEAN], r"next_batch\.limit = 0\.01 of 1 batches is none"),
        (0.5, Unsized(CLEAN), r"next_batch\.limit = 0\.5 is a share of the batches, and the data has no length"),
        (1.0, [CLEAN], r"next_batch\.limit = 1 is neither a whole number nor a share between 0 and 1"),
        (2.5, [CLEAN], r"next_batch\.limit = 2\.5 is neither a whole number"),
    ],
)
def test_a_limit_that_leaves_nothing_is_refused(limit: float, data: Any, message: str) -> None:
    with pytest.raises((DataError, GraphError), match=message):
        make(FIT.set("validate/next_batch", limit=limit), val_data=data).run()


@pytest.mark.full
def test_other_loaders_in_the_middle_of_a_validation_are_refused(tmp_path: Path) -> None:
    first = make(FIT, tmp_path)
    first.advance(place_of(FIT, "noisy"))
    first.save()
    with pytest.raises(DataError, match="the run was saved in the loader `noisy`, and now there are clean, dirty"):
        make(FIT, tmp_path, {"clean": [CLEAN], "dirty": [NOISY]}).run()


# ---- a metric that nothing gives


@pytest.mark.parametrize(
    ("graph", "parameter", "name"),
    [
        (FIT.overlay("early_stop"), "early_stop.monitor", "val/loss"),
        (FIT.set("checkpoint", best="val/clean/loss"), "checkpoint.best", "val/clean/loss"),
    ],
)
def test_a_metric_of_a_validation_that_does_not_run_is_an_error_at_the_first_row(
    graph: Graph, parameter: str, name: str, tmp_path: Path
) -> None:
    trainer = make(graph, tmp_path / "run", val_data=loaders())
    trainer.advance(1)  # with the data it is fine
    without = Trainer(graph, display=None, notify=lambda line: None, **{**trainer.resources, "val_data": None})
    with pytest.raises(
        UsageError, match=f"no row of metrics has `{name}`, which {parameter} names; recorded are "
    ) as caught:
        without.run()
    hint = f"set {parameter} to one of these, or let a step function return it (--dry-run, "
    assert caught.value.hint.startswith(hint)


def test_a_kind_of_the_user_may_record_it() -> None:
    @node
    def measure(recorder: Any) -> None:
        """Record a metric of that name."""
        recorder.row({"val/loss": 1.0})

    graph = FIT.overlay("early_stop").insert("measure", measure, after="train_batch")
    trainer = make(graph, val_data=loaders())
    Trainer(graph, display=None, notify=lambda line: None, **{**trainer.resources, "val_data": None}).run()


def test_the_mean_over_loaders_is_named_as_such_once() -> None:
    said: list[str] = []
    model = torch.nn.Linear(2, 1)
    Trainer(
        Graph.load("fit").set("finish", after="2 epochs"),
        notify=said.append,
        display=None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.ones(2, 2)],
        val_data={"clean": [torch.ones(2, 2)], "noisy": [torch.zeros(2, 2)]},
        training_step=lambda model, batch: model(batch).square().mean(),
    ).run()
    lines = [line for line in said if "the mean over" in line]
    assert lines == ["val/loss: the mean over the loaders clean, noisy, in which each has the same weight"]


# ---- two nodes that fetch, in turn


def test_two_sources_in_turn_close_each_epoch_once_or_are_refused() -> None:
    """Three batches of the one that closes epochs, four of the other."""
    graph = in_turn(FIT.set("finish", after="3 epochs"))
    own_last = graph.guard("own_last", "next_batch.last and next_batch.epoch == end_epoch.runs")
    mended = {
        "it begins each epoch": graph.redirect("begin_epoch", "turn", "next_batch"),
        "its guards ask whose epoch it is": own_last.guard("window_cut", "own_last or ending").guard(
            "epoch_done", "own_last and end_epoch.runs < begin_epoch.runs"
        ),
    }
    for how, each in mended.items():
        assert each.check() == []
        model = torch.nn.Linear(2, 1)
        trainer = Trainer(
            each,
            display=None,
            notify=lambda line: None,
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            train_data=[CLEAN] * 3,
            other=[NOISY] * 4,
            training_step=lambda model, batch: model(batch).square().mean(),
        )
        trainer.run()
        closed = [row["epoch"] for row in trainer.metrics if "epoch/loss" in row]
        assert closed == [1.0, 2.0, 3.0], how
    (problem,) = graph.check()
    assert problem.code == "G506" and "let `begin_epoch` lead to `next_batch` first" in problem.hint
