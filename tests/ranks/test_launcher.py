"""`graphtrain run --processes`: several processes as one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from graphtrain.alive import is_alive
from graphtrain.command import training
from graphtrain.data.loaders import RankLocal
from graphtrain.errors import UsageError
from graphtrain.ranks import launcher
from graphtrain.ranks.launcher import launch, launched
from graphtrain.storage.run_directory import read_status
from tests.command.running import SLOW, TINY, Result, environment
from tests.docs.blocks import read_blocks
from tests.ranks.processes import run_command

WAIT_SECONDS = 120


def codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, count: int = 2, grace: float = 60) -> int:
    """The exit code of a small script that is started several times; it imports nothing that takes time."""
    (tmp_path / "rank.py").write_text("import os, signal, sys, time\nrank = int(os.environ['RANK'])\n" + script)
    monkeypatch.setattr(launcher, "_command", lambda: [str(tmp_path / "rank.py")])
    return launch(count, grace)


@pytest.mark.second(5)
@pytest.mark.full
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("", 0),
        ("sys.exit(75)", 75),
        ("sys.exit([0, 75][rank])", 75),
        ("sys.exit([1, 2][rank])", 2),
        ("sys.exit([130, 1][rank])", 130),
        # The other one waits, and is killed after the grace.
        ("os.kill(os.getpid(), signal.SIGKILL) if rank else time.sleep(300)", 1),
        ("sys.exit(3) if rank == 0 else time.sleep(300)", 1),
        # One has stopped: so does the other, also where it has no handler yet.
        ("sys.exit(75) if rank else time.sleep(300)", 75),
    ],
)
def test_one_exit_code(script: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert codes(tmp_path, monkeypatch, script, grace=0.2) == code


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
    started = launcher._Processes([], len(processes))
    ends = [Process(clock, code, after, has_handler=handles) for code, after, handles in processes]
    started._processes = ends  # type: ignore[assignment]
    if number:
        started.forward(number, None)
    assert started.wait(10) == code
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
    start = "import graphtrain.ranks.launcher as launcher; launcher._command = lambda: ['rank.py']; launcher.launch(3)"
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
    assert [sys.orig_argv[0], *launcher._command()] == sys.orig_argv
    for count in (0, -2):
        with pytest.raises(UsageError) as refused:
            launched(count)
        assert str(refused.value) == (
            f"--processes: expected an integer of at least 1, got {count}\n  hint: leave it out to train in one process"
        )
    with monkeypatch.context() as patched:
        patched.setattr(launcher, "launch", lambda count: 70 + count)
        assert launched(2) == 72
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError) as refused:
        launched(2)
    assert str(refused.value) == (
        "--processes 2: this process is one of 4, which torchrun or another launcher has started\n"
        "  hint: leave --processes out; torchrun --nproc-per-node sets their number"
    )
    monkeypatch.setenv("GRAPHTRAIN_PROCESSES", "4")
    assert launched(4) is None


def at_rank_1(in_step: str = "pass", in_setup: str = "pass") -> str:
    """A script of which rank 1 does something, in the step of the fourth batch of the run or in `setup`."""
    text = "import os\n" + TINY.replace(
        "def training_step(model, batch):", "def training_step(model, batch, batch_index):"
    )
    condition = 'os.environ.get("RANK") == "1"'
    text = text.replace(
        "    return model(", f"    if batch_index == 3 and {condition}:\n        {in_step}\n    return model("
    )
    return text.replace("    model = ", f"    if {condition}:\n        {in_setup}\n    model = ")


@pytest.mark.full
def test_an_exception_on_one_rank_of_a_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(at_rank_1(in_step='raise ValueError("a bad batch")'))
    first, second = run_command(2, "run", "train.py", cwd=tmp_path)
    assert first.code == second.code == 1
    assert second.err.startswith("Traceback") and second.err.count("\n") < 10
    assert "ValueError: a bad batch\non rank 1\nraised in node `train_batch` (step 1, epoch 1, batch 4/4)" in second.err
    assert first.err.count("error: ") == first.err.count("graph fit") == first.err.count("`validate` does not run") == 1
    assert "error: rank 1 failed in `train_batch` at step 1, epoch 1, batch 4/4: ValueError: a bad batch\n" in first.err
    assert (
        "run directory: runs/train-001; resume with: graphtrain run train.py --processes 2 --run-dir runs/train-001\n"
        in first.err
    )
    folder = tmp_path / "runs" / "train-001"
    assert '"state": "failed"' in (folder / "status.json").read_text()
    assert len((folder / "starts.jsonl").read_text().splitlines()) == 1
    assert not (folder / "checkpoints").exists()


@pytest.mark.sweep
def test_a_signal_to_one_rank_stops_all_with_one_checkpoint(tmp_path: Path) -> None:
    def command(*words: str) -> Result:
        return run_command(1, *words, cwd=tmp_path)[0]

    (tmp_path / "train.py").write_text(at_rank_1(in_step="os.kill(os.getpid(), 10)"))
    words = ["run", "train.py", "finish.after=3 epochs", "checkpoint.every=never", "--run-dir", "r"]
    first, second = run_command(2, *words, cwd=tmp_path)
    assert first.code == second.code == 75, (first, second)
    assert second.err == "" and first.err.count("stopped on request; run again to resume: r  digest") == 1
    assert len(list((tmp_path / "r" / "checkpoints").iterdir())) == 1
    assert command("status", "r", "--exit-code").code == 75
    assert command("status", "r").code == 0
    resumed = command(*words)
    assert resumed.code == 0 and "the run is finished: r  digest" in resumed.err, resumed
    assert command("status", "r", "--exit-code").code == 0
    assert "folder of runs" in command("status", ".", "--exit-code").err


def slurm_scripts() -> list[str]:
    page = Path(__file__).parents[2] / "docs" / "scale.md"
    return [block.text for block in read_blocks(page) if block.language == "bash" and "#SBATCH" in block.text]


@pytest.mark.parametrize("code", [0, 75, 1])
@pytest.mark.parametrize("number", range(2))
def test_batch_scripts_exit_as_the_run_does_and_are_queued_again(number: int, code: int, tmp_path: Path) -> None:
    """With stand-ins for the commands of Slurm, torchrun and graphtrain."""
    stand_ins = {
        "srun": 'SLURM_PROCID=3 SLURM_LOCALID=1 exec "$@"',
        "scontrol": "printf 'node7\\nnode8\\n'",
        "sbatch": 'echo sbatch "$@" >> calls',
        "torchrun": 'echo torchrun "$@" >> calls; exit 1',
        "graphtrain": f'echo "$RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR" graphtrain "$@" >> calls; exit {code}',
    }
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "job.sh").write_text(slurm_scripts()[number])
    slurm = {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "5", "SLURM_NTASKS": "16"}
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "job.sh"], cwd=tmp_path, env={**os.environ, **slurm, "PATH": path}, check=False)
    assert done.returncode == code
    calls = (tmp_path / "calls").read_text().splitlines()
    assert ("sbatch job.sh" in calls) is (code == 75)
    expected = [
        "    graphtrain run train.py --processes 8 --run-dir runs/first",
        "torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint node7:29500 --rdzv-id 5 "
        "--signals-to-handle SIGTERM,SIGINT,SIGUSR1 --shutdown-timeout 240 -m graphtrain run train.py "
        "--run-dir runs/first",
    ][number]
    assert calls[0].strip() == expected.strip()


def test_a_stop_with_restarts_left_is_no_failure_to_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not training._restarts_left()
    for most, so_far, is_left in (("0", "0", False), ("2", "0", True), ("2", "1", True), ("2", "2", False)):
        monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", most)
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", so_far)
        assert training._restarts_left() is is_left


KILLED = (
    "import os, random, threading\n"
    + SLOW
    + """
