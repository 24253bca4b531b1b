"""What TensorBoard reads after a run was cut, compared with what it reads of the run never cut."""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.report.logger import Beginning

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
from tensorboard.summary.writer import event_file_writer
from tensorboard.util import tensor_util

from graphtrain.report.tensorboard import TensorBoard

Row = Mapping[str, float]
Shown = dict[str, list[tuple[int, float]]]

FIT = Graph.load("fit")
HYPER_PARAMETERS = {
    "optimizer.lr": 0.1,
    "accumulate.every": 4,
    "clip.max_norm": math.inf,
    "nesterov": True,
    "name": "a|b",
}

# A validation before the first step; then at steps 4 and 8 a row of the log, one of the epoch and one of a validation.
ROWS: list[Row] = [
    {"step": 0, "epoch": 0.0, "val/loss": 9.0},
    {"step": 2, "epoch": 0.5, "loss": 1.0, "lr": 0.1},
    {"step": 4, "epoch": 1.0, "loss": 0.75, "lr": 0.1},
    {"step": 4, "epoch": 1.0, "epoch/loss": 0.875},
    {"step": 4, "epoch": 1.0, "val/loss": 2.0},
    {"step": 6, "epoch": 1.5, "loss": math.nan, "lr": 0.05},
    {"step": 8, "epoch": 2.0, "loss": math.inf, "lr": 0.05},
    {"step": 8, "epoch": 2.0, "epoch/loss": -math.inf},
    {"step": 8, "epoch": 2.0, "val/loss": 1.5},
]


def single(value: float) -> float:
    """The number that 32 bits hold, as TensorBoard keeps it; NaN as a string, to be compared."""
    rounded = struct.unpack("f", struct.pack("f", value))[0]
    return "nan" if math.isnan(rounded) else rounded  # type: ignore[return-value]


def as_shown(rows: Sequence[Row]) -> Shown:
    """What TensorBoard should read, by the meaning of the rows."""
    shown: Shown = {}
    for row in rows:
        for name, value in row.items():
            if name != "step":
                shown.setdefault(name, []).append((int(row["step"]), single(value)))
    return shown


def shown_in(folder: Path) -> Shown:
    """The scalars that TensorBoard reads; both of its readers, which purge by different rules, must agree."""
    old = event_accumulator.EventAccumulator(str(folder), size_guidance={event_accumulator.SCALARS: 0})
    old.Reload()
    names = old.Tags()["scalars"]
    scalars = {name: [(event.step, single(event.value)) for event in old.Scalars(name)] for name in names}
    new = plugin_event_accumulator.EventAccumulator(str(folder), size_guidance={plugin_event_accumulator.TENSORS: 0})
    new.Reload()
    tensors = {
        name: [(event.step, single(tensor_util.make_ndarray(event.tensor_proto).item())) for event in new.Tensors(name)]
        for name in names
    }
    assert tensors == scalars
    return {name: values for name, values in scalars.items() if values}


def texts_in(folder: Path, name: str) -> list[tuple[int, str]]:
    """Step and content of the texts that TensorBoard reads."""
    reader = plugin_event_accumulator.EventAccumulator(str(folder), size_guidance={plugin_event_accumulator.TENSORS: 0})
    reader.Reload()
    values = reader.Tensors(f"{name}/text_summary")
    return [(event.step, tensor_util.make_ndarray(event.tensor_proto).item().decode()) for event in values]


def began(folder: Path, rows: Sequence[Row], **changes: Any) -> TensorBoard:
    logger = TensorBoard(folder)
    logger.begin(Beginning(**{"graph": FIT, "rows": rows, "hyper_parameters": HYPER_PARAMETERS, **changes}))
    return logger


def tell(logger: TensorBoard, rows: Sequence[Row]) -> None:
    for row in rows:
        logger(row, int(row["step"]))


def killed(folder: Path, kept: int, until: int) -> None:
    """One process: it resumes after `kept` rows, records more up to `until`, and is killed."""
    logger = began(folder, ROWS[:kept])
    tell(logger, ROWS[kept:until])
    logger.writer = None


