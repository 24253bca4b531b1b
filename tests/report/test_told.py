"""What loggers are told beside rows: checkpoints, the outcome, and what is shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Histogram, Image, RunLogger, Text, node
from graphtrain.report.logger import Beginning
from graphtrain.report.recorder import Recorder
from tests.resume.rank_runs import run, trainer_of


class Told(RunLogger):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def begin(self, beginning: Beginning) -> None:
        self.events.append("begin")

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        self.events.append(step)

    def show(self, name: str, value: Any, step: int) -> None:
        self.events.append((name, value, step))

    def flush(self) -> None:
        self.events.append("flush")

    def ended(self, state: str, error: BaseException | None) -> None:
        self.events.append((state, error))

    def close(self) -> None:
        self.events.append("close")


def quiet(graph: Graph) -> Graph:
    return graph.set("log", every="never").set("finish", after="1 epochs")


def test_of_checkpoints_and_of_the_outcome(tmp_path: Path) -> None:
    told = Told()
    trainer = trainer_of(
        tmp_path / "run", graph=lambda graph: quiet(graph).set("checkpoint", every="4 steps"), loggers=[told]
    )
    trainer.run(until="2 steps")
    assert told.events == ["begin", "flush", ("stopped", None), "close"]
    told.events.clear()
    trainer.run()
    # The checkpoint of step 4; the rows of the epoch and the validation at step 6, and the end.
    assert told.events == ["flush", 6, 6, "flush", ("finished", None), "close"]


def test_of_an_exception(tmp_path: Path) -> None:
    problem = ValueError("a mistake")

    def training_step(model: torch.nn.Module, batch: Any) -> Any:
        raise problem

    told = Told()
    trainer = trainer_of(tmp_path / "run", graph=quiet, training_step=training_step, loggers=[told])
    try:
        raise KeyError("that this run is called while another exception is handled does not matter")
    except KeyError:
        with pytest.raises(ValueError, match="a mistake"):
            trainer.run()
        assert told.events == ["begin", ("failed", problem), "close"]
        other = Told()
        trainer_of(None, graph=quiet, loggers=[other]).run()
        assert other.events[-2] == ("finished", None)


def test_only_rank_0_is_told(tmp_path: Path) -> None:
    loggers = [Told(), Told()]
    given = iter(loggers)
    run(2, tmp_path / "run", graph=quiet, act=lambda trainer: trainer.run(), loggers=[next(given)])
    assert loggers[0].events[-2:] == [("finished", None), "close"] and loggers[1].events == []


@node(family="bookkeeping", observer=True)
def show_weights(model: Any, recorder: Recorder) -> None:
    """Show them."""
    weights = model[0].weight
    recorder.show({"note": Text("*new*"), "weights": Histogram(weights), "picture": Image(weights)})


@pytest.mark.full
def test_texts_images_and_histograms_reach_the_loggers_that_take_them(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from graphtrain import TensorBoard

    told, rows = Told(), []
    run(
        1,
        tmp_path / "run",
        graph=lambda graph: quiet(graph).insert("show", show_weights, after="end_epoch"),
        loggers=[told, lambda row, step: rows.append(row), TensorBoard()],
    )
    shown = [event for event in told.events if isinstance(event, tuple) and len(event) == 3]
    assert [(name, type(value), step) for name, value, step in shown] == [
        ("note", Text, 6), ("weights", Histogram, 6), ("picture", Image, 6),
    ]  # fmt: skip
    assert not any("note" in row for row in rows), "they are in no row"
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"), size_guidance={})
    events.Reload()
    assert events.Tensors("note/text_summary")[0].tensor_proto.string_val == [b"*new*"]
    assert (events.Histograms("weights")[0].step, events.Histograms("weights")[0].histogram_value.num) == (6, 18)
    (image,) = events.Images("picture")
    assert (image.width, image.height, image.step) == (3, 6, 6)
