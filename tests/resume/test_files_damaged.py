"""Promise 12: damaged and forged files are one error that names them, and the newest sound checkpoint is found."""

from __future__ import annotations

import os
import random
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from graphtrain import CheckpointError, Graph, GraphtrainError, Run, UsageError
from tests.resume.files import MANIFEST, PROGRESS, WEIGHTS, checkpoints, flip, forge, run_of, saving

FILES = [MANIFEST, PROGRESS, WEIGHTS, "optimizer.safetensors", "optimizer.msgpack"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    run_of(folder / "run", saving(epochs=2))
    return folder / "run"


@pytest.fixture
def run_dir(kept: Path, tmp_path: Path) -> Path:
    """A run with two checkpoints, in a directory of its own."""
    return shutil.copytree(kept, tmp_path / "run")


def said_by_a_resume(run_dir: Path) -> tuple[int, list[str]]:
    """The step of the checkpoint that a resume has taken, 2 for the sound one, and what it has said."""
    trainer = saving().trainer(run_dir, lines=(lines := list[str]()))
    trainer.advance(0)
    step: int = trainer.progress["step"]["steps"]
    return step, lines


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "flipped": flip,
    "cut": lambda file: os.truncate(file, file.stat().st_size - 1),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"\0"),
    "empty": lambda file: os.truncate(file, 0),
    "gone": Path.unlink,
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.first(7)
@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", FILES[:3])
def test_a_damaged_file_is_named_and_the_older_checkpoint_found(name: str, how: str, run_dir: Path) -> None:
    _, damaged = checkpoints(run_dir)
    DAMAGES[how](damaged / name)
    is_named = name != MANIFEST or how not in ("gone", "a folder")
    if is_named:
        with pytest.raises(CheckpointError) as refused:
            saving().trainer(run_dir).run(resume=damaged.name)
        assert str(damaged) in str(refused.value) and name.partition(".")[0] in str(refused.value)
    found, lines = said_by_a_resume(run_dir)
    assert found == 2
    assert not is_named or any(str(damaged) in line and line.isprintable() for line in lines)


@pytest.mark.full
def test_every_byte_counts(kept: Path, tmp_path: Path) -> None:
    """A changed bit anywhere is found by each reader."""
    chance, path = random.Random(1), checkpoints(kept)[-1]
    copy = shutil.copytree(path, tmp_path / path.name)
    trainer = saving().trainer()
    for name in FILES:
        content = (path / name).read_bytes() if (path / name).exists() else b""
        for _ in range(12 * bool(content)):
            changed = bytearray(content)
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
            (copy / name).write_bytes(changed)
            with pytest.raises(CheckpointError):
                trainer.load(copy) if name in (MANIFEST, WEIGHTS) else saving().trainer().run(resume=copy)
        if content:
            (copy / name).write_bytes(content)
    trainer.load(copy)


def test_a_run_none_of_whose_checkpoints_is_sound_is_not_begun_again(run_dir: Path) -> None:
    for path in checkpoints(run_dir):
        (path / WEIGHTS).unlink()
    with pytest.raises(UsageError, match="holds 2 checkpoints, none of which can be resumed"):
        saving().trainer(run_dir).run()


def manifest_as(content: bytes) -> Callable[[Path], Any]:
    return lambda path: (path / MANIFEST).write_bytes(content)


