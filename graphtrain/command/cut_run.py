"""The process in which `graphtrain verify --cuts` trains: ``python -m graphtrain.command.cut_run REPORT CUTS WORDS``.

It is ``graphtrain run WORDS``, cut after some transitions. REPORT is the file for what is to know of the run, CUTS the
numbers of transitions with commas between them; the copies of the run directory go where the report goes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from graphtrain.command.cli import app
from graphtrain.command.run import RunOptions
from graphtrain.outcome import Outcome
from graphtrain.replay.cuts import CutTraining
from graphtrain.run.trainer import Trainer

MODULE = "graphtrain.command.cut_run"


def main(report: Path, cuts: str) -> None:
    """Train, and cut on the way."""

    def drive(trainer: Trainer, options: RunOptions) -> Outcome:
        assert options.run_dir is not None, "it is the one that is copied"
        numbers = [int(cut) for cut in cuts.split(",") if cut]
        outcome, trained = CutTraining(options.run_dir, numbers, report.parent, options.until).run(trainer)
        report.write_text(trained.to_json(), encoding="utf-8")
        return outcome

    app(prog_name="graphtrain", obj=drive)


if __name__ == "__main__":
    arguments = Path(sys.argv[1]), sys.argv[2]
    sys.argv[:3] = ["graphtrain", "run"]  # which the script may look at
    main(*arguments)
