"""Promise 18: loggers have every row once, over kills and resumes; one that raises ends itself, and not the run."""

from __future__ import annotations

import math
import re
import struct
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Graph, Histogram, Image, RunLogger, TensorBoard, Text, Trainer, UsageError, node
from tests.looking.conftest import Command
from tests.world import World, cross_entropy, rows_of, run_through, small_fit, small_model, world

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
from tensorboard.summary.writer import event_file_writer
from tensorboard.util import tensor_util

Shown = dict[str, list[tuple[int, float | str]]]


def training_step(model: Any, batch: Any, batch_index: int) -> dict[str, Any]:
    return {"loss": cross_entropy(model, batch), "odd": (1.0, math.nan, math.inf, -math.inf, 0.5)[batch_index]}


def logged(**changes: Any) -> World:
    """At the end of an epoch one step has a row of the log, one of the epoch and one of a validation."""
    graph = changes.pop("graph", None) or small_fit(save_every="1 batches")
    return world(graph, model=small_model, training_step=training_step, **changes)


IT = logged()


def trainer_of(run_dir: Path | None, *loggers: Any, it: World = IT, **options: Any) -> Trainer:
    return it.trainer(run_dir, loggers=loggers, **options)


# ---- TensorBoard


def single(value: float) -> float | str:
    """The number that 32 bits hold, as TensorBoard keeps it; NaN as a string, to be compared."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return "nan" if math.isnan(rounded) else rounded


def as_shown(rows: list[dict[str, Any]], clock: str = "") -> Shown:
    """What TensorBoard should read, by the meaning of the rows."""
    shown: Shown = {}
    for row in rows:
        for name, value in row.items():
            if name not in ("step", clock):
                curve = f"{name}/{clock} {row[clock]}" if clock else name
                shown.setdefault(curve, []).append((int(row["step"]), single(float(value))))
    return shown


def reader(folder: Path) -> Any:
    read = plugin_event_accumulator.EventAccumulator(str(folder), size_guidance={plugin_event_accumulator.TENSORS: 0})
    read.Reload()
    return read


def shown_in(folder: Path) -> Shown:
    """The scalars that TensorBoard reads; both of its readers, which purge by different rules, must agree."""
    old = event_accumulator.EventAccumulator(str(folder), size_guidance={event_accumulator.SCALARS: 0})
    old.Reload()
    names = old.Tags()["scalars"]
    scalars = {name: [(event.step, single(event.value)) for event in old.Scalars(name)] for name in names}
    new = reader(folder)
    tensors = {
        name: [(event.step, single(tensor_util.make_ndarray(event.tensor_proto).item())) for event in new.Tensors(name)]
        for name in names
    }
    assert tensors == scalars
    return {name: values for name, values in scalars.items() if values}


def texts_in(folder: Path, name: str) -> list[tuple[int, str]]:
    """Step and content of the texts that TensorBoard reads."""
    values = reader(folder).Tensors(f"{name}/text_summary")
    return [(event.step, tensor_util.make_ndarray(event.tensor_proto).item().decode()) for event in values]


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("length", [40, 9, 20, 1000])
def test_it_reads_what_was_recorded_however_often_the_run_is_killed(length: int, tmp_path: Path) -> None:
    """Given up between two visits without a word: what a killed process would have left on the disk."""
    whole = run_through(IT, tmp_path / "whole").metrics
    assert len(whole) > len({row["step"] for row in whole}), "or no two rows have one step"
    run_dir = tmp_path / "run"
    for lives in range(1, 100):
        trainer = trainer_of(run_dir, TensorBoard())
        if trainer.advance(length + lives) != "end":
            assert shown_in(run_dir / "tensorboard") == as_shown(rows_of(run_dir)), "nothing waits in memory"
            continue
        trainer.run()
        break
    assert rows_of(run_dir) == whole and shown_in(run_dir / "tensorboard") == as_shown(whole)
    assert length == 1000 or lives > 2


@pytest.mark.full
def test_a_save_between_two_rows_of_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The names of files of one second end in a count: as text, 10 comes before 9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(9))
    it = logged(graph=small_fit())
    reference = run_through(it, tmp_path / "whole").metrics
    run_dir, cuts, rows = tmp_path / "run", 0, 0
    trainer = trainer_of(run_dir, TensorBoard(), it=it)
    while trainer.position != "end":
        trainer.advance()
        before, rows = rows, len(trainer.metrics)
        if before < rows < len(reference) and reference[rows]["step"] == trainer.metrics[-1]["step"]:
            trainer.save()
            trainer.advance(10)  # more rows, which are repeated
            trainer = trainer_of(run_dir, TensorBoard(), it=it)
            trainer.advance()
            cuts += 1
    assert cuts >= 2 and shown_in(run_dir / "tensorboard") == as_shown(reference)


@pytest.mark.full
def test_hyper_parameters_and_the_graph_are_texts_from_where_they_hold(tmp_path: Path) -> None:
    trainer_of(tmp_path, TensorBoard()).run(until="2 steps")
    folder = tmp_path / "tensorboard"
    ((step, table),) = texts_in(folder, "hyper_parameters")
    assert step == 0 and {"    accumulate.every = 2", "    clip.max_norm = 1.0"} <= {*table.splitlines()}
    ((_, text),) = texts_in(folder, "graph")
    assert all(line.startswith("    ") for line in text.splitlines()), "a block of code in Markdown"
    assert Graph.loads("\n".join(line[4:] for line in text.splitlines())) == IT.graph
    changed = logged(graph=IT.graph.set("clip", max_norm=0.25))
    trainer_of(tmp_path, TensorBoard(), it=changed).run(until="4 steps")
    assert [(step, "0.25" in text) for step, text in texts_in(folder, "hyper_parameters")] == [(0, False), (2, True)]


@pytest.mark.full
def test_each_round_of_an_outer_graph_is_a_curve_of_its_own(tmp_path: Path) -> None:
    rounds = 'format = 1\nstart = "fit"\nnodes.fit = { graph = "fit" }\nguards.over = "fit.runs >= 2"\n'
    graph = Graph.loads(rounds + 'edges.fit = ["end if over", "fit"]\nclock.fold = "fit.runs"\n')
    settings: dict[str, Any] = {"checkpoint": {"every": "5 batches"}, "log": {"every": "2 steps"}}
    for name, values in {**settings, "finish": {"after": "7 steps"}}.items():
        graph = graph.set(f"fit/{name}", **values)
    it = logged(graph=graph)
    trainer_of(tmp_path, TensorBoard(), it=it).advance(90)  # and is killed
    trainer_of(tmp_path, TensorBoard(), it=it).run()
    rows = rows_of(tmp_path)
    assert len({row["fold"] for row in rows}) == 2
    assert shown_in(tmp_path / "tensorboard") == as_shown(rows, "fold")


def test_where_it_writes_and_what_goes_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer_of(None, TensorBoard(str(tmp_path / "given"))).run(until="1 steps")
    assert [*(tmp_path / "given").glob("*tfevents*")]
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write to"):
        trainer_of(None, TensorBoard(tmp_path / "file")).run()
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(UsageError, match="pip install tensorboard"):
        TensorBoard()


# ---- what loggers are told


class Told(RunLogger):
    """Notes what it is told; raises where it is told to."""

    def __init__(self, raises: str = "") -> None:
        self.events: list[Any] = []
        self.raises = raises

    def _note(self, call: str, event: Any) -> None:
        self.events.append(event)
        if call == self.raises:
            raise UsageError("it is\nfull", "empty it")

    def begin(self, beginning: Any) -> None:
        self._note("begin", "begin")

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        self._note("row", step)

    def show(self, name: str, value: Any, step: int) -> None:
        self._note("show", (name, type(value), step))

    def flush(self) -> None:
        self._note("flush", "flush")

    def ended(self, state: str, error: BaseException | None) -> None:
        self._note("ended", (state, error))

    def close(self) -> None:
        self._note("close", "close")


QUIET = small_fit(log_every="never", save_every="2 steps", epochs=1, validate_every="1 epochs")


@node(family="bookkeeping", observer=True)
def show_weights(model: Any, recorder: Any) -> None:
    """Show them."""
    weights = model[0].weight
    recorder.show({"note": Text("*new*"), "weights": Histogram(weights), "picture": Image(weights)})


def test_of_checkpoints_and_of_the_outcome(tmp_path: Path) -> None:
    told = Told()
    trainer = trainer_of(tmp_path, told, it=logged(graph=QUIET))
    trainer.run(until="1 steps")
    assert told.events == ["begin", "flush", ("stopped", None), "close"]
    told.events.clear()
    trainer.run()
    # The checkpoint of step 2; the rows of the epoch and the validation at step 3, and the end.
    assert told.events == ["flush", 3, 3, "flush", ("finished", None), "close"]


def test_of_an_exception() -> None:
    problem, told, other = ValueError("a mistake"), Told(), Told()

    def fails(model: Any, batch: Any) -> Any:
        raise problem

    try:
        raise KeyError("that this run is called while another exception is handled does not matter")
    except KeyError:
        with pytest.raises(ValueError, match="a mistake"):
            trainer_of(None, told, training_step=fails).run()
        assert told.events == ["begin", ("failed", problem), "close"]
        trainer_of(None, other, it=logged(graph=QUIET)).run()
        assert other.events[-2] == ("finished", None)


@pytest.mark.first(2)
@pytest.mark.parametrize("call", ["row", "show", "flush", "ended", "close"])
def test_one_that_raises_is_off_and_the_run_is_as_without_it(call: str, tmp_path: Path) -> None:
    it = logged(graph=QUIET.insert("show", show_weights, after="end_epoch"))
    whole, told, lines, rows = run_through(it, tmp_path / "whole"), Told(raises=call), list[str](), list[int]()

    def logger(row: Mapping[str, float], step: int) -> None:
        rows.append(step)

    trainer = trainer_of(tmp_path / "run", told, logger, it=it, lines=lines)
    trainer.run()
    assert trainer.digest() == whole.digest and rows_of(tmp_path / "run") == whole.metrics
    assert rows == [row["step"] for row in whole.metrics], "others are told further"
    said = [line for line in lines if "logger" in line]
    assert said == ["the logger Told is off: it is full; the run continues without it"]


def test_a_function_that_raises_is_called_no_more() -> None:
    steps, lines = list[int](), list[str]()

    def logger(row: Mapping[str, float], step: int) -> None:
        steps.append(step)
        if len(steps) == 2:
            raise OSError("the disk is\nfull")

    trainer = trainer_of(None, logger, lines=lines)
    trainer.run()
    assert len(steps) == 2 < len(trainer.metrics)
    assert "the logger logger is off: OSError: the disk is full; the run continues without it" in lines


@pytest.mark.full
def test_texts_images_and_histograms_reach_the_loggers_that_take_them(tmp_path: Path) -> None:
    told, rows = Told(), list[Any]()
    it = logged(graph=QUIET.insert("show", show_weights, after="end_epoch"))
    trainer_of(tmp_path, told, lambda row, step: rows.append(row), TensorBoard(), it=it).run()
    shown = [event for event in told.events if isinstance(event, tuple) and len(event) == 3]
    assert shown == [("note", Text, 3), ("weights", Histogram, 3), ("picture", Image, 3)]
    assert not any("note" in row for row in rows), "they are in no row"
    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={})
    events.Reload()
    assert events.Tensors("note/text_summary")[0].tensor_proto.string_val == [b"*new*"]
    assert (events.Histograms("weights")[0].step, events.Histograms("weights")[0].histogram_value.num) == (3, 48)
    (image,) = events.Images("picture")
    assert (image.width, image.height, image.step) == (6, 8, 3)


# ---- services


class Service:
    """Stands for the package wandb, its runs, and what the service has of one: a value for each step."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.history: dict[int, dict[str, Any]] = {}
        self.exit_codes: list[int] = []

    def init(self, **settings: Any) -> Service:
        self.ids.append(settings["id"])
        assert settings["resume"] == "allow" and settings["config"]["optimizer.lr"] == 0.1
        return self

    @property
    def step(self) -> int:
        return max(self.history, default=-1) + 1

    def define_metric(self, name: str, step_metric: str) -> None: ...

    def log(self, values: dict[str, Any], step: int) -> None:
        assert step >= max(self.history, default=0), "the service drops it"
        self.history.setdefault(step, {}).update(values)

    def finish(self, exit_code: int) -> None:
        self.exit_codes.append(exit_code)