def test_an_uncut_run(tmp_path: Path) -> None:
    logger = began(tmp_path, [])
    tell(logger, ROWS)
    logger.close()
    assert shown_in(tmp_path) == as_shown(ROWS)


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("kept", range(len(ROWS) + 1))
def test_a_cut(tmp_path: Path, kept: int) -> None:
    for until in range(kept, len(ROWS) + 1):
        folder = tmp_path / str(until)
        killed(folder, 0, until)
        assert shown_in(folder) == as_shown(ROWS[:until])  # nothing waits in memory for a later moment
        killed(folder, kept, kept)
        assert shown_in(folder) == as_shown(ROWS[:kept])
        killed(folder, kept, len(ROWS))
        assert shown_in(folder) == as_shown(ROWS)


def test_rows_of_one_step_with_a_name_in_common(tmp_path: Path) -> None:
    rows = [{"step": 1, "epoch": index / 8, "loss": 1.0 / (index + 1)} for index in range(4)]
    tell(began(tmp_path, []), rows)
    tell(began(tmp_path, rows[:2]), rows[2:])
    assert shown_in(tmp_path) == as_shown(rows)


@pytest.mark.full
def test_files_of_one_second_are_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The names end in a count: as text, 10 comes before 9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(9))
    killed(tmp_path, 0, 9)
    killed(tmp_path, 2, 5)
    assert shown_in(tmp_path) == as_shown(ROWS[:5])


# ---- what the run is


def test_hyper_parameters_are_texts_from_where_they_hold(tmp_path: Path) -> None:
    killed(tmp_path, 0, 6)
    ((step, table),) = texts_in(tmp_path, "hyper_parameters")
    assert step == 0
    assert table.splitlines() == [
        "    optimizer.lr = 0.1",
        "    accumulate.every = 4",
        "    clip.max_norm = inf",
        "    nesterov = True",
        "    name = a|b",
    ]
    changed = {**HYPER_PARAMETERS, "optimizer.lr": 0.01}
    tell(began(tmp_path, ROWS[:5], hyper_parameters=changed), ROWS[5:])
    assert [(step, "0.01" in text) for step, text in texts_in(tmp_path, "hyper_parameters")] == [(0, False), (4, True)]


def test_the_graph_is_a_text_that_loads(tmp_path: Path) -> None:
    graph = FIT.set("accumulate", every=4)
    began(tmp_path, [], graph=graph)
    ((_, text),) = texts_in(tmp_path, "graph")
    assert all(line.startswith("    ") for line in text.splitlines())  # Markdown's block of code
    assert Graph.loads("\n".join(line[4:] for line in text.splitlines())) == graph


# ---- where it goes, and what goes wrong


def test_the_folder(tmp_path: Path) -> None:
    logger = TensorBoard()
    logger.begin(Beginning(FIT, run_dir=tmp_path / "run"))
    logger.close()
    assert list((tmp_path / "run" / "tensorboard").glob("*tfevents*"))
    given = TensorBoard(str(tmp_path / "given"))
    given.begin(Beginning(FIT, run_dir=tmp_path / "other"))
    given.close()
    assert list((tmp_path / "given").glob("*tfevents*")) and not (tmp_path / "other").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot write to"):
        began(tmp_path / "file", [])


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError) as caught:
        TensorBoard()
    assert caught.value.hint == "pip install tensorboard"


def test_each_round_of_an_outer_graph_is_a_curve_of_its_own_and_none_is_lost_or_repeated(tmp_path: Path) -> None:
    rows = [
        {"step": step, "epoch": step / 2, "fold": fold, "loss": fold + step / 10}
        for fold in (1, 2)
        for step in (1, 2, 3)
    ]
    logger = began(tmp_path, [], clocks=("fold",))
    tell(logger, rows[:5])
    logger.writer = None  # killed; the newest checkpoint was made in the first round
    logger = began(tmp_path, rows[:2], clocks=("fold",))
    tell(logger, rows[2:])
    logger.close()
    expected: Shown = {}
    for row in rows:
        for name in ("epoch", "loss"):
            expected.setdefault(f"{name}/fold {row['fold']}", []).append((int(row["step"]), single(row[name])))
    assert shown_in(tmp_path) == expected
