"""Run directories in which somebody else has put things: an error; nothing is written through links."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Outcome, Run, Trainer
from graphtrain.errors import CheckpointError, GraphtrainError, UsageError
from graphtrain.storage.manifest import MANIFEST_FILE
from graphtrain.storage.named import saved_manifest
from graphtrain.storage.run_directory import (
    BEST_FILE,
    METRICS_FILE,
    STARTS_FILE,
    STATUS_FILE,
    TEXTS_FILE,
    read_starts,
    read_status,
)
from graphtrain.storage.run_files import LOCK_FILE, RunFiles
from tests.storage.test_untrusted_checkpoint import seal


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


def to_a_file(path: Path, theirs: Path) -> None:
    path.symlink_to(theirs / "file")


def to_a_folder(path: Path, theirs: Path) -> None:
    path.symlink_to(theirs / "folder")


def to_nowhere(path: Path, theirs: Path) -> None:
    path.symlink_to(theirs / "absent")


def to_zeros(path: Path, theirs: Path) -> None:
    path.symlink_to("/dev/zero")


def to_itself(path: Path, theirs: Path) -> None:
    path.symlink_to(path.name)


def as_a_pipe(path: Path, theirs: Path) -> None:
    os.mkfifo(path)


def as_a_folder(path: Path, theirs: Path) -> None:
    path.mkdir()
    (path / "notes").write_text("theirs\n")


PUTS: list[Callable[[Path, Path], None]] = [
    to_a_file, to_a_folder, to_nowhere, to_zeros, to_itself, as_a_pipe, as_a_folder,
]  # fmt: skip


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def identity(path: Path) -> tuple[int, str]:
    return path.lstat().st_ino, os.readlink(path) if path.is_symlink() else ""


NAMES = [METRICS_FILE, TEXTS_FILE, STATUS_FILE, STARTS_FILE, BEST_FILE]


@pytest.mark.first(15)
@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("name", NAMES)
def test_what_stands_where_a_new_run_writes_is_refused(
    put: Callable[[Path, Path], None], name: str, tmp_path: Path, theirs: Path
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    put(run_dir / name, theirs)
    was = identity(run_dir / name)
    with pytest.raises(UsageError, match=rf"`{name}` in .* was not written by a run"):
        trainer_of(run_dir).run()
    assert identity(run_dir / name) == was


@pytest.mark.second(11)
@pytest.mark.full
@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("name", [METRICS_FILE, TEXTS_FILE, STATUS_FILE, STARTS_FILE, BEST_FILE, LOCK_FILE])
def test_what_stands_where_a_run_is_resumed(
    put: Callable[[Path, Path], None], name: str, part: Path, theirs: Path, whole: tuple[str, bytes]
) -> None:
    """It is an error; once that is moved, the run resumes, but for rows, which cannot be told apart from lost ones."""
    remove(part / name)
    put(part / name, theirs)
    was = identity(part / name)
    is_opened = name in (METRICS_FILE, TEXTS_FILE, LOCK_FILE)
    foreign = "is (a link; in a run|not a regular file)" if is_opened else "not written by a run"
    with pytest.raises(GraphtrainError, match=f"{name}.* {foreign}"):
        trainer_of(part).run()
    assert identity(part / name) == was
    remove(part / name)
    if name == METRICS_FILE:
        return
    trainer = trainer_of(part)
    assert trainer.run() is Outcome.FINISHED
    assert (trainer.digest(), (part / METRICS_FILE).read_bytes()) == whole


@pytest.mark.full
@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("name", [METRICS_FILE, STATUS_FILE, STARTS_FILE, BEST_FILE])
def test_who_only_reads_a_run_directory_follows_no_link(
    put: Callable[[Path, Path], None], name: str, part: Path, theirs: Path
) -> None:
    remove(part / name)
    put(part / name, theirs)
    was = identity(part / name)
    saved_manifest(part)
    assert Run(part).last_rows() == [] or name != METRICS_FILE
    assert read_starts(part) == [] or name != STARTS_FILE
    if name == STATUS_FILE:
        with pytest.raises(UsageError, match=r"is a link|not a regular file") as caught:
            read_status(part)
        assert "secret" not in str(caught.value)
    else:
        assert read_status(part)["state"] == "stopped"
    from graphtrain.proof.history import RunHistory

    assert len(RunHistory(part, lambda line: None).lineage()) <= 2
    assert identity(part / name) == was


@pytest.mark.second(8)
@pytest.mark.full
@pytest.mark.parametrize("put", PUTS)
@pytest.mark.parametrize("name", ["", MANIFEST_FILE, "progress.msgpack", "model.safetensors"])
def test_what_stands_where_a_checkpoint_is_read(
    put: Callable[[Path, Path], None], name: str, part: Path, theirs: Path, whole: tuple[str, bytes]
) -> None:
    """It is skipped, the older one is reached, and what stands in the place of a checkpoint's folder stays."""
    newest = max((part / "checkpoints").iterdir())
    remove(newest / name)
    put(newest / name, theirs)
    was, said = identity(newest / name), list[str]()
    trainer = trainer_of(part, said)
    assert trainer.run() is Outcome.FINISHED
    assert (trainer.digest(), (part / METRICS_FILE).read_bytes()) == whole
    lines = [line for line in said if newest.name in line and "skipped a damaged checkpoint" in line]
    assert len(lines) == 1 and "secret" not in lines[0]
    if not name:
        assert identity(newest) == was


