"""Loggers that raise, that are slow, and that are called by a thread of their own: the run is as without them."""

from __future__ import annotations

import json
import random
import struct
import sys
import threading
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from graphtrain import Graph, RunLogger, Text, Trainer, UsageError
from graphtrain.report.guarded import Guarded
from graphtrain.report.logger import Beginning
from graphtrain.report.mlflow import MLflow
from graphtrain.report.trackio import Trackio
from graphtrain.report.wandb import WandB

GRAPH = Graph.load("fit").set("log", every="1 steps").set("checkpoint", every="2 steps").set("finish", after="6 steps")


def make(run_dir: Path | None, *loggers: Any, graph: Graph = GRAPH, lr: float = 0.1) -> tuple[Trainer, list[str]]:
    torch.manual_seed(0)
    model, lines = torch.nn.Linear(2, 1), list[str]()
    trainer = Trainer(
        graph,
        run_dir=run_dir,
        seed=0,
        loggers=loggers,
        display=None,
        notify=lines.append,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=lr),
        train_data=[torch.randn(4, 2) for _ in range(4)],
        training_step=lambda model, batch: model(batch).square().mean(),
    )
    return trainer, lines


class Service(RunLogger):
    """Stands for a service, which has what it was sent whatever becomes of the process."""

    in_background = True

    def __init__(self, sent: list[Any], fails_at: str = "", waits_for: threading.Event | None = None) -> None:
        self.sent, self._fails_at, self._waits_for = sent, fails_at, waits_for

    def _do(self, what: str, *more: Any) -> None:
        if self._waits_for is not None:
            self._waits_for.wait()
        if what == self._fails_at:
            raise ConnectionError(f"offline at {what}")
        self.sent.append(more[0] if what == "row" else (what, threading.current_thread().name))

    def begin(self, beginning: Beginning) -> None:
        self._do("begin")

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        self._do("row", dict(metrics))

    def ended(self, state: str, error: BaseException | None) -> None:
        self._do(state)

    def close(self) -> None:
        self._do("close")

    @property
    def rows(self) -> list[dict[str, float]]:
        return [each for each in self.sent if isinstance(each, dict)]


def test_a_function_that_raises_is_off_and_the_run_is_as_without_it(tmp_path: Path) -> None:
    rows: list[int] = []

    def logger(row: Mapping[str, float], step: int) -> None:
        rows.append(step)
        if step == 2:
            raise OSError("the disk is\nfull")

    trainer, lines = make(tmp_path, logger)
    trainer.run()
    assert rows == [1, 2] and [row["step"] for row in trainer.metrics] == [1, 2, 3, 4, 4, 5, 6]
    said = [line for line in lines if "logger" in line]
    assert said == ["the logger logger is off: OSError: the disk is full; the run continues without it"]


@pytest.mark.parametrize("call", ["show", "flush", "ended", "close"])
def test_whatever_of_a_logger_raises(call: str) -> None:
    lines: list[str] = []

    class Failing(RunLogger):
        def begin(self, beginning: Beginning) -> None: ...
        def __call__(self, metrics: Mapping[str, float], step: int) -> None: ...
        def close(self) -> None: ...

    def fail(*given: Any) -> None:
        raise UsageError("it is full", "empty it")

    setattr(Failing, call, fail)
    guarded = Guarded(Failing(), lines.append)
    guarded.begin(Beginning(GRAPH))
    guarded({"step": 1}, 1)
    guarded.show("note", Text("a"), 1)
    guarded.flush()
    guarded.ended("finished", None)
    guarded.close()
    assert lines == ["the logger Failing is off: it is full; the run continues without it"]


def test_what_is_wrong_before_the_run_is_still_an_error() -> None:
    from graphtrain.report.csv import CSV

    with pytest.raises(UsageError, match="CSV has no file to write to"):
        make(None, CSV())[0].run()


@pytest.mark.parametrize("place", ["begin", "row", "finished", "close"])
def test_a_service_that_is_offline_is_one_line(place: str, tmp_path: Path) -> None:
    trainer, lines = make(tmp_path, Service([], fails_at=place))
    trainer.run()
    said = [line for line in lines if "logger" in line]
    assert said == [f"the logger Service is off: ConnectionError: offline at {place}; the run continues without it"]
    assert trainer.state == "finished" and trainer.digest() == _digest()


