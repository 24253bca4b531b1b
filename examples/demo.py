"""What `make demo` shows: a run stopped in the middle of an accumulation window goes on, bit for bit.

    python examples/demo.py

Trains the digits three times through the shipped graph `fit`: once at a stretch; once until a SIGTERM that comes inside
a window of four batches, and on from there in a new process. Then compares the two, and draws the loop.
"""

from __future__ import annotations

import functools
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

say = functools.partial(print, flush=True)  # in step with what the runs print
EXAMPLES = Path(__file__).parent
FOLDER = Path("demo")
SETTINGS = ["accumulate.every=4", "finish.after=12 epochs", "checkpoint.every=50 batches", "log.every=25 steps"]
STOPPED = 75


def command(run_dir: Path) -> list[str]:
    script = str(EXAMPLES / "digits.py")
    return [sys.executable, "-m", "graphtrain", "run", script, *SETTINGS, "--run-dir", str(run_dir)]


def status(run_dir: Path) -> dict[str, Any]:
    file = run_dir / "status.json"
    return json.loads(file.read_text()) if file.exists() else {}


def stop_inside_a_window(run_dir: Path) -> None:
    """Start the run, and send it SIGTERM when its status shows an open window; again if the window closed meanwhile."""
    for _ in range(10):
        before = status(run_dir).get("checkpoint")
        with subprocess.Popen(command(run_dir)) as process:
            while process.poll() is None:
                now = status(run_dir)
                if now.get("checkpoint") != before and "window" in now["place"]:
                    process.send_signal(signal.SIGTERM)
                    break
                time.sleep(0.001)
        place = status(run_dir).get("place", "")
        if process.returncode != STOPPED:
            sys.exit(f"demo: expected a stopped run (exit code {STOPPED}), got exit code {process.returncode}")
        say(f"-- stopped by SIGTERM, exit code {process.returncode}: {place}")
        if "window" in place:
            return
    sys.exit("demo: ten stops, and none of them inside a window")


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    say("-- 1. at a stretch")
    subprocess.run(command(FOLDER / "whole"), check=True)
    say("\n-- 2. stopped in the middle of a window of 4 batches")
    stop_inside_a_window(FOLDER / "cut")
    say("\n-- 3. the same command again, in a new process")
    subprocess.run(command(FOLDER / "cut"), check=True)

    digests = {name: status(FOLDER / name)["digest"] for name in ("whole", "cut")}
    say("\n-- 4. compared: weights, optimizer, random numbers, position in the data, progress")
    say(f"   never stopped   {digests['whole']}")
    say(f"   stopped         {digests['cut']}")
    same_metrics = (FOLDER / "whole/metrics.jsonl").read_bytes() == (FOLDER / "cut/metrics.jsonl").read_bytes()
    if digests["whole"] != digests["cut"] or not same_metrics:
        sys.exit("demo: the two runs differ")
    say("   bitwise equal, and so are their metrics files")

    subprocess.run([sys.executable, "-m", "graphtrain", "render", "fit", "-o", str(FOLDER / "fit.svg")], check=True)
    accuracy = status(FOLDER / "cut")["metrics"]["val/accuracy"]
    say(f"""
Validation accuracy {accuracy:.1%}; the loop that did it is drawn in {FOLDER / "fit.svg"}. To try next:
  source .venv/bin/activate
  graphtrain show fit                                  the whole procedure, as text
  graphtrain copy fit my_fit.toml                      a copy to edit
  graphtrain check my_fit.toml                         prove it sane
  graphtrain run examples/digits.py --graph my_fit.toml accumulate.every=4
""")


if __name__ == "__main__":
    main()
