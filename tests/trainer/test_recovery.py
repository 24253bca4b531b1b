"""After a failure inside a node `run` resumes from the last save point, bit for bit, and reports what it repeats."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transitions import Machine

from graphtrain import Graph, LifeCycleError, Loader, Outcome, Trainer
from graphtrain.trainer.live_run import LifeCycle

EPOCHS, BATCHES = 3, 5


def fail() -> None:
    raise ValueError("a transient failure")


def failing(folder: Path, *moments: str | int, act: Callable[[], None] = fail) -> Callable[[object], None]:
    """A call that acts at each of some moments, once.

    Each has a file, that is gone then: whatever this process holds is put back when the run resumes.
    """
    folder = folder / "failing"
    folder.mkdir()
    for moment in moments:
        (folder / str(moment)).touch()

    def at(moment: object) -> None:
        flag = folder / str(moment)
        if flag.exists():
            flag.unlink()
            act()

    return at


def fit(**checkpoint: Any) -> Graph:
    graph = Graph.load("fit").set("schedule", every="1 steps").set("accumulate", every=2).set("log", every="2 steps")
    return graph.set("checkpoint", **{"every": "3 batches", **checkpoint}).set("finish", after=f"{EPOCHS} epochs")


def make_trainer(
    run_dir: Path | None = None,
    at: Callable[[object], None] = lambda moment: None,
    graph: Graph | None = None,
    said: list[str] | None = None,
    data: Any = None,
) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.3))
    model.append(torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def training_step(model: Any, batch: Any, epoch: int, batch_index: int) -> Any:
        at(epoch * BATCHES + batch_index + 1)
        return model(batch[0]).square().mean()

    def validation_step(model: Any, batch: Any, step: int, batch_index: int) -> Any:
        at(f"val-{step}-{batch_index}")
        return {"loss": model(batch).square().mean()}

    samples = torch.arange(4.0 * BATCHES).reshape(-1, 1)
    return Trainer(
        fit() if graph is None else graph,
        seed=0,
        run_dir=run_dir,
        device="cpu",
        display=None,
        notify=(said if said is not None else []).append,
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 2),
        train_data=data or Loader(torch.utils.data.TensorDataset(samples), batch_size=4, shuffle=True),
        val_data=torch.utils.data.DataLoader(samples[:4], batch_size=2, shuffle=True),
        training_step=training_step,
        validation_step=validation_step,
    )


@pytest.fixture(scope="module")
def whole() -> Trainer:
    """A run that never failed."""
    trainer = make_trainer()
    assert trainer.run() is Outcome.FINISHED
    return trainer


def assert_same(trainer: Trainer, whole: Trainer) -> None:
    assert trainer.digest() == whole.digest()
    assert trainer.metrics == whole.metrics


@pytest.mark.full
@pytest.mark.parametrize(
    ("batch", "repeats"),
    [(4, 1), (6, 3), (8, 2)],
)
def test_a_run_that_failed_once_is_the_run_that_never_did(
    batch: int, repeats: int, whole: Trainer, tmp_path: Path
) -> None:
    said: list[str] = []
    trainer = make_trainer(tmp_path, failing(tmp_path, batch), said=said)
    with pytest.raises(ValueError, match="a transient failure") as caught:
        trainer.run()
    assert trainer.state == "failed" and "raised in node `train_batch`" in caught.value.__notes__[0]
    way_back = caught.value.__notes__[-1]
    assert trainer.run() is Outcome.FINISHED
    assert_same(trainer, whole)
    (line,) = [line for line in said if line.startswith("resumed ")]
    step = int(line.partition(": step ")[2].partition(",")[0])
    assert way_back.startswith("resumes from checkpoint ") and way_back.endswith(f"-step-{step}")
    assert f"; repeating {repeats} batch" in line
    assert line.startswith(f"resumed {tmp_path}: step")
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == len(whole.metrics)
    assert make_trainer(tmp_path).run() is Outcome.ALREADY_FINISHED


@pytest.mark.full
def test_a_failure_in_a_validation(whole: Trainer, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, failing(tmp_path, "val-6-1"))
    with pytest.raises(ValueError, match="transient"):
        trainer.run()
    assert trainer.position == "validate/eval_batch"
    assert trainer.run() is Outcome.FINISHED
    assert_same(trainer, whole)


@pytest.mark.full
def test_it_may_fail_again(whole: Trainer, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, failing(tmp_path, 4, 5, 8, 15))
    for _ in range(4):
        with pytest.raises(ValueError, match="transient"):
            trainer.run()
        assert trainer.state == "failed"
    assert trainer.run() is Outcome.FINISHED
    assert_same(trainer, whole)


@pytest.mark.parametrize(("batch", "directory"), [(3, True), (8, False)], ids=["too early", "no run directory"])
def test_without_a_checkpoint_there_is_nothing_to_resume_from(batch: int, directory: bool, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path if directory else None, failing(tmp_path, batch))
    with pytest.raises(ValueError, match="transient"):
        trainer.run()
    for _ in range(2):
        with pytest.raises(LifeCycleError, match=r"before its first checkpoint.*: nothing to resume from") as caught:
            trainer.run()
        assert "make a new Trainer" in str(caught.value)
        assert trainer.state == "failed" and trainer.progress["next_batch"]["batches"] == batch
    for call in (trainer.advance, trainer.save, lambda: trainer.rewire(fit())):
        with pytest.raises((LifeCycleError, ValueError), match=r"has failed|nowhere to save"):
            call()


@pytest.mark.full
def test_what_was_resumed_from_is_a_save_point(whole: Trainer, tmp_path: Path) -> None:
    first = make_trainer(tmp_path)
    first.run(until="2 batches")
    (path,) = (tmp_path / "checkpoints").iterdir()
    kept = shutil.copytree(path, tmp_path / path.name)
    for name, run_dir, resume in (("a", tmp_path, "auto"), ("b", None, kept)):
        (tmp_path / name).mkdir()
        trainer = make_trainer(run_dir, failing(tmp_path / name, 3))
        with pytest.raises(ValueError, match="transient"):
            trainer.run(resume=resume)
        assert trainer.run() is Outcome.FINISHED
        assert trainer.digest() == whole.digest()


@pytest.mark.full
def test_an_interrupt_inside_a_node_is_recovered_from(whole: Trainer, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    trainer = make_trainer(tmp_path, failing(tmp_path, 5, act=interrupt), fit(mode="sync"))
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert trainer.run() is Outcome.FINISHED
    assert_same(trainer, whole)


@pytest.mark.full
def test_after_a_rewire_the_graph_of_now_is_resumed(tmp_path: Path) -> None:
    """The nodes that it kept from the former graph are set up again too."""
    results = []
    for number in (0, 6):
        (tmp_path / f"{number}").mkdir()
        trainer = make_trainer(tmp_path / f"{number}", failing(tmp_path / f"{number}", number))
        trainer.run(until="3 batches")
        trainer.rewire(fit().set("log", every="1 steps"))
        if number:
            with pytest.raises(ValueError, match="transient"):
                trainer.run()
        assert trainer.run() is Outcome.FINISHED
        results.append((trainer.digest(), trainer.metrics))
    assert results[0] == results[1]


def test_the_life_cycle_is_a_machine_of_which_the_docs_have_the_picture() -> None:
    life = LifeCycle()
    assert isinstance(life.machine, Machine)
    page = (Path(__file__).parents[2] / "docs/resuming.md").read_text()
    (drawn,) = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", page, re.DOTALL)
    arrows = {tuple(re.split(r" --> | : ", line.strip())) for line in drawn.splitlines()}
    of_machine = {(each.source, each.dest, event) for event, of in life.machine.events.items()
                  for each in itertools.chain(*of.transitions.values())}  # fmt: skip
    assert arrows == {("[*]", "ready"), *of_machine}
