"""Promises 5 and 12: what `check` holds to be a save point is one for the engine: it saves unless there is a G602."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch

from graphtrain import CheckpointError, Graph
from tests.graph.corpus import EVALUATE, FIT, KINDS, SOUND, STREAMS, Sound, add, of, small, tiny

ASKED_BEFORE = "ask_before_"


def asking(graph: Graph) -> Graph:
    """The graph with a request for a checkpoint before each node, of bodies too: a G602 there is about that node."""
    for name, node in list(graph.nodes.items()):
        if node.body is not None:
            graph = graph.set(name, graph=asking(node.body))
        graph = graph.insert(f"{ASKED_BEFORE}{name}", KINDS["ask"], before=name)
    return replace(graph, allow=(*graph.allow, "G601"))


def late_by_check(asked: Graph) -> set[str]:
    """The nodes before which no checkpoint can be made, as the checks see it."""
    things = [problem.where.split(" ")[-1] for problem in asked.check() if problem.code == "G602"]
    return {thing.replace("nodes.", "").replace(ASKED_BEFORE, "") for thing in things if ASKED_BEFORE in thing}


def late_by_engine(asked: Graph, **further: Any) -> set[str]:
    """The same as a run sees it."""
    schedule: dict[str, Any] = {"scheduler": lambda made: torch.optim.lr_scheduler.ConstantLR(made["optimizer"])}
    trainer = small(asked).but(**schedule).trainer(**further)
    return {path for path in trainer.progress if ASKED_BEFORE not in path} - set(trainer.save_points())


def disagreements(graph: Graph) -> set[str]:
    """The nodes of which only one of the two holds that a checkpoint can be made there."""
    asked = asking(graph)
    return late_by_check(asked) ^ late_by_engine(asked)


def streaming(graph: Graph, opened_before: str, read_before: str) -> Graph:
    """The graph with a slot that cannot be saved, alive from the one place to the other."""
    graph = add(graph, "open_here", "holds_open", before=opened_before)
    return add(graph, "read_here", "read_stream", before=read_before)


def rewired(graph: Graph, stride: int) -> Iterator[Graph]:
    """The graph, and some in which the stream is alive over one node, over several, and nearly all the way round."""
    yield graph
    names = list(graph.nodes)
    for distance in (0, len(names) // 2, len(names) - 1):
        for start in range(0, len(names), stride):
            made = streaming(graph, names[start], names[(start + distance) % len(names)])
            if not any(problem.code == "G303" for problem in made.check()):
                yield made


# Both are asked about every node but `finish`: its edges ask again what was answered on the way to it, as below.
@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("sound", [*SOUND[::9], *SOUND], ids=lambda sound: sound.title)
def test_check_and_engine_agree_on_save_points(sound: Sound) -> None:
    further = {name: make() for name, make in sound.resources.items()}
    late: set[str] = set()
    for graph in map(asking, rewired(sound.graph(), 12)):
        by_check = late_by_check(graph)
        late |= by_check
        assert by_check - {"finish"} == late_by_engine(graph, **further) - {"finish"}
    assert late, "some of these graphs hold a stream where they ask for a checkpoint"


def around(body: Graph) -> Graph:
    """`fit` with a validation of its own: a stream is written long before it, and read right after it."""
    graph = add(FIT.set("validate", graph=body), "read_after", "read_stream", after="validate")
    return add(graph, "open_before", "holds_open", before="train_batch")


# The stream is read on the way to `checkpoint` or not at all: `odd` cannot hold behind it.
ASKED_TWICE = tiny(
    {"open_here": "holds_open", "hub": "choice", "read_here": "read_stream", "ask_again": "choice",
     "checkpoint": of("checkpoint", every="1 batches", keep=100)},
    "next_batch open_here hub; hub: read_here if odd, checkpoint; read_here train_batch; checkpoint ask_again; "
    "ask_again: read_here if odd, train_batch; train_batch step zero_grad; zero_grad: end if done, next_batch",
    {"odd": "next_batch.batches % 2 == 1", "done": "next_batch.last"},
    units={"batches": "next_batch.batches", "steps": "step.steps"},
)  # fmt: skip
AGREED: dict[str, Graph] = {
    **{title: make() for title, make in STREAMS.items()},
    "in a body, over one node": around(streaming(EVALUATE, "eval_batch", "eval_batch")),
    "in a body, from batch to batch": around(streaming(EVALUATE, "next_batch", "end_evaluation")),
    "in a body, written around it": around(add(EVALUATE, "read_here", "read_stream", before="end_evaluation")),
    "a body that is set up with the stream": add(
        FIT.set("validate", graph=EVALUATE.insert("take", KINDS["set_up_with_stream"], before="eval_batch")),
        "open_before", "holds_open", between=("decide", "validate")),
    # A guard was answered on the way:
    "a question that is asked twice": ASKED_TWICE,
    "an end that was decided on": replace(streaming(FIT, "train_batch", "begin_epoch"), allow=("G303",)),
    # `validate` is visited only where it is due, so it always writes the stream: that of `open_before` is not read.
    "a node that is surely due": around(replace(
        add(EVALUATE, "open_here", "holds_open", before="next_batch"), outputs=("metrics", "stream"))),
}  # fmt: skip
ON_THE_WAY = list(AGREED)[-4:]


@pytest.mark.parametrize("title", AGREED)
def test_they_agree_on(title: str) -> None:
    assert disagreements(AGREED[title]) - ({"finish"} if title not in ON_THE_WAY else set()) == set()


def test_a_checkpoint_is_made_where_check_reports_nothing(tmp_path: Path) -> None:
    is_late = any(problem.code == "G602" for problem in ASKED_TWICE.check())
    small(ASKED_TWICE).trainer(tmp_path).run()
    files = sorted(tmp_path.glob("checkpoints/*/manifest.msgpack"))
    positions = [msgpack.unpackb(msgpack.unpackb(file.read_bytes())["manifest"])["position"] for file in files]
    assert len(positions) == 3, "two that the graph asks for, and the one of the end"
    assert (positions[0] != "ask_again") == is_late


def test_an_end_that_is_no_save_point_is_reported_every_time_and_is_not_called_finished(tmp_path: Path) -> None:
    graph = FIT.set("finish", after="2 epochs").insert("read_here", KINDS["read_if_there"], before="next_batch")
    graph = add(graph, "open_here", "holds_open", after="train_batch")
    assert not any(problem.severity == "error" for problem in graph.check())
    trainer = small(graph).trainer(tmp_path)
    for call in (trainer.run, trainer.run, trainer.save):
        with pytest.raises(CheckpointError, match=r"the end of the run is not a save point \(alive: .*stream"):
            call()
        assert (trainer.state, trainer.position) == ("stopped", "end")
        assert json.loads((tmp_path / "status.json").read_text())["state"] == "stopped"
    assert trainer.progress["next_batch"]["batches"] == 10, "nothing is trained again"
