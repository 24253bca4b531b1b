"""graphtrain itself, cut where the others are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graphtrain import GraphtrainError
from tests.resume.setups import ROWS
from tests.rows import fingerprint
from tests.rows_elsewhere import Killed
from tests.world import rows_of


def train(name: str, folder: Path, cut: int | None = None, resume: bool = False) -> dict[str, Any]:
    """Train a row; the line that a resume reports comes back as `report`."""
    lines: list[str] = []
    trainer = ROWS[name].world().trainer(folder / "run", lines=lines)
    try:
        if cut is not None:
            trainer.run(until=f"{cut} batches")
            raise Killed
        trainer.run()
    except GraphtrainError as error:
        return {"refused": str(error)}
    states = {name: fingerprint(trainer.resources[name].state_dict()) for name in ("model", "optimizer")}
    report = next((line for line in lines if line.startswith("resumed ")), "")
    return {**states, "digest": trainer.digest(), "metrics": rows_of(folder / "run"), "report": report}
