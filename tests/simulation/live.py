"""One life is lived, process by process, and its end compared with that of the run to which nothing happened."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from graphtrain import Graph, Outcome, Trainer
from graphtrain.errors import GraphtrainError, LifeCycleError
from graphtrain.kind import DECLARED
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.resume import environment
from graphtrain.storage.run_files import RunFiles
from tests import once
from tests.schedules import Plan
from tests.simulation.disk import KILLED, Disk
from tests.simulation.draw import Event, Life, every_part
from tests.simulation.rank_life import RankLife
from tests.world import rows_of

# What is reported of a process: how it has ended, and what it has come to or said.
End = tuple[str, Any]
NOTHING = Event("nothing", 0)
OWN_KINDS = {name: DECLARED[name] for name in ("jitter", "memory")}  # of which a test of pytest knows nothing
MOST_SECONDS = 60  # of processor time; a process that waits for nothing takes none, and may be given little
MOST_SECONDS_OF_WAITING = 600
_FAILING = ("fail", "full", "raise")
_ELSEWHERE = ("fork", "copy")
_write = os.write  # to files that are not of the disk that fails


class _UsersError(Exception):
    """An error of the user's code."""


def fails(life: Life | RankLife) -> str | None:
    """Live it in a folder of its own; returns what is wrong, or None if it comes to the end that it should.

    Wrong are another end than that of the run that nothing happened to, an error where nothing failed, and one that
    is none of graphtrain's.
    """
    DECLARED.update(OWN_KINDS)
    once.KNOWN.update(OWN_KINDS)
    with _folder() as folder:
        if isinstance(life, Life):
            return _live(life, folder)
        how, reason = in_a_process(lambda: ("lived", life.live(folder / "run")))
        return reason if how == "lived" else f"{how}: {reason}"


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))  # noqa: S108
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def prepare() -> None:
    """Import what lives need, and read what is the same for all of them: else each process of a life does, in 0.3 s."""
    DECLARED.update(OWN_KINDS)
    once.KNOWN.update(OWN_KINDS)
    of_ranks = RankLife(0, Plan(2, 1, 1, True), (2,), 0.0, 0.0, 0.0, "stop", tokens=True)
    with _folder() as folder, suppress(Exception):  # a bug is found by a life
        for number, life in enumerate(every_part()):
            for _ in range(1 if number else 2):  # the second time it is resumed
                _finish(life, folder / str(number), NOTHING, number)
        of_ranks.live(folder / "ranks")
        once.of_tests(environment.provenance)
    once.begin()


def _live(life: Life, folder: Path) -> str | None:
    with suppress(Exception):  # which each process then comes to itself
        _graphs(life)
    how, expected = in_a_process(partial(_finish, life, folder / "whole", NOTHING, 0))
    if how != "finished":
        return f"the run that nothing happens to: {how}: {expected}"
    for number, event in enumerate((*life.events, NOTHING)):
        how, end = in_a_process(partial(_finish, life, folder / "run", event, number))
        if how == "finished":
            if any(past.what == "fork" for past in life.events):  # which has the rows since its beginning
                expected[2] = expected[2][max(0, len(expected[2]) - len(end[2])) :]
            return None if end == expected else f"it ends otherwise: {_difference(end, expected)}"
        if how == "bug" or (how == "refused" and event.what not in _FAILING):
            return f"in the process of {event}: {end}"
    return f"nothing happens to the last process, and it ends by {how}: {end}"


def shrunk(life: Life | RankLife) -> Life | RankLife:
    """A life that still fails, in which nothing can be left out."""
    while smaller := next((other for other in life.smaller() if fails(other)), None):
        life = smaller
    return life


# ---- one process


