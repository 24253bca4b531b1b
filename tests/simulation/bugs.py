"""`make bugs`: bugs are put into a copy of the source, one after the other; how long until a simulated life fails?"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
BUGS = Path(__file__).with_suffix(".toml")
MOST_MINUTES = 10
_LIVE = """
import json, sys
from tests.simulation.__main__ import simulate
print(json.dumps(simulate(*json.loads(sys.argv[1]))))
"""


def bugs() -> dict[str, dict[str, str]]:
    """Name -> the `file`, the text that is there (`old`), and what stands there instead (`new`)."""
    return tomllib.loads(BUGS.read_text(encoding="utf-8"))


def copied(root: Path, folder: Path) -> Path:
    """A copy of a checkout, without its history and what it has installed, in a folder."""
    left = shutil.ignore_patterns(".git", ".venv*", "__pycache__")
    return Path(shutil.copytree(root, folder / "copy", symlinks=True, ignore=left)).resolve()


def lives_until_found(root: Path, seed: int) -> tuple[int, str]:
    """How many lives there are in a copy of the source until one fails, and how; the text is empty if none does."""
    arguments = json.dumps([seed, 60 * MOST_MINUTES])
    environment = {**os.environ, "PYTHONPATH": str(root)}
    run = subprocess.run(
        [sys.executable, "-c", _LIVE, arguments], cwd=root, env=environment, capture_output=True, text=True
    )
    if run.returncode:
        raise RuntimeError(run.stderr)
    lives, failed = json.loads(run.stdout)
    return lives, next(iter(failed.values()), "")


def main() -> int:
    """Print a table: bug, lives and seconds until it was found, what was seen."""
    parser = argparse.ArgumentParser(prog="make bugs", description=__doc__)
    parser.add_argument("names", nargs="*", help="words in the names of bugs. Default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the first life. Default: 0")
    arguments = parser.parse_args()
    missed = 0
    for name, bug in bugs().items():
        if arguments.names and not any(word in name for word in arguments.names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            root = copied(ROOT, Path(folder))
            file = root / bug["file"]
            file.write_text(file.read_text("utf-8").replace(bug["old"], bug["new"]), "utf-8")
            begin = time.monotonic()
            lives, reason = lives_until_found(root, arguments.seed)
        missed += not reason
        last = reason.strip().splitlines()[-1][:100] if reason else "not found"
        print(f"| {name} | {lives} | {time.monotonic() - begin:.0f} | {last} |", flush=True)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
