"""The pages under docs: everything on them is executed, and the output compared."""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy
import pytest
import torch

from tests.docs.execution import Page, read_blocks
from tests.looking.running import launched
from tests.ranks.processes import launched_ranks

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))

# Pages about libraries that not every environment has.
NEEDS = {"coming-from": ("lightning", "transformers", "accelerate")}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, the current one; changes of the page to this process are undone afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    threads, random_state = (
        torch.get_num_threads(),
        (random.getstate(), numpy.random.get_state(), torch.get_rng_state()),
    )
    if find_spec("graphtrain.command.verifying"):  # as good, without the import of torch in each process
        monkeypatch.setattr("graphtrain.command.verifying.launch", launched)
        # In this process, whose output is what a page shows.
        monkeypatch.setattr("graphtrain.command.verifying.code_of_a_process", lambda call: int(not call()))
    if find_spec("graphtrain.ranks.launcher"):  # a command with `; echo $?` is launched by a shell, as it is
        monkeypatch.setattr("graphtrain.ranks.launcher.launch", launched_ranks)
    # One thread here and in the processes that a page starts: a resume reports another number.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(threads)
    random.setstate(random_state[0])
    numpy.random.set_state(random_state[1])
    torch.set_rng_state(random_state[2])


@pytest.mark.full
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_page_is_so(path: Path, folder: Path) -> None:
    for library in NEEDS.get(path.stem, ()):
        pytest.importorskip(library)
    assert Page(path, folder).execute() == len(read_blocks(path)) > 0
