"""Ranks that are processes on this host, over gloo."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_SECONDS = 300
KILLED = "killed"  # a rank that has neither returned nor raised
TINY = '''\
"""A model of three weights and a list of batches."""

import os
import time
import torch

def training_step(model, batch, batch_index):
    return model(batch).square().mean()

def setup(lr: float = 0.1, batches: int = 4):
    model = torch.nn.Linear(2, 1)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=lr),
        "train_data": [torch.randn(2, 2) for _ in range(batches)],
        "training_step": training_step,
    }
'''
# Forked from a server with these imports: small, and with no state of a run to lean on.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed.fsdp", "torch.profiler", "tests.world", __name__])


@dataclass(frozen=True)
class Ended:
    """What one process of a command left behind."""

    code: int
    out: str
    err: str


def run_processes(
    world_size: int, function: Callable[..., Any], *arguments: Any, seconds: float = _SECONDS
) -> list[Any]:
    """What a function returns in each of these ranks; it is named by its module, and called with the arguments.

    Raises:
        AssertionError: one of them has raised, or has not ended within these seconds.
    """
    results = []
    for rank, (is_returned, result) in enumerate(outcomes_of(world_size, function, *arguments, seconds=seconds)):
        assert is_returned, f"rank {rank}: {result}"
        results.append(result)
    return results


def outcomes_of(
    world_size: int, function: Callable[..., Any], *arguments: Any, seconds: float = _SECONDS
) -> list[tuple[bool, Any]]:
    """Whether the function has returned in each of these ranks, with what; else what it has raised, as text.

    Raises:
        AssertionError: one of them has not ended within these seconds.
    """
    variables = _variables(world_size)
    receivers, processes = [], []
    for rank in range(world_size):
        receiver, sender = _CONTEXT.Pipe(duplex=False)
        own = {**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        process = _CONTEXT.Process(target=_run, args=(sender, own, function, arguments), daemon=True)
        process.start()
        sender.close()
        receivers.append(receiver)
        processes.append(process)
    outcomes = []
    for rank, receiver in enumerate(receivers):
        assert receiver.poll(seconds), f"rank {rank} does not end"
        try:
            outcomes.append(receiver.recv())
        except EOFError:
            outcomes.append((False, KILLED))
    for process in processes:
        process.join(seconds)
    return outcomes


def run_command(world_size: int, *words: str, cwd: Path, **variables: str) -> list[Ended]:
    """Do what ``graphtrain WORDS`` does in each of these ranks, as torchrun starts them; what each has printed."""
    given = {**os.environ, **_variables(world_size), **variables, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    given |= {"LOCAL_WORLD_SIZE": str(world_size)}
    with tempfile.TemporaryDirectory() as printed:
        processes = []
        for rank in range(world_size):
            own = {**given, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            arguments = (words, str(cwd), own, f"{printed}/{rank}")
            processes.append(_CONTEXT.Process(target=_command, args=arguments, daemon=True))
            processes[-1].start()
        ended = []
        for rank, process in enumerate(processes):
            process.join(_SECONDS)
            texts = [Path(f"{printed}/{rank}.{name}").read_text() for name in ("out", "err")]
            assert process.exitcode is not None, f"rank {rank} does not end: {texts}"
            ended.append(Ended(process.exitcode, *texts))
    return ended


def launched_ranks(count: int) -> int:
    """In the place of `launcher.launch`: ranks that find torch imported, in the current folder."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GRAPHTRAIN_PROCESSES", str(count))
        results = run_command(count, *sys.argv[1:], cwd=Path.cwd())
    print(*(result.err + result.out for result in results), sep="", end="")
    return max(result.code for result in results)


def _variables(world_size: int) -> dict[str, str]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = int(listening.getsockname()[1])
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world_size)}


def _run(sender: Any, variables: dict[str, str], function: Callable[..., Any], arguments: Any) -> None:
    os.environ.update(variables)
    try:
        sender.send((True, function(*arguments)))
    except BaseException:
        sender.send((False, traceback.format_exc()))


def _command(words: tuple[str, ...], cwd: str, variables: dict[str, str], printed: str) -> None:
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(cwd)
    for descriptor, name in ((1, "out"), (2, "err")):
        with open(f"{printed}.{name}", "wb") as file:
            os.dup2(file.fileno(), descriptor)
    sys.argv = sys.orig_argv = ["graphtrain", *words]
    code: Any = 0
    try:
        runpy.run_module("graphtrain", run_name="__main__")
    except SystemExit as leaving:
        code = leaving.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    atexit._run_exitfuncs()  # as an interpreter that ends: the rank with the store waits for the others
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    sys.exit(code)
