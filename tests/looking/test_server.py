"""Promise 19: what `graphtrain watch` serves: live, on this machine only, and by reading only."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Graph
from tests.looking.conftest import Command
from tests.looking.pages import Get, serving, trainer_of


def read(get: Get, path: str = "/content.json") -> dict[str, Any]:
    return json.loads(get(path)[1])  # type: ignore[no-any-return]


@pytest.fixture
def runs(folder: Path) -> Path:
    trainer_of(folder / "runs" / "one").run()
    trainer_of(folder / "runs" / "two").run(until="2 steps")
    return folder / "runs"


@pytest.mark.full
def test_a_folder_lists_its_runs_and_opens_any(runs: Path) -> None:
    with serving(folder=runs) as (_, get):
        content = read(get)
        assert {run["name"]: run["cells"]["state"] for run in content["runs"]} == {"one": "finished", "two": "stopped"}
        assert (
            content["kind"] == "folder"
            and {"place", "graph", "age", "best", "val/loss"} <= content["runs"][0]["cells"].keys()
        )
        assert [run["name"] for run in read(get, "/content.json?run=two&run=one")["runs"]] == ["two", "one"]
        for name in ("../runs/one", "/etc", "three", "one/checkpoints"):
            assert "there is no run" in read(get, f"/content.json?run={name}")["problem"]


@pytest.mark.full
def test_nobody_else_is_answered_and_nothing_is_written(runs: Path) -> None:
    with serving(runs / "one") as (port, get):
        assert get("/")[0] == 200 and get("/", Host=f"localhost:{port}")[0] == 200
        assert get("/", Host="other.example")[0] == get("/content.json", Host=f"other.example:{port}")[0] == 400
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert get("/content.json", method)[0] == 405
        assert get("/../../etc/passwd")[0] == get("/static/page.js")[0] == 404
        for path in ("/", "/page.js", "/page.css", "/content.json"):
            headers = get(path)[2]
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff" and "access-control-allow-origin" not in headers


@pytest.mark.full
def test_the_page_names_nothing_by_its_root(runs: Path) -> None:
    with serving(runs / "one") as (_, get):
        page, script = get("/")[1], get("/page.js")[1]
    assert 'src="page.js"' in page and 'href="page.css"' in page and "fetch(`content.json" in script
    assert '"/' not in page


@pytest.mark.full
def test_a_change_is_an_event(runs: Path) -> None:
    with serving(runs / "two") as (port, _):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("GET", "/events")
        events = connection.getresponse()
        assert events.readline() == b"data: changed\n"
        trainer_of(runs / "two").run(until="4 steps")
        assert events.readline() == b"\n" and events.readline() == b"data: changed\n", "and not the line of a silence"
        connection.close()


def state_of(content: dict[str, Any]) -> str:
    """The state of the last run, in a list or on its page."""
    run = content["runs"][-1]
    return run["cells"]["state"] if content["kind"] == "folder" else run["condition"]  # type: ignore[no-any-return]


@pytest.mark.first(1)
@pytest.mark.parametrize("in_a_folder", [False, True])
def test_a_run_that_is_killed_is_an_event(in_a_folder: bool, runs: Path, command: Command) -> None:
    """Its status, the last that it has written, says that it is running; it is read by a page that is open."""
    killed = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    status = json.loads((runs / "two" / "status.json").read_text())
    (runs / "two" / "status.json").write_text(json.dumps({**status, "state": "running", "process": killed.pid}))
    shown = {"folder": runs} if in_a_folder else {}
    with serving(*([] if in_a_folder else [runs / "two"]), **shown) as (port, get):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("GET", "/events")
        events = connection.getresponse()
        assert events.readline() == b"data: changed\n" and state_of(read(get)) == "running"
        killed.kill()
        assert events.readline() == b"\n" and events.readline() == b"data: changed\n"
        content = read(get)
        assert state_of(content) == "interrupted" and f"process {killed.pid} is gone" in str(content["runs"][-1])
        killed.wait()
        assert state_of(read(get)) == "interrupted"
        connection.close()
    assert "  interrupted  " in command("ls", str(runs)).out


@pytest.mark.full
def test_a_folder_says_by_what_each_run_ended(tmp_path: Path) -> None:
    early = Graph.load("fit").overlay("early_stop").set("early_stop", patience=1).set("finish", after="9 epochs")
    trainer_of(tmp_path / "diverged", rate=1e12).run()
    trainer_of(tmp_path / "early", early.set("validate", every="1 steps")).run()
    trainer_of(tmp_path / "stopped").run(until="2 steps")
    with serving(folder=tmp_path) as (_, get):
        diverged, ended, stopped = (run["cells"] for run in read(get)["runs"])
    assert diverged["state"].startswith("finished, not finite by step") and diverged["loss"] == "nan"
    assert diverged["why"] == "it reached its end, 2 epochs"
    assert ended["why"].startswith("it ended before 9 epochs: early_stop: val/loss has not improved on 1 in 1 value")
    assert stopped["why"].startswith("it was stopped at ")


@pytest.mark.full
def test_a_port_in_use_or_a_library_that_is_missing_is_named(
    runs: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(runs / "one") as (port, _):
        done = command("watch", str(runs), "--port", str(port))
    assert done.code == 2 and f"port {port} cannot be used" in done.err and "--port 0" in done.err
    for name in [name for name in sys.modules if name.startswith("graphtrain.report.page")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(sys.modules["graphtrain.report"], "page")
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    done = command("watch", str(runs))
    assert done.code == 2 and "pip install '.[watch]'" in done.err