SHOWS = """
from graphtrain import Graph, Text, node

@node
def look(recorder):
    recorder.show({"note": Text("a text")})

graph = Graph.load("fit").set("log", every="1 steps").insert("look", look, after="end_epoch")
"""


@pytest.mark.first(2)
@pytest.mark.parametrize("lost", [0, 1, 3], ids=lambda lost: f"{lost} were not sent when it was killed")
def test_wandb_has_every_row_once(lost: int, tiny: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()
    monkeypatch.setitem(sys.modules, "wandb", service)  # type: ignore[arg-type]
    (tiny / "tiny.py").write_text((tiny / "tiny.py").read_text() + SHOWS)
    words = ["run", "tiny.py", "finish.after=2 epochs", "--logger", "wandb", "--run-dir", "r"]
    assert command(*words, "--until", "5 steps").code == 0
    for step in sorted(service.history)[len(service.history) - lost :]:
        del service.history[step]
    for _ in range(2):
        result = command(*words)
        assert result.code == 0 and "logger" not in result.err
    rows = rows_of(tiny / "r")
    assert [*service.history] == [*range(1, len(rows) + 1)]
    sent = [{name: value for name, value in row.items() if name != "note"} for row in service.history.values()]
    assert sent == rows and [*service.history.values()][-1]["note"] == "a text"
    assert len({*service.ids}) == 1 and {*service.exit_codes} == {0}
    monkeypatch.setitem(sys.modules, "wandb", None)
    refused = command(*words[:-1], "other")
    assert refused.code == 2 and "pip install wandb" in refused.err


@pytest.mark.full
def test_the_recipe_for_other_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    (recipe,) = [block for block in re.findall(r"```python[^\n]*\n(.*?)```", page, re.DOTALL) if "mlflow" in block]
    sent: dict[str, list[Any]] = {"mlflow": [], "trackio": [], "runs": []}

    def start_run(run_id: str | None) -> Any:
        sent["runs"].append(run_id)
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="an id"))

    mlflow = types.SimpleNamespace(start_run=start_run, log_metrics=lambda row, step: sent["mlflow"].append(row))
    trackio = types.SimpleNamespace(
        init=lambda project, name, resume: None, log=lambda row, step: sent["trackio"].append(row)
    )
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "trackio", trackio)  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    it = world(small_fit(save_every="3 batches"), model=small_model, training_step=cross_entropy)
    for transitions in (60, 1000):  # the first process is killed
        before = len(sent["mlflow"])
        names: dict[str, Any] = {"__name__": "services"}
        exec(compile(recipe, "services.py", "exec"), names)  # noqa: S102
        trainer_of(tmp_path / "run", *names["loggers"], it=it).advance(transitions)
    again = [row for row in sent["mlflow"][:before] if row in sent["mlflow"][before:]]
    assert again, "the rows after the checkpoint"
    kept = [row for number, row in enumerate(sent["mlflow"]) if number >= before or row not in again]
    assert kept == rows_of(tmp_path / "run")
    assert sent["trackio"] == sent["mlflow"] and sent["runs"] == [None, "an id"]
