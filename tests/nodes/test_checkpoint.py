"""The node `checkpoint` with `best`: what makes it due, what is ranked, what is refused."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Outcome, Run, Trainer, UsageError, checkpoint_folder, node
from graphtrain.errors import SaveFailedError, UnknownMetricError
from graphtrain.storage import checkpoint as writing
from graphtrain.storage.checkpoint import read_manifest
from graphtrain.storage.run_directory import BEST_FILE, METRICS_FILE, read_status

# Four validations in each of two epochs; the losses that rank first or second so far: all but 6, 7, 8 and the last.
LOSSES = [5.0, 6.0, 4.0, 7.0, 3.0, 8.0, 3.5, 9.0]
ACCURACIES = [0.1, 0.9, 0.2, 0.3, 0.4, 0.5, 0.7, 0.6]


def fit(**checkpoint: Any) -> Graph:
    """Two epochs of eight batches, validated every second batch."""
    return (
        Graph.load("fit")
        .set("accumulate", every=1)
        .set("validate", every="2 batches")
        .set("log", every="3 steps")
        .set("checkpoint", **{"every": "never", "keep": 1, "best": "val/loss", "best_mode": "min", **checkpoint})
        .set("finish", after="2 epochs")
    )


def saved_first(**checkpoint: Any) -> Graph:
    """The same with `checkpoint` asked before `validate`."""
    return fit(**checkpoint).disconnect("decide", "checkpoint").connect("decide", "checkpoint", when="checkpoint_due")


def trainer_of(
    graph: Graph,
    run_dir: Path | None = None,
    losses: list[float] = LOSSES,
    said: list[str] | None = None,
    metric: str = "loss",
) -> Trainer:
    """A run whose validations give these losses, by the step that they are made at."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    return Trainer(
        graph,
        seed=0,
        run_dir=run_dir,
        device="cpu",
        display=None,
        notify=(said if said is not None else []).append,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        train_data=list(torch.randn(8, 4, 2)),
        val_data=[torch.ones(4, 2)],
        training_step=lambda model, batch: {"loss": model(batch).square().mean(), "error": 1.0},
        validation_step=lambda model, batch, step: {
            metric: losses[max(step // 2 - 1, 0)],
            "accuracy": ACCURACIES[max(step // 2 - 1, 0)] if "accurate" in graph.to_toml() else 0.5,
        },
    )


def checkpoints(run_dir: Path) -> list[Path]:
    return sorted(path for path in (run_dir / "checkpoints").iterdir() if not path.name.startswith("."))


def steps(run_dir: Path) -> list[int]:
    return [read_manifest(path).step for path in checkpoints(run_dir)]


def ranking(run_dir: Path) -> list[tuple[int, float]]:
    """Step and value of the best, the best first, by `best.json`."""
    table = json.loads((run_dir / BEST_FILE).read_text())
    return [(int(entry["checkpoint"].partition("-step-")[2]), entry["value"]) for entry in table["checkpoints"]]


def due_at(trainer: Trainer) -> Iterator[int]:
    """The steps at which `checkpoint` runs."""
    runs = 0
    for batches in range(1, 17):
        trainer.run(until=f"{batches} batches")
        if trainer.read("checkpoint.runs") > runs:
            runs = trainer.read("checkpoint.runs")
            yield batches


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [
        ({}, [2, 6, 10]),
        ({"keep_best": 2}, [2, 4, 6, 10, 14]),
        ({"best_mode": "max"}, [2, 4, 8, 12, 16]),
        ({"best": "val/accuracy"}, [2]),  # an equal value is no better
        ({"best": "epoch/loss"}, []),  # a mean of training is no validation
        ({"every": "5 batches"}, [2, 5, 6, 10, 15]),
        ({"every": "5 batches", "best": "val/accuracy"}, [2, 5, 10, 15]),
    ],
)
def test_a_validation_that_ranks_among_the_best_makes_it_due(checkpoint: dict[str, Any], expected: list[int]) -> None:
    assert list(due_at(trainer_of(fit(**checkpoint)))) == expected


def test_nan_is_never_best() -> None:
    losses = [float("nan"), 5.0, float("inf"), float("-inf"), 4.0, 4.0, 4.0, 4.0]
    assert list(due_at(trainer_of(fit(), losses=losses))) == [4, 10]


@pytest.mark.first(1)
@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("graph", [fit, saved_first])
def test_the_best_stay_and_are_named(graph: Any, mode: str, tmp_path: Path) -> None:
    trainer_of(graph(keep_best=2, mode=mode), tmp_path).run()
    assert ranking(tmp_path) == [(10, 3.0), (14, 3.5)]
    assert steps(tmp_path) == [10, 14, 16]
    table = json.loads((tmp_path / BEST_FILE).read_text())
    assert (table["metric"], table["mode"]) == ("val/loss", "min")
    assert read_status(tmp_path)["best"] == {"metric": "val/loss", **table["checkpoints"][0]}


@pytest.mark.full
def test_where_only_the_metric_is_new_it_takes_the_place_of_the_newest(tmp_path: Path) -> None:
    """`checkpoint` comes first in `decide`, so that the validation follows a checkpoint of the same state."""
    graph = saved_first(every="2 batches", keep=100, keep_best=2, mode="sync")
    trainer = trainer_of(graph, tmp_path)
    trainer.run()
    assert steps(tmp_path) == [*range(2, 17, 2)], "each state once: those of the interval, and of the end"
    assert ranking(tmp_path) == [(10, 3.0), (14, 3.5), (6, 4.0), (2, 5.0), (4, 6.0)]
    assert trainer.read("checkpoint.runs") == 8 + 5


@pytest.mark.full
def test_the_file_names_what_is_there_when_it_is_written(tmp_path: Path) -> None:
    """At every transition: each name is that of a checkpoint, and the values are in order."""
    trainer = trainer_of(saved_first(every="3 batches", keep_best=2, mode="sync"), tmp_path)
    seen = set()
    while trainer.position != "end":
        trainer.advance()
        file = tmp_path / BEST_FILE
        entries = json.loads(file.read_text())["checkpoints"] if file.exists() else []
        values = [entry["value"] for entry in entries]
        assert {entry["checkpoint"] for entry in entries} <= {path.name for path in checkpoints(tmp_path)}
        assert values == sorted(values)
        seen.add(tuple(values))
    assert seen >= {(), (5.0,), (5.0, 6.0), (4.0, 5.0), (3.0, 4.0), (3.0, 3.5)}


def result_of(run_dir: Path, trainer: Trainer) -> dict[str, Any]:
    return {
        "digest": trainer.digest(),
        "metrics": (run_dir / METRICS_FILE).read_bytes(),
        "steps": steps(run_dir),
        "best": ranking(run_dir),
        "ranked": trainer.progress["checkpoint"]["ranked"],
    }


def equal_after_cuts(procedure: Graph, folder: Path, stride: int) -> None:
    """Every cut is once a stop, which saves there, and once a kill, which leaves what was there."""
    whole = trainer_of(procedure, folder / "whole")
    assert whole.run() is Outcome.FINISHED
    expected = result_of(folder / "whole", whole)
    going = trainer_of(procedure, folder / "going")
    transitions = 0
    while going.position != "end":
        going.advance()
        transitions += 1
        if going.position == "end" or transitions % stride:
            continue
        where = f"after {transitions} transitions, before {going.position}"
        killed = trainer_of(procedure, shutil.copytree(folder / "going", folder / f"killed-{transitions}"))
        killed.run()
        assert result_of(folder / f"killed-{transitions}", killed) == expected, f"killed {where}"
        stopped = trainer_of(procedure, folder / f"stopped-{transitions}")
        stopped.advance(transitions)
        stopped.save()
        resumed = trainer_of(procedure, folder / f"stopped-{transitions}")
        resumed.run()
        assert result_of(folder / f"stopped-{transitions}", resumed) == expected, f"stopped {where}"


def cut_graph(graph: Any, every: str, ending: str) -> Graph:
    made: Graph = graph(every=every, keep_best=2, mode="sync")
    return made.set("accumulate", every=2).set("finish", after=ending)


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize(("graph", "every"), [(fit, "never"), (saved_first, "3 batches")])
def test_after_a_cut_the_run_and_what_stays_are_the_same(graph: Any, every: str, tmp_path: Path) -> None:
    equal_after_cuts(cut_graph(graph, every, "6 batches"), tmp_path, 23)


@pytest.mark.sweep
@pytest.mark.parametrize("graph", [fit, saved_first])
@pytest.mark.parametrize("every", ["never", "3 batches"])
def test_after_any_cut_the_run_and_what_stays_are_the_same(graph: Any, every: str, tmp_path: Path) -> None:
    equal_after_cuts(cut_graph(graph, every, "2 epochs"), tmp_path, 1)


# The file, as a resume finds it


FILES: dict[str, Any] = {
    "missing": None,
    "torn": '{"metric": "val/loss", "mode": "min", "checkpo',
    "empty": "",
    "no table": "[1]",
    "no entries": '{"metric": "val/loss", "mode": "min", "checkpoints": 3}',
    "nested too deep": "[" * 100_000,
    "no utf-8": b"\xff\xfe",
    "too large": " " * (2 << 20),
    "checkpoints that are gone": {"000009-step-9": 0.1, "../secret": 0.2, "": 0.3},
    "no numbers": {"000001-step-2": "0.1", "000002-step-4": True, "000003-step-4": None},
    "no finite numbers": {"000001-step-2": float("nan"), "000002-step-4": 10**400},
}


@pytest.mark.second(7)
@pytest.mark.full
@pytest.mark.parametrize("name", FILES)
def test_a_resume_trusts_the_file_as_far_as_it_can(name: str, tmp_path: Path) -> None:
    """Values that the checkpoints hold themselves are known without it."""
    content, file = FILES[name], tmp_path / BEST_FILE
    trainer_of(fit(keep_best=2), tmp_path).run(until="5 batches")
    before = ranking(tmp_path)
    assert before == [(2, 5.0), (4, 6.0)]
    file.unlink()
    if isinstance(content, dict):
        entries = [{"checkpoint": checkpoint, "value": value} for checkpoint, value in content.items()]
        content = json.dumps({"metric": "val/loss", "mode": "min", "checkpoints": [*entries, 7, {}]})
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        file.write_text(content)
    resumed = trainer_of(fit(keep_best=2), tmp_path)
    resumed.advance(0)
    assert read_status(tmp_path)["best"]["value"] == 5.0
    resumed.run()
    assert ranking(tmp_path) == [(10, 3.0), (14, 3.5)]
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.full
def test_what_was_measured_after_the_save_is_known_after_a_resume(tmp_path: Path) -> None:
    graph = saved_first(every="2 batches", mode="sync")
    trainer_of(graph, tmp_path).run(until="3 batches")
    [first] = [path for path in checkpoints(tmp_path) if path.name.endswith("step-2")]
    assert read_manifest(first).ranked == {"val/loss": 5.0}
    (tmp_path / BEST_FILE).unlink()
    again = trainer_of(graph, tmp_path, losses=[5.0] + [9.0] * 7)
    again.run()
    assert ranking(tmp_path) == [(2, 5.0)]
    assert steps(tmp_path) == [2, 16]


@pytest.mark.full
def test_what_was_given_up_is_no_longer_ranked(tmp_path: Path) -> None:
    graph = fit(keep=10, keep_best=2)
    trainer_of(graph, tmp_path).run()
    [name] = [path.name for path in checkpoints(tmp_path) if path.name.endswith("step-4")]
    resumed = trainer_of(graph, tmp_path, losses=[0.0, 0.0] + [5.5] * 6)
    resumed.run(resume=name)
    assert ranking(tmp_path) == [(2, 5.0), (6, 5.5), (4, 6.0)]


@pytest.mark.full
def test_what_was_ranked_before_the_best_is_known_when_the_best_is_given_up(tmp_path: Path) -> None:
    graph = saved_first(every="2 batches", keep=100, mode="sync")
    trainer_of(graph, tmp_path).run()
    assert ranking(tmp_path) == [(10, 3.0), (6, 4.0), (2, 5.0)]
    [name] = [path.name for path in checkpoints(tmp_path) if path.name.endswith("step-8")]
    trainer_of(graph, tmp_path, losses=[9.0] * 8).run(resume=name)
    assert ranking(tmp_path) == [(6, 4.0), (2, 5.0)]


@pytest.mark.full
def test_a_fork_has_a_ranking_of_its_own(tmp_path: Path) -> None:
    trainer_of(fit(), tmp_path / "run").run(until="11 batches")
    newest = checkpoints(tmp_path / "run")[-1]
    fork = trainer_of(fit(), tmp_path / "fork")
    fork.run(resume=newest)
    assert ranking(tmp_path / "fork") == [(14, 3.5)], "3.0 is a checkpoint of the other run"
    assert ranking(tmp_path / "run") == [(10, 3.0)]


@pytest.mark.full
def test_another_metric_and_another_mode_are_ranked_from_then_on(tmp_path: Path) -> None:
    trainer_of(fit(), tmp_path).run(until="9 batches")
    assert ranking(tmp_path) == [(6, 4.0)]
    trainer_of(fit(best_mode="max"), tmp_path).run()
    assert ranking(tmp_path) == [(16, 9.0)]


def test_without_a_metric_there_is_no_file(tmp_path: Path) -> None:
    trainer_of(fit(), tmp_path).run(until="9 batches")
    unranked = Graph.load("fit").set("finish", after="2 epochs")
    trainer_of(unranked, tmp_path).run()
    assert not (tmp_path / BEST_FILE).exists()
    assert read_status(tmp_path)["best"] is None


def put_foreign(file: Path, kind: str) -> None:
    """What another program may have left where the ranking is written."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if kind == "a folder":
        file.mkdir()
        (file / "mine").write_text("1")
    else:
        file.write_text(kind)


FOREIGN = ["a folder", '{"mine": 1}', '{"metric": "loss", "mode": "best", "checkpoints": []}', ""]


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_of_somebody_else_is_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / BEST_FILE
    put_foreign(file, kind)
    number = file.lstat().st_ino
    with pytest.raises(UsageError, match=r"`best\.json` in .* was not written by a run"):
        trainer_of(fit(), tmp_path).run()
    assert file.lstat().st_ino == number


def test_a_disk_that_refuses_the_file_is_a_save_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(fit(), tmp_path)
    replace = Path.replace

    def refuse(path: Path, target: Path) -> Path:
        if target.name == BEST_FILE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        message = r"cannot write .*best\.json: No space left on device; earlier checkpoints are kept"
        with pytest.raises(SaveFailedError, match=message):
            trainer.run()
    assert trainer.run() is Outcome.FINISHED
    assert ranking(tmp_path) == [(10, 3.0)]


def test_the_best_is_not_taken_for_saved_where_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At step 6, of 4.0; the 4.5 that follows is the best that can be kept."""
    said: list[str] = []
    losses = [5.0, 6.0, 4.0, 4.5, 7.0, 7.0, 7.0, 7.0]
    trainer = trainer_of(fit(if_failed="continue", mode="sync"), tmp_path, losses=losses, said=said)
    trainer.run(until="5 batches")

    def refuse(path: Path, data: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(writing, "write_file", refuse)
        with contextlib.suppress(SaveFailedError):  # that of the stop
            trainer.run(until="6 batches")
    trainer.run()
    assert ranking(tmp_path) == [(8, 4.5)]
    assert any("No space left on device" in line for line in said)


@pytest.mark.parametrize(
    ("checkpoint", "line"),
    [
        ({}, "checkpoint  when improved"),
        ({"every": "1 epochs"}, "checkpoint  every 1 epochs (also when improved)"),
    ],
)
def test_the_summary_tells_when(checkpoint: dict[str, Any], line: str) -> None:
    assert line in [one.strip() for one in str(trainer_of(fit(**checkpoint)).summary()).splitlines()]


# Several nodes


def two(**second: Any) -> Graph:
    """The second node is due after every step."""
    return fit(keep_best=2).insert("often", "checkpoint", after="step", **{"every": "1 steps", "keep": 1, **second})


@pytest.mark.full
def test_what_one_of_several_nodes_keeps_is_kept(tmp_path: Path) -> None:
    trainer = trainer_of(two(keep=3), tmp_path)
    trainer.run(until="13 batches")
    assert steps(tmp_path) == [6, 10, 11, 12, 13]
    assert {(6, 4.0), (10, 3.0)} <= set(ranking(tmp_path))
    trainer.save()
    assert steps(tmp_path) == [6, 10, 11, 12, 13]
    trainer.rewire(two(keep=1))
    trainer.run(until="14 batches")
    assert steps(tmp_path) == [10, 14]
    trainer.rewire(fit(keep=4, keep_best=2))
    trainer.run(until="15 batches")
    assert steps(tmp_path) == [10, 14, 15]
    trainer.rewire(fit().remove("checkpoint"))
    trainer.run()
    assert steps(tmp_path) == [15, 16] and not (tmp_path / BEST_FILE).exists(), "as in a graph that never had one"


def ranked_twice(graph: Any = fit, **checkpoint: Any) -> Graph:
    """A second node ranks by the accuracy: its best is at step 4."""
    made: Graph = graph(**{"keep_best": 2, "mode": "sync", **checkpoint})
    second = {"every": "never", "keep": 1, "best": "val/accuracy", "mode": "sync"}
    return made.insert("accurate", "checkpoint", at="decide", after="checkpoint", **second)


def best_of(run_dir: Path, node: str) -> list[tuple[int, float]]:
    entries = json.loads((run_dir / BEST_FILE).read_text())["others"][node]["checkpoints"]
    return [(int(entry["checkpoint"].partition("-step-")[2]), entry["value"]) for entry in entries]


@pytest.mark.parametrize("graph", [fit, saved_first])
def test_two_nodes_rank_by_different_metrics(graph: Any, tmp_path: Path) -> None:
    """At step 2 both are due, at 4 as well, at 6, 10 and 14 the first alone."""
    trainer = trainer_of(ranked_twice(graph), tmp_path)
    assert ranked_twice(graph).check() == []
    trainer.run()
    assert steps(tmp_path) == [4, 10, 14, 16]
    assert ranking(tmp_path) == [(10, 3.0), (14, 3.5), (4, 6.0)] and best_of(tmp_path, "accurate") == [(4, 0.9)]
    assert trainer.load("best:checkpoint") == trainer.load() == checkpoint_folder(tmp_path / "best")
    assert trainer.load("best:accurate") == checkpoint_folder(tmp_path / "best:accurate") == checkpoints(tmp_path)[0]
    assert (read_status(tmp_path)["best"]["value"], read_status(tmp_path)["best:accurate"]["value"]) == (3.0, 0.9)
    named = [checkpoint["best"] for checkpoint in Run(tmp_path).checkpoints]
    assert named == ["best:accurate", "best", "", ""]
    with pytest.raises(UsageError, match="no node `exact` ranks") as error:
        trainer.load("best:exact")
    assert error.value.hint == "there are: best:checkpoint, best:accurate"


def test_a_node_inside_of_a_body_ranks_and_names_its_best(tmp_path: Path) -> None:
    stage = ranked_twice().set("finish", after="8 batches")
    stage.save(tmp_path / "stage.toml")
    text = 'format = 1\nname = "stages"\nstart = "stage"\nnodes.stage = {graph = "stage.toml"}\nedges.stage = ["end"]\n'
    (tmp_path / "stages.toml").write_text(text)
    graph = Graph.load(tmp_path / "stages.toml")
    trainer = trainer_of(graph, tmp_path)
    trainer.run()
    name = f"{tmp_path}/best:stage/accurate"
    assert trainer.load("best:stage/accurate") == trainer.load(name) == checkpoint_folder(name)
    assert checkpoint_folder(name).name.endswith("-step-4") and Graph.load(name) == graph


@pytest.mark.full
def test_ranked_twice_what_stays_is_the_same_after_a_cut(tmp_path: Path) -> None:
    for graph in (fit, saved_first):
        procedure = ranked_twice(graph).set("finish", after="10 batches")
        equal_after_cuts(procedure, tmp_path / graph.__name__, 19)


@pytest.mark.full
def test_a_fork_and_another_metric_of_one_of_two_nodes(tmp_path: Path) -> None:
    trainer_of(ranked_twice(), tmp_path / "run").run(until="11 batches")
    fork = trainer_of(ranked_twice(), tmp_path / "fork")
    fork.run(resume=tmp_path / "run" / "best:accurate")
    assert steps(tmp_path / "fork") == [10, 14, 16]
    assert best_of(tmp_path / "fork", "accurate") == [(14, 0.7), (10, 0.4)]
    assert best_of(tmp_path / "run", "accurate") == [(4, 0.9)], "of another run"
    trainer_of(ranked_twice().set("accurate", best="val/loss", best_mode="max"), tmp_path / "run").run()
    assert best_of(tmp_path / "run", "accurate")[0] == (16, 9.0) and steps(tmp_path / "run") == [10, 14, 16]


# A metric that nobody records


@pytest.mark.parametrize(
    ("best", "hint"),
    [("val/los", "did you mean `val/loss`?"), ("val/f1", "set checkpoint.best to one of these")],
)
def test_a_metric_that_the_validation_does_not_give_is_an_error_there(best: str, hint: str) -> None:
    trainer = trainer_of(fit(best=best))
    with pytest.raises(UsageError) as error:
        trainer.run()
    assert f"no row of metrics has `{best}`" in error.value.message and hint in error.value.hint
    assert trainer.read("step.steps") == 2 and trainer.state == "stopped"
    trainer.rewire(fit())
    assert trainer.run() is Outcome.FINISHED, "between two nodes: nothing is half done"


def test_what_an_evaluation_gives_is_known_at_its_end() -> None:
    """A node inside it records a row of its own before the means are recorded."""

    @node(observer=True)
    def count(recorder: Any, *, name: str = "val/count") -> None:
        recorder.row({name: 1.0})

    inside = Graph.load("evaluate").insert("count", count, before="end_evaluation")
    for best in ("val/loss", "val/count"):
        assert trainer_of(fit(best=best).set("validate", graph=inside)).run() is Outcome.FINISHED
    with pytest.raises(UsageError, match="no row of metrics has `val/f1`"):
        trainer_of(fit(best="val/f1").set("validate", graph=inside)).run()


@pytest.mark.first(2)
@pytest.mark.parametrize("best", ["loss", "error", "lr", "epoch/error", "val/loss"])
def test_a_metric_of_training_is_allowed(best: str, tmp_path: Path) -> None:
    said: list[str] = []
    trainer = trainer_of(fit(best=best, every="4 batches").set("log", every="4 steps"), tmp_path, said=said)
    assert trainer.run() is Outcome.FINISHED
    assert ranking(tmp_path) and not any("no row of metrics" in line for line in said)


@pytest.mark.full
def test_a_metric_that_no_row_has_is_an_error_once_all_that_record_have_run(tmp_path: Path) -> None:
    """At the row of epoch 1; at those before, `end_epoch` had not run yet."""
    trainer = trainer_of(with_count(best="val_los", every="4 batches"), tmp_path)
    with pytest.raises(UsageError) as error:
        trainer.run()
    assert error.value.message.startswith("no row of metrics has `val_los`, which checkpoint.best names; recorded are ")
    assert error.value.hint.startswith("did you mean `val/loss`? (--dry-run, ")
    assert trainer.read("step.steps") == 8
    assert steps(tmp_path)[-1] == 8, "the run can be resumed from there, with another metric"
    assert trainer_of(with_count(), tmp_path).run() is Outcome.FINISHED


def with_count(**checkpoint: Any) -> Graph:
    """A node in the outermost graph records a row after every step, of a name that nobody knows before."""

    @node(observer=True)
    def count(recorder: Any, *, name: str = "count") -> None:
        recorder.row({name: 1.0})

    return fit(**checkpoint).insert("count", count, after="step")


def test_what_another_evaluation_gives_is_waited_for() -> None:
    evaluate = Graph.load("evaluate").set("begin_evaluation", split="test")
    twice = fit(best="test/loss").insert("test", graph=evaluate, after="end_epoch")
    assert trainer_of(twice).run() is Outcome.FINISHED


@pytest.mark.full
def test_a_fork_waits_for_the_rows_of_its_own(tmp_path: Path) -> None:
    trainer_of(fit(every="4 batches"), tmp_path / "run").run(until="9 batches")
    fork = trainer_of(fit(every="1 batches"), tmp_path / "fork")
    assert fork.run(resume=checkpoints(tmp_path / "run")[-1]) is Outcome.FINISHED


def test_without_data_to_validate_on_the_first_epoch_tells(tmp_path: Path) -> None:
    trainer = trainer_of(fit().set("log", every="never"), tmp_path)
    resources = {name: value for name, value in trainer.resources.items() if not name.startswith("val")}
    graph = fit().set("log", every="never")
    with pytest.raises(UnknownMetricError, match=r"no row of metrics has `val/loss`, which checkpoint\.best names"):
        Trainer(graph, run_dir=tmp_path, display=None, notify=lambda line: None, **resources).run()


@pytest.mark.parametrize(
    ("checkpoint", "reason"),
    [
        ({"best": "loss", "every": "5 batches"}, "no row at a step at which `checkpoint` was due has a finite `loss`"),
        ({"best": "val/f1"}, "every value of `val/f1` is NaN or infinite"),
    ],
)
def test_a_run_that_kept_no_best_says_why(checkpoint: dict[str, Any], reason: str, tmp_path: Path) -> None:
    said: list[str] = []
    trainer = trainer_of(fit(**checkpoint).set("finish", after="8 batches"), tmp_path, [math.nan] * 8, said, "f1")
    assert trainer.run() is Outcome.FINISHED
    assert [line for line in said if "the best" in line] == [f"no checkpoint was kept as the best: {reason}"]


def test_a_metric_of_a_node_that_is_no_evaluation_is_reported_early() -> None:
    said: list[str] = []
    trainer = trainer_of(with_count(best="count"), said=said)
    trainer.run(until="1 batches")
    assert not [line for line in said if "makes no checkpoint due" in line], "another edge may lead there"
    trainer.run(until="4 batches")
    (line,) = [line for line in said if "makes no checkpoint due" in line]
    assert line.startswith("`count` is not recorded by an evaluation") and "checkpoint.every" in line