def in_a_process(act: Callable[[], End]) -> End:
    """What a function returns in a process of its own, or how that process ends."""
    readable, writable = os.pipe()
    sound = {*once.SOUND}
    process = os.fork()
    if not process:
        os.close(readable)
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
        signal.alarm(MOST_SECONDS_OF_WAITING)
        once.start_once(setattr)
        try:
            end = act()
        except BaseException:
            end = "bug", traceback.format_exc()
        with suppress(BaseException):
            os.write(writable, json.dumps((*end, [*once.SOUND - sound])).encode())
        os._exit(0)
    os.close(writable)
    with open(readable, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        return "bug", f"the process was ended by signal {os.WTERMSIG(status)}"
    if os.WEXITSTATUS(status) == KILLED:
        return "killed", ""
    how, end, checked = json.loads(said)
    once.SOUND.update(checked)  # graphs that the next process need not check again
    return how, end


def _finish(life: Life, run_dir: Path, event: Event, number: int) -> End:
    """Train in the process of this number until the event, or to the end."""
    disk = Disk(event.what, event.at, event.seed)
    with _noted_saves(_notes(run_dir)) as note, disk.watched(), _clock(event) as jump:
        try:
            how, end = _train(life, run_dir, event, number, jump)
            if how == "stopped":
                note(end[1])
            return how, end
        except _UsersError:
            return "raised", ""
        except GraphtrainError as error:
            return "refused", f"{type(error).__name__}: {error}"


def _train(life: Life, run_dir: Path, event: Event, number: int, jump: Callable[[], None]) -> End:
    steps, lines = [0], list[str]()

    def happen() -> None:
        steps[0] += 1
        if steps[0] == event.at:
            _happen(event, jump)

    graphs = _graphs(life)
    former = _newest(run_dir)
    if former is not None:
        run_dir = former if event.what not in _ELSEWHERE else run_dir.with_name(f"{run_dir.name}-{number}")
    if event.what == "copy" and former is not None:
        shutil.copytree(former, run_dir)
    graph = Graph.load(former) if former is not None else graphs[0]
    it = life.world(graph, number, is_resumed=former is not None)
    it = it.but(training_step=lambda made: _watched(made["training_step"], happen))
    trainer = it.trainer(run_dir, lines=lines, not_state=["training_step<happen>"])
    if former is not None:
        how: Any = {"from_saved": True} if life.is_set_up_anew else {}
        with suppress(LifeCycleError):  # it was finished
            trainer.advance(0, resume=former / "newest" if event.what == "fork" else "auto", **how)
    resumes = [line for line in lines if line.startswith("resumed ") and "saved before its second batch" not in line]
    inexact = [line for line in resumes if "not exact" in line]
    assert not inexact, inexact
    done, saved = _steps(trainer), _saved_steps(run_dir)
    assert done >= saved, f"{saved} steps were saved, and it resumes after {done}"
    number = max(n for n, other in enumerate(graphs) if other == graph and (n == 0 or life.rewirings[n - 1][0] <= done))
    if event.what in ("cut", *_ELSEWHERE) and trainer.state != "finished":
        return _cut(trainer, event.at, [after for after, *_ in life.rewirings[number:]])
    for after, *_ in life.rewirings[number:]:
        outcome = trainer.run(until=f"{after} steps")
        if outcome is not Outcome.REACHED:
            break
        number += 1
        trainer.rewire(graphs[number])
    else:
        pauses = iter(life.pauses if event is not NOTHING else ())
        while (outcome := trainer.run(until=_batches(next(pauses, None)))) is Outcome.REACHED:
            pass
    if outcome not in (Outcome.FINISHED, Outcome.ALREADY_FINISHED):
        return "stopped", [str(outcome), _steps(trainer)]
    rows = rows_of(run_dir)
    assert len(rows) == len(trainer.metrics), "each row is in the file once"
    # What a clock makes due is saved at other places.
    digest = _weights(trainer) if any(name == "minutes" for name, _ in life.edits) else trainer.digest()
    return "finished", [digest, _steps(trainer), rows]


@lru_cache(1)
def _graphs(life: Life) -> list[Graph]:
    """The graph that it begins with, and those after each rewiring."""
    graphs = [life.graph()]
    for number in range(len(life.rewirings)):
        graphs.append(life.rewired(graphs[-1], number))
    return graphs


def _batches(number: int | None) -> str | None:
    return None if number is None else f"{number} batches"


def _weights(trainer: Trainer) -> str:
    tensors = trainer.resources["model"].state_dict().values()
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()


def _cut(trainer: Trainer, transitions: int, rewired_after: list[int]) -> End:
    for _ in range(transitions):
        if trainer.state == "finished" or _steps(trainer) >= min(rewired_after, default=1 << 30):
            break  # the next process rewires it here
        trainer.advance(1)
    with suppress(GraphtrainError):  # this is not a save point
        trainer.save()
    return "cut", ""


def _steps(trainer: Trainer) -> int:
    return int(trainer.progress.get("step", {}).get("runs", 0))


@contextmanager
def _noted_saves(file: Path) -> Iterator[Callable[[int], None]]:
    """A span in which the steps of the run are noted wherever it has a checkpoint, as its function notes them."""
    descriptor, save = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), RunFiles.keep

    def note(steps: int) -> None:
        _write(descriptor, f"{steps}\n".encode())

    def noted(*arguments: Any, **keywords: Any) -> Any:
        written = save(*arguments, **keywords)
        note(written.manifest.step)
        return written

    RunFiles.keep = noted  # type: ignore[method-assign]
    try:
        yield note
    finally:
        RunFiles.keep = save  # type: ignore[method-assign]
        os.close(descriptor)


