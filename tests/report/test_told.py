"""What loggers are told beside rows: checkpoints, the outcome, and what is shown."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Histogram, Image, RunLogger, Text, UsageError, node
from graphtrain.report.logger import Beginning
from graphtrain.report.png import png_of
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


def pixels_of(png: bytes) -> tuple[int, list[bytes]]:
    """The colour type, and the rows of a PNG as this library writes it."""
    width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))
    channels = {0: 1, 2: 3}[png[25]]
    length = int.from_bytes(png[33:37], "big")
    content = zlib.decompress(png[41 : 41 + length])
    size = 1 + width * channels
    return png[25], [content[row * size + 1 : (row + 1) * size] for row in range(height)]


def test_pixels_are_what_was_given() -> None:
    grey = torch.tensor([[0.0, 0.5, 1.0], [2.0, -1.0, float("nan")]])
    assert pixels_of(png_of(Image(grey))) == (0, [bytes([0, 128, 255]), bytes([255, 0, 0])])
    colours = torch.tensor([[[1, 2]], [[3, 4]], [[5, 6]]])
    assert pixels_of(png_of(Image(colours))) == (2, [bytes([1, 3, 5, 2, 4, 6])])
    for wrong in (torch.zeros(2, 2, 3), torch.zeros(4), torch.zeros(0, 3), [[1]]):
        with pytest.raises(UsageError, match="Image: expected a tensor of shape"):
            png_of(Image(wrong))
