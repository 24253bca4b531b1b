"""A run directory resumed in another graph: every class of change, what is kept, and what is reported (promise 13)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Outcome, Trainer, UsageError, node, progress
from tests.world import assert_same, said_at_resume, says_exact, small_fit, small_model, world

GRAPH = small_fit(save_every="3 batches")
Change = Callable[[Graph], Graph]


def trainer_of(run_dir: Path | None, graph: Graph = GRAPH, said: list[str] | None = None) -> Trainer:
    return world(graph, model=small_model).trainer(run_dir, lines=said)


def cut(run_dir: Path, at: str = "validate/eval_batch", graph: Graph = GRAPH) -> Trainer:
    """A run that is stopped in its second window, or later, where it has come to a node."""
    trainer = trainer_of(run_dir, graph)
    trainer.advance(7)
    while trainer.position != at:
        trainer.advance()
    trainer.save()
    return trainer


def finished(run_dir: Path, graph: Graph, **how: Any) -> tuple[Trainer, str]:
    """A trainer that has resumed and ended the run, and what it has reported of the resume, without its directory."""
    said: list[str] = []
    trainer = trainer_of(run_dir, graph, said)
    assert trainer.run(**how) is Outcome.FINISHED
    return trainer, said_at_resume(said).partition(": ")[2]


def result(trainer: Trainer) -> list[Any]:
    """What must be bitwise equal, whatever the nodes are called."""
    return [*(trainer.resources[name].state_dict() for name in ("model", "optimizer")), trainer.metrics]


@pytest.fixture(scope="module")
def whole() -> Trainer:
    trainer = trainer_of(None)
    trainer.run()
    return trainer


# ---- what is no change of training

UNTOUCHED: dict[str, tuple[Change, str]] = {
    "its name": (lambda graph: replace(graph, name="mine"), "exact"),
    "spaces in a guard": (lambda graph: graph.guard("log_due", " log.due "), "exact"),
    "what it allows": (lambda graph: replace(graph, allow=("G209",)), "exact"),
    "the order of its nodes": (lambda graph: replace(graph, nodes=dict(reversed(graph.nodes.items()))), "exact"),
    "there and back": (lambda graph: graph.set("finish", after="9 epochs").set("finish", after="2 epochs"), "exact"),
    "when it is saved": (
        lambda graph: graph.set("checkpoint", every="2 batches"), "checkpoint.every 3 batches -> 2 batches",
    ),
    "a node more": (lambda graph: graph.insert("pause", "choice", after="step"), "node pause added"),
}  # fmt: skip


@pytest.mark.second(6)
@pytest.mark.first(2)
@pytest.mark.parametrize("at", ["decide", "validate/eval_batch"])
@pytest.mark.parametrize("name", UNTOUCHED)
def test_a_change_that_does_not_touch_training_leaves_it_bitwise(
    name: str, at: str, tmp_path: Path, whole: Trainer
) -> None:
    change, words = UNTOUCHED[name]
    cut(tmp_path, at)
    trainer, line = finished(tmp_path, change(GRAPH))
    assert words in line
    assert says_exact(line) is (words == "exact")
    assert_same(result(trainer), result(whole))
    assert not says_exact(line) or trainer.digest() == whole.digest()


@pytest.mark.full
def test_the_saved_graph_is_read_from_a_run_directory_and_from_a_checkpoint(tmp_path: Path, whole: Trainer) -> None:
    graph = GRAPH.insert("pause", "choice", after="step")
    cut(tmp_path, graph=graph)
    (*_, checkpoint) = sorted((tmp_path / "checkpoints").iterdir())
    assert Graph.load(tmp_path) == Graph.load(checkpoint) == graph
    trainer, line = finished(tmp_path, Graph.load(tmp_path))
    assert "graph" not in line
    assert_same(result(trainer), result(whole))


# ---- a lost position, and what is renamed

RENAMED: list[tuple[str, dict[str, str]]] = [
    ("accumulate", {"accumulate": "gather", "step": "update"}),
    ("validate/eval_batch", {"validate": "measure"}),
    ("zero_grad", {"zero_grad": "clear"}),
    ("validate/next_batch", {"validate": "measure"}),
    ("train_batch", {"next_batch": "fetch"}),
]


def renamed(path: str, rename: Mapping[str, str]) -> str:
    node, slash, inner = path.partition("/")
    return rename.get(node, node) + slash + inner


@pytest.mark.second(4)
@pytest.mark.first(2)
@pytest.mark.parametrize(("at", "rename"), RENAMED)
@pytest.mark.parametrize("in_place", [True, False], ids=["rewire", "resume"])
def test_a_renaming_carries_everything_along(
    at: str, rename: dict[str, str], in_place: bool, tmp_path: Path, whole: Trainer
) -> None:
    graph = functools.reduce(lambda graph, names: graph.rename(*names), rename.items(), GRAPH)
    trainer = cut(tmp_path, at)
    if in_place:
        trainer.rewire(graph, rename=rename)
        assert trainer.position == renamed(at, rename)
        trainer.run()
    else:
        trainer, line = finished(tmp_path, graph, rename=rename)
        assert all(f"node {old} renamed {new}" in line for old, new in rename.items())
        assert "left out" not in line
    assert_same(result(trainer), result(whole))
    runs = {renamed(path, rename): fields["runs"] for path, fields in whole.progress.items()}
    assert {path: fields["runs"] for path, fields in trainer.progress.items()} == runs


@pytest.mark.full
def test_a_node_inside_is_renamed_by_its_path(tmp_path: Path, whole: Trainer) -> None:
    cut(tmp_path)
    body = GRAPH.nodes["validate"].body
    assert body is not None
    graph = GRAPH.set("validate", graph=body.rename("eval_batch", "measure"))
    with pytest.raises(UsageError, match="--rename validate/eval_batch=NODE"):
        trainer_of(tmp_path, graph).run()
    trainer, _ = finished(tmp_path, graph, rename={"validate/eval_batch": "validate/measure"})
    assert_same(result(trainer), result(whole))


@pytest.mark.full
def test_a_renaming_is_given_only_once(tmp_path: Path, whole: Trainer) -> None:
    """Also where the process is killed right after the resume, and where the same command is typed again."""
    cut(tmp_path, "accumulate")
    graph = GRAPH.rename("accumulate", "gather")
    trainer_of(tmp_path, graph).advance(rename={"accumulate": "gather"})
    assert Graph.load(tmp_path) == graph, "saved before anything else is done"
    trainer, line = finished(tmp_path, graph, rename={"accumulate": "gather"})
    assert says_exact(line)
    assert_same(result(trainer), result(whole))


@node(writes="noise")
def draw_noise() -> Any:
    return torch.zeros(1)


@node
def use_noise(noise: Any) -> None:
    pass


GATHERED = GRAPH.rename("accumulate", "gather")
# the graph, the renaming that is given, a fragment of the message; cut at `accumulate`
REFUSED: dict[str, tuple[Graph, dict[str, str], str]] = {
    "a lost position": (
        GATHERED, {}, "is at the node `accumulate`, which this graph.*--rename accumulate=NODE.*--graph saved",
    ),
    "a missing slot": (
        GRAPH.insert("draw", draw_noise, after="next_batch").insert("use", use_noise, after="accumulate"),
        {}, "needs the slot `noise` at `accumulate`, which the run does not have there.*--graph saved",
    ),
    "a lost position, and another window": (GATHERED.set("gather", every=3), {}, "--rename accumulate=NODE"),
    "a name that is in no former graph": (
        GATHERED, {"acumulate": "gather"}, "no node `acumulate` in the former graph.*did you mean `accumulate`",
    ),
    "a name that is in no new graph": (
        GATHERED, {"accumulate": "gathr"}, "no node `gathr` in the new graph.*did you mean `gather`",
    ),
    "two that become one": (
        GATHERED, {"accumulate": "gather", "clip": "gather"}, "`accumulate` and `clip` cannot both become `gather`",
    ),
    "a path without a body": (
        GATHERED, {"validate": "gather/next_batch"}, "no node `gather/next_batch` in the new graph",
    ),
}  # fmt: skip


@pytest.mark.second(3)
@pytest.mark.first(2)
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_gone_on_with_is_refused_and_harms_nothing(name: str, tmp_path: Path, whole: Trainer) -> None:
    graph, rename, message = REFUSED[name]
    cut(tmp_path, "accumulate")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=f"(?s){message}"):
        trainer_of(tmp_path, graph).run(rename=rename)
    assert sorted(tmp_path.rglob("*")) == before
    assert finished(tmp_path, GRAPH)[0].digest() == whole.digest()


# ---- triggers, windows, fields


def tiny(graph: Graph, run_dir: Path | None = None, said: list[str] | None = None) -> Trainer:
    """A run of twelve batches, one after the other."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    return Trainer(
        graph.set("finish", after="1 epochs"),
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=said.append if said is not None else lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.full((2, 1), float(number)) / 12 for number in range(12)],
        training_step=lambda model, batch: model(batch).square().mean(),
    )