def _notes(run_dir: Path) -> Path:
    """Where the saves of a run are noted, and of all that go on with it."""
    return run_dir.parent / f"{run_dir.name.partition('-')[0]}.saved"


def _saved_steps(run_dir: Path) -> int:
    return max(map(int, _notes(run_dir).read_text().split()), default=0)


def _newest(run_dir: Path) -> Path | None:
    """The run directory to go on with: the last one that has a checkpoint."""
    others = sorted(run_dir.parent.glob(f"{run_dir.name}-*"), key=lambda path: int(path.name.partition("-")[2]))
    begun = [path for path in (run_dir, *others) if any((path / "checkpoints").glob("0*"))]
    return begun[-1] if begun else None


def _watched(step: Callable[..., Any], happen: Callable[[], None]) -> Callable[..., Any]:
    """A step function at each call of which something may happen."""

    def watched(model: Any, batch: Any) -> Any:
        happen()
        return step(model, batch)

    return watched


def _happen(event: Event, jump: Callable[[], None]) -> None:
    if event.what == "stop":
        os.kill(os.getpid(), random.Random(event.seed).choice([signal.SIGTERM, signal.SIGINT, signal.SIGUSR1]))
    elif event.what == "kill":
        os._exit(KILLED)
    elif event.what == "raise":
        raise _UsersError
    jump()


@contextmanager
def _clock(event: Event) -> Iterator[Callable[[], None]]:
    """A span in which a call makes the clocks jump, if that is what happens."""
    offset = [0.0]
    seconds = random.Random(event.seed).choice([30.0, 1000.0, 1e5, 1e8])
    wall, monotonic = time.time, time.monotonic

    def jump() -> None:
        offset[0] = {"clock": seconds, "back": -seconds}.get(event.what, 0.0)

    defaults = Stopwatch.__init__.__defaults__
    time.time = lambda: wall() + offset[0]
    Stopwatch.__init__.__defaults__ = (lambda: monotonic() + max(0.0, offset[0]),)
    try:
        yield jump
    finally:
        time.time, Stopwatch.__init__.__defaults__ = wall, defaults


def _difference(end: Any, expected: Any) -> str:
    (digest, steps, rows), (other, others, before) = end, expected
    different = [
        f"row {number} {a}, not {b}" for number, (a, b) in enumerate(zip(rows, before, strict=False)) if a != b
    ]
    counts = f"digest {digest[:4]}, not {other[:4]}, steps {steps}, not {others}, rows {len(rows)}, not {len(before)}"
    return f"{counts}, {different[:1]}"
