"""A run that goes back to a checkpoint by itself: where to, what it keeps, and that cuts make no difference."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer, UsageError, node, progress
from graphtrain.errors import NotFiniteError
from graphtrain.program.history import History
from graphtrain.proof.history import RunHistory
from graphtrain.proof.verify import verify
from graphtrain.resume.save import CheckpointWriter
from graphtrain.resume.session import Session
from graphtrain.storage.run_files import RunFiles
from tests.training.gallery.procedures.rollback import PROCEDURE
from tests.ranks.fake_ranks import run_ranks

Lines = list[str]


def trainer_of(run_dir: Path | None, lines: Lines | None = None, **parameters: Any) -> Trainer:
    """The small run of the gallery."""
    graph = PROCEDURE.graph().set("checkpoint", **parameters)
    notify: Callable[[str], None] = (lambda line: None) if lines is None else lines.append
    return Trainer(graph, seed=0, run_dir=run_dir, display=None, notify=notify, **PROCEDURE.resources())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, Path, Lines]:
    """The run that is never cut, with all of its checkpoints."""
    run_dir, lines = tmp_path_factory.mktemp("whole"), Lines()
    trainer = trainer_of(run_dir, lines, keep=100)
    trainer.run()
    return trainer, run_dir, lines


def expect_same(run_dir: Path, trainer: Trainer, whole: tuple[Trainer, Path, Lines]) -> None:
    assert trainer.digest() == whole[0].digest()
    assert trainer.progress["rollback"] == whole[0].progress["rollback"]
    assert (run_dir / "metrics.jsonl").read_bytes() == (whole[1] / "metrics.jsonl").read_bytes()


@pytest.mark.full
def test_it_goes_back_more_than_once_and_tells(whole: tuple[Trainer, Path, Lines]) -> None:
    back = [line for line in whole[2] if "sends the run back" in line]
    assert len(back) >= 2
    assert back[0].startswith("`rollback` sends the run back to 00000")
    assert "repeating " in back[0]
    steps = [row["step"] for row in whole[0].metrics if "loss" in row]
    assert steps == sorted(set(steps)), "no row of what was abandoned is left"
    status = json.loads((whole[1] / "status.json").read_text())
    assert status["state"] == "finished"
    assert status["trained"][0] == whole[0].read("next_batch.batches")


@pytest.mark.sweep
@pytest.mark.parametrize("between", [13, *(pytest.param(number, marks=pytest.mark.sweep) for number in (1, 2, 5, 8))])
def test_stops_every_few_transitions_change_nothing(
    between: int, tmp_path: Path, whole: tuple[Trainer, Path, Lines]
) -> None:
    """Each stop leaves a checkpoint that is newer than the one to go back to, and `keep` is 1."""
    trainer = trainer_of(tmp_path)
    while trainer.advance(between) != "end":
        trainer.save()
        assert len(list((tmp_path / "checkpoints").iterdir())) <= 2
        trainer = trainer_of(tmp_path)
    expect_same(tmp_path, trainer, whole)


class KilledError(BaseException):
    """A kill: no handler of the run sees it as an error of its own."""


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("moment", ["before anything", "before rows are cut", "before it is saved"])
def test_a_kill_on_the_way_back_changes_nothing(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[Trainer, Path, Lines]
) -> None:
    def killed(*arguments: Any, **named: Any) -> Any:
        raise KilledError

    trainer = trainer_of(tmp_path)
    with monkeypatch.context() as patch:
        if moment == "before anything":
            patch.setattr(Session, "_compile_again", killed)
        elif moment == "before rows are cut":
            patch.setattr(Session, "trained", property(trained_then(patch, RunFiles, "cut_back_to", killed)))
        else:
            patch.setattr(CheckpointWriter, "keep_newest", killed)
        with pytest.raises(KilledError):
            trainer.run()
    resumed = trainer_of(tmp_path)
    resumed.run()
    expect_same(tmp_path, resumed, whole)


def trained_then(patch: pytest.MonkeyPatch, owner: type, name: str, instead: Any) -> Callable[[Session], Any]:
    """What `trained` is, which is asked on the way back; from then on a method is another one."""
    trained = Session.trained.fget
    assert trained is not None

    def asked(session: Session) -> Any:
        patch.setattr(owner, name, instead)
        return trained(session)

    return asked


# ---- past runs


@pytest.mark.full
def test_spans_across_the_way_back_are_not_compared(whole: tuple[Trainer, Path, Lines]) -> None:
    lines = Lines()
    history = RunHistory(whole[1], lines.append)
    segments = history.segments()
    skipped = [segment for segment in segments if segment.change]
    returned = sum("sends the run back" in line for line in whole[2])
    assert {segment.change for segment in skipped} == {"the run returned to an earlier checkpoint in between"}
    assert 0 < len(skipped) <= returned
    compared = [segment for segment in segments if not segment.change and segment.start is not None]
    assert len(compared) >= 2
    assert all(verify(segment, lambda segment: trainer_of(None, keep=100)).is_equal for segment in compared)


def test_a_replay_does_not_follow(whole: tuple[Trainer, Path, Lines]) -> None:
    first = min((whole[1] / "checkpoints").iterdir())
    replay = trainer_of(None)
    with pytest.raises(UsageError, match="a replay does not follow"):
        replay.run_to(lambda compiled, loop: list(compiled.compiler.transitions), first)
    fresh = trainer_of(None)
    with pytest.raises(UsageError, match="a replay does not follow"):
        fresh.run_to(lambda compiled, loop: list(compiled.compiler.transitions))


# ---- where to


@pytest.mark.full
def test_what_a_person_has_changed_is_not_undone(tmp_path: Path) -> None:
    first = trainer_of(tmp_path)
    first.run(until="5 batches")
    assert first._run.writer.saved
    first.rewire(first.graph.set("clip", max_norm=1e9))
    assert not first._run.writer.saved
    second = trainer_of(tmp_path)
    second.resources["optimizer"].param_groups[0]["lr"] = 0.01
    changed = Trainer(
        PROCEDURE.graph(), run_dir=tmp_path, display=None, notify=lambda line: None, **_slower(PROCEDURE.resources())
    )
    changed.advance(1, from_setup="optimizer.lr")
    newest = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())[-1]
    assert changed._run.writer.saved == {"checkpoint": newest}, "made after the change"


def _slower(resources: dict[str, Any]) -> dict[str, Any]:
    return {**resources, "optimizer": torch.optim.SGD(resources["model"].parameters(), lr=0.01, momentum=0.9)}


@pytest.mark.full
def test_it_goes_back_to_finite_weights(tmp_path: Path) -> None:
    lines = Lines()
    trainer = trainer_of(tmp_path, lines)
    trainer.run(until="6 batches")
    trainer.run(before="checkpoint")
    with torch.no_grad():
        trainer.resources["model"][0].bias[0] = math.nan
    trainer.run()
    (saved,) = (number for number, line in enumerate(lines) if "`model.0.bias` is not finite" in line)
    assert lines[saved + 1].startswith("`rollback` sends the run back to 000001-step-2: ")
    assert all(weight.isfinite().all() for weight in trainer.resources["model"].parameters())


@pytest.mark.full
def test_a_fork_can_go_back_to_its_beginning(tmp_path: Path) -> None:
    lines, graph = Lines(), Graph.load("fit").set("finish", after="9 batches")

    def trainer_in(run_dir: Path, graph: Graph, sample: float) -> Trainer:
        supplied = PROCEDURE.resources()
        supplied["train_data"].dataset.tensors[0][0] *= sample
        return Trainer(graph, run_dir=run_dir, display=None, notify=lines.append, **supplied)

    trainer_in(tmp_path / "plain", graph, 0.0).run(until="5 batches")
    trainer_in(tmp_path / "fork", graph.overlay("rollback"), math.nan).run(resume=tmp_path / "plain" / "newest")
    assert [line.partition(":")[0] for line in lines if "sends" in line] == [
        "`rollback` sends the run back to 000001-step-5"
    ]


def test_a_loss_that_is_not_finite_ends_a_run_that_has_nowhere_to_go_back_to(tmp_path: Path) -> None:
    graph = PROCEDURE.graph().set("checkpoint", every="never")
    resources = {**PROCEDURE.resources(), "training_step": lambda model, batch: model(batch[0]).mean() * math.inf}
    trainer = Trainer(graph, run_dir=tmp_path, display=None, notify=lambda line: None, **resources)
    with pytest.raises(NotFiniteError, match="no checkpoint with finite weights to go back to"):
        trainer.run()
    assert trainer.read("step.steps") == 0


@pytest.mark.full
def test_it_goes_back_to_before_the_first_step_of_an_optimizer_with_a_schedule(tmp_path: Path) -> None:
    graph, resources = PROCEDURE.graph().set("checkpoint", every="once"), PROCEDURE.resources()
    graph = graph.set("schedule", every="1 steps")
    scheduler = torch.optim.lr_scheduler.StepLR(resources["optimizer"], 2)
    lines = Lines()
    Trainer(graph, run_dir=tmp_path, display=None, notify=lines.append, **resources, scheduler=scheduler).run()
    assert any("sends the run back to 000001-step-0" in line for line in lines)


def test_a_limit_ends_it(tmp_path: Path) -> None:
    graph = PROCEDURE.graph().set("rollback", most=1)
    trainer = Trainer(graph, run_dir=tmp_path, display=None, notify=lambda line: None, **PROCEDURE.resources())
    with pytest.raises(NotFiniteError, match=r"has gone back once, of at most 1\n") as error:
        trainer.run()
    assert "smaller learning rate" in error.value.hint


@node
class Twice:
    """Go back once, at a batch, and count what it sees of the run."""

    at: int = 5
    keeps: tuple[str, ...] = ()
    seen: int = progress(0)
    answers: list[bool] = progress([])

    def setup(self, history: History) -> None:
        self._history = history

    def __call__(self) -> None:
        self.seen += 1
        if self.seen in (1, self.at):
            keep = (*self.keeps, "again") if self.keeps else None
            self.answers = [*self.answers, self._history.restore("checkpoint", keep)]


@pytest.mark.full
def test_a_kind_of_ones_own_goes_back_and_names_what_stays(tmp_path: Path) -> None:
    graph = Graph.load("fit").insert("again", Twice, after="train_batch").set("finish", after="6 batches")
    graph = graph.set("checkpoint", every="2 batches")

    def trained(graph: Graph, name: str) -> Trainer:
        trainer = Trainer(
            graph, run_dir=tmp_path / name, display=None, notify=lambda line: None, **PROCEDURE.resources()
        )
        trainer.run()
        return trainer

    alone = trained(graph, "alone")
    assert alone.progress["again"]["answers"] == [False, True], "nothing was saved before the first batch"
    assert alone.read("again.seen") == 7
    assert alone.read("train_batch.runs") == 6
    both = trained(graph.set("again", keeps=["train_batch"]), "both")
    assert both.read("train_batch.runs") == 7
    with pytest.raises(UsageError, match="`again` names `trainbatch`, and there is no such node") as error:
        trained(graph.set("again", keeps=["trainbatch"]), "wrong")
    assert "train_batch" in error.value.hint


# ---- several ranks


@pytest.mark.full
def test_another_number_of_ranks_goes_back_to_what_the_former_have_saved(tmp_path: Path) -> None:
    lines = Lines()

    def begin(ranks: Any) -> None:
        trainer_of(tmp_path).run(until="4 batches")

    run_ranks(2, begin)
    saved = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    trainer = trainer_of(tmp_path, lines)
    trainer.run()
    assert trainer.state == "finished"
    assert any(f"sends the run back to {name}" in line for line in lines for name in saved)
