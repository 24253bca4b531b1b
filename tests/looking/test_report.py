"""Promise 19: a report in a file: it holds what the run did, is small, makes no request, and no name becomes markup."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import random
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Run
from tests.looking.conftest import Command
from tests.looking.pages import ENDING, HOSTILE, content_in, trainer_of


def reported(command: Command, *run_dirs: Path) -> dict[str, Any]:
    done = command("report", *map(str, run_dirs), "-o", "run.html")
    assert (done.code, done.out) == (0, "wrote run.html\n"), done.err
    assert 90_000 < Path("run.html").stat().st_size < 400_000
    return content_in(Path("run.html"))


@pytest.mark.full
def test_it_has_what_the_run_did(folder: Path, command: Command) -> None:
    trainer = trainer_of(folder / "run")
    trainer.run()
    trainer_of(folder / "other", rate=0.01).run()
    content, other = reported(command, folder / "run", folder / "other")["runs"]
    assert (content["settings"]["optimizer.lr"], other["settings"]["optimizer.lr"]) == ("0.1", "0.01")
    ticks = content["ticks"]
    runs = dict(zip(ticks["nodes"], ticks["runs"][-1], strict=True))
    top = {name: fields["runs"] for name, fields in trainer.progress.items() if "/" not in name}
    bypassed = {"exchange", "clip", "schedule"}
    assert top.items() - runs.items() == {(name, 0) for name in bypassed} and not bypassed & runs.keys()
    taken = dict(zip(ticks["edges"], ticks["taken"][-1], strict=True))
    assert content["graph"]["edges"].keys() == taken.keys()
    for name in ("train_batch", "step", "validate/eval_batch"):  # each is left as often as it ran
        left = sum(count for key, count in taken.items() if key.startswith(f"{name} -> "))
        assert left == runs[name] > 0
    assert (ticks["row"][-1] + 1, ticks["step"][-1]) == (len(trainer.metrics), trainer.progress["step"]["runs"])
    curves = {curve["name"]: curve for curve in content["curves"]}
    losses = [(row["step"], row["loss"]) for row in Run(folder / "run").metrics if "loss" in row]
    assert losses and [*zip(curves["loss"]["step"], curves["loss"]["value"], strict=True)] == [
        (step, float(f"{loss:.6g}")) for step, loss in losses
    ]
    assert "val/loss" in curves and "step" not in curves


def test_arrows_of_a_picture_are_the_edges_of_the_graph(folder: Path, command: Command) -> None:
    trainer_of(folder / "run").run(until="1 steps")
    graph = reported(command, folder / "run")["runs"][0]["graph"]
    for picture in graph["pictures"]:
        for number, key in enumerate(picture["arrows"]):
            group = re.search(rf'<g id="edge{number + 1}".*?<title>(.*?)</title>', picture["svg"], re.DOTALL)
            assert group is not None
            source, _, target = html.unescape(group[1]).partition("->")
            if key is not None:
                edge = graph["edges"][key]
                assert source.removesuffix("/+end") == edge["source"]
                own = edge["source"].rpartition("/")[0]
                ends = {"/".join(filter(None, [own, edge["target"]])), f"{own}/+end" if own else "+end"}
                assert target.removesuffix("/+start") in ends or "+to" in target
    assert [picture["name"] for picture in graph["pictures"]] == ["unfolded", "folded"]
    assert "validate/eval_batch" not in graph["pictures"][1]["svg"]


def test_a_run_that_diverged_says_since_when_as_ls_and_explain_do(folder: Path, command: Command) -> None:
    trainer_of(folder / "runs" / "diverged", rate=1e12).run()
    path = folder / "runs" / "diverged"
    since = next(row["step"] for row in Run(path).metrics if "loss" in row and not math.isfinite(row["loss"]))
    (content,) = reported(command, path)["runs"]
    assert content["condition"] == f"finished, not finite by step {since}"
    assert f"  {content['condition']}  " in command("ls", "runs").out
    explained = command("explain", str(path)).out
    assert content["why"][0] == "it reached its end, 2 epochs"
    assert all(f"  {line}\n" in explained for line in content["why"])
    curves = {curve["name"]: curve for curve in content["curves"]}
    assert curves["loss"]["not_finite"]["step"] == since and curves["loss"]["not_finite"]["epoch"] > 0
    assert curves["loss"]["value"][curves["loss"]["step"].index(since)] is None
    assert curves["lr"]["not_finite"] is None


@pytest.mark.parametrize("name", ["my runs/my script.py", "it's $(me).py", "STEP.py"])
def test_commands_name_a_script_and_a_run_with_any_characters(name: str, folder: Path, command: Command) -> None:
    path = folder / f"{name}-run"
    words = ["graphtrain", "run", f"{folder}/{name}", "lr=1", "--run-dir", str(path)]
    trainer_of(path, about={"command": shlex.join(words)}).run(until="2 steps")
    (content,) = reported(command, path)["runs"]
    assert shlex.split(content["replay"]) == ["graphtrain", "replay", words[2], "--run-dir", str(path), "--to"]
    ((resume, what),) = content["next"]
    assert (shlex.split(resume), what) == (words, "resumes it")
    assert command("explain", str(path)).out.endswith(f"\nnext:\n  {resume}\n      {what}\n")


@pytest.mark.full
def test_many_rows_lose_no_extreme_and_no_gap(folder: Path, command: Command) -> None:
    trainer_of(folder / "run").run()
    choose, extremes = random.Random(3), {1234: 40.0, 5555: -40.0, 7777: "nan"}
    values = [extremes.get(step, choose.gauss(0, 1)) for step in range(10_000)]
    rows = (json.dumps({"step": step, "epoch": 0.5, "loss": value}) for step, value in enumerate(values))
    (folder / "run" / "metrics.jsonl").write_text("".join(f"{row}\n" for row in rows))
    (curve,) = (one for one in reported(command, folder / "run")["runs"][0]["curves"] if one["name"] == "loss")
    kept = dict(zip(curve["step"], curve["value"], strict=True))
    assert len(kept) < 4000 and {0, *extremes, 9999} <= {*kept} and [*kept] == sorted(kept)
    assert (kept[1234], kept[5555], kept[7777]) == (40.0, -40.0, None)


def test_no_name_becomes_markup_and_nothing_is_requested(folder: Path, command: Command) -> None:
    trainer_of(folder / "run").run()
    content, text = reported(command, folder / "run"), Path("run.html").read_text()
    assert HOSTILE not in text and ENDING not in text and "\u202e" not in text
    assert HOSTILE in {curve["name"] for curve in content["runs"][0]["curves"]}, "as text"
    assert not re.search(r'\b(src|href)\s*=\s*"', text.partition('id="content">')[0])
    policy = re.findall(r'Content-Security-Policy" content="(.*?)"', text)[0].replace("&#x27;", "'")
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for tag, source in (("style", "style-src"), ("script", "script-src")):
        allowed = policy.partition(source)[2].partition(";")[0]
        for inside in re.findall(rf"<{tag}(?: type=\"module\"| )?>(.*?)</{tag}>", text, re.DOTALL):
            assert base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode() in allowed


def test_a_run_without_a_graph_is_shown(folder: Path, command: Command) -> None:
    (folder / "bare").mkdir()
    (folder / "bare" / "status.json").write_text('{"state": "finished", "place": "", "position": "end"}')
    (content,) = reported(command, folder / "bare")["runs"]
    assert content["graph"] is None and "no checkpoint" in content["graph_error"] and content["ticks"]["row"] == []
