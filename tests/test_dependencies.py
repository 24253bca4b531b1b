"""The lowest versions that `make test-lowest` installs are the bounds that people are given."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_lowest_versions_are_those_of_pyproject_for_all_but_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = [project["dependencies"], *project["optional-dependencies"].values()]
    bounds = {line.replace(">=", "==") for lines in required for line in lines if not line.startswith("torch>=")}
    lines = (ROOT / "tools" / "constraints-lowest.txt").read_text().splitlines()
    assert {line for line in lines if not line.startswith(("#", "torch=="))} == bounds


def test_nobody_is_told_to_install_a_release_that_there_is_not() -> None:
    folders = [ROOT / "docs", ROOT / "examples", ROOT / "graphtrain" / "report"]
    files = [ROOT / "README.md", *(file for folder in folders for file in folder.glob("*.[mpi]*"))]
    assert [file.name for file in files if "graphtrain[" in file.read_text()] == []