FIT = Graph.load("fit")
MORE_LOGS = (
    FIT.set("log", every="never")
    .insert("more", "log", every="2 steps")
    .connect("more", "decide")
    .guard("more_due", "more.due")
    .connect("decide", "more", when="more_due")
)


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("50 steps", "4 steps", [6, 8, 12]),  # the fourth has passed: due when it is asked next, after the sixth
        ("3 steps", "4 steps", [3, 6, 8, 12]),  # likewise, for it fired last after the third
        ("3 steps", "4 batches", [3, 8, 12]),  # another unit counts from the resume, at batch 5
        ("3 steps", "never", [3]),
        ("never", "3 steps", [6, 9, 12]),  # a new one too
        ("never", MORE_LOGS, [6, 8, 10, 12]),  # and one of a new node
    ],
)
def test_triggers_of_another_amount_or_unit(before: str, after: Any, expected: list[int], tmp_path: Path) -> None:
    tiny(FIT.set("log", every=before), tmp_path).run(until="5 batches")
    trainer = tiny(after if isinstance(after, Graph) else FIT.set("log", every=after), tmp_path)
    trainer.run()
    assert [row["step"] for row in trainer.metrics if "loss" in row] == expected


# As in graphs of before windows kept their size.
OLD = FIT.set("train_batch", reads={"window": "accumulate.every"})
OLD = OLD.guard("window_complete", "accumulate.count >= accumulate.every or next_batch.empty")


