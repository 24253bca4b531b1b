"""Loader workers are forked while checkpoints are being written: nobody waits for a lock that nobody will open."""

from __future__ import annotations

from pathlib import Path

from tests.proofs.command_runs import Run

SETTINGS = ("finish.after=40 epochs", "checkpoint.every=2 batches", "checkpoint.if_busy=skip")


def test_workers_start_while_a_slow_disk_is_written_to(tmp_path: Path) -> None:
    """80 workers are forked, nearly each while some checkpoint is under way; a hang would end in a timeout."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "fast").mkdir()
    slow = Run(tmp_path / "slow", (*SETTINGS, "workers=2"))
    fast = Run(tmp_path / "fast", (*SETTINGS, "checkpoint.mode=sync"))
    code, said = slow.finish(FLUSH_SECONDS="0.03", timeout_seconds=150)
    assert code == 0, said
    assert fast.finish()[0] == 0
    assert slow.result == fast.result
    assert slow.unaccounted() == set()
