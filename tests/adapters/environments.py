"""Tests of packages that need other versions than the tests have: each in an environment of its own, `.venv-NAME`."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.shipped import ROOT


def run_elsewhere(name: str, file: str, *packages: str) -> None:
    """Run the rows of a file that have the name of a package, in its environment.

    Arguments:
        packages: what is installed there beside graphtrain, torch and pytest.

    Raises:
        Skipped: there is none.
    """
    python = ROOT / f".venv-{name}" / "bin" / "python"
    if not python.exists():
        pytest.skip(
            f"python3 -m venv .venv-{name} && .venv-{name}/bin/pip install torch==2.13.0 && .venv-{name}/bin/pip "
            f"install --editable . torch==2.13.0 {' '.join(packages)} pytest pytest-xdist hypothesis"
        )
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "sweep", file, "-k", name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-6000:]
