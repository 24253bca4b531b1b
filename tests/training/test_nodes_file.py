"""Promise 19: `nodes.jsonl` has how often nodes and edges ran, at each row, over resumes, rewirings and forks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Graph, Run, Trainer, UsageError, fit
from tests.training.tiny import batches, tiny

Whole = tuple[Path, Trainer, list[dict[str, int]]]


def procedure(epochs: int = 3) -> Graph:
    graph = fit(epochs=epochs, accumulate=2, log_every="3 steps", save_every="5 batches", keep=20)
    return graph.set("validate", every="4 batches")


def counted(run_dir: Path, graph: Graph | None = None, **more: Any) -> Trainer:
    return tiny(graph or procedure(), run_dir, **{"train_data": batches(7), "val_data": batches(3), **more})


def keys_of(graph: Graph, prefix: str = "") -> Iterator[str]:
    """The keys of all edges, by what is public."""
    for source, leaving in graph.edges.items():
        yield from (f"{prefix}{source} -> {edge}" for edge in leaving)
    for name, node in graph.nodes.items():
        if node.body is not None:
            yield from keys_of(node.body, f"{prefix}{name}/")


def counts_of(run_dir: Path) -> tuple[dict[str, int], dict[str, int]]:
    last = Run(run_dir).activity.at(-1)
    return last["runs"], last["taken"]


def expect_flow(graph: Graph | None, taken: Mapping[str, int], prefix: str = "", begun: int = 1) -> None:
    """What comes in goes out: at every node, bypassed ones included, arrivals are departures."""
    assert graph is not None
    for name in graph.nodes:
        leaving = sum(taken[f"{prefix}{name} -> {edge}"] for edge in graph.edges[name])
        arriving = sum(
            taken[f"{prefix}{source} -> {edge}"]
            for source, edges in graph.edges.items()
            for edge in edges
            if edge.target == name
        )
        assert leaving == arriving + begun * (name == graph.start), name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A run never cut, and its progress when each row was recorded."""
    run_dir = tmp_path_factory.mktemp("whole")
    seen: list[dict[str, int]] = []

    def note(row: Mapping[str, float], step: int) -> None:
        seen.append({path: fields["runs"] for path, fields in trainer.progress.items()})

    trainer = counted(run_dir, loggers=[note])
    trainer.run()
    return run_dir, trainer, seen


@pytest.mark.full
def test_counts_are_those_of_progress_at_every_row(whole: Whole) -> None:
    run_dir, _, seen = whole
    run = Run(run_dir)
    assert len(seen) == len(run.metrics) > 5
    for number, progress in enumerate(seen):
        counts = run.activity.at(number)
        assert counts is not None and counts["rows"] == number + 1
        outside = {path: runs for path, runs in counts["runs"].items() if "/" not in path}
        assert outside == {path: progress[path] for path in outside} and {*outside} >= {"step", "log", "validate"}


def test_every_edge_has_its_count_and_counts_flow(whole: Whole) -> None:
    run_dir, trainer, _ = whole
    runs, taken = counts_of(run_dir)
    assert sorted(taken) == sorted(keys_of(trainer.graph))
    assert runs["validate/eval_batch"] == 3 * runs["validate"] > 3, "over all times that the body ran"
    assert taken["exchange -> clip"] == taken["accumulate -> exchange if accumulation_reached"] == runs["step"]
    expect_flow(trainer.graph, taken)
    expect_flow(trainer.graph.nodes["validate"].body, taken, "validate/", runs["validate"])


