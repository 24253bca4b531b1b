"""A run directory resumed in another graph: every class of change, what is kept, and what is reported."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Outcome, Trainer, UsageError, node, progress
from graphtrain.graph.renaming import Renaming
from graphtrain.kind import DECLARED
from graphtrain.resume.restore import GraphChange
from tests.program.small_run import small_graph, small_trainer

# Inside a window, in validation (its slots alive), after validation, in the second epoch.
CUTS = [7, 22, 30, 44, 61]


def trainer_of(run_dir: Path | None, graph: Graph, said: list[str] | None = None) -> Trainer:
    made = small_trainer(run_dir, graph=graph)
    made._run.notices._write = said.append if said is not None else lambda line: None
    return made


def cut(run_dir: Path, transitions: int = 7, graph: Graph | None = None, at: str = "") -> Trainer:
    """A run that was stopped, and its checkpoint written; `at` continues to the next arrival at a node."""
    trainer = trainer_of(run_dir, graph or small_graph())
    trainer.advance(transitions)
    while at and trainer.position != at:
        trainer.advance()
    trainer.save()
    return trainer


def result(trainer: Trainer) -> list[Any]:
    """What must be bitwise equal, whatever the nodes are called."""
    model, optimizer = trainer.resources["model"], trainer.resources["optimizer"]
    state = [value for values in optimizer.state_dict()["state"].values() for value in values.values()]
    return [*(one.tolist() for one in model.state_dict().values()), *(one.tolist() for one in state), trainer.metrics]


def resumed_line(said: list[str]) -> str:
    """The line of the resume, except for the name of the directory."""
    (line,) = [one for one in said if one.startswith("resumed ")]
    return line.partition(": ")[2]


@pytest.fixture(scope="module")
def whole() -> Trainer:
    trainer = trainer_of(None, small_graph())
    trainer.run()
    return trainer


# ---- identical, cosmetic, compatible


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda graph: replace(graph, name="mine"), "in the graph only name fit -> mine; "),
        (lambda graph: replace(graph, allow=("G209",)), "in the graph only allow [] -> [G209]; "),
        (lambda graph: graph.guard("log_due", " log.due "), "in the graph only spacing of guard log_due; "),
    ],
)
def test_cosmetic_changes_are_one_line_and_exact(change: Any, words: str, tmp_path: Path, whole: Trainer) -> None:
    cut(tmp_path, 22)
    said: list[str] = []
    trainer = trainer_of(tmp_path, change(small_graph()), said)
    trainer.run()
    assert words in resumed_line(said) and resumed_line(said).endswith("exact")
    assert trainer.digest() == whole.digest()


@pytest.mark.full
def test_the_order_of_the_nodes_in_the_file_is_nothing(tmp_path: Path, whole: Trainer) -> None:
    cut(tmp_path, 22)
    said: list[str] = []
    graph = small_graph()
    trainer = trainer_of(tmp_path, replace(graph, nodes=dict(reversed(graph.nodes.items()))), said)
    trainer.run()
    assert "graph" not in resumed_line(said)
    assert trainer.digest() == whole.digest()


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize(
    "transitions", [CUTS[0], CUTS[-1], *(pytest.param(cut, marks=pytest.mark.sweep) for cut in CUTS[1:-1])]
)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda graph: graph.set("checkpoint", every="2 batches"), "checkpoint.every 3 batches -> 2 batches"),
        (lambda graph: graph.insert("pause", "choice", after="step"), "node pause added"),
        (lambda graph: graph.set("finish", after="13 epochs").set("finish", after="2 epochs"), "unchanged: exact"),
    ],
    ids=["checkpoint.every", "a node more", "there and back"],
)
def test_a_change_that_does_not_touch_training_leaves_it_bitwise(
    change: Any, words: str, transitions: int, tmp_path: Path, whole: Trainer
) -> None:
    cut(tmp_path, transitions)
    said: list[str] = []
    trainer = trainer_of(tmp_path, change(small_graph()), said)
    assert trainer.run() is Outcome.FINISHED
    assert words in resumed_line(said)
    assert result(trainer) == result(whole)


# ---- a lost position


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("in_place", [True, False], ids=["rewire", "resume"])
@pytest.mark.parametrize(
    ("at", "rename"),
    [
        ("zero_grad", {"zero_grad": "clear"}),
        ("accumulate", {"accumulate": "gather", "step": "update"}),
        ("validate/eval_batch", {"validate": "measure"}),
        ("validate/next_batch", {"validate": "measure"}),
        ("train_batch", {"next_batch": "fetch"}),
    ],
)
def test_a_renaming_carries_everything_along(
    at: str, rename: dict[str, str], in_place: bool, tmp_path: Path, whole: Trainer
) -> None:
    graph = small_graph()
    for old, new in rename.items():
        graph = graph.rename(old, new)
    trainer, said = cut(tmp_path, 7, at=at), []
    if in_place:
        trainer.rewire(graph, rename=rename)
        assert trainer.position == Renaming(rename, small_graph(), graph).path(at)
        trainer.run()
    else:
        trainer = trainer_of(tmp_path, graph, said)
        trainer.run(rename=rename)
        assert all(f"node {old} renamed {new}" in resumed_line(said) for old, new in rename.items())
        assert "left out" not in resumed_line(said)
    assert result(trainer) == result(whole)
    former = {path: one["runs"] for path, one in whole.progress.items()}
    renaming = Renaming(rename, small_graph(), graph)
    assert {path: one["runs"] for path, one in trainer.progress.items()} == {
        renaming.path(path): runs for path, runs in former.items()
    }


@pytest.mark.full
def test_a_node_inside_is_renamed_by_its_path(tmp_path: Path, whole: Trainer) -> None:
    cut(tmp_path, 7, at="validate/eval_batch")
    body = small_graph().nodes["validate"].body
    assert body is not None
    graph = small_graph().set("validate", graph=body.rename("eval_batch", "measure"))
    with pytest.raises(UsageError, match="--rename validate/eval_batch=NODE"):
        trainer_of(tmp_path, graph).run()
    trainer = trainer_of(tmp_path, graph)
    trainer.run(rename={"validate/eval_batch": "validate/measure"})
    assert result(trainer) == result(whole)


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize(
    ("change", "hint"),
    [
        (
            lambda graph: graph.rename("accumulate", "gather"),
            "--rename accumulate=NODE.*--graph saved",
        ),
        (
            lambda graph: graph.rename("accumulate", "accumulated").set("accumulated", every=3),
            "--rename accumulate=NODE.*--graph saved",
        ),
        (lambda graph: graph.rename("accumulate", "x").set("x", every=3), "--rename accumulate=NODE"),
    ],
)
def test_a_lost_position_is_refused_and_harms_nothing(change: Any, hint: str, tmp_path: Path, whole: Trainer) -> None:
    cut(tmp_path, 7, at="accumulate")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=f"(?s)is at the node `accumulate`, which this graph.*{hint}"):
        trainer_of(tmp_path, change(small_graph())).run()
    assert sorted(tmp_path.rglob("*")) == before
    trainer = trainer_of(tmp_path, small_graph())
    trainer.run()
    assert trainer.digest() == whole.digest()


@pytest.mark.full
def test_a_renaming_is_given_only_once(tmp_path: Path, whole: Trainer) -> None:
    """Also where the process is killed right after the resume, and where the same command is typed again."""
    cut(tmp_path, 7, at="accumulate")
    graph = small_graph().rename("accumulate", "gather")
    trainer_of(tmp_path, graph).advance(rename={"accumulate": "gather"})
    assert Graph.load(tmp_path) == graph, "saved before anything else is done"
    said: list[str] = []
    trainer = trainer_of(tmp_path, graph, said)
    trainer.run(rename={"accumulate": "gather"})
    assert resumed_line(said).endswith("exact")
    assert result(trainer) == result(whole)


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ({"acumulate": "gather"}, "no node `acumulate` in the former graph.*did you mean `accumulate`"),
        ({"accumulate": "gathr"}, "no node `gathr` in the new graph.*did you mean `gather`"),
        ({"accumulate": "gather", "clip": "gather"}, "`accumulate` and `clip` cannot both become `gather`"),
        ({"validate": "gather/next_batch"}, "no node `gather/next_batch` in the new graph"),
    ],
)
def test_a_renaming_that_cannot_be_is_refused(rename: Mapping[str, str], message: str, tmp_path: Path) -> None:
    cut(tmp_path)
    graph = small_graph().rename("accumulate", "gather").insert("accumulate", "choice", after="step")
    graph = graph.rename("accumulate", "other") if "accumulate" not in rename else graph
    if "acumulate" in rename:
        graph = small_graph()
        graph = graph.rename("clip", "gathered")
    with pytest.raises(UsageError, match=f"(?s){message}"):
        trainer_of(tmp_path, graph).run(rename=rename)


# ---- missing slots, the saved graph


@node(writes="noise")
def draw_noise() -> Any:
    return torch.zeros(1)


@node
def use_noise(noise: Any) -> None:
    pass


@pytest.mark.full
def test_a_missing_slot_is_refused_with_its_reader(tmp_path: Path, whole: Trainer) -> None:
    cut(tmp_path, 7, at="accumulate")
    noisy = small_graph().insert("draw", draw_noise, after="next_batch").insert("use", use_noise, after="accumulate")
    with pytest.raises(
        UsageError,
        match=r"(?s)needs the slot `noise` at `accumulate`, which the run does not hold there.*"
        "--graph saved",
    ):
        trainer_of(tmp_path, noisy).run()
    trainer = trainer_of(tmp_path, Graph.load(tmp_path))
    trainer.run()
    assert result(trainer) == result(whole)


@pytest.mark.full
def test_the_saved_graph_is_read_from_a_run_directory_and_from_a_checkpoint(tmp_path: Path, whole: Trainer) -> None:
    graph = small_graph().insert("pause", "choice", after="step")
    cut(tmp_path, graph=graph)
    (checkpoint,) = list((tmp_path / "checkpoints").iterdir())[-1:]
    assert Graph.load(tmp_path) == Graph.load(checkpoint) == graph
    assert not Graph.load(tmp_path).diff(graph)
    said: list[str] = []
    trainer = trainer_of(tmp_path, Graph.load(tmp_path), said)
    trainer.run()
    assert "graph" not in resumed_line(said) and result(trainer) == result(whole)


# ---- triggers, windows, fields


def tiny(graph: Graph, run_dir: Path | None = None, said: list[str] | None = None, batches: int = 12) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    return Trainer(
        graph,
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=said.append if said is not None else lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.full((2, 1), float(number)) / batches for number in range(batches)],
        training_step=lambda model, batch: model(batch).square().mean(),
    )


def rows(trainer: Trainer) -> list[float]:
    return [row["step"] for row in trainer.metrics if "loss" in row]


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("50 steps", "4 steps", [6, 8, 12]),  # the fourth has passed: due when it is asked next, after the sixth
        ("3 steps", "4 steps", [3, 6, 8, 12]),  # likewise, for it fired last after the third
        ("3 steps", "4 batches", [3, 8, 12]),  # another unit counts from the resume, at batch 5
        ("3 steps", "never", [3]),
        ("never", "3 steps", [6, 9, 12]),  # a new one too
    ],
)  # fmt: skip
def test_triggers_of_another_amount_or_unit(before: str, after: str, expected: list[int], tmp_path: Path) -> None:
    graph = Graph.load("fit").set("finish", after="1 epochs")
    tiny(graph.set("log", every=before), tmp_path).run(until="5 batches")
    trainer = tiny(graph.set("log", every=after), tmp_path)
    trainer.run()
    assert rows(trainer) == expected


def test_a_new_node_with_a_trigger_is_not_due_at_once(tmp_path: Path) -> None:
    graph = Graph.load("fit").set("finish", after="1 epochs").set("log", every="never")
    tiny(graph, tmp_path).run(until="5 batches")
    more = graph.insert("more", "log", every="2 steps").connect("more", "decide").guard("more_due", "more.due")
    trainer = tiny(more.connect("decide", "more", when="more_due"), tmp_path)
    trainer.run()
    assert rows(trainer) == [6, 8, 10, 12]


# As in graphs of before windows kept their size.
OLD = Graph.load("fit").set("train_batch", reads={"window": "accumulate.every"})
OLD = OLD.guard("window_complete", "accumulate.count >= accumulate.every or next_batch.empty")


@pytest.mark.first(3)
@pytest.mark.parametrize("fit", [Graph.load("fit"), OLD], ids=["fit", "old"])
@pytest.mark.parametrize("in_place", [True, False], ids=["rewire", "resume"])
@pytest.mark.parametrize("every", [2, 8])
def test_another_window_holds_for_the_next_one(every: int, in_place: bool, fit: Graph, tmp_path: Path) -> None:
    """A window that is open keeps its size. In an old graph what is in it was divided by the former one, and the rest
    by the new one; it is closed when that is full.
    """
    graph = fit.set("accumulate", every=4).set("finish", after="1 epochs")
    said: list[str] = []
    trainer = tiny(graph, tmp_path, said)
    trainer.run(until="3 batches")
    new = graph.set("accumulate", every=every)
    if in_place:
        trainer.rewire(new)
    else:
        trainer = tiny(new, tmp_path, said)
    trainer.run(until="12 batches")
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer, count = torch.optim.SGD(model.parameters(), lr=0.1), 0
    for number in range(12):
        length = 4 if number < (3 if fit is OLD else 4) else every
        (model(torch.full((2, 1), float(number)) / 12).square().mean() / length).backward()
        count += 1
        if count >= length or number == 11:
            optimizer.step()
            optimizer.zero_grad()
            count = 0
    assert [one.tolist() for one in model.parameters()] == [
        one.tolist() for one in trainer.resources["model"].parameters()
    ]


def test_a_guard_that_reads_the_size_of_a_window_divides_no_loss_by_it(tmp_path: Path) -> None:
    graph = Graph.load("fit").guard("window_cut", and_="accumulate.every != 1").set("accumulate", every=4)
    said: list[str] = []
    trainer = tiny(graph, tmp_path, said)
    trainer.run(until="3 batches")
    trainer.rewire(graph.set("accumulate", every=2))
    assert trainer.read("accumulate.count") == 3


def declare(**fields: Any) -> Any:
    """The kind `tally` with these fields of progress; it counts its visits in the first."""
    first = next(iter(fields))

    def visit(self: Any) -> None:
        setattr(self, first, getattr(self, first) + 1)

    body = {
        "__doc__": "Count.",
        "__annotations__": {name: type(value) for name, value in fields.items()},
        **{name: progress(value) for name, value in fields.items()},
        "__call__": visit,
    }
    return node(name="tally")(type("Tally", (), body))


def test_of_a_kind_with_other_fields_what_fits_is_loaded_and_the_rest_reported(tmp_path: Path) -> None:
    graph = Graph.load("fit").set("finish", after="1 epochs").insert("tally", "tally", after="step")
    try:
        declare(counted=0, mean=0.5)
        tiny(graph, tmp_path).run(until="5 batches")
        declare(counted=0, most=7)
        said: list[str] = []
        trainer = tiny(graph, tmp_path, said)
        trainer.run()
    finally:
        DECLARED.pop("tally", None)
    assert (trainer.read("tally.counted"), trainer.read("tally.most")) == (12, 7)
    assert "changed: tally.mean left out, tally.most new" in resumed_line(said)


def test_another_kind_takes_over_what_is_of_the_same_type(tmp_path: Path) -> None:
    @node(name="heap")
    class Heap:
        """Keep a list where the other kept a number."""

        counted: list[int] = progress([])
        most: int = progress(0)

        def __call__(self) -> None:
            self.counted.append(1)

    graph = Graph.load("fit").set("finish", after="1 epochs")
    try:
        tiny(graph.insert("tally", declare(counted=0, most=3), after="step"), tmp_path).run(until="5 batches")
        said: list[str] = []
        trainer = tiny(graph.insert("tally", Heap, after="step"), tmp_path, said)
        trainer.run()
    finally:
        DECLARED.pop("tally", None)
        DECLARED.pop("heap", None)
    assert (trainer.read("tally.counted"), trainer.read("tally.most")) == ([1] * 7, 3)
    assert trainer.progress["tally"]["runs"] == 12
    assert "changed: tally.use tally -> heap, tally.counted left out" in resumed_line(said)


def test_the_progress_of_a_removed_node_is_reported_as_left_out(tmp_path: Path) -> None:
    graph = Graph.load("fit").set("finish", after="1 epochs")
    tiny(graph, tmp_path).run(until="5 batches")
    said: list[str] = []
    assert tiny(graph.remove("log", to="decide"), tmp_path, said).run() is Outcome.FINISHED
    assert "node log removed, edge decide -> log if log_due removed, guard log_due removed" in resumed_line(said)
    assert "progress of log left out" in resumed_line(said)


def test_of_very_many_differences_the_rest_is_counted() -> None:
    former = Graph.load("fit")
    now = functools.reduce(lambda graph, number: graph.insert(f"n{number}", "choice"), range(35), former)
    words = GraphChange(former, Renaming({}, former, now), former.diff(now)).words()
    assert len(words) == 9 and words[-1] == "27 more differences of the graph: graphtrain diff"
