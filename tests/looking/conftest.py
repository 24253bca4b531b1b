"""The command called in this process, in a folder of its own."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.looking.running import TINY, Result

Command = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, the current one; what scripts leave in this process is gone afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    modules = dict(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - set(modules):
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def tiny(folder: Path) -> Path:
    """A script that trains three weights on four batches, as ``tiny.py`` in the current folder."""
    (folder / "tiny.py").write_text(TINY)
    return folder


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Call the command with arguments, as its entry point does."""

    def call(*words: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["graphtrain", *words])
        capfd.readouterr()
        with pytest.raises(SystemExit) as leaving:
            runpy.run_module("graphtrain", run_name="__main__")
        code = leaving.value.code
        out, err = capfd.readouterr()
        assert isinstance(code, int | None)
        return Result(code or 0, out, err)

    return call
