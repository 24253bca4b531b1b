"""Snapshots of a run, with rates, the time left and the memory in use."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import final

import torch

from graphtrain.kind.trigger import Term, Trigger
from graphtrain.report.snapshot import Snapshot
from graphtrain.resume.session import Session

# Rates are averaged over this much training; shorter averages jitter, longer ones hide a change.
_RATE_SECONDS = 10.0
_SAMPLE_SECONDS = 0.5
# A rate over less time would be noise.
_LEAST_SECONDS = 0.02


@final
class Observer:
    """Makes snapshots of a run."""

    def __init__(self, session: Session) -> None:
        self._session, self._watch = session, session.watch
        self._until = Trigger("never")
        self._samples: deque[tuple[float, dict[str, int]]] = deque()
        self._started = 0.0
        self._shares_at_start: dict[Term, float] = {}

    def begin(self, until: Trigger | None) -> None:
        """The run starts or continues in this process, until an amount is reached."""
        self._until = until or Trigger("never")
        self._samples.clear()
        self._rates(self._watch.seconds())
        self._started = self._watch.running()
        self._shares_at_start = self._session.compiled.run_clock.shares(self._until)

    def snapshot(self, state: str, position: str) -> Snapshot:
        """The run as it is now, in a state and at the path of a node."""
        session, run_clock = self._session, self._session.compiled.run_clock
        seconds, elapsed, shares = self._watch.seconds(), self._watch.running(), run_clock.shares(self._until)
        steps, epochs, batch = map(run_clock.count, ("steps", "epochs", "epoch_batches"))
        # Until the first end, at the average pace since the run was started or continued.
        here, before = elapsed - self._started, self._shares_at_start
        moved = [(share, share - before[term]) for term, share in shares.items() if share > before.get(term, share)]
        left = [here * (1 - share) / made for share, made in moved]
        name, fetched, batches = run_clock.evaluation(session.loop.position) or (None, None, None)
        return Snapshot(
            state=state,
            graph=session.compiled.graph.title,
            position=position,
            step=int(steps) if steps is not None else None,
            epoch=float(epochs) if epochs is not None else None,
            clocks=run_clock.outer_counts(),
            end=tuple(map(str, run_clock.shown_ends)),
            done=max([shares[term] for term in run_clock.ends if term in shares], default=None),
            until=tuple(map(str, self._until.terms)),
            until_done=max([shares[term] for term in self._until.terms if term in shares], default=None),
            batch=int(batch) if batch is not None else None,
            epoch_batches=run_clock.epoch_length(),
            evaluation=name,
            evaluation_batch=fetched,
            evaluation_batches=batches,
            window=run_clock.window(),
            metrics=dict(session.recorder.latest),
            metric_steps={name: session.recorder.steps[name] for name in session.recorder.latest},
            rates=self._rates(seconds),
            elapsed_seconds=elapsed,
            seconds_left=min(left, default=None) if here >= _SAMPLE_SECONDS else None,
            memory_bytes=_memory_bytes(session.device),
            device=str(session.device),
            seconds=seconds,
        )

    def _rates(self, seconds: dict[str, float]) -> dict[str, float]:
        """Counts per second of training and fetching its data; evaluating and saving do not count."""
        spent = seconds.get("train", 0.0) + seconds.get("data", 0.0)
        samples, counts = self._samples, self._session.compiled.run_clock.counts()
        before = samples[-1][1] if samples else counts
        if counts.keys() != before.keys() or [unit for unit in before if counts[unit] < before[unit]]:
            samples.clear()  # another graph trains, or the same one from the start
        if not samples or spent - samples[-1][0] >= _SAMPLE_SECONDS:
            samples.append((spent, counts))
            while len(samples) > 2 and spent - samples[1][0] >= _RATE_SECONDS:
                samples.popleft()
        since, before = samples[0]
        span = spent - since
        return {unit: (count - before[unit]) / span for unit, count in counts.items()} if span >= _LEAST_SECONDS else {}


def _memory_bytes(device: torch.device) -> int | None:
    """Memory in use on a device: allocated by torch on CUDA, resident in this process on a host; None if not known."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None  # not Linux