def test_a_service_that_hangs_delays_nothing() -> None:
    released = threading.Event()
    service = Service([], waits_for=released)
    service.seconds_to_close = 0.05
    trainer, lines = make(None, service)
    trainer.run()
    assert trainer.state == "finished" and service.sent == []
    assert [line for line in lines if "logger" in line] == [
        "the logger Service has not sent everything within 0.05 seconds; the run ends without waiting for it"
    ]
    released.set()


def test_one_thread_calls_it_and_in_order(tmp_path: Path) -> None:
    service = Service([])
    trainer, _ = make(tmp_path, service)
    trainer.run()
    (begin, thread), *rows, finished, closed = service.sent
    assert begin == "begin" and rows == trainer.metrics
    assert thread != threading.current_thread().name
    assert (finished, closed) == (("finished", thread), ("close", thread))


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("last_sent", [0, 3, 5], ids=["none was sent", "some were sent", "more than are kept"])
def test_every_row_is_sent_once_over_a_kill(last_sent: int, tmp_path: Path) -> None:
    whole = make(None)[0]
    whole.run()
    sent: list[Any] = []
    first, _ = make(tmp_path, Service(sent))
    while first.progress["step"]["steps"] < 4 or first.position != "next_batch":
        first.advance()
    first.save()
    for _ in range(100):
        if first.progress["step"]["steps"] == 5 and first.position == "next_batch":
            break
        first.advance()
    guarded = next(each for each in first._run.session.recorder.loggers if isinstance(each, Guarded))
    guarded.close()
    # What a killed process has not sent, it has not noted either.
    sent[:] = [each for each in sent if isinstance(each, dict)][:last_sent]
    note = tmp_path / "service.sent"
    note.write_bytes(note.read_bytes()[: 9 * last_sent])
    del first
    service = Service(sent)
    second, lines = make(tmp_path, service)
    second.run()
    assert service.rows == whole.metrics and any(line.endswith("exact") for line in lines)


@pytest.mark.parametrize("cuts", [(12,), (30,), (12, 20), (30, 14), (8, 8, 8)], ids=str)
def test_a_function_has_every_row_once_however_often_the_run_is_cut(cuts: tuple[int, ...], tmp_path: Path) -> None:
    whole = make(None)[0]
    whole.run()
    rows: list[Mapping[str, float]] = []
    steps: list[int] = []
    loggers = (lambda metrics, step: rows.append(metrics), Steps(steps))
    for transitions in cuts:  # each process is killed: nothing is saved beside the checkpoints of the graph
        make(tmp_path, *loggers)[0].advance(transitions)
    make(tmp_path, *loggers)[0].run()
    assert rows == whole.metrics
    assert steps == [row["step"] for row in whole.metrics]


class Steps:
    """Any callable."""

    def __init__(self, steps: list[int]) -> None:
        self.steps = steps

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        self.steps.append(step)


def test_a_function_has_rows_that_are_repeated_with_other_values_and_a_new_one_those_after_the_checkpoint(
    tmp_path: Path,
) -> None:
    steps: list[int] = []
    make(tmp_path, Steps(steps))[0].advance(44)
    before, new = len(steps), list[int]()
    trainer, _ = make(tmp_path, Steps(steps), lambda metrics, step: new.append(step), lr=0.2)
    trainer.run(from_setup="optimizer.lr")
    assert steps[before:] == new == [row["step"] for row in trainer.metrics][-len(new) :]
    assert 0 < len(new) < len(trainer.metrics)


def test_rows_that_are_repeated_with_other_values_are_sent(tmp_path: Path) -> None:
    service = Service([])
    make(tmp_path, service, graph=GRAPH.set("finish", after="4 steps"))[0].run()
    before = len(service.rows)
    second, _ = make(tmp_path, service)
    second.run()
    assert [row["step"] for row in service.rows[before:]] == [5, 6]


# ---- the services, as far as their interfaces are known


class Calls:
    """Stands for a package: notes what is called, and returns itself."""

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*given: Any, **named: Any) -> Any:
            self.made.append((name, given, named))
            return None if name == "get_experiment_by_name" else self

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    calls.entities = types.SimpleNamespace(Metric=lambda name, value, time, step: (name, value, step))  # type: ignore[attr-defined]
    calls.info = types.SimpleNamespace(run_id="an id")  # type: ignore[attr-defined]
    for name in ("wandb", "mlflow", "trackio"):
        monkeypatch.setitem(sys.modules, name, calls)  # type: ignore[arg-type]
    return calls


