"""The server: live, on this machine only, and by reading only."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

import uvicorn

import graphtrain.page
from graphtrain import Graph
from graphtrain.command.listing import run_directories
from graphtrain.page.server import Watched, application, listening
from tests.looking.small_runs import command, trainer_of

Get = Callable[..., tuple[int, str, dict[str, str]]]


@contextlib.contextmanager
def serving(watched: Watched, port: int = 0) -> Iterator[tuple[int, Get]]:
    with listening(port) as opened:
        port = opened.getsockname()[1]
        config = uvicorn.Config(application(watched), log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
        thread.start()

        def get(path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
            return answer.status, text, dict(answer.getheaders())

        try:
            yield port, get
        finally:
            server.should_exit = True
            thread.join()


def read(get: Get, path: str = "/content.json") -> dict[str, Any]:
    return json.loads(get(path)[1])  # type: ignore[no-any-return]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    trainer_of(tmp_path / "runs" / "one").run()
    trainer_of(tmp_path / "runs" / "two").run(until="2 steps")
    return tmp_path / "runs"


def test_a_folder_lists_its_runs_and_opens_any(folder: Path) -> None:
    with serving(Watched(folder=folder, runs_in=run_directories)) as (_, get):
        content = read(get)
        assert {run["name"]: run["state"] for run in content["runs"]} == {"one": "finished", "two": "stopped"}
        assert content["kind"] == "folder" and "val/loss" in content["runs"][0]["measured"]
        assert [run["name"] for run in read(get, "/content.json?run=two&run=one")["runs"]] == ["two", "one"]
        for name in ("../runs/one", "/etc", "three", "one/checkpoints"):
            assert "there is no run" in read(get, f"/content.json?run={name}")["problem"]


def test_nobody_else_is_answered_and_nothing_is_written(folder: Path) -> None:
    with serving(Watched(runs=[folder / "one"])) as (port, get):
        assert get("/")[0] == 200 and get("/", Host=f"localhost:{port}")[0] == 200
        assert get("/", Host="other.example")[0] == get("/content.json", Host=f"other.example:{port}")[0] == 400
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert get("/content.json", method)[0] == 405
        assert get("/../../etc/passwd")[0] == get("/static/page.js")[0] == 404
        for path in ("/", "/page.js", "/page.css", "/content.json"):
            headers = {name.lower(): value for name, value in get(path)[2].items()}
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff" and "access-control-allow-origin" not in headers


def test_the_page_names_nothing_by_its_root(folder: Path) -> None:
    with serving(Watched(runs=[folder / "one"])) as (_, get):
        page, script = get("/")[1], get("/page.js")[1]
    assert 'src="page.js"' in page and 'href="page.css"' in page and "fetch(`content.json" in script
    assert '"/' not in page


def test_a_change_is_an_event(folder: Path) -> None:
    with serving(Watched(runs=[folder / "two"])) as (port, _):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/events")
        events = connection.getresponse()
        assert events.readline() == b"data: changed\n"
        begin = time.monotonic()
        trainer_of(folder / "two").run(until="4 steps")
        assert events.readline() == b"\n" and events.readline() == b"data: changed\n"
        assert time.monotonic() - begin < 10
        connection.close()


def state_of(content: dict[str, Any]) -> str:
    """The state of the last run, in a list or on its page."""
    run = content["runs"][-1]
    return run["state"] if content["kind"] == "folder" else run["condition"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("in_a_folder", [False, True])
def test_a_run_that_is_killed_is_an_event(in_a_folder: bool, folder: Path) -> None:
    """Its status, the last that it has written, says that it is running; it is read by a page that is open."""
    killed = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    status = json.loads((folder / "two" / "status.json").read_text())
    (folder / "two" / "status.json").write_text(json.dumps({**status, "state": "running", "process": killed.pid}))
    watched = Watched(folder=folder, runs_in=run_directories) if in_a_folder else Watched(runs=[folder / "two"])
    with serving(watched) as (port, get):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/events")
        events = connection.getresponse()
        assert events.readline() == b"data: changed\n" and state_of(read(get)) == "running"
        killed.kill()
        assert events.readline() == b"\n" and events.readline() == b"data: changed\n"
        content = read(get)
        assert state_of(content) == "interrupted" and f"process {killed.pid} is gone" in str(content["runs"][-1]["why"])
        killed.wait()
        assert state_of(read(get)) == "interrupted"
        connection.close()
    assert "  interrupted  " in command("ls", str(folder)).stdout


def test_a_folder_says_by_what_each_run_ended(tmp_path: Path) -> None:
    early = Graph.load("fit").overlay("early_stop").set("early_stop", patience=1).set("finish", after="9 epochs")
    trainer_of(tmp_path / "diverged", rate=1e12).run()
    trainer_of(tmp_path / "early", early.set("validate", every="1 steps")).run()
    trainer_of(tmp_path / "stopped").run(until="2 steps")
    with serving(Watched(folder=tmp_path, runs_in=run_directories)) as (_, get):
        diverged, ended, stopped = read(get)["runs"]
    assert diverged["state"].startswith("finished, not finite since step") and diverged["measured"]["loss"] == "nan"
    assert diverged["why"] == "it reached its end, 2 epochs"
    assert ended["why"].startswith("it ended before 9 epochs: early_stop: val/loss has not improved on 1 in 1 value")
    assert stopped["why"].startswith("it was stopped at ")


def test_a_port_in_use_is_named(folder: Path) -> None:
    with listening(0) as opened:
        port = opened.getsockname()[1]
        done = command("watch", str(folder), "--port", str(port))
    assert done.exit_code == 2 and f"port {port} cannot be used" in done.stderr and "--port 0" in done.stderr


def test_without_its_libraries_it_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "graphtrain.page.server")
    monkeypatch.delattr(graphtrain.page, "server")
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    done = command("watch", str(folder))
    assert done.exit_code == 2 and "served by starlette, which" in done.stderr
    assert "pip install starlette uvicorn" in done.stderr
