"""Promise 17: `graphtrain run --processes` runs several processes as one: signals and exit codes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from graphtrain import UsageError
from graphtrain.ranks import launcher
from graphtrain.ranks.alive import is_alive
from graphtrain.ranks.launcher import launch, launched

WAIT_SECONDS = 120


def codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, count: int = 2, grace: float = 60) -> int:
    """The exit code of a small script that is started several times; it imports nothing that takes time."""
    (tmp_path / "rank.py").write_text("import os, signal, sys, time\nrank = int(os.environ['RANK'])\n" + script)
    monkeypatch.setattr(sys, "orig_argv", ["python", str(tmp_path / "rank.py")])
    monkeypatch.setattr(launcher, "_GRACE_SECONDS", grace)
    return launch(count)


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("", 0),
        ("sys.exit([1, 2][rank])", 2),
        # The other one waits, and is killed after the grace.
        ("os.kill(os.getpid(), signal.SIGKILL) if rank else time.sleep(300)", 1),
        # One has stopped: so does the other, also where it has no handler yet.
        ("sys.exit(75) if rank else time.sleep(300)", 75),
    ],
)
def test_one_exit_code(script: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grace = 0.2 if "SIGKILL" in script else 30  # in which the others end by themselves
    assert codes(tmp_path, monkeypatch, script, grace=grace) == code


class Process:
    """A process that ends by itself after some seconds, or when it is killed, or by the first signal it has no handler
    for; of a clock that the launcher moves.
    """

    def __init__(self, clock: list[float], code: int, seconds: float, *, has_handler: bool = False) -> None:
        self.clock, self.code, self.seconds, self.has_handler = clock, code, seconds, has_handler
        self.returncode: int | None = None
        self.came: list[int] = []

    def poll(self) -> int | None:
        if self.returncode is None and self.clock[0] >= self.seconds:
            self.returncode = self.code
        return self.returncode

    def send_signal(self, number: int) -> None:
        assert self.returncode is None, "its number may be that of another process"
        self.came.append(number)
        if not self.has_handler:
            self.returncode = -number

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        self.returncode = -signal.SIGKILL

    def wait(self) -> None:
        assert self.returncode is not None


LONG, TERM, KILL, HUP = 99.0, int(signal.SIGTERM), int(signal.SIGKILL), int(signal.SIGHUP)
# Of each process the code, the seconds, whether it handles signals; the signal that comes; then the code of all, the
# signals that each gets, and the seconds until all have ended.
ENDS: list[tuple[list[tuple[int, float, bool]], int, int, list[list[int]], float]] = [
    ([(0, 1, False), (0, 2, False)], 0, 0, [[], []], 2),
    ([(0, 1, False), (0, 50, False)], 0, 0, [[], []], 50),
    ([(75, 1, False), (75, LONG, False)], 0, 75, [[], [TERM]], 2),
    ([(75, 1, True), (75, 50, True), (75, 60, True)], 0, 75, [[], [TERM], [TERM]], 60),
    ([(0, 50, False), (75, 1, False)], TERM, 75, [[TERM], [TERM]], 0),
    ([(0, LONG, False), (0, LONG, False)], HUP, 1, [[HUP], [HUP]], 0),
    ([(3, 1, False), (0, LONG, True)], 0, 1, [[], [KILL]], 13),
    ([(3, 1, False), (1, 5, False), (0, 10, False)], 0, 1, [[], [], []], 10),
    ([(3, 1, False), (2, 5, False), (0, LONG, True)], 0, 2, [[], [], [KILL]], 13),
    ([(130, 1, False), (75, 2, False)], 0, 130, [[], []], 2),
]


@pytest.mark.parametrize(("processes", "number", "code", "came", "seconds"), ENDS)
def test_how_all_of_them_end(
    processes: list[tuple[int, float, bool]],
    number: int,
    code: int,
    came: list[list[int]],
    seconds: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten seconds after one has failed, the others are killed; if one has stopped, they are stopped."""
    clock = [0.0]
    monkeypatch.setattr(launcher.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(launcher.time, "sleep", lambda _: clock.__setitem__(0, clock[0] + 1))
    monkeypatch.setattr(launcher, "_GRACE_SECONDS", 10)
    started = launcher._Processes()
    ends = [Process(clock, code, after, has_handler=handles) for code, after, handles in processes]
    started._processes = ends  # type: ignore[assignment]
    if number:
        started.forward(number, None)
    assert started.wait() == code
    assert ([process.came for process in ends], clock[0]) == (came, seconds)


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP"])
def test_signals_go_to_all_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"""
came = []
signal.signal(signal.{name}, lambda *_: came.append(1))
open(f'{tmp_path}/{{rank}}.ready', 'w')
while rank == 0 and not os.path.exists('{tmp_path}/1.ready'):
    time.sleep(0.01)
rank == 0 and os.kill(os.getppid(), signal.{name})
while not came:
    time.sleep(0.01)
time.sleep(0.1)
sys.exit(75 if len(came) == 1 else 1)
"""
    assert codes(tmp_path, monkeypatch, script) == 75


def test_an_ignored_signal_stays_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        script = "os.kill(os.getppid(), signal.SIGHUP), os.kill(os.getpid(), signal.SIGHUP)"
        assert codes(tmp_path, monkeypatch, script) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif(sys.platform != "linux", reason="by prctl")
def test_no_process_outlives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(
        "import os, time\nfrom pathlib import Path\n"
        "Path('ready').mkdir(exist_ok=True)\n"
        "(Path('ready') / str(os.getpid())).touch()\ntime.sleep(300)\n"
    )
    start = "import sys; from graphtrain.ranks import launcher; sys.orig_argv = ['', 'rank.py']; launcher.launch(3)"
    process = subprocess.Popen([sys.executable, "-c", start], cwd=tmp_path)
    ready = tmp_path / "ready"
    wait_for(lambda: ready.exists() and len(list(ready.iterdir())) == 3)
    started = [int(path.name) for path in ready.iterdir()]
    process.kill()
    process.wait()
    wait_for(lambda: not any(map(is_alive, started)))


def wait_for(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.02)


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched(None) is launched(1) is None
    with monkeypatch.context() as patched:
        patched.setattr(launcher, "launch", lambda count: 70 + count)
        assert launched(2) == 72
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(
        UsageError, match="--processes 2: torchrun or another launcher has started this process as one of 4"
    ):
        launched(2)
    monkeypatch.setenv("GRAPHTRAIN_PROCESSES", "4")
    assert launched(4) is None
