"""`make simulate MINUTES=10 SEED=...`: lives from one seed after the other, and the least of each that fails."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from tests.simulation.draw import Life
from tests.simulation.live import fails, prepare, shrunk
from tests.simulation.rank_life import RankLife


def drawn(seed: int) -> Life | RankLife:
    """The life of a seed: one in four is of several ranks."""
    return RankLife.drawn(seed) if seed % 4 == 3 else Life.drawn(seed)


def _of_seed(seed: int) -> tuple[int, str | None]:
    return seed, fails(drawn(seed))


def simulate(first: int, seconds: float, most_failures: int = 1) -> tuple[int, dict[int, str]]:
    """Live from a seed on for some seconds, at least one life: how many there were, and what went wrong in which."""
    prepare()  # before the processes are forked
    begin, seed, lives = time.monotonic(), first, 0
    failed: dict[int, str] = {}
    pending: set[Future[tuple[int, str | None]]] = set()
    processors = os.cpu_count() or 1
    with ProcessPoolExecutor(processors, multiprocessing.get_context("fork")) as pool:
        while len(failed) < most_failures:
            while len(pending) < processors and (seed == first or time.monotonic() < begin + seconds):
                pending.add(pool.submit(_of_seed, seed))
                seed += 1
            if not pending:
                break
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for number, reason in (future.result() for future in done):
                lives += 1
                if reason is not None:
                    failed[number] = reason
            if sys.stderr.isatty():
                pace = lives / (time.monotonic() - begin) * 60
                print(f"\r{lives:,} lives, {pace:.0f} a minute", end="", file=sys.stderr)
    return lives, failed


def main() -> int:
    """Print lives a minute, and each seed that fails with the smallest life that does."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="0 lives one life. Default: 10")
    parser.add_argument("--seed", type=int, help="the first one. Default: the time")
    parser.add_argument("--failures", type=int, default=1, help="after so many it ends. Default: 1")
    arguments = parser.parse_args()
    first = time.time_ns() // 1_000_000 if arguments.seed is None else arguments.seed
    begin = time.monotonic()
    lives, failed = simulate(first, 60 * arguments.minutes, arguments.failures)
    pace = lives / (time.monotonic() - begin) * 60
    print(f"{lives:,} lives from SEED={first}, {pace:.0f} a minute, {len(failed)} failed")
    for seed, reason in failed.items():
        print(f"\nSEED={seed}: {reason}")
        life = shrunk(drawn(seed))
        print(f"the least that fails:\n  {life}\n  {fails(life)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