@pytest.mark.first(2)
@pytest.mark.parametrize("every", [2, 8])
@pytest.mark.parametrize("in_place", [True, False], ids=["rewire", "resume"])
@pytest.mark.parametrize("fit", [FIT, OLD], ids=["fit", "old"])
def test_another_window_holds_for_the_next_one(every: int, in_place: bool, fit: Graph, tmp_path: Path) -> None:
    """A window that is open keeps its size. In an old graph what is in it was divided by the former one, and the rest
    by the new one; it is closed when that is full.
    """
    graph = fit.set("accumulate", every=4)
    trainer = tiny(graph, tmp_path)
    trainer.run(until="3 batches")
    new = graph.set("accumulate", every=every).set("finish", after="1 epochs")
    if in_place:
        trainer.rewire(new)
    else:
        trainer = tiny(new, tmp_path)
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
    assert_same(trainer.resources["model"].state_dict(), model.state_dict())


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
    graph, said = FIT.insert("tally", declare(counted=0, mean=0.5), after="step"), list[str]()
    tiny(graph, tmp_path).run(until="5 batches")
    trainer = tiny(FIT.insert("tally", declare(counted=0, most=7), after="step"), tmp_path, said)
    trainer.run()
    assert (trainer.read("tally.counted"), trainer.read("tally.most")) == (12, 7)
    assert "changed: tally.mean left out, tally.most new" in said_at_resume(said)


def test_another_kind_takes_over_what_is_of_the_same_type(tmp_path: Path) -> None:
    @node(name="heap")
    class Heap:
        """Keep a list where the other kept a number."""

        counted: list[int] = progress([])
        most: int = progress(0)

        def __call__(self) -> None:
            self.counted.append(1)

    said = list[str]()
    tiny(FIT.insert("tally", declare(counted=0, most=3), after="step"), tmp_path).run(until="5 batches")
    trainer = tiny(FIT.insert("tally", Heap, after="step"), tmp_path, said)
    trainer.run()
    assert (trainer.read("tally.counted"), trainer.read("tally.most")) == ([1] * 7, 3)
    assert trainer.progress["tally"]["runs"] == 12
    assert "changed: tally.use tally -> heap, tally.counted left out" in said_at_resume(said)


@pytest.mark.full
def test_what_is_removed_is_reported_and_of_very_many_differences_the_rest_is_counted(tmp_path: Path) -> None:
    tiny(FIT, tmp_path / "few").run(until="5 batches")
    tiny(FIT, tmp_path / "many").run(until="5 batches")
    few, many = list[str](), list[str]()
    tiny(FIT.remove("log", to="decide"), tmp_path / "few", few).run()
    assert "node log removed, edge decide -> log if log_due removed, guard log_due removed" in said_at_resume(few)
    assert "progress of log left out" in said_at_resume(few)
    graph = functools.reduce(lambda graph, number: graph.insert(f"n{number}", "choice", after="step"), range(35), FIT)
    tiny(graph, tmp_path / "many", many).run()
    assert "more differences of the graph: graphtrain diff" in said_at_resume(many)
