"""The page, served live to browsers on this machine; it reads files, and writes none."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from graphtrain.errors import GraphtrainError, UsageError
from graphtrain.plain import json_value
from graphtrain.printable import printable
from graphtrain.report.page.content import NextSteps, content_of_runs, measured
from graphtrain.report.page.document import SCRIPTS, STYLES, asset, served
from graphtrain.report.run import Run, as_of_now, run_directories
from graphtrain.storage.run_directory import ACTIVE, STATUS_FILE

LOOPBACK = "127.0.0.1"
SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_OF_SILENCE = 15.0  # then a line is sent, by which a connection that is gone is noticed
_HOSTS = [LOOPBACK, "localhost"]
_FILES = (STATUS_FILE, "metrics.jsonl", "nodes.jsonl", "starts.jsonl")


@dataclass
class Watched:
    """What a server shows: runs, or a folder of runs.

    Arguments:
        next_steps: returns the commands to continue a run with, and what each does.
        runs: run directories that are shown beside each other. Default: none.
        folder: a folder whose runs are listed, each of which can be opened. Default: none.
    """

    next_steps: NextSteps
    runs: Sequence[Path] = ()
    folder: Path | None = None

    def content(self, names: Sequence[str]) -> dict[str, Any]:
        """What the page shows now.

        Arguments:
            names: runs of the folder, as it lists them; empty for the first page.

        Raises:
            GraphtrainError: it cannot be read.
        """
        if self.folder is not None and not names:
            return {"kind": "folder", "name": printable(str(self.folder)), "runs": [*self._listed(self.folder)]}
        return {"kind": "runs", **content_of_runs(self._chosen(names), self.next_steps)}

    def signature(self, names: Sequence[str]) -> tuple[Any, ...]:
        """A value that changes when a file that is shown is written, or the process of a run ends."""
        if self.folder is not None and not names:
            return tuple((run, _written(run / STATUS_FILE), _state(run)) for run in run_directories(self.folder))
        return tuple((_state(run), *(_written(run / name) for name in _FILES)) for run in self._chosen(names))

    def _chosen(self, names: Sequence[str]) -> list[Path]:
        if self.folder is None:
            return [*self.runs]
        known = {_name(run, self.folder): run for run in run_directories(self.folder)}
        for name in names:
            if name not in known:
                raise UsageError(f"there is no run `{printable(name)}` in `{self.folder}`")
        return [known[name] for name in names]

    def _listed(self, folder: Path) -> Iterator[dict[str, Any]]:
        """The runs, with the columns of ``graphtrain ls``."""
        for path in run_directories(folder):
            with contextlib.suppress(GraphtrainError):  # removed since, or damaged
                run = Run(path)
                snapshot = run.snapshot()
                cells = {
                    "state": printable(run.condition),
                    "why": "" if run.state in ACTIVE else _why(path, _written(path / STATUS_FILE), run.state),
                    "place": run.place,
                    "graph": printable(snapshot.graph),
                    "age": run.age_seconds,
                    "resumable": run.resumable,
                    "best": run.best.get("best", {}).get("value"),
                    **measured(run),
                }
                yield {"name": _name(path, folder), "cells": json_value(cells)}


def _name(run: Path, folder: Path) -> str:
    return printable(run.relative_to(folder).as_posix())


def _state(run: Path) -> Any:
    """The state of a run now; its status is read again where it was written since."""
    return as_of_now(_read_status(run, _written(run / STATUS_FILE))).get("state")


@functools.lru_cache(maxsize=1000)
def _read_status(run: Path, written: tuple[int, int]) -> dict[str, Any]:
    with contextlib.suppress(GraphtrainError):  # removed since, or damaged
        return Run(run).status
    return {}


@functools.lru_cache(maxsize=1000)
def _why(run: Path, written: tuple[int, int], state: str) -> str:
    """The first sentence of why a run ended, for which a checkpoint may have to be read."""
    return next(Run(run).why(), "")


def _written(file: Path) -> tuple[int, int]:
    try:
        about = file.stat()
    except OSError:
        return 0, 0
    return about.st_mtime_ns, about.st_size


def application(watched: Watched) -> Starlette:
    """The application, which answers nothing but GET and HEAD, and only under names of this machine."""
    document, policy = served()
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-store",
    }

    def page(request: Request) -> Response:
        return HTMLResponse(document, headers=headers)

    def content(request: Request) -> Response:
        try:
            shown = watched.content(request.query_params.getlist("run"))
        except GraphtrainError as error:
            shown = {"problem": printable(str(error))}
        return JSONResponse(shown, headers=headers)

    def file(name: str, request: Request) -> Response:
        media_type = "text/css" if name in STYLES else "text/javascript"
        return PlainTextResponse(asset(name), media_type=media_type, headers=headers)

    async def events(request: Request) -> Response:
        changes = _changes(request, watched, request.query_params.getlist("run"))
        return StreamingResponse(changes, media_type="text/event-stream", headers=headers)

    routes = [Route("/", page), Route("/content.json", content), Route("/events", events)]
    routes += [Route(f"/{name}", functools.partial(file, name), name=name) for name in (*STYLES, *SCRIPTS)]
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS)])


async def _changes(request: Request, watched: Watched, names: list[str]) -> AsyncIterator[str]:
    """An event at the start, and after each change; a comment after a long silence."""
    before: Any = None
    silence = 0.0
    while not await request.is_disconnected():
        try:
            now: Any = await asyncio.to_thread(watched.signature, names)
        except GraphtrainError as error:
            now = str(error)
        if now != before:
            before, silence = now, 0.0
            yield "data: changed\n\n"
        elif silence > _SECONDS_OF_SILENCE:
            silence = 0.0
            yield ": nothing new\n\n"
        await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
        silence += SECONDS_BETWEEN_LOOKS


@contextlib.contextmanager
def listening(port: int) -> Iterator[socket.socket]:
    """A socket on the loopback, closed at the end; a UsageError if the port is in use, or not allowed."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind((LOOPBACK, port))
            opened.listen(128)
        except (OSError, OverflowError) as error:
            why = f"port {port} cannot be used: {getattr(error, 'strerror', None) or error}"
            raise UsageError(why, "--port 0 takes a free one") from error
        yield opened


def serve(watched: Watched, port: int, announce: Callable[[int], None]) -> None:
    """Serve the page until an interrupt.

    Arguments:
        port: on the loopback; 0 takes a free one.
        announce: is called with the port when browsers can connect.

    Raises:
        UsageError: the port is in use, or not allowed.
    """
    with listening(port) as opened:
        announce(opened.getsockname()[1])
        config = uvicorn.Config(application(watched), log_level="error", timeout_graceful_shutdown=1)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[opened])
