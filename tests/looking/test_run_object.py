"""Promise 18: `Run` and a trainer, looked at: status, rows, table, curves, and what a notebook shows of them."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Run, Trainer, UsageError, joined
from tests.world import small_fit, world

ROWS = [
    {"step": 1, "epoch": 0.5, "loss": 2.0, "lr": 0.1, "accuracy": 0.25},
    {"step": 2, "epoch": 1.0, "loss": math.nan, "lr": 0.2},
    {"step": 2, "epoch": 1.0, "epoch/loss": 1.5},
    {"step": 2, "epoch": 1.0, "val/loss": 1.0, "val/accuracy": 0.5},
]
STATUS = {"state": "stopped", "graph": "fit", "position": "decide", "place": "step 2, epoch 1", "metrics": ROWS[-1]}

pytest.importorskip("pandas")
pytest.importorskip("matplotlib.figure")  # here, because the first row that draws would take the time of the import


def on_disk(folder: Path, rows: list[dict[str, float]] = ROWS, **status: Any) -> Run:
    """A run directory that no run has written."""
    (folder / "status.json").write_text(json.dumps({**STATUS, **status}))
    lines = (json.dumps({name: str(value) if value != value else value for name, value in row.items()}) for row in rows)
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return Run(folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, Run]:
    """A run in this process, and the same on the disk."""
    run_dir = tmp_path_factory.mktemp("run")
    about = {"arguments": {"lr": "0.1", "name": "'adam'"}}
    trainer = world(small_fit(log_every="2 steps", save_every="1 epochs")).trainer(run_dir, about=about)
    trainer.run()
    return trainer, Run(str(run_dir))


# ---- what is read


@pytest.mark.full
def test_the_files_say_what_the_trainer_says(trained: tuple[Trainer, Run]) -> None:
    trainer, run = trained
    assert run.metrics == trainer.metrics and run.graph == trainer.graph
    assert run.snapshot().step == trainer.snapshot().step == trainer.metrics[-1]["step"]
    assert (run.status["state"], run.arguments) == ("finished", {"lr": 0.1, "name": "adam"})
    assert run.status["arguments"] == run.arguments
    assert repr(run).removeprefix(f"<Run {run.path}") == repr(trainer).removeprefix("<Trainer of fit")
    assert run.frame().equals(trainer.frame()) and run.frame(joined=False).equals(trainer.frame(joined=False))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.rename(path.with_name("elsewhere")), "there is no run in"),
        (lambda path: (path / "status.json").unlink(), "there is no run in"),
        (lambda path: (path / "status.json").write_text("{"), "the status of .* cannot be read"),
        (lambda path: (path / "metrics.jsonl").write_text("loss 1\n"), r"metrics.jsonl:1 is not a row"),
    ],
)
def test_what_is_missing_or_damaged_is_named(damage: Callable[[Path], Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    path = on_disk(tmp_path / "run").path
    damage(path)
    with pytest.raises(UsageError, match=said):
        _ = Run(path).metrics


def test_the_graph_is_that_of_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no checkpoint yet"):
        _ = on_disk(tmp_path).graph


def test_a_run_is_there_by_its_checkpoints_too(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run in"):
        Run(tmp_path)
    checkpoint = tmp_path / "checkpoints" / "000001-step-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.msgpack").touch()
    run = Run(tmp_path)
    assert (run.starts, run.state, run.was_killed) == ([], "interrupted", True)
    run = on_disk(tmp_path, state="running", process=2**22 + 1)
    assert (run.status["state"], run.was_killed) == ("interrupted", True)
    assert not on_disk(tmp_path).was_killed
    run = on_disk(tmp_path, state="running", host="another one")
    assert (run.state, run.was_killed) == ("running", False)


# ---- as a table


def test_a_step_is_one_row_of_the_table(tmp_path: Path) -> None:
    frame = on_disk(tmp_path).frame()
    assert list(frame["step"]) == [1, 2] and list(frame.columns)[:2] == ["step", "epoch"]
    assert frame.iloc[1][["epoch/loss", "val/loss", "val/accuracy"]].tolist() == [1.5, 1.0, 0.5]
    assert len(Run(tmp_path).frame(joined=False)) == len(ROWS)
    assert on_disk(tmp_path, []).frame().empty


def test_rounds_of_nested_graphs_are_not_joined() -> None:
    named = ((1, "a"), (1, "b"), (2, "a"), (2, "c"))
    rows = [{"step": 2, "epoch": 1.0, "fold": fold, name: 0.5} for fold, name in named]
    assert [{*row} - {"step", "epoch"} for row in joined(rows, ("fold",))] == [{"fold", *"ab"}, {"fold", *"ac"}]


@pytest.mark.parametrize(("module", "call"), [("pandas", "frame"), ("matplotlib", "plot")])
def test_what_is_not_installed_is_said(
    module: str, call: str, trained: tuple[Trainer, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "graphtrain.report.figure", raising=False)
    with pytest.raises(UsageError, match=f"{module} cannot be imported") as caught:
        getattr(trained[0], call)()
    assert caught.value.hint == f"pip install {module}"


# ---- as curves


def lines_of(figure: Any) -> dict[str, dict[str, list[float]]]:
    """The lines of a figure: title of an axis -> label -> values."""
    return {
        axis.get_title(): {line.get_label(): list(line.get_ydata()) for line in axis.get_lines()}
        for axis in figure.axes
    }


@pytest.mark.full
def test_what_is_measured_alike_has_one_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # which has a state of its own
    figure = on_disk(tmp_path).plot()
    drawn = lines_of(figure)
    assert {title: [*lines] for title, lines in drawn.items()} == {
        "loss": ["loss", "epoch/loss", "val/loss"], "accuracy": ["accuracy", "val/accuracy"], "lr": ["lr"],
    }  # fmt: skip
    assert drawn["loss"]["loss"][0] == 2.0 and math.isnan(drawn["loss"]["loss"][1])
    assert figure.get_suptitle() == "`loss` is not finite since step 2"
    colours = {line.get_label(): line.get_color() for axis in figure.axes for line in axis.get_lines()}
    assert colours["val/loss"] == colours["val/accuracy"] != colours["loss"] == colours["accuracy"]
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_some_metrics_over_epochs(tmp_path: Path) -> None:
    run = on_disk(tmp_path)
    (axis,) = run.plot(["loss", "val/loss"], x="epoch").axes
    assert [list(line.get_xdata()) for line in axis.get_lines()] == [[0.5, 1.0], [1.0]]
    assert axis.get_xlabel() == "epoch" and [*lines_of(run.plot("lr"))] == ["lr"]
    assert run.plot("lr").get_suptitle() == "", "the loss that is not finite is not drawn"
    with pytest.raises(UsageError, match="there is no metric `val/los`") as caught:
        run.plot(["loss", "val/los"])
    assert "val/loss" in caught.value.hint
    with pytest.raises(UsageError, match='x: expected "step" or "epoch"; got \'batch\''):
        run.plot(x="batch")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there are no metrics to plot yet"):
        on_disk(tmp_path, []).plot()


# ---- as a page


def words(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", html)).replace("\xa0", " ")


def test_the_page_of_a_trainer(trained: tuple[Trainer, Run]) -> None:
    html = trained[0]._repr_html_()
    before, _, picture = html.partition("<details>")
    assert words(before).startswith("Trainer of fit: finished, step 6, epoch 2, batch 5/5loss ")
    assert picture.startswith("<summary>graph fit</summary><svg ") and "6 runs" in words(picture)
    page = trained[1]._repr_html_()
    assert page.partition("<details>")[0].partition("</b>")[2] == before.partition("</b>")[2]
    assert words(page).startswith(f"Run {trained[1].path}: finished, step 6") and page.count("<details>") == 1


def test_text_of_others_stays_text(tmp_path: Path) -> None:
    nasty = "<script>alert('x')</script>&amp;/loss"
    row = {"step": 1, "epoch": 1.0, nasty: 1.0}
    status = {"state": nasty, "place": nasty, "position": nasty, "graph": nasty, "metrics": row}
    html = on_disk(tmp_path, [row], **status)._repr_html_()
    assert "<script" not in html and words(html).count(nasty) == 4
