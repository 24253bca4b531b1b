"""What a resume reports as changed: code, arguments, data, threads; and the provenance that is kept of a run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from graphtrain.resume import session
from graphtrain.resume.environment import RunEnvironment
from graphtrain.resume.provenance import Provenance, code_changes, provenance
from graphtrain.storage.manifest import Manifest
from tests.command.running import TINY, in_a_process
from tests.trainer.test_rewire import tiny


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text("import helper\n" + TINY)
    (tmp_path / "helper.py").write_text("SIZE = 2\n")
    return tmp_path


def resumed(folder: Path, *words: str) -> str:
    """The line in which the second start reports what it resumes."""
    result = in_a_process("run", "tiny.py", "--run-dir", "r", *words, cwd=folder)
    assert result.code == 0, result.err
    return next(line for line in result.err.splitlines() if line.startswith("resumed"))


def begin(folder: Path, *words: str) -> None:
    done = in_a_process(
        "run", "tiny.py", "--run-dir", "r", "finish.after=6 steps", "--until", "2 steps", *words, cwd=folder
    )
    assert done.code == 0, done.err


def test_nothing_changed(project: Path) -> None:
    begin(project)
    line = resumed(project, "finish.after=6 steps")
    assert line == (
        "resumed r: step 2, epoch 0.50, batch 2/4; repeating nothing; "
        "code, arguments, data, versions, threads unchanged: exact"
    )


def test_each_change_is_named(project: Path) -> None:
    begin(project, "batches=4")
    (project / "helper.py").write_text("SIZE = 3\n")
    line = resumed(project, "finish.after=6 steps", "batches=5")
    assert line.startswith("resumed r: step 2")
    assert line.endswith("changed: helper.py, batches 4 -> 5, train_data (length 4 -> 5)")


@pytest.mark.full
def test_a_default_that_was_changed_is_a_changed_argument(project: Path) -> None:
    begin(project)
    (project / "tiny.py").write_text("import helper\n" + TINY.replace("batches: int = 4", "batches: int = 5"))
    line = resumed(project, "finish.after=6 steps")
    assert line.endswith("changed: tiny.py, batches 4 -> 5, train_data (length 4 -> 5)")


@pytest.mark.full
def test_a_default_that_is_given_is_no_change(project: Path) -> None:
    text = TINY.replace("lr: float = 0.1", "lr: float = 1, make=print, call=lambda: 0")
    (project / "tiny.py").write_text("import helper\n" + text)
    begin(project)
    assert resumed(project, "finish.after=6 steps", "lr=1", "batches=4").endswith("unchanged: exact")


def test_what_is_repeated_is_reported(project: Path) -> None:
    begin(project, "checkpoint.every=never")
    status = json.loads((project / "r" / "status.json").read_text())
    status["trained"] = [status["trained"][0] + 7, status["trained"][1]]
    (project / "r" / "status.json").write_text(json.dumps(status))
    assert "; repeating 7 batches; " in resumed(project, "finish.after=6 steps")


@pytest.mark.full
def test_every_start_is_kept(project: Path) -> None:
    begin(project, "lr=0.25")
    resumed(project, "finish.after=6 steps", "lr=0.25")
    first, second = [json.loads(line) for line in (project / "r" / "starts.jsonl").read_text().splitlines()]
    assert first["about"]["arguments"] == {"lr": "0.25", "batches": "4", "name": "'tiny'"}, "defaults included"
    assert first["about"]["given"] == ["lr"]
    assert "run tiny.py" in first["about"]["command"]
    assert (first["checkpoint"], second["checkpoint"]) == (None, "000001-step-2")
    assert first["environment"]["torch"] == torch.__version__
    assert set(first["origin"]["code"]) == {"tiny.py", "helper.py"}
    assert first["origin"]["difference"] == "", "no git here"


@pytest.mark.full
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_revision_and_what_is_not_committed(project: Path) -> None:
    git = in_git(project)
    git("init", "-q")
    git("add", "tiny.py")
    git("commit", "-qm", "one")
    clean = provenance(project / "tiny.py")
    assert clean.revision == git("rev-parse", "HEAD").strip()
    assert clean.difference == "" and clean.difference_file == ""
    (project / "tiny.py").write_text("import helper\n# changed\n" + TINY)
    changed = provenance(project / "tiny.py")
    assert changed.revision == clean.revision
    assert changed.difference == git("diff", "HEAD") and "+# changed" in changed.difference
    begin(project)
    start = json.loads((project / "r" / "starts.jsonl").read_text())
    kept = (project / "r" / start["origin"]["difference"]).read_text()
    assert kept == changed.difference


def test_without_a_run_directory_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "run_environment", lambda *of_a_run, **flags: pytest.fail("it was"))
    tiny().run()


# ---- data


class Files(Dataset[int]):
    """A data set that notices when it is looked at."""

    opened = 0

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        Files.opened += 1
        return index


def test_a_run_directory_does_not_change_what_a_noisy_data_set_gives(tmp_path: Path) -> None:
    class Noisy(Files):
        def __init__(self) -> None:
            self.generator = torch.Generator().manual_seed(7)

        def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]
            return torch.randn(1, generator=self.generator)

    def digest(run_dir: Path | None) -> str:
        trainer = tiny(train_data=DataLoader(Noisy(), batch_size=3), run_dir=run_dir)
        trainer.run(until="3 batches")
        return trainer.digest()

    assert digest(None) == digest(tmp_path / "r")


# ---- code


@pytest.mark.full
def test_another_script_is_a_change(project: Path) -> None:
    begin(project)
    (project / "second.py").write_text((project / "tiny.py").read_text() + "# another\n")
    result = in_a_process("run", "second.py", "--run-dir", "r", "finish.after=6 steps", cwd=project)
    assert result.code == 0, result.err
    assert "; exact except for what changed: tiny.py -> second.py\n" in result.err


def test_names_of_files_are_those_below_the_script(project: Path) -> None:
    (project / "inner").mkdir()
    for name in ("tiny.py", "helper.py"):
        (project / name).rename(project / "inner" / name)
    script = project / "inner" / "tiny.py"
    alone = provenance(script)
    assert (set(alone.code), alone.script) == ({"tiny.py"}, "tiny.py")
    if shutil.which("git") is not None:
        in_git(project)("init", "-q")
        assert provenance(script).code == alone.code, "in a repository the names are the same"


@pytest.mark.parametrize(
    ("saved", "now", "said"),
    [
        ({"script": "a.py", "code": {"a.py": "1"}}, {"script": "a.py", "code": {"a.py": "1"}}, []),
        ({"script": "a.py", "code": {"a.py": "1"}}, {"script": "a.py", "code": {"a.py": "2"}}, ["a.py"]),
        ({"script": "a.py", "code": {"a.py": "1"}}, {"script": "b.py", "code": {"b.py": "2"}}, ["a.py -> b.py"]),
        ({"script": "a.py", "code": {"a.py": "1"}}, {"script": "", "code": {"c.py": "1"}}, None),
        ({"script": "", "code": {"c.py": "1"}}, {"script": "", "code": {"c.py": "1"}}, None),
        ({"script": "", "code": {"c.py": "1"}}, {"script": "", "code": {"c.py": "2"}}, ["c.py"]),
        ({}, {"script": "a.py", "code": {"a.py": "1"}}, None),
    ],
)
def test_code_is_unchanged_only_where_it_was_compared(saved: Any, now: Any, said: list[str] | None) -> None:
    assert code_changes(saved, now) == said
    here = RunEnvironment(Provenance(now["code"], script=now["script"]), {}, {"threads": 1}, {})
    line = here.compared(Manifest(origin=saved, environment={"threads": 1}))
    expected = {"[]": "code, versions, threads unchanged: exact", "None": "versions, threads unchanged: exact"}
    assert line == expected.get(str(said), f"exact except for what changed: {', '.join(said or [])}")


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="needs a file system that takes any bytes for a name")
def test_names_and_arguments_may_have_any_bytes(project: Path) -> None:
    folder = project / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    for name in ("tiny.py", "helper.py"):
        (project / name).rename(folder / name)
    (folder / os.fsdecode(b"n\xff.py")).write_text("x = 1\n")
    with (folder / "helper.py").open("a") as file:
        file.write("import importlib; importlib.import_module('n\\udcff')\n")
    words = ["run", f"{folder.name}/tiny.py", os.fsdecode(b"name=x\xe9"), "--run-dir", "r"]
    refused = in_a_process(*words[:-1], os.fsdecode(b"r\xe9"), cwd=project)
    assert refused.code == 2 and "is not UTF-8" in refused.err, "safetensors cannot read such a file"
    for until in ("2 steps", "3 steps"):
        result = in_a_process(*words, "--until", until, cwd=project)
        assert result.code == 0, result.err
    assert "code, arguments, data, versions, threads unchanged: exact" in result.err
    start = json.loads((project / words[-1] / "starts.jsonl").read_text().splitlines()[0])
    assert set(start["origin"]["code"]) == {"tiny.py", "helper.py", "n\\udcff.py"}
    assert "caf\\udce9" in start["about"]["command"]


def in_git(folder: Path) -> Callable[..., str]:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout

    return git


@pytest.mark.full
def test_another_seed_is_reported(project: Path) -> None:
    begin(project)
    assert resumed(project, "finish.after=6 steps", "--seed", "3").endswith("seed 0 -> 3")
