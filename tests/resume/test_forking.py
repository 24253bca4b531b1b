"""Loader workers are forked while checkpoints are being written: nobody waits for a lock that nobody will open."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.resume.command_runs import Run

SETTINGS = ("checkpoint.every=2 batches",)


@pytest.mark.sweep
@pytest.mark.parametrize("epochs", [12, pytest.param(40, marks=pytest.mark.sweep)])
def test_workers_start_while_a_slow_disk_is_written_to(epochs: int, tmp_path: Path) -> None:
    """Two workers an epoch are forked, nearly each while a checkpoint is under way; a hang would end in a timeout."""
    settings = (*SETTINGS, f"finish.after={epochs} epochs")
    (tmp_path / "slow").mkdir()
    (tmp_path / "fast").mkdir()
    slow = Run(tmp_path / "slow", (*settings, "workers=2"))
    fast = Run(tmp_path / "fast", (*settings, "checkpoint.mode=sync"))
    code, said = slow.finish(FLUSH_SECONDS="0.03", timeout_seconds=300)
    assert code == 0, said
    assert fast.finish()[0] == 0
    assert slow.result == fast.result
    assert slow.unaccounted() == set()
