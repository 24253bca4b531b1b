"""Ranks that are processes on this host, over gloo."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.command.forked import nursery
from tests.command.running import Result, environment
from tests.forkserver import CONTEXT

_SECONDS = 120
KILLED = "killed"  # a rank that has neither returned nor raised


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
    port = _free_port()
    receivers, processes = [], []
    for rank in range(world_size):
        receiver, sender = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_run, args=(sender, rank, world_size, port, function, arguments), daemon=True)
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


def run_command(world_size: int, *words: str, cwd: Path) -> list[Result]:
    """Do what ``graphtrain WORDS`` does in each of these ranks, as torchrun starts them; what each has printed."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(world_size)}
    started = [
        nursery().start(
            ["-m", "graphtrain", *words],
            cwd,
            {
                **environment(),
                **address,
                "LOCAL_WORLD_SIZE": str(world_size),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
            },
        )
        for rank in range(world_size)
    ]
    codes = [process.wait(_SECONDS) for process in started]
    return [Result(code, *process.communicate()) for code, process in zip(codes, started, strict=True)]


def launched_ranks(count: int) -> int:
    """In the place of `launcher.launch`: ranks that find torch imported, in the current folder."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GRAPHTRAIN_PROCESSES", str(count))
        results = run_command(count, *sys.argv[1:], cwd=Path.cwd())
    print(*(result.err + result.out for result in results), sep="", end="")
    return max(result.code for result in results)


def _run(sender: Any, rank: int, world_size: int, port: int, function: Callable[..., Any], arguments: Any) -> None:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size), **address})
    try:
        sender.send((True, function(*arguments)))
    except BaseException:
        sender.send((False, traceback.format_exc()))


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
