"""A LightningModule trains here as Lightning trains it, bit for bit, and is resumed from everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning")


from tests.adapters import peer
from tests.adapters.modules import CASES

pytestmark = pytest.mark.filterwarnings("ignore")

# What costs no Lightning Trainer, and most of the adapter: run with every commit.
FIRST = ("validated", "hooks", "a GAN")

# Lightning's own Trainer is imported with everything that it needs: seconds.
EVERY = pytest.mark.parametrize("name", CASES)


def same(first: Any, second: Any) -> bool:
    """True if two states are equal, bit for bit."""
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(value, second[key]) for key, value in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


def series(rows: list[tuple[int, dict[str, float]]]) -> dict[str, list[float]]:
    """The values of each metric, in order."""
    values: dict[str, list[float]] = {}
    for _, row in rows:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    return values


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.full
@EVERY
def test_it_trains_as_lightning_does(name: str) -> None:
    expected = peer.by_lightning(CASES[name])
    trainer = peer.trainer_of(CASES[name])
    trainer.run()
    actual = peer.result_of(trainer)
    assert same(actual.weights, expected.weights)
    assert same(actual.optimizers, expected.optimizers)
    logged = series(actual.rows)
    assert {name: logged.get(name) for name in series(expected.rows)} == series(expected.rows)


def cut(name: str, places: int, folder: Path) -> None:
    """Compare a run with those that are cut at as many places and resumed."""
    whole = peer.trainer_of(CASES[name])
    transitions = 0
    while whole.position != "end":
        whole.advance()
        transitions += 1
    for number in range(places):
        where = 1 + (number * transitions + transitions // 3) // places
        run_dir = folder / f"{number}"
        first = peer.trainer_of(CASES[name], run_dir)
        first.advance(where)
        first.save()
        second = peer.trainer_of(CASES[name], run_dir)
        second.run()
        assert second.digest() == whole.digest(), f"cut before {first.position}"
        assert same(peer.result_of(second).weights, peer.result_of(whole).weights)
        assert series(peer.result_of(second).rows) == series(peer.result_of(whole).rows)


@pytest.mark.full
@EVERY
def test_it_is_resumed_from_everywhere(name: str, tmp_path: Path) -> None:
    cut(name, 6, tmp_path)


@pytest.mark.parametrize("name", FIRST)
def test_it_is_resumed_from_somewhere(name: str, tmp_path: Path) -> None:
    cut(name, 1, tmp_path)