MADE_SO: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no msgpack": (manifest_as(b"\xc1"), "the manifest is damaged (FormatError)"),
    "another table": (manifest_as(msgpack.packb({"a": 1})), "the manifest is damaged (KeyError)"),
    "no table": (manifest_as(msgpack.packb([])), "the manifest is damaged (TypeError)"),
    "another checksum": (
        manifest_as(msgpack.packb({"sha256": "", "manifest": b""})), "is damaged (it does not match its checksum)",
    ),
    "a later format": (lambda path: forge(path, format=2), "cannot read checkpoints of format 2"),
    "an earlier format": (lambda path: forge(path, format=0), "cannot read checkpoints of format 0"),
    "a format that is text": (lambda path: forge(path, format="1"), "cannot read checkpoints of format 1"),
    "a file outside": (lambda path: forge(path, files={"../outside": [1, "0" * 32]}), "the manifest is damaged"),
    "an absolute file": (lambda path: forge(path, files={"/etc/passwd": [1, "0" * 32]}), "the manifest is damaged"),
    "a hidden file": (lambda path: forge(path, files={".secret": [1, "0" * 32]}), "the manifest is damaged"),
    "no files": (lambda path: forge(path, files=3), "the manifest is damaged"),
    "another size": (
        lambda path: forge(path, files=lambda files: {**files, WEIGHTS: [9, files[WEIGHTS][1]]}), "bytes instead of 9",
    ),
    "another checksum of a file": (
        lambda path: forge(path, files=lambda files: {**files, WEIGHTS: [files[WEIGHTS][0], "0" * 32]}),
        "model.safetensors is damaged: it does not match its checksum",
    ),
    "a file that is not listed": (
        lambda path: forge(path, files=lambda files: {name: files[name] for name in files if name != PROGRESS}),
        f"{PROGRESS} is damaged: KeyError",
    ),
    "a graph of nothing": (lambda path: forge(path, graph="{}"), "its graph cannot be read"),
}  # fmt: skip


@pytest.mark.first(7)
@pytest.mark.parametrize("name", MADE_SO)
def test_a_checkpoint_that_is_made_so_is_refused(name: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a resume, by the loading of weights and by the command; an automatic resume passes over it."""
    damage, message = MADE_SO[name]
    _, path = checkpoints(run_dir)
    damage(path)
    uses: list[Callable[[], Any]] = [lambda: saving().trainer(run_dir).run(resume=path.name)]
    if "graph" in name:
        uses = [lambda: Graph.load(path)]
    elif "not listed" not in name:
        uses += [lambda: saving().trainer().load(path)]
    for use in uses:
        with pytest.raises(UsageError if "format" in name else CheckpointError) as refused:
            use()
        assert str(path) in str(refused.value) and message in str(refused.value)
    monkeypatch.setattr("sys.argv", ["graphtrain", "show", str(path)])
    with pytest.raises(SystemExit) as left:
        runpy.run_module("graphtrain", run_name="__main__")
    assert bool(left.value.code) is ("not listed" not in name)
    if "format" in name:  # sound, and not to be lost silently
        with pytest.raises(UsageError, match="cannot read checkpoints of format"):
            saving().trainer(run_dir).run()
    elif "graph" not in name:
        assert said_by_a_resume(run_dir)[0] == 2


def test_of_a_checkpoint_of_another_run_only_the_manifest_is_read(run_dir: Path) -> None:
    _, other = checkpoints(run_dir)
    forge(other, run="another")
    flip(other / WEIGHTS)
    found, lines = said_by_a_resume(run_dir)
    assert found == 2 and f"skipped {other}: it belongs to another run" in lines


# ---- the files beside


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"step": 1}\n[]\n', "metrics.jsonl:2 is not a row"),
        (b'{"step": 1}\n\xff\n', "metrics.jsonl:2 is not a row"),
        (b'{"step": 1, "loss": null}\n', "metrics.jsonl:1 is not a row that a run has written"),
        (b'{"step": 1, "loss": "low"}\n', "metrics.jsonl:1 is not a row"),
    ],
)
def test_a_row_that_is_damaged_is_named_by_its_line(content: bytes, said: str, run_dir: Path) -> None:
    (run_dir / "metrics.jsonl").write_bytes(content)
    with pytest.raises(UsageError, match=said):
        Run(run_dir).metrics  # noqa: B018 - it is read here


def test_rows_that_were_changed_are_not_cut(run_dir: Path) -> None:
    (run_dir / "metrics.jsonl").write_bytes(b'{"step": 1}\n')
    with pytest.raises(UsageError, match=r"is shorter than when the checkpoint was written: 12 bytes instead of \d+"):
        saving().trainer(run_dir).run(resume=checkpoints(run_dir)[1].name)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda file: (file.unlink(), file.mkdir()), "cannot be read"),
        (lambda file: file.write_bytes(b'{"a": "\xff"}'), "cannot be read"),
        (lambda file: file.write_text("[1]"), "cannot be read"),
    ],
)
def test_a_status_that_cannot_be_read_is_reported(make: Callable[[Path], Any], said: str, run_dir: Path) -> None:
    make(run_dir / "status.json")
    with pytest.raises(GraphtrainError, match=said):
        Run(run_dir).status  # noqa: B018 - it is read here
