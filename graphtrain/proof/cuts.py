"""Trains with checkpoints at random transitions, between which `verify` then replays the run."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from graphtrain.kind.trigger import Trigger
from graphtrain.outcome import Outcome
from graphtrain.program.breakpoints import at_limit, parse_amount, with_breakpoints
from graphtrain.program.loop import Transition
from graphtrain.program.requests import SavePolicy
from graphtrain.resume.session import Session
from graphtrain.storage.manifest import checkpoint_paths
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER
from graphtrain.trainer.trainer import Trainer


def train_with_cuts(trainer: Trainer, run_dir: Path, kept: Path, number: int, seed: int, until: str | None) -> Outcome:
    """Train, save at random transitions, and link these checkpoints in a folder, where retention does not delete them.

    The number of transitions is not known before, so the n-th is chosen with the probability `number` / n, and replaces
    one of those chosen before (reservoir sampling). Where it is not a save point, the next one is saved.

    Arguments:
        run_dir: the run directory of the trainer.
        kept: the folder.
        number: how many checkpoints to keep.
        until: an amount at which the run stops, as for `Trainer.run`. None: it runs to its end.
    """
    generator, count, is_asked = random.Random(seed), 0, False  # noqa: S311 - no secret

    def keep() -> None:
        newest = checkpoint_paths(run_dir / CHECKPOINTS_FOLDER)[-1]
        if len(cuts := checkpoint_paths(kept)) == number:
            shutil.rmtree(generator.choice(cuts))
        shutil.copytree(newest, kept / newest.name, copy_function=os.link)

    def place(session: Session) -> list[Transition]:
        compiled, requests = session.compiled, session.requests

        def cutting(transition: Transition) -> Transition:
            def keep_and_run() -> int:
                nonlocal count, is_asked
                if is_asked and "save" not in requests:  # it was saved at this position
                    is_asked = False
                    keep()
                position = transition()
                count += 1
                # A save requested by the graph comes first: it may be written in the background.
                if not is_asked and "save" not in requests and generator.random() * count < number:
                    is_asked = True
                    requests.save(SavePolicy("sync"))
                return position

            return keep_and_run

        limit = parse_amount(until, compiled.graph) if until is not None else Trigger("never")
        return [*map(cutting, with_breakpoints(compiled.compiler.transitions, at_limit(compiled, limit), requests))]

    return trainer.run_to(place)