def kill_some_time():
    attempt, rank = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "9")), os.environ.get("RANK")
    if attempt < 4 and rank == str(attempt % 2):
        seconds = random.Random(attempt + SEED).uniform(0, 1)
        threading.Timer(seconds, os.kill, [os.getpid(), 9]).start()

def setup():
    kill_some_time()
    return resources()
"""
).replace("def setup(", "def resources(", 1)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(3))
def test_ranks_that_are_killed_at_any_moment_come_to_the_end_of_a_run_that_is_not(seed: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(KILLED.replace("SEED", str(seed)))
    words = ["run", "train.py", "finish.after=8 epochs", "checkpoint.every=2 steps", "--run-dir"]
    assert all(rank.code == 0 for rank in run_command(2, *words, "whole", cwd=tmp_path))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "--max-restarts", "4", "-m", "graphtrain", *words, "killed"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "killed" / "starts.jsonl").read_text().splitlines()) > 1
    whole, killed = (read_status(tmp_path / name) for name in ("whole", "killed"))
    assert whole["state"] == killed["state"] == "finished"
    assert whole["digest"] == killed["digest"]


def test_more_processes_than_micro_batches_are_refused() -> None:
    with pytest.raises(UsageError) as refused:
        training.refuse_idle_ranks([1, 2, 3], 4)
    assert str(refused.value) == (
        "an epoch of `train_data` has 3 micro-batches, and there are 4 processes: 1 of them would never get one\n"
        "  hint: start 3 at most, or make the batches smaller"
    )
    for data in ([1, 2, 3, 4], [], iter([1]), RankLocal([1]), {"a": [1], "b": [2]}, None):
        training.refuse_idle_ranks(data, 4)


@pytest.mark.full
def test_the_digest_on_the_screen_is_that_of_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TINY)
    first, _ = run_command(2, "run", "train.py", "finish.after=1 epochs", "--run-dir", "r", cwd=tmp_path)
    assert f"r  digest {read_status(tmp_path / 'r')['digest'][:16]}" in first.err, first
