"""A report: what it holds is what the run did, it is small, makes no request, and no name in it becomes markup."""

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

from graphtrain import Graph, Run
from graphtrain.page.content import MOST_POINTS, content_of_runs, thinned
from graphtrain.page.document import report
from graphtrain.page.pictures import content_of
from tests.looking.small_runs import ENDING, HOSTILE, command, trainer_of


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "first"
    trainer_of(path).run()
    return path


def shown(run_dir: Path) -> dict[str, Any]:
    return content_of_runs([run_dir])["runs"][0]  # type: ignore[no-any-return]


def test_the_counts_of_the_last_moment_are_those_of_the_run(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path / "run")
    trainer.run()
    content = shown(tmp_path / "run")
    ticks = content["ticks"]
    runs = dict(zip(ticks["nodes"], ticks["runs"][-1], strict=True))
    top = {name: fields["runs"] for name, fields in trainer.progress.items() if "/" not in name}
    assert {name: runs[name] for name in top} == top
    taken = dict(zip(ticks["edges"], ticks["taken"][-1], strict=True))
    assert {key: edge["source"] for key, edge in content["graph"]["edges"].items()}.keys() == taken.keys()
    for name in ("train_batch", "step", "validate/eval_batch"):  # each is left as often as it ran
        left = sum(count for key, count in taken.items() if key.startswith(f"{name} -> "))
        assert left == runs[name] > 0
    assert (ticks["row"][-1] + 1, ticks["step"][-1]) == (len(trainer.metrics), trainer.progress["step"]["runs"])


def test_curves_have_the_recorded_values(run_dir: Path) -> None:
    curves = {curve["name"]: curve for curve in shown(run_dir)["curves"]}
    losses = [(row["step"], row["loss"]) for row in Run(run_dir).metrics if "loss" in row]
    assert losses and [*zip(curves["loss"]["step"], curves["loss"]["value"], strict=True)] == [
        (step, float(f"{loss:.6g}")) for step, loss in losses
    ]
    assert "val/loss" in curves and "step" not in curves


def test_a_run_that_diverged_says_since_when_as_ls_and_explain_do(tmp_path: Path) -> None:
    trainer_of(tmp_path / "runs" / "diverged", rate=1e12).run()
    path = tmp_path / "runs" / "diverged"
    since = next(row["step"] for row in Run(path).metrics if "loss" in row and not math.isfinite(row["loss"]))
    content = shown(path)
    assert content["condition"] == f"finished, not finite since step {since}"
    assert f"  {content['condition']}  " in command("ls", str(path.parent)).stdout
    explained = command("explain", str(path)).stdout
    assert content["why"][0] == "it reached its end, 2 epochs" and all(
        f"  {line}\n" in explained for line in content["why"]
    )
    curves = {curve["name"]: curve for curve in content["curves"]}
    assert curves["loss"]["not_finite"]["step"] == since and curves["loss"]["not_finite"]["epoch"] > 0
    assert curves["loss"]["value"][curves["loss"]["step"].index(since)] is None
    assert curves["lr"]["not_finite"] is None


@pytest.mark.parametrize("name", ["my runs/my script.py", "it's $(me).py", "STEP.py"])
def test_commands_name_a_script_and_a_run_with_any_characters(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}-run"
    words = ["graphtrain", "run", f"{tmp_path}/{name}", "lr=1", "--run-dir", str(path)]
    trainer_of(path, about={"command": shlex.join(words)}).run(until="2 steps")
    explain, replay, fork = (shlex.split(line["line"]) for line in shown(path)["lines"])
    assert explain == ["graphtrain", "explain", str(path)]
    assert replay == ["graphtrain", "replay", words[2], "--run-dir", str(path), "--to", "STEP steps"]
    assert fork == ["graphtrain", "run", words[2], "--fork", str(path), "--run-dir", f"{path}-2"]


