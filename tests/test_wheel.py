"""The wheel, from outside the checkout: one name in site-packages, with everything that the links bring in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.looking.running import TINY

CHECKOUT = Path(__file__).parent.parent
THIRD_PARTY = CHECKOUT / "tests" / "company" / "lookahead"


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
    _install(folder, str(wheel))
    return folder


def _install(folder: Path, *what: str) -> None:
    options = ["--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check", "--target", str(folder)]
    _run(sys.executable, "-m", "pip", "install", *options, *what, cwd=folder)


@pytest.mark.full
def test_one_name_at_the_top(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"graphtrain"}
    assert len(top) == 2
    assert not [name for name in names if "tests/" in name or "test_" in name or name.endswith(".pyc")]


@pytest.mark.full
def test_everything_is_inside(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {"graphtrain/py.typed"}
    for folder in ("nodes", "graphs", "viz"):
        files = (path.relative_to(CHECKOUT) for path in (CHECKOUT / folder).rglob("*.[pt]*") if path.is_file())
        expected |= {f"graphtrain/{path}" for path in files if "__pycache__" not in path.parts}
    assert {"graphtrain/graphs/gallery/gan/gan.toml", "graphtrain/graphs/gallery/gan/gan.py"} < expected
    assert {"graphtrain/graphs/fit.toml", "graphtrain/nodes/clip.py", "graphtrain/viz/dot.py"} < expected
    assert expected <= names, sorted(expected - names)


@pytest.mark.full
def test_it_works_where_no_checkout_is(site: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = (sys.executable, "-m", "graphtrain")
    assert "fit " in _run(*command, "graphs", cwd=tmp_path, env=env)
    _run(*command, "render", "fit", "-o", "x.svg", cwd=tmp_path, env=env)
    assert "<svg" in (tmp_path / "x.svg").read_text()


# What needs torch, in one process; and the package of somebody else, by its names, and beside the loop written by hand.
USE = """
import shlex, sys
import graphtrain, graphtrain.nodes.clip, torch, lookahead_nodes, tiny
from graphtrain import Trainer
from graphtrain.command.cli import main
print(graphtrain.__file__, graphtrain.nodes.clip.__file__, lookahead_nodes.__file__)
def command(words):
    sys.argv[1:] = shlex.split(words)
    try:
        main()
    except SystemExit as leaving:
        assert not leaving.code, (words, leaving.code)
for words in ("nodes", "check fit --overlay ema", "run tiny.py 'finish.after=1 epochs'",
    "graphs", "nodes lookahead", "check fit --overlay lookahead", "check lookahead_sgd",
    "run tiny.py --overlay lookahead lookahead.rate=0.25 'finish.after=1 epochs' --run-dir r --quiet", "status r"):
    command(words)
def resources():
    torch.manual_seed(0)
    return tiny.setup()
def trainer(run_dir=None):
    return Trainer("lookahead_sgd", run_dir=run_dir, display=None, notify=lambda line: None, **resources())
whole = trainer()
whole.run()
given = resources()
model, optimizer = given["model"], given["optimizer"]
slow = [weight.detach().clone() for weight in model.parameters()]
for number, batch in enumerate(2 * given["train_data"], 1):
    given["training_step"](model, batch).backward()
    optimizer.step()
    for old, fast in zip(slow, model.parameters()) if number % 2 == 0 else ():
        fast.data.copy_(old.lerp_(fast.data, 0.5))
    optimizer.zero_grad()
assert all(map(torch.equal, model.parameters(), whole.resources["model"].parameters()))
for cut in (9, 24, 25, 40):
    first = trainer(f"cut-{cut}")
    first.advance(cut)
    first.save()
    second = trainer(f"cut-{cut}")
    second.run()
    assert second.digest() == whole.digest(), cut
print("equal")
"""


@pytest.mark.full
def test_it_trains_there_and_a_package_of_somebody_else_brings_a_kind_a_graph_and_an_overlay(
    site: Path, tmp_path: Path
) -> None:
    """The package is built and installed as its author would, and used from a folder outside of both checkouts."""
    source, installed, project = tmp_path / "source", tmp_path / "installed", tmp_path / "project"
    shutil.copytree(THIRD_PARTY, source)
    installed.mkdir(), project.mkdir()
    _install(installed, "--no-build-isolation", str(source))
    assert {path.name for path in installed.iterdir()} == {"lookahead_nodes", "lookahead_nodes-1.0.dist-info"}
    path = os.pathsep.join([str(site), str(installed)])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    (project / "tiny.py").write_text(TINY)
    files, _, printed = _run(sys.executable, "-W", "error", "-c", USE, cwd=project, env=env).partition("\n")
    folders = (site, site, installed)
    assert all(Path(file).is_relative_to(folder) for file, folder in zip(files.split(), folders, strict=True)), files
    assert "clip " in printed and (project / "runs" / "tiny-001" / "status.json").exists()
    assert "The smallest loop with slow weights" in printed and "Slow weights follow the model" in printed
    assert "Move slow weights a part of the way" in printed and printed.count("no problems") == 3
    assert "finished, graph fit" in printed and printed.endswith("equal\n")
