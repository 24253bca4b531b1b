"""Run directories in which somebody else has put things: an error; nothing is written through links."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Outcome, Trainer
from graphtrain.errors import UsageError
from graphtrain.storage.run_directory import (
    BEST_FILE,
    METRICS_FILE,
    STATUS_FILE,
)
from graphtrain.storage.run_files import RunFiles


def trainer_of(run_dir: Path, said: list[str] | None = None, **checkpoint: Any) -> Trainer:
    """Four batches, with a row, a checkpoint and a rank for each."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    graph = (
        Graph.load("fit")
        .set("finish", after="4 batches")
        .set("log", every="1 steps")
        .set("checkpoint", every="1 batches", best="loss", **{"keep": 2, **checkpoint})
    )
    return Trainer(
        graph,
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=(said if said is not None else []).append,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.full((2, 2), float(number)) for number in range(4)],
        training_step=lambda model, batch: model(batch).square().mean(),
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    run_dir = tmp_path_factory.mktemp("whole")
    trainer = trainer_of(run_dir)
    trainer.run()
    return trainer.digest(), (run_dir / METRICS_FILE).read_bytes()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("part")
    trainer_of(run_dir).run(until="2 batches")
    return run_dir


@pytest.fixture
def part(kept: Path, tmp_path: Path) -> Path:
    """A run that was stopped half way, in a directory of its own."""
    return shutil.copytree(kept, tmp_path / "run")


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Path]:
    """A file and a folder of somebody else, which the tests link to; at the end they are as they were."""
    folder = tmp_path / "theirs"
    (folder / "folder").mkdir(parents=True)
    (folder / "file").write_text("secret\n")
    (folder / "folder" / "file").write_text("theirs\n")
    yield folder
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) == ["file", "folder", "folder/file"]
    assert (folder / "file").read_text() == "secret\n" and (folder / "folder" / "file").read_text() == "theirs\n"


THEIRS: dict[str, tuple[str, str]] = {
    "rows of another program": (METRICS_FILE, '{"loss": 1}\n'),
    "a status of another program": (STATUS_FILE, '{"state": "up"}'),
    "a ranking of another program": (BEST_FILE, '{"mine": 1}'),
}


@pytest.mark.parametrize("name", THEIRS)
def test_a_file_of_another_program_is_refused(name: str, tmp_path: Path) -> None:
    file, content = THEIRS[name]
    (tmp_path / file).write_text(content)
    with pytest.raises(UsageError, match=rf"`{file}` in .* was not written by a run"):
        trainer_of(tmp_path).run()
    assert (tmp_path / file).read_text() == content


def test_a_fork_refuses_the_rows_of_another_program(part: Path, tmp_path: Path) -> None:
    fork = tmp_path / "fork"
    fork.mkdir()
    (fork / METRICS_FILE).write_text('{"loss": 1}\n')
    with pytest.raises(UsageError, match="was not written by a run"):
        trainer_of(fork).run(resume=str(max((part / "checkpoints").iterdir())))
    assert (fork / METRICS_FILE).read_text() == '{"loss": 1}\n'


def test_rows_of_a_run_that_was_killed_before_its_first_checkpoint_are_its_own(
    part: Path, whole: tuple[str, bytes]
) -> None:
    shutil.rmtree(part / "checkpoints")
    trainer = trainer_of(part)
    trainer.run()
    assert (trainer.digest(), (part / METRICS_FILE).read_bytes()) == whole


def test_what_is_not_ours_stays(tmp_path: Path, whole: tuple[str, bytes]) -> None:
    """Names like those of checkpoints and of temporary files."""
    folders = ["000000-step-5", "000003-step-2", "999999-step-7", ".000009-step-9.tmp", ".editor.tmp", "notes"]
    files = [".editor.tmp", "status.old.tmp", "best.tmp", ".mine.71.tmp", "notes.txt", "metrics.jsonl.bak"]
    for name in folders:
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "mine").write_text("theirs\n")
    for name in files:
        (tmp_path / name).write_text("theirs\n")
    trainer = trainer_of(tmp_path, keep=1, keep_best=1)
    trainer.run(until="3 batches")
    again = trainer_of(tmp_path, keep=1, keep_best=1)
    assert again.run() is Outcome.FINISHED
    assert (again.digest(), (tmp_path / METRICS_FILE).read_bytes()) == whole
    checkpoints = {path.name for path in (tmp_path / "checkpoints").iterdir()} - {*folders}
    assert 1 <= len(checkpoints) <= 2, "the newest and the best are kept, whatever else is there"
    paths = [tmp_path / "checkpoints" / name / "mine" for name in folders] + [tmp_path / name for name in files]
    assert {path.read_text() for path in paths} == {"theirs\n"}
    assert trainer_of(tmp_path, keep=1, keep_best=1).run() is Outcome.ALREADY_FINISHED


def test_the_folder_of_checkpoints_may_be_a_link(tmp_path: Path, whole: tuple[str, bytes]) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to("../large disk")
    trainer_of(tmp_path / "run").run(until="2 batches")
    trainer = trainer_of(tmp_path / "run")
    trainer.run()
    assert (trainer.digest(), (tmp_path / "run" / METRICS_FILE).read_bytes()) == whole


def test_the_difference_of_the_source_is_not_written_through_a_link(part: Path, theirs: Path) -> None:
    (part / "source-0.diff").symlink_to(theirs / "absent")
    RunFiles(part, print).started({}, {"source-0.diff": "text", "source-1.diff": "other"})
    assert (part / "source-1.diff").read_text() == "other"


# ---- files that are altered


@pytest.mark.parametrize("row", ['{"loss": [1]}', "[1]"])
def test_rows_that_are_none(row: str, part: Path) -> None:
    file = part / METRICS_FILE
    first = (row + "\n").encode()
    file.write_bytes(first + file.read_bytes())
    with pytest.raises(UsageError, match="is not a row that a run has written"):
        trainer_of(part).run()
    assert file.read_bytes().startswith(first)
