"""The wheel, from outside the checkout: one name in site-packages, with everything that the links bring in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.command.running import TINY

CHECKOUT = Path(__file__).parent.parent


def _run(*words: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what a commit of everything would hold: nothing is left in the checkout."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = _run("git", "-c", "safe.directory=*", "ls-files", "-coz", "--exclude-standard", cwd=CHECKOUT)
    for name in filter(None, listed.split("\0")):
        if os.path.lexists(CHECKOUT / name):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, source / name, follow_symlinks=False)
    assert (source / "graphtrain" / "nodes").is_symlink()
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(source), cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the wheel is installed, and nothing else."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check", "--target", str(folder)]
    _run(sys.executable, "-m", "pip", "install", *options, str(wheel), cwd=folder)
    return folder


def test_one_name_at_the_top(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"graphtrain"}
    assert len(top) == 2
    assert not [name for name in names if "tests/" in name or "test_" in name or name.endswith(".pyc")]


def test_everything_is_inside(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {"graphtrain/py.typed"}
    for folder in ("nodes", "graphs", "graphs/overlays", "viz"):
        expected |= {
            f"graphtrain/{folder}/{path.name}" for path in (CHECKOUT / folder).glob("*.[pt]*") if path.is_file()
        }
    assert {"graphtrain/graphs/fit.toml", "graphtrain/nodes/clip.py", "graphtrain/viz/dot.py"} < expected
    assert expected <= names, sorted(expected - names)


# What needs torch, in one process.
USE = """
import shlex, sys
import graphtrain, graphtrain.nodes.clip
from graphtrain.command import main
print(graphtrain.__file__, graphtrain.nodes.clip.__file__)
for words in ("nodes", "check fit --overlay ema", "run tiny.py 'finish.after=1 epochs'"):
    sys.argv[1:] = shlex.split(words)
    try:
        main()
    except SystemExit as leaving:
        assert not leaving.code, (words, leaving.code)
"""


def test_it_works_where_no_checkout_is(site: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = (sys.executable, "-m", "graphtrain")
    assert "fit " in _run(*command, "graphs", cwd=tmp_path, env=env)
    _run(*command, "render", "fit", "-o", "x.svg", cwd=tmp_path, env=env)
    assert "<svg" in (tmp_path / "x.svg").read_text()
    (tmp_path / "tiny.py").write_text(TINY)
    files, _, printed = _run(sys.executable, "-c", USE, cwd=tmp_path, env=env).partition("\n")
    assert [Path(file).is_relative_to(site) for file in files.split()] == [True, True], files
    assert "clip " in printed and "no problems" in printed
    assert (tmp_path / "runs" / "tiny-001" / "status.json").exists()
