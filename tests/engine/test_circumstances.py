"""What a resume says has changed: code, arguments, data, threads; and what is kept of where a run comes from."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from graphtrain import Loader
from graphtrain.data.fingerprint import data_changes, fingerprint
from graphtrain.engine import trainer
from graphtrain.engine.origin import origin
from tests.command.running import TINY, in_a_process
from tests.engine.test_rewire import tiny


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text("import helper\n" + TINY)
    (tmp_path / "helper.py").write_text("SIZE = 2\n")
    return tmp_path


def resumed(folder: Path, *words: str) -> str:
    """The line in which the second start says what it goes on with."""
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
        "resumed r: step 2, epoch 0.50, batch 2/4; repeating nothing; code, data, versions, threads unchanged: exact"
    )


def test_each_change_is_named(project: Path) -> None:
    begin(project, "batches=4")
    (project / "helper.py").write_text("SIZE = 3\n")
    line = resumed(project, "finish.after=6 steps", "batches=5")
    assert line.startswith("resumed r: step 2")
    assert line.endswith("changed: helper.py, batches 4 -> 5, train_data (length 4 -> 5)")


def test_what_is_repeated_is_said(project: Path) -> None:
    begin(project, "checkpoint.every=never")
    status = json.loads((project / "r" / "status.json").read_text())
    status["trained"] = [status["trained"][0] + 7, status["trained"][1] + 41.2]
    (project / "r" / "status.json").write_text(json.dumps(status))
    assert "; repeating 7 batches, 41 s; " in resumed(project, "finish.after=6 steps")


def test_every_start_is_kept(project: Path) -> None:
    begin(project, "lr=0.25")
    resumed(project, "finish.after=6 steps", "lr=0.25")
    first, second = [json.loads(line) for line in (project / "r" / "starts.jsonl").read_text().splitlines()]
    assert first["about"]["arguments"] == {"lr": "0.25"}
    assert "run tiny.py" in first["about"]["command"]
    assert (first["checkpoint"], second["checkpoint"]) == (None, "000001-step-2")
    assert first["environment"]["torch"] == torch.__version__
    assert set(first["origin"]["code"]) == {"tiny.py", "helper.py"}
    kept = (project / "r" / first["origin"]["difference"]).read_text()
    assert "+++ b/helper.py" in kept and "+SIZE = 2" in kept, "no git here: the whole code"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_revision_and_what_is_not_committed(project: Path) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        return subprocess.run(
            ["git", *identity, *words], cwd=project, check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    git("add", "tiny.py")
    git("commit", "-qm", "one")
    clean = origin(project / "tiny.py")
    assert clean.revision == git("rev-parse", "HEAD").strip()
    assert clean.difference == "" and clean.difference_file == ""
    (project / "tiny.py").write_text("import helper\n# changed\n" + TINY)
    changed = origin(project / "tiny.py")
    assert changed.revision == clean.revision
    assert "+# changed" in changed.difference and "helper.py" not in changed.difference, "it is not loaded here"
    begin(project)
    start = json.loads((project / "r" / "starts.jsonl").read_text())
    kept = (project / "r" / start["origin"]["difference"]).read_text()
    assert "+# changed" in kept and "+++ b/helper.py" in kept, "loaded, and unknown to git"


def test_without_a_run_directory_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "circumstances", lambda *of_a_run, **flags: pytest.fail("it was"))
    tiny().run()


# ---- data


class Files(Dataset[int]):
    """A data set that must not be opened before its workers are forked."""

    opened = 0

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        Files.opened += 1
        return index


def test_data_is_told_apart() -> None:
    ones, twos = TensorDataset(torch.ones(8, 2)), TensorDataset(torch.full((8, 2), 2.0))
    same = [fingerprint(Loader(ones, 2)), fingerprint(Loader(TensorDataset(torch.ones(8, 2)), 2, shuffle=True))]
    assert same[0] == same[1] and same[0]["hash"]
    assert data_changes({"d": same[0]}, {"d": fingerprint(Loader(twos, 2))}) == ["d (its samples)"]
    assert data_changes({"d": same[0]}, {"d": fingerprint(Loader(ones, 4))}) == ["d (length 4 -> 2)"]
    longer = TensorDataset(torch.ones(9, 2))
    assert data_changes({"d": same[0]}, {"d": fingerprint(DataLoader(longer, 2, drop_last=True))}) == [
        "d (samples 8 -> 9)"
    ]
    assert data_changes({}, {"d": same[0]}) == []


def test_random_augmentation_is_no_change_and_leaves_no_trace() -> None:
    class Augmented(Files):
        def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]
            return torch.randn(2) + index

    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first, second = fingerprint(Loader(Augmented())), fingerprint(Loader(Augmented()))
    assert first == second and first["hash"]
    assert torch.equal(torch.rand(1), expected)


def test_what_workers_read_is_not_read_here() -> None:
    Files.opened = 0
    assert fingerprint(Loader(Files(), num_workers=1))["samples"] == 9
    assert fingerprint(DataLoader(Files(), num_workers=1))["hash"] == ""
    assert Files.opened == 0
    assert fingerprint(Loader(Files()))["hash"] and Files.opened > 0


def test_data_that_answers_differently_each_time_has_a_length_only() -> None:
    class Moody(Files):
        def __getitem__(self, index: int) -> int:
            Files.opened += 1
            return Files.opened

    assert fingerprint(Loader(Moody()))["hash"] == ""


def test_data_that_fails_when_it_is_looked_at_is_left_to_the_run() -> None:
    class Failing(Files):
        def __getitem__(self, index: int) -> int:
            raise RuntimeError("only inside the loader")

    assert fingerprint(Loader(Failing())) == {"length": 9, "samples": 9, "hash": ""}