def test_thinning_loses_no_extreme_and_no_gap() -> None:
    choose = random.Random(3)
    values = [choose.gauss(0, 1) for _ in range(100_000)]
    values[12_345], values[55_555], values[77_777] = 40.0, -40.0, math.nan
    kept = thinned(values)
    assert len(kept) < 1.3 * MOST_POINTS and {0, 12_345, 55_555, 77_777, 99_999} <= {*kept}
    assert kept == sorted(set(kept))


def test_arrows_of_a_picture_are_the_edges_of_the_graph() -> None:
    graph = Graph.load("fit")
    content = content_of(graph)
    for picture in content["pictures"]:
        for number, key in enumerate(picture["arrows"]):
            group = re.search(rf'<g id="arrow{number}".*?<title>(.*?)</title>', picture["svg"], re.DOTALL)
            assert group is not None
            source, _, target = html.unescape(group[1]).partition("->")
            if key is not None:
                edge = content["edges"][key]
                assert source.removesuffix("/+end") == edge["source"]
                own = edge["source"].rpartition("/")[0]
                ends = {"/".join(filter(None, [own, edge["target"]])), f"{own}/+end" if own else "+end"}
                assert target.removesuffix("/+start") in ends or "+to" in target
    assert [picture["name"] for picture in content["pictures"]] == ["unfolded", "folded"]
    assert "validate/eval_batch" not in content["pictures"][1]["svg"]


def test_of_several_runs_the_settings_are_shown(run_dir: Path, tmp_path: Path) -> None:
    trainer_of(tmp_path / "other", rate=0.01).run()
    content = content_of_runs([run_dir, tmp_path / "other"])
    assert [run["settings"]["optimizer.lr"] for run in content["runs"]] == ["0.1", "0.01"]


def test_no_name_becomes_markup_and_nothing_is_requested(run_dir: Path, tmp_path: Path) -> None:
    text = report([run_dir], tmp_path / "run.html").read_text()
    assert HOSTILE not in text and ENDING not in text and "\u202e" not in text
    content = json.loads(re.findall(r'id="content">(.*?)</script>', text, re.DOTALL)[0])
    names = {curve["name"] for curve in content["runs"][0]["curves"]}
    assert HOSTILE in names  # as text
    assert not re.search(r'\b(src|href)\s*=\s*"', text.partition('id="content">')[0])
    policy = re.findall(r'Content-Security-Policy" content="(.*?)"', text)[0].replace("&#x27;", "'")
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for tag, source in (("style", "style-src"), ("script", "script-src")):
        allowed = policy.partition(source)[2].partition(";")[0]
        for inside in re.findall(rf"<{tag}(?: type=\"module\"| )?>(.*?)</{tag}>", text, re.DOTALL):
            assert base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode() in allowed


def test_a_run_without_a_graph_is_shown(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "status.json").write_text('{"state": "finished", "place": "", "position": "end"}')
    content = shown(bare)
    assert content["graph"] is None and "no checkpoint" in content["graph_error"] and content["ticks"]["row"] == []


def test_the_command(run_dir: Path, tmp_path: Path) -> None:
    done = command("report", str(run_dir), "-o", str(tmp_path / "run.html"))
    assert (done.exit_code, done.stdout) == (0, f"wrote {tmp_path / 'run.html'}\n")
    assert 100_000 < (tmp_path / "run.html").stat().st_size < 400_000


@pytest.mark.sweep
def test_a_million_rows_are_a_small_page(tmp_path: Path) -> None:
    trainer_of(tmp_path / "run").run()
    rows = (tmp_path / "run" / "metrics.jsonl").open("w")
    with rows:
        for step in range(1, 1_000_001):
            rows.write(f'{{"step": {step}, "epoch": {step / 1000}, "loss": {1 / step}, "lr": 0.1, "accuracy": 0.5}}\n')
    page = report([tmp_path / "run"], tmp_path / "run.html")
    assert page.stat().st_size < 5_000_000
