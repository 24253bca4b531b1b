"""Promise 19: the page in a real browser: it shows what the run did, by mouse and keys, and asks for nothing.

    make browser

Skipped where there is no Chromium: `apt-get install chromium`, and `pip install playwright`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Run
from tests.looking.conftest import Command
from tests.looking.pages import procedure, serving, trainer_of

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright, and apt-get install chromium")
MILLISECONDS = 120_000
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium, or set CHROMIUM"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Page:
    """A page of the browser, with what it has said and asked for."""

    def __init__(self, browser: Any, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": 1300, "height": 900}, color_scheme=scheme)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: self.said.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()  # type: ignore[no-any-return]

    def counts(self) -> dict[str, str]:
        """What the picture shows at each node and edge."""
        script = """() => Object.fromEntries([...document.querySelectorAll("#picture [data-what]")].map((group) =>
            [JSON.parse(group.dataset.what).node ?? JSON.parse(group.dataset.what).edge,
             (group.querySelector("text.count")?.textContent ?? "").replace(/[^0-9]/g, "")]))"""
        return self.page.evaluate(script)  # type: ignore[no-any-return]

    def wait_for(self, selector: str, text: str) -> None:
        script = "([selector, text]) => document.querySelector(selector)?.textContent.includes(text)"
        self.page.wait_for_function(script, arg=[selector, text], timeout=MILLISECONDS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    trainer_of(folder / "one").run()
    trainer_of(folder / "two", procedure().set("clip", max_norm=0.5), rate=0.01).run()
    return folder


def test_a_report(browser: Any, runs: Path, folder: Path, command: Command) -> None:
    file = folder / "run.html"
    assert command("report", str(runs / "one"), "-o", "run.html").code == 0
    shown = Page(browser)
    shown.page.goto(file.as_uri())
    moments = [*Run(runs / "one").activity]

    def expected(moment: int) -> dict[str, str]:
        runs, taken = moments[moment]["runs"], moments[moment]["taken"]
        nodes = {name: str(count) for name, count in runs.items()}
        nodes |= dict.fromkeys(("clip", "exchange", "schedule"), "")  # the picture says "bypassed"
        return {**nodes, **{name: str(count) for name, count in taken.items()}}

    assert shown.counts() == expected(-1)
    shown.page.keyboard.press("ArrowLeft")
    shown.page.keyboard.press("ArrowLeft")
    assert shown.counts() == expected(-3) != expected(-1)
    assert f"row {moments[-3]['rows']} of" in shown.text("#moment")
    shown.page.locator("#slider").fill("0")
    assert shown.counts() == expected(0)

    heat = "() => [...document.querySelectorAll('#picture .node')].map((node) => node.getAttribute('class')).join(' ')"
    assert "heat10" in shown.page.evaluate(heat)
    shown.page.keyboard.press("h")
    shown.page.keyboard.press("h")
    assert "heat" not in shown.page.evaluate(heat)
    shown.page.keyboard.press("f")
    assert "validate/eval_batch" not in shown.counts() and "validate" in shown.counts()

    paper = "() => getComputedStyle(document.body).backgroundColor"
    light = shown.page.evaluate(paper)
    shown.page.emulate_media(color_scheme="dark")
    assert shown.page.evaluate(paper) != light
    shown.page.set_viewport_size({"width": 1400, "height": 900})
    shown.page.keyboard.press("f")
    whole = """() => { const box = document.querySelector("#picture");
        return box.scrollWidth <= box.clientWidth && box.scrollHeight <= box.clientHeight }"""
    for key in ("f", "f", "-", "0"):  # folded, unfolded, smaller, fitted
        assert shown.page.evaluate(whole), "the graph begins with a part outside its box"
        shown.page.keyboard.press(key)
    height = "() => Math.min(...[...document.querySelectorAll('#picture text')].map((text) => text.textContent.trim()"
    height += " ? parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a : 99))"
    before = shown.page.evaluate(height)
    shown.page.keyboard.press("+")
    assert shown.page.evaluate(height) > 1.2 * before
    shown.page.set_viewport_size({"width": 500, "height": 700})
    shown.page.wait_for_function("() => document.documentElement.scrollWidth <= 500", timeout=MILLISECONDS)
    assert shown.said == [] and shown.asked == [file.as_uri()]


def test_what_is_clicked_is_explained(browser: Any, runs: Path, folder: Path, command: Command) -> None:
    shown = Page(browser, "dark")
    assert command("report", str(runs / "one"), "-o", "run.html").code == 0
    shown.page.goto((folder / "run.html").as_uri())
    for what, words in (
        ({"edge": "accumulate -> exchange if accumulation_reached"}, ["accumulation_reached", "accumulate.count"]),
        ({"node": "accumulate"}, ["runs", "every = 2"]),
    ):
        chosen = shown.page.locator(f"[data-what={json.dumps(json.dumps(what, separators=(',', ':')))}]")
        chosen.focus()
        chosen.press("Enter")
        for word in words:
            assert word in shown.text("#detail")
    assert "graphtrain replay" not in shown.text("#facts")
    shown.page.keyboard.press("ArrowLeft")
    copied = shown.text("#facts")
    assert "graphtrain replay" in copied and "--to '" in copied and "<img src=x" in shown.text("#plots")
    assert shown.said == []


def test_a_list_is_sorted_and_filtered_and_two_of_it_compared(browser: Any, runs: Path) -> None:
    shown = Page(browser)
    with serving(folder=runs) as (port, _):
        shown.page.goto(f"http://127.0.0.1:{port}/")
        shown.wait_for("table", "finished")
        names = lambda: shown.page.locator("td a").all_inner_texts()  # noqa: E731
        for sign in ("▲", "▼"):
            shown.page.locator("th button", has_text="run").first.click()
            assert names() == (["one", "two"] if sign == "▲" else ["two", "one"]) and sign in shown.text("table")
        assert {"state", "place", "graph", "age"} <= {*shown.text("tr:first-child").replace("\t", "\n").split("\n")}
        shown.page.locator("#filter").fill("two")
        assert names() == ["two"]
        shown.page.goto(f"http://127.0.0.1:{port}/?run=one&run=two")
        shown.wait_for("h1", "one ↔ two")
        assert "~ clip" in shown.text("#difference") and "~ clip.max_norm inf -> 0.5" in shown.text("#detail")
        for row in ("one\t\nfinished", "two\t\nfinished", "clip.max_norm\toptimizer.lr", "val/loss"):
            assert row in shown.text("#why")
        shown.page.get_by_text("difference of the graphs").click()
        assert shown.page.locator("#picture").count() == 1
        shown.page.get_by_text("all runs").click()
        shown.wait_for("table", "finished")
    assert shown.said == []


def test_the_node_that_has_failed_is_marked_and_no_other(browser: Any, folder: Path, command: Command) -> None:
    trainer_of(folder / "run").run(until="2 steps")
    status = folder / "run" / "status.json"
    changed = {"state": "failed", "error": "RuntimeError: shapes do not fit"}
    shown = Page(browser)
    for position in ("train_batch", "validate/eval_batch"):  # in its first validation
        status.write_text(json.dumps({**json.loads(status.read_text()), **changed, "position": position}))
        assert command("report", "run", "-o", "run.html").code == 0
        shown.page.goto((folder / "run.html").as_uri())
        assert shown.page.locator("#picture .failed title").all_text_contents() == [position]
    shown.page.keyboard.press("f")
    assert shown.page.locator("#picture .failed title").all_text_contents() == ["validate"]
    shown.page.keyboard.press("f")
    assert shown.page.locator("#picture .current").count() == 0
    assert "shapes do not fit" in shown.text("#why") and shown.said == []


def test_a_run_is_watched_to_its_end_over_a_kill_and_a_restart_of_the_server(browser: Any, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    trainer_of(run_dir).run(until="2 steps")
    shown, other = Page(browser), Page(browser)
    with serving(run_dir) as (port, _):
        for page in (shown, other):
            page.page.goto(f"http://127.0.0.1:{port}/")
            page.wait_for("#state", "stopped")
        rows = shown.text("#moment")
        trainer_of(run_dir).run(until="4 steps")
        for page in (shown, other):
            page.page.wait_for_function("(rows) => document.querySelector('#moment').textContent !== rows", arg=rows)
        metrics = run_dir / "metrics.jsonl"  # rows after the last checkpoint, as of a process that was killed
        metrics.write_text(metrics.read_text() + '{"step": 99, "epoch": 9.0, "loss": 9.0}\n')
        shown.wait_for("#moment", f"of {len(Run(run_dir).metrics)} ")
    shown.wait_for("#live", "waiting for the server")
    trainer_of(run_dir).run()
    with serving(run_dir, port=port):
        shown.wait_for("#state", "finished")
        shown.wait_for("#moment", f"of {len(Run(run_dir).metrics)} ")
    assert "step 99" not in shown.text("#moment")
    errors = [line for line in shown.said if "ERR_CONNECTION_REFUSED" not in line and "ERR_INCOMPLETE" not in line]
    assert errors == [] and all(url.startswith(f"http://127.0.0.1:{port}/") for url in shown.asked)


def test_a_run_that_was_killed_and_one_that_diverged(browser: Any, tmp_path: Path) -> None:
    trainer_of(tmp_path / "diverged", rate=1e12).run()
    trainer_of(tmp_path / "STEP 1").run(until="2 steps")
    status = tmp_path / "STEP 1" / "status.json"
    killed = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    status.write_text(json.dumps({**json.loads(status.read_text()), "state": "running", "process": killed.pid}))
    listed, diverged, shown = Page(browser), Page(browser), Page(browser)
    with serving(folder=tmp_path) as (port, _):
        for page, query in ((listed, ""), (diverged, "?run=diverged"), (shown, "?run=STEP%201")):
            page.page.goto(f"http://127.0.0.1:{port}/{query}")
        shown.wait_for("#state", "running")
        listed.wait_for("table", "running")
        killed.kill()
        killed.wait()
        shown.wait_for("#state", "interrupted")
        shown.wait_for("#why", f"process {killed.pid} is gone")
        listed.wait_for("table", "interrupted")
        assert "finished, not finite by step" in listed.text("table")
        assert "finished, not finite by step" in diverged.text("#state")
        assert "it reached its end, 2 epochs" in diverged.text("#why")
        assert "loss is not finite since step" in diverged.text("#plots")
        assert "run the program again, with this run directory: that " in shown.text("#facts")
    assert all("ERR_" in line for page in (listed, diverged, shown) for line in page.said)


def test_a_long_line_on_the_site_is_seen_to_its_end(browser: Any) -> None:
    page = browser.new_page(viewport={"width": 800, "height": 600})
    lines = "a = 'a' " * 40, "a" * 300
    blocks = "".join(f"<pre><code style='display: block; overflow: auto'>{line}</code></pre>" for line in lines)
    page.set_content(f'<article class="md-typeset">{blocks}</article>')
    page.add_style_tag(path=Path(__file__).parents[2] / "docs" / "site.css")
    beyond = "() => [...document.querySelectorAll('code')].map((block) => block.scrollWidth - block.clientWidth)"
    assert page.evaluate(beyond) == [0, 0]