@pytest.mark.full
@pytest.mark.parametrize("first", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_resumed_run_has_the_counts_of_one_never_cut(tmp_path: Path, first: int) -> None:
    """Killed between two saves: what was counted since the checkpoint is cut off, as rows are."""

    def fail(row: Mapping[str, float], step: int) -> None:
        if step == 4 * first + 1:
            raise KeyboardInterrupt

    graph = procedure().set("log", every="1 steps").set("checkpoint", mode="sync")  # else the save may be given up
    counted(tmp_path / "whole", graph).run()
    with pytest.raises(KeyboardInterrupt):
        counted(tmp_path / "cut", graph, loggers=[fail]).run()
    before = len([*Run(tmp_path / "cut").activity])
    trainer = counted(tmp_path / "cut", graph)
    trainer.run()
    activity = Run(tmp_path / "cut").activity
    assert counts_of(tmp_path / "cut") == counts_of(tmp_path / "whole")
    assert [start["event"] for start in activity.starts] == ["started", "resumed"]
    assert activity.starts[1]["rows"] < len(trainer.metrics) and before < len([*activity])
    times, rows = ([row[key] for row in activity] for key in ("time", "rows"))
    assert times == sorted(times) and rows == sorted(rows) and rows[-1] == len(trainer.metrics)


def test_stops_are_counted_on(whole: Whole, tmp_path: Path) -> None:
    for until in ("4 batches", "9 batches", None):
        counted(tmp_path).run(until=until)
    assert counts_of(tmp_path) == counts_of(whole[0])
    assert (tmp_path / "metrics.jsonl").read_bytes() == (whole[0] / "metrics.jsonl").read_bytes()


def test_going_on_in_another_graph_has_a_header_and_keeps_totals(tmp_path: Path) -> None:
    trainer = counted(tmp_path)
    trainer.run(until="6 batches")
    before = Run(tmp_path).activity.at(-1)["runs"]
    trainer.rewire(trainer.graph.remove("log").set("accumulate", every=1))
    trainer.run()
    activity = Run(tmp_path).activity
    assert [start["event"] for start in activity.starts] == ["started", "rewired"]
    assert activity.at(-1)["runs"]["log"] == before["log"] > 0
    assert all(activity.at(-1)["runs"][path] >= runs for path, runs in before.items())
    assert activity.at(-1)["runs"]["next_batch"] == trainer.progress["next_batch"]["runs"] == 21


HEADER = '{"event":"started","time":1.0,"rows":0,"nodes":{"a":[0]},"edges":{"a -> end":[0]}}\n'


def written(run_dir: Path, content: str) -> Run:
    (run_dir / "status.json").write_text('{"state": "finished", "position": "end"}')
    (run_dir / "nodes.jsonl").write_text(content)
    return Run(run_dir)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]\n", "nodes.jsonl:1 is not a row"),
        (HEADER + "{" * 100_000 + "\n", "nodes.jsonl:2 is not a row"),
        (HEADER + '{"time":1,"rows":1,"counts":[0,1],"milliseconds":[7,1]}\n', "nodes.jsonl:2 is not a row"),
        (HEADER + '{"time":1,"rows":1,"counts":[0,1,2]}\n', "nodes.jsonl:2 is not a row"),
        (HEADER + '{"time":"<img>","rows":1,"counts":[0,1]}\n', "nodes.jsonl:2 is not a row"),
    ],
)
def test_a_damaged_file_is_an_error_that_says_where(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(written(tmp_path, content).activity)


def test_a_cut_line_is_left_out_and_rows_are_chosen_evenly(tmp_path: Path) -> None:
    lines = "".join(f'{{"time":{n},"rows":{n},"counts":[0,1]}}\n' for n in range(1, 11))
    activity = written(tmp_path, HEADER + lines + '{"time":1,"rows":1,"cou').activity
    assert [row["runs"]["a"] for row in activity] == [*range(1, 11)]
    assert [row["runs"]["a"] for row in activity.overview(4)] == [2, 5, 7, 10]
    assert len(activity.overview(99)) == 10


def test_counts_that_were_lost_begin_again_and_the_run_is_exact(whole: Whole, tmp_path: Path) -> None:
    counted(tmp_path).run(until="7 batches")
    (tmp_path / "nodes.jsonl").unlink()
    said: list[str] = []
    resumed = counted(tmp_path, said=said)
    resumed.run()
    assert [line for line in said if "nodes.jsonl was shortened" in line]
    assert resumed.digest() == whole[1].digest()
    assert 0 < counts_of(tmp_path)[0]["train_batch"] < counts_of(whole[0])[0]["train_batch"]
