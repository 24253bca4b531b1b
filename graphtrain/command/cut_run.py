"""The process in which `graphtrain verify --cuts` trains: ``python -m graphtrain.command.cut_run REQUEST``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphtrain.command.failure import exit_on_failure
from graphtrain.command.options import RunOptions

MODULE = "graphtrain.command.cut_run"


@dataclass(frozen=True)
class CutRequest:
    """What to train, and where to cut it.

    Attributes:
        script: ``SCRIPT[:FUNCTION]``.
        settings: as for `graphtrain run`.
        options: the same; with a run directory.
        cuts: after how many transitions.
        copies: the folder for the copies of the run directory.
        report: the file for what is to know of the run.
    """

    script: str
    settings: Sequence[str]
    options: RunOptions
    cuts: Sequence[int]
    copies: Path
    report: Path

    def write(self, path: Path) -> None:
        """Write it to a file, for the process that trains."""
        path.write_text(json.dumps({**vars(self), "options": vars(self.options)}, default=str), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> CutRequest:
        """What `write` has written."""
        plain: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        options = {**plain["options"], "run_dir": Path(plain["options"]["run_dir"])}
        plain |= {"options": RunOptions(**options), "copies": Path(plain["copies"]), "report": Path(plain["report"])}
        return cls(**plain)


def train(request: CutRequest) -> int:
    """Train as `graphtrain run` does, and cut on the way; returns the exit code."""
    from graphtrain.command.run import run_script
    from graphtrain.outcome import Outcome
    from graphtrain.replay.cuts import CutTraining
    from graphtrain.run.trainer import Trainer

    options = request.options
    assert options.run_dir is not None, "it is the one that is copied"
    training = CutTraining(options.run_dir, request.cuts, request.copies, options.until)

    def cut(trainer: Trainer) -> Outcome:
        outcome, trained = training.run(trainer)
        request.report.write_text(trained.to_json(), encoding="utf-8")
        return outcome

    settings = list(request.settings)
    sys.argv = ["graphtrain", "run", request.script, *settings, *options.words()]  # which the script may look at
    return run_script(request.script, settings, options, cut)


if __name__ == "__main__":
    with exit_on_failure():
        code = train(CutRequest.read(Path(sys.argv[1])))
    sys.exit(code)
