"""Small runs that pages are made of, what is in a page, and a server of this process."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Graph, Trainer
from graphtrain.command.runs import next_steps
from tests.world import World, small_fit, world

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

import torch
import uvicorn

from graphtrain.report.page.server import Watched, application, listening

Get = Callable[..., tuple[int, str, dict[str, str]]]
HOSTILE = "<img src=x onerror=alert(1)>"
ENDING = "</script><script>alert(2)</script>\u202e"


def procedure() -> Graph:
    return small_fit(save_every="1 epochs", validate_every="1 epochs", clip=None)


def page_world(graph: Graph | None = None, rate: float = 0.1) -> World:
    return world(
        graph or procedure(),
        model=lambda: torch.nn.Linear(2, 1),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate),
        scheduler="none",
        data=lambda: [torch.ones(2, 2)] * 7,
        val_data=lambda: [torch.ones(2, 2)] * 3,
        training_step=lambda model, batch: {"loss": (model(batch) - 1).square().mean(), HOSTILE: 1.0},
        validation_step=lambda: lambda model, batch: {"loss": 1.0, ENDING: 2.0},
    )


def trainer_of(run_dir: Path, graph: Graph | None = None, rate: float = 0.1, **options: Any) -> Trainer:
    return page_world(graph, rate).trainer(run_dir, **options)


def content_in(page: Path) -> dict[str, Any]:
    """What the page of a report shows."""
    (content,) = re.findall(r'id="content">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    return dict(json.loads(content))


@contextlib.contextmanager
def serving(*runs: Path, folder: Path | None = None, port: int = 0) -> Iterator[tuple[int, Get]]:
    """What `graphtrain watch` serves, and how to ask for it."""
    watched = Watched(next_steps, [*runs], folder)
    with listening(port) as opened:
        port = opened.getsockname()[1]
        config = uvicorn.Config(application(watched), log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
        thread.start()

        def get(path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
            return answer.status, text, {name.lower(): value for name, value in answer.getheaders()}

        try:
            yield port, get
        finally:
            server.should_exit = True
            thread.join()
            with warnings.catch_warnings(action="ignore"):  # a browser's connection that the loop has ended around
                gc.collect()
