"""The demo of `make demo`: a run stopped in the middle of an accumulation window resumes bit for bit.

    python examples/demo.py

Trains on the digits with the shipped graph `fit`: once without interruption; once until a SIGTERM in the middle of an
accumulation window of four batches, and from there in a new process. Then compares both runs, and draws the graph.
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

echo = functools.partial(print, flush=True)  # in order with the output of the runs
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
    """Start the run, and send SIGTERM when its status shows an open window; again if the window closed meanwhile."""
    for _ in range(10):
        checkpoint_before = status(run_dir).get("checkpoint")
        with subprocess.Popen(command(run_dir)) as process:
            while process.poll() is None:
                current = status(run_dir)
                if current.get("checkpoint") != checkpoint_before and "window" in current["place"]:
                    process.send_signal(signal.SIGTERM)
                    break
                time.sleep(0.001)
        place = status(run_dir).get("place", "")
        if process.returncode != STOPPED:
            sys.exit(f"demo: expected a stopped run (exit code {STOPPED}), got exit code {process.returncode}")
        echo(f"-- stopped by SIGTERM, exit code {process.returncode}: {place}")
        if "window" in place:
            return
    sys.exit("demo: ten stops, none of them inside an accumulation window")


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    echo("-- 1. without interruption")
    subprocess.run(command(FOLDER / "whole"), check=True)
    echo("\n-- 2. stopped in the middle of an accumulation window of 4 batches")
    stop_inside_a_window(FOLDER / "cut")
    echo("\n-- 3. the same command again, in a new process")
    subprocess.run(command(FOLDER / "cut"), check=True)

    digests = {name: status(FOLDER / name)["digest"] for name in ("whole", "cut")}
    echo("\n-- 4. comparison: weights, optimizer, random numbers, position in the data, progress")
    echo(f"   never stopped   {digests['whole']}")
    echo(f"   stopped         {digests['cut']}")
    same_metrics = (FOLDER / "whole/metrics.jsonl").read_bytes() == (FOLDER / "cut/metrics.jsonl").read_bytes()
    if digests["whole"] != digests["cut"] or not same_metrics:
        sys.exit("demo: the two runs differ")
    echo("   bitwise equal, and so are their metrics files")

    subprocess.run([sys.executable, "-m", "graphtrain", "render", "fit", "-o", str(FOLDER / "fit.svg")], check=True)
    report = [sys.executable, "-m", "graphtrain", "report", str(FOLDER / "cut"), "-o", str(FOLDER / "run.html")]
    subprocess.run(report, check=True)
    accuracy = status(FOLDER / "cut")["metrics"]["val/accuracy"]
    echo(f"""
Validation accuracy {accuracy:.1%}. Open {FOLDER / "run.html"} in a browser: what the run did, node by node, and when;
the graph alone is drawn in {FOLDER / "fit.svg"}. To try next:
  source .venv/bin/activate
  graphtrain show fit                                  the whole procedure, as text
  graphtrain copy fit my_fit.toml                      a copy to edit
  graphtrain check my_fit.toml                         check it before it runs
  graphtrain run examples/digits.py --graph my_fit.toml accumulate.every=4
""")


if __name__ == "__main__":
    main()