THEIRS: dict[str, tuple[str, str]] = {
    "rows of another program": (METRICS_FILE, '{"loss": 1}\n'),
    "rows of nothing": (METRICS_FILE, ""),
    "a status of another program": (STATUS_FILE, '{"state": "up"}'),
    "starts of another program": (STARTS_FILE, "mine\n"),
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
    """Names like those of checkpoints and of temporary files; and a lock file with something else in it."""
    folders = ["000000-step-5", "000003-step-2", "999999-step-7", ".000009-step-9.tmp", ".editor.tmp", "notes"]
    files = [".editor.tmp", "status.old.tmp", "best.tmp", ".mine.71.tmp", "notes.txt", "metrics.jsonl.bak"]
    for name in folders:
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        (tmp_path / "checkpoints" / name / "mine").write_text("theirs\n")
    for name in files:
        (tmp_path / name).write_text("theirs\n")
    (tmp_path / LOCK_FILE).write_text("theirs\n")
    trainer = trainer_of(tmp_path, keep=1, keep_best=1)
    trainer.run(until="3 batches")
    again = trainer_of(tmp_path, keep=1, keep_best=1)
    assert again.run() is Outcome.FINISHED
    assert (again.digest(), (tmp_path / METRICS_FILE).read_bytes()) == whole
    checkpoints = {path.name for path in (tmp_path / "checkpoints").iterdir()} - {*folders}
    assert 1 <= len(checkpoints) <= 2, "the newest and the best are kept, whatever else is there"
    paths = [tmp_path / "checkpoints" / name / "mine" for name in folders] + [tmp_path / name for name in files]
    assert {path.read_text() for path in [*paths, tmp_path / LOCK_FILE]} == {"theirs\n"}
    assert trainer_of(tmp_path, keep=1, keep_best=1).run() is Outcome.ALREADY_FINISHED


def test_temporary_files_are_links_of_somebody_else(part: Path, theirs: Path, whole: tuple[str, bytes]) -> None:
    """Of this very process: replaced, not followed."""
    process = os.getpid()
    for name in ("probe", STATUS_FILE, BEST_FILE):
        (part / f".{name}.{process}.tmp").symlink_to(theirs / "file")
    trainer = trainer_of(part)
    trainer.run()
    assert (trainer.digest(), (part / METRICS_FILE).read_bytes()) == whole
    assert not list(part.glob(".*.tmp"))


def test_the_difference_of_the_source_is_not_written_through_a_link(part: Path, theirs: Path) -> None:
    (part / "source-0.diff").symlink_to(theirs / "absent")
    RunFiles(part, print).started({}, {"source-0.diff": "text", "source-1.diff": "other"})
    assert (part / "source-1.diff").read_text() == "other"


# ---- the folder of checkpoints, which may be a link


def test_checkpoints_may_be_a_link_to_a_folder_of_the_same_owner(tmp_path: Path, whole: tuple[str, bytes]) -> None:
    (tmp_path / "large disk").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to("../large disk")
    said: list[str] = []
    trainer_of(tmp_path / "run", said).run(until="2 batches")
    line = f"`checkpoints` in `{tmp_path / 'run'}` is a link to `../large disk`: checkpoints are written there"
    assert said.count(line) == 1
    trainer = trainer_of(tmp_path / "run")
    trainer.run()
    assert (trainer.digest(), (tmp_path / "run" / METRICS_FILE).read_bytes()) == whole
    assert saved_manifest(tmp_path / "run")[0].parent == tmp_path / "run" / "checkpoints"
    with pytest.raises(UsageError, match="leads out of the run directory"):
        Graph.load(tmp_path / "run", contained=True)


def owned_by_another(path: Path, theirs: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    folder = path.parent.parent / "another's"
    folder.mkdir()
    os.chown(folder, 12345, -1)
    path.symlink_to(folder)


@pytest.mark.parametrize(
    ("put", "reason"),
    [
        (to_a_file, "is a link to `.*/theirs/file`, which is not a folder"),
        (to_nowhere, "is a link to `.*/theirs/absent`, which is not a folder"),
        (to_zeros, "is a link to `/dev/zero`, which is not a folder"),
        (to_itself, "is a link to `checkpoints`, which is not a folder"),
        (as_a_pipe, "checkpoints` is not a folder"),
        (owned_by_another, "which belongs to another owner than the run directory"),
    ],
)
def test_what_cannot_be_the_folder_of_checkpoints(
    put: Callable[[Path, Path], None], reason: str, part: Path, theirs: Path
) -> None:
    remove(part / "checkpoints")
    put(part / "checkpoints", theirs)
    was = identity(part / "checkpoints")
    with pytest.raises(UsageError, match=reason) as caught:
        trainer_of(part)
    assert caught.value.hint
    assert identity(part / "checkpoints") == was


# ---- files that are altered


def test_rows_of_any_size_are_not_read(part: Path) -> None:
    """A sparse file, of as many bytes as a forged manifest says."""
    os.truncate(part / METRICS_FILE, 1 << 40)
    for checkpoint in (part / "checkpoints").iterdir():
        seal(checkpoint, {"metrics_bytes": 1 << 40})
    with pytest.raises(UsageError, match=r"metrics\.jsonl does not hold the rows that were written"):
        trainer_of(part).run()
    assert (part / METRICS_FILE).stat().st_size == 1 << 40


@pytest.mark.parametrize("row", ['{"loss": [1]}', '{"loss": {}}', "[1]", "{" * 9999, '{"loss": "x"}', "1"])
def test_rows_that_are_none(row: str, part: Path) -> None:
    file = part / METRICS_FILE
    first = (row + "\n").encode()
    file.write_bytes(first + file.read_bytes())
    with pytest.raises(UsageError, match="does not hold the rows that were written"):
        trainer_of(part).run()
    assert file.read_bytes().startswith(first)


@pytest.mark.full
def test_ten_thousand_folders_of_strangers_are_one_line(part: Path, whole: tuple[str, bytes]) -> None:
    folder, said = part / "checkpoints", list[str]()
    for number in range(10_000):
        (folder / f"{100_000 + number}-step-5").mkdir()
    names = "`109999-step-5`, `109998-step-5`, `109997-step-5` and 9997 more"
    first = f"{folder}/109999-step-5: the manifest cannot be read (No such file or directory)"
    expected = f"skipped 10000 checkpoints in {folder}: {names}; the first: {first}"
    saved_manifest(part, said.append)
    from graphtrain.proof.history import RunHistory

    RunHistory(part, said.append).lineage()
    assert said == [expected] * 2
    said.clear()
    trainer = trainer_of(part, said)
    assert trainer.run() is Outcome.FINISHED
    assert (trainer.digest(), (part / METRICS_FILE).read_bytes()) == whole
    assert [line for line in said if "skipped" in line] == [expected]


def test_a_present_folder_that_no_longer_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(UsageError, match="the current folder no longer exists"):
        trainer_of(Path("run"))
    assert trainer_of(tmp_path / "run").run() is Outcome.FINISHED


@pytest.mark.full
def test_a_status_that_is_forged_is_no_reason_to_fail(part: Path, whole: tuple[str, bytes]) -> None:
    status = json.loads((part / STATUS_FILE).read_text())
    for change in ({"trained": "x"}, {"trained": [1e308, "y"]}, {"rates": {"batches": 10**400}}, {"state": []}):
        (part / STATUS_FILE).write_text(json.dumps({**status, "state": "running", **change}))
        trainer_of(part).advance(0)
    trainer = trainer_of(part)
    trainer.run()
    assert (trainer.digest(), (part / METRICS_FILE).read_bytes()) == whole


def test_a_named_checkpoint_may_be_a_link_of_a_person_and_not_one_in_the_run(part: Path, tmp_path: Path) -> None:
    newest = max((part / "checkpoints").iterdir())
    (tmp_path / "latest").symlink_to(newest)
    assert trainer_of(tmp_path / "fork").run(resume=str(tmp_path / "latest")) is Outcome.FINISHED
    assert Graph.load(tmp_path / "latest") == Graph.load(newest)
    (part / "checkpoints" / "000009-step-1").symlink_to(newest)
    with pytest.raises(CheckpointError, match="000009-step-1 is a link"):
        trainer_of(part).run(resume="000009-step-1")
