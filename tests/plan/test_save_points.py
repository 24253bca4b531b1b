"""What `check` holds to be a save point is one for the engine: a checkpoint is made unless there is a G602."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import CheckpointError, Graph, Node, Outcome, Trainer
from graphtrain.storage.manifest import read_manifest
from graphtrain.storage.run_directory import read_status
from tests.checks.corpus import EVALUATE, FIT, SAVING, Broken, tiny, undeclared, use
from tests.checks.sound_graphs import SOUND, Sound


class Ask:
    """Ask for a checkpoint."""

    _checkpoints: Any

    def setup(self, checkpoints: Any) -> None:
        self._checkpoints = checkpoints

    def __call__(self) -> None:
        self._checkpoints.save()


def _read_if_there(stream: Any = None) -> None: ...


class SetUpWithStream:
    """Take the stream when the body is entered."""

    def setup(self, stream: Any) -> None: ...

    def __call__(self) -> None: ...


ASK = undeclared("ask", Ask).implementation
SET_UP_WITH_STREAM = undeclared("set_up_with_stream", SetUpWithStream).implementation
read_if_there = undeclared("read_if_there", _read_if_there).implementation
ASKED_BEFORE = "ask_before_"


def asking(graph: Graph) -> Graph:
    """The graph with a request for a checkpoint before each node, of bodies too: a G602 there is about that node."""
    for name, node in list(graph.nodes.items()):
        if node.body is not None:
            graph = graph.set(name, graph=asking(node.body))
        graph = graph.insert(f"{ASKED_BEFORE}{name}", ASK, before=name)
    return replace(graph, allow=(*graph.allow, "G601"))


def late_by_check(graph: Graph) -> set[str]:
    """The nodes before which no checkpoint can be made, as the checks see it."""
    things = [problem.where.split(" ")[-1] for problem in graph.check() if problem.code == "G602"]
    return {thing.replace("nodes.", "").replace(ASKED_BEFORE, "") for thing in things if ASKED_BEFORE in thing}


def late_by_engine(graph: Graph, further: dict[str, Any]) -> set[str]:
    """The same as a run sees it."""
    trainer = trainer_of(graph, **further)
    paths = {path for path in trainer.progress if ASKED_BEFORE not in path}
    return paths - set(trainer.save_points())


def trainer_of(graph: Graph, run_dir: Path | None = None, **further: Any) -> Trainer:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    resources: dict[str, Any] = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.ConstantLR(optimizer),
        "train_data": [torch.ones(2, 2)] * 5,
        "val_data": [torch.ones(2, 2)] * 2,
        "training_step": lambda model, batch: model(batch).square().mean(),
    }
    return Trainer(
        graph, seed=0, run_dir=run_dir, device="cpu", display=None, notify=lambda line: None, **{**resources, **further}
    )


def streaming(graph: Graph, opened_before: str, read_before: str) -> Graph:
    """The graph with a slot that cannot be saved, alive from the one place to the other."""
    graph = use(graph, "open_here", "holds_open", before=opened_before)
    return use(graph, "read_here", "read_stream", before=read_before)


def rewired(graph: Graph, stride: int) -> Iterator[Graph]:
    """The graph, and some in which the stream is alive over one node, over several, and nearly all the way round.

    Arguments:
        stride: the number of nodes from one place at which it is opened to the next.
    """
    yield graph
    names = list(graph.nodes)
    for distance in (0, len(names) // 2, len(names) - 1):
        for start in range(0, len(names), stride):
            made = streaming(graph, names[start], names[(start + distance) % len(names)])
            if not any(problem.code == "G303" for problem in made.check()):
                yield made


def disagreements(graph: Graph, **further: Any) -> set[str]:
    """The nodes of which only one of the two holds that a checkpoint can be made there."""
    asked = asking(graph)
    return late_by_check(asked) ^ late_by_engine(asked, further)


EVERY_SOUND = [Sound("fit", lambda: FIT, ""), *SOUND]


# Both are asked about every node but `finish`: its edges ask again what was answered on the way to it, as below.
@pytest.mark.second(4)
@pytest.mark.full
@pytest.mark.parametrize(
    ("sound", "stride"),
    [
        *((sound, 12) for sound in EVERY_SOUND[::4]),
        *(pytest.param(sound, 6, marks=pytest.mark.sweep) for sound in EVERY_SOUND),
    ],
    ids=lambda value: getattr(value, "title", value),
)
def test_check_and_engine_agree_on_save_points(sound: Sound, stride: int) -> None:
    further = {name: make() for name, make in sound.resources.items()}
    late: set[str] = set()
    for graph in map(asking, rewired(sound.graph(), stride)):
        by_check = late_by_check(graph)
        late |= by_check
        assert by_check - {"finish"} == late_by_engine(graph, further) - {"finish"}
    assert late, "some of these graphs hold a stream where they ask for a checkpoint"


IN_A_BODY = {
    "over one node": streaming(EVALUATE, "eval_batch", "eval_batch"),
    "from batch to batch": streaming(EVALUATE, "next_batch", "end_evaluation"),
    "written around it": use(EVALUATE, "read_here", "read_stream", before="end_evaluation"),
}


def around(body: Graph) -> Graph:
    """`fit` with a validation of its own: a stream is written long before it, and read right after it."""
    graph = use(FIT.set("validate", graph=body), "read_after", "read_stream", after="validate")
    return use(graph, "open_before", "holds_open", before="train_batch")


@pytest.mark.parametrize("body", IN_A_BODY.values(), ids=IN_A_BODY.keys())
def test_they_agree_inside_a_body(body: Graph) -> None:
    assert disagreements(around(body)) - {"finish"} == set()


@pytest.mark.parametrize("broken", [one for one in SAVING if "G602" in str(one.expected)], ids=lambda one: one.title)
def test_they_agree_on_graphs_that_ask_too_early(broken: Broken) -> None:
    assert disagreements(broken.graph()) - {"finish"} == set()


# The stream is read on the way to `checkpoint` or not at all: `odd` cannot hold behind it.
ASKED_TWICE = tiny(
    {
        "next_batch": "next_batch",
        "open_here": "holds_open",
        "hub": "choice",
        "read_here": "read_stream",
        "checkpoint": Node("checkpoint", "checkpoint", {"every": "1 batches", "keep": 100}),
        "ask_again": "choice",
        "train_batch": "train_batch",
        "step": "step",
        "zero_grad": "zero_grad",
    },
    {
        "next_batch": ["open_here"],
        "open_here": ["hub"],
        "hub": ["read_here if odd", "checkpoint"],
        "read_here": ["train_batch"],
        "checkpoint": ["ask_again"],
        "ask_again": ["read_here if odd", "train_batch"],
        "train_batch": ["step"],
        "step": ["zero_grad"],
        "zero_grad": ["end if done", "next_batch"],
    },
    {"odd": "next_batch.batches % 2 == 1", "done": "next_batch.last"},
    units={"batches": "next_batch.batches", "steps": "step.steps"},
)


def test_a_checkpoint_is_made_where_check_reports_nothing(tmp_path: Path) -> None:
    is_late = any(problem.code == "G602" for problem in ASKED_TWICE.check())
    trainer_of(ASKED_TWICE, tmp_path).run()
    positions = [read_manifest(path).position for path in sorted((tmp_path / "checkpoints").iterdir())]
    assert len(positions) == 3, "two that the graph asks for, and the one of the end"
    assert (positions[0] != "ask_again") == is_late


# `validate` is visited only where it is due, so it always writes the stream: that of `open_before` is not read.
SURELY_DUE = around(
    replace(use(EVALUATE, "open_here", "holds_open", before="next_batch"), outputs=("metrics", "stream"))
)


@pytest.mark.parametrize(
    "graph",
    [ASKED_TWICE, streaming(FIT, "train_batch", "begin_epoch"), SURELY_DUE],
    ids=["a question asked twice", "an end that was decided on", "a node that is surely due"],
)
def test_they_agree_where_a_guard_was_answered_on_the_way(graph: Graph) -> None:
    assert disagreements(graph) == set()


def test_they_agree_inside_a_body_that_is_set_up_with_the_stream() -> None:
    body = EVALUATE.insert("take_stream", SET_UP_WITH_STREAM, before="eval_batch")
    graph = use(FIT.set("validate", graph=body), "open_before", "holds_open", between=("decide", "validate"))
    assert disagreements(graph) == set()


def test_a_run_that_is_finished_is_not_resumed_from_an_earlier_checkpoint(tmp_path: Path) -> None:
    graph = FIT.set("finish", after="2 epochs").insert("read_here", read_if_there, before="next_batch")
    graph = use(graph, "open_here", "holds_open", after="train_batch")
    assert not any(problem.severity == "error" for problem in graph.check())
    try:
        trainer_of(graph, tmp_path).run()
    except CheckpointError:
        return  # it does not say that it is finished
    assert trainer_of(graph, tmp_path).run() is Outcome.ALREADY_FINISHED


def test_an_end_that_is_no_save_point_is_reported_every_time_and_is_not_called_finished(tmp_path: Path) -> None:
    graph = FIT.set("finish", after="2 epochs").insert("read_here", read_if_there, before="next_batch")
    trainer = trainer_of(use(graph, "open_here", "holds_open", after="train_batch"), tmp_path)
    for call in (trainer.run, trainer.run, trainer.save):
        with pytest.raises(CheckpointError, match=r"the end of the run is not a save point \(alive: .*stream"):
            call()
        assert (trainer.state, trainer.position) == ("stopped", "end")
        assert read_status(tmp_path)["state"] == "stopped"
    assert trainer.progress["next_batch"]["batches"] == 10, "nothing is trained again"