@pytest.mark.parametrize(
    ("logger", "row", "step"),
    [
        (lambda: WandB("p", mode="offline"), ("log", {"step": 1, "epoch": 0.25}), "step"),
        (lambda: MLflow("p"), ("log_batch", "an id"), "epoch"),
        (lambda: Trackio("p"), ("log", {"epoch": 0.25}), "epoch"),
    ],
    ids=["wandb", "mlflow", "trackio"],
)
def test_a_service_is_sent_the_rows_and_how_the_run_ended(
    logger: Any, row: Any, step: str, calls: Calls, tmp_path: Path
) -> None:
    trainer, lines = make(tmp_path, logger())
    trainer.run()
    assert not [line for line in lines if "logger" in line]
    name, first = row
    sent = [given for called, given, _ in calls.made if called == name]
    assert len(sent) == len(trainer.metrics)
    assert sent[0] == (first,) if isinstance(first, str) else first.items() <= sent[0][0].items()
    assert any(called in ("finish", "set_terminated") for called, _, _ in calls.made)
    begun = len([called for called, _, _ in calls.made if called in ("init", "create_run")])
    second, _ = make(tmp_path, logger(), graph=GRAPH.set("finish", after="7 steps"))
    second.run()
    ids = [named.get("id", named.get("name")) for called, _, named in calls.made if called == "init"]
    created = [called for called, _, _ in calls.made if called == "create_run"]
    assert begun == 1 and len({*ids}) <= 1 and len(created) <= 1, "another process continues the run of the service"
    assert len([given for called, given, _ in calls.made if called == name]) == len(second.metrics)


@pytest.mark.parametrize(("logger", "name"), [(WandB, "wandb"), (MLflow, "mlflow"), (Trackio, "trackio")])
def test_a_package_that_is_not_there_is_an_error_when_the_logger_is_made(
    logger: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=f"(?s){name} cannot be imported.*pip install {name}"):
        logger()


def _digest() -> str:
    trainer, _ = make(None)
    trainer.run()
    return trainer.digest()


# ---- the packages themselves


@pytest.mark.full
@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
@pytest.mark.filterwarnings("ignore")
def test_the_package_itself_has_the_rows_and_draws_no_random_numbers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    made: dict[str, Any] = {"wandb": lambda: WandB("p"), "mlflow": lambda: MLflow("p", tracking_uri=uri)}
    new = made.get(name, lambda: Trackio("p"))
    states = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index, union-attr]
    logger = new()
    guarded = Guarded(logger, pytest.fail)
    guarded.begin(Beginning(GRAPH, run_dir=tmp_path, hyper_parameters={"lr": 0.1}))
    for step in range(1, 4):
        guarded({"step": step, "epoch": step / 4, "val/loss": 0.5 / step}, step)
    guarded.ended("finished", None)
    guarded.close()
    after = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index, union-attr]
    assert states == after
    assert _in_package(name, uri, tmp_path) == [(step, 0.5 / step) for step in range(1, 4)]
    first, _ = make(tmp_path / "run", new())
    first.run()
    second, lines = make(tmp_path / "run", new(), graph=GRAPH.set("finish", after="7 steps"))
    second.run()
    assert not [line for line in lines if "logger" in line]


def _in_package(name: str, uri: str, folder: Path) -> list[tuple[int, float]]:
    """The values of `val/loss` that the service has, by step."""
    if name == "mlflow":
        import mlflow

        client = mlflow.MlflowClient(tracking_uri=uri)
        (run,) = client.search_runs([client.get_experiment_by_name("p").experiment_id])
        return [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, "val/loss")]
    if name == "trackio":
        from trackio.sqlite_storage import SQLiteStorage

        (run,) = SQLiteStorage.get_runs("p")
        return [(each["step"], each["val/loss"]) for each in SQLiteStorage.get_logs("p", run)]
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, place, rows = file.read_bytes(), 7, []
    while place < len(data):  # as in a log of LevelDB: a checksum, a length, a type, and all in one block here
        (length,) = struct.unpack_from("<H", data, place + 4)
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data[place + 7 : place + 7 + length])
        place += 7 + length
        if record.WhichOneof("record_type") == "history":
            items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            rows.append((items["step"], items["val/loss"]))
    return rows
