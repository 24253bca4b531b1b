"""graphtrain itself, cut where the others are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graphtrain.errors import GraphtrainError
from tests.state.peers.setup import Killed
from tests.state.setups.cutting import result_of, trainer_of
from tests.state.setups.table import ROWS


def train(name: str, folder: Path, cut: int | None = None, resume: bool = False) -> dict[str, Any]:
    """Train a row; the line that a resume reports comes back as `report`."""
    lines: list[str] = []
    trainer = trainer_of(ROWS[name], folder / "run", lines)
    try:
        if cut is not None:
            trainer.run(until=f"{cut} batches")
            raise Killed
        trainer.run()
    except GraphtrainError as error:
        return {"refused": str(error)}
    report = next((line for line in lines if line.startswith("resumed ")), "")
    return {**result_of(trainer, folder / "run"), "report": report}
