"""`RUN/best` and `RUN/newest`: names of checkpoints, wherever one is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from graphtrain import Graph, Trainer
from graphtrain.command.runs import export
from graphtrain.command.set_up import named_weights
from graphtrain.errors import CheckpointError, LaterFormatError, UsageError
from graphtrain.storage.manifest import Manifest, read_manifest
from graphtrain.storage.named import (
    checkpoint_folder,
    existing_checkpoint,
    graph_of,
    holds_a_graph,
    newest_checkpoint,
    saved_graph,
    saved_manifest,
)
from tests.resume.rank_runs import run, trainer_of
from tests.storage.test_manifest import seal, written


def ranked(graph: Graph, **more: Any) -> Graph:
    """Four epochs, of which the first is the best."""
    given = {"every": "1 epochs", "best": "val/error", "keep": 1, **more}
    return graph.set("finish", after="4 epochs").set("checkpoint", **given)


def growing() -> Callable[..., dict[str, float]]:
    return lambda model, batch, epoch: {"error": float(epoch)}


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A run whose best checkpoint is not its newest."""
    run(1, tmp_path / "run", graph=ranked, validation_step=growing())
    return tmp_path / "run"


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "model.safetensors")


@pytest.mark.full
def test_they_name_checkpoints_wherever_one_is_named(trained: Path, tmp_path: Path) -> None:
    best, newest = sorted((trained / "checkpoints").iterdir())
    assert json.loads((trained / "best.json").read_text())["checkpoints"][0]["checkpoint"] == best.name
    assert checkpoint_folder(trained / "best") == best
    assert checkpoint_folder(trained / "newest") == newest
    assert checkpoint_folder(trained / best.name) == best and saved_graph(trained / best.name) == Graph.load(best)
    assert saved_graph(trained / "best") == Graph.load(str(trained / "newest")) == Graph.load(best)
    assert named_weights(f"model={trained}/best") == ("model", best / "model.safetensors")
    for name, path in (("best", best), ("newest", newest)):
        export.callback(trained / name, tmp_path / f"{name}.safetensors")
        exported = load_file(tmp_path / f"{name}.safetensors")
        assert all(torch.equal(exported[key], value) for key, value in weights(path).items())
        for run_dir in (tmp_path / f"copy-{name}", None):
            shutil.copytree(trained, tmp_path / f"copy-{name}", dirs_exist_ok=True)
            trainer = trainer_of(run_dir, graph=ranked, validation_step=growing())
            resume = name if run_dir is not None else trained / name
            trainer.advance(0, resume=resume) if name == "best" else trainer.run(resume=resume)
            state = trainer.resources["model"].state_dict()
            assert all(torch.equal(state[key], value) for key, value in weights(path).items()), (name, run_dir)


@pytest.mark.full
def test_a_real_folder_of_that_name_is_what_it_is(trained: Path) -> None:
    _, newest = sorted((trained / "checkpoints").iterdir())
    shutil.copytree(newest, trained / "best")
    assert checkpoint_folder(trained / "best") == trained / "best"
    trainer = trainer_of(None, graph=ranked, validation_step=growing())
    trainer.load(trained / "best")
    state = trainer.resources["model"].state_dict()
    assert all(torch.equal(state[key], value) for key, value in weights(newest).items())


def test_a_run_without_a_best_says_what_to_do(tmp_path: Path) -> None:
    run(1, tmp_path / "run", act=lambda trainer: trainer.run(until="1 steps"))
    for use in (
        lambda: saved_graph(tmp_path / "run" / "best"),
        lambda: Graph.load(tmp_path / "run" / "best"),
        lambda: named_weights(f"model={tmp_path}/run/best"),
        lambda: export.callback(tmp_path / "run" / "best", tmp_path / "weights.safetensors"),
        lambda: trainer_of(tmp_path / "run").run(resume="best"),
        lambda: trainer_of(tmp_path / "run").load("best"),
        lambda: trainer_of(None).load(tmp_path / "run" / "best"),
    ):
        with pytest.raises(UsageError, match="none was ranked by a metric") as caught:
            use()
        assert caught.value.hint == f"train with checkpoint.best='val/loss', or use `{tmp_path}/run/newest`"
    with pytest.raises(UsageError, match="there is no checkpoint `none/best`"):
        trainer_of(None).load("none/best")


@pytest.mark.full
def test_the_newest_is_the_newest_sound_one(trained: Path) -> None:
    best, newest = sorted((trained / "checkpoints").iterdir())
    (newest / "model.safetensors").write_bytes(b"torn")
    lines: list[str] = []
    assert checkpoint_folder(trained / "newest", notify=lines.append) == best
    assert len(lines) == 1 and "skipped a damaged checkpoint" in lines[0]


# ---- the weights of a checkpoint in a trainer


@pytest.mark.full
@pytest.mark.parametrize("world_size", [1, 2])
def test_the_best_weights_are_loaded_at_the_end(tmp_path: Path, world_size: int) -> None:
    loaded: list[dict[str, torch.Tensor]] = []

    def act(trainer: Trainer) -> Any:
        outcome = trainer.run()
        last = {name: value.clone() for name, value in trainer.resources["model"].state_dict().items()}
        optimizer = trainer.resources["optimizer"].state_dict()["state"][0]["exp_avg"].clone()
        path = trainer.load("best")
        state = trainer.resources["model"].state_dict()
        assert path == sorted((tmp_path / "run" / "checkpoints").iterdir())[0]
        assert any(not torch.equal(state[name], value) for name, value in last.items())
        assert torch.equal(trainer.resources["optimizer"].state_dict()["state"][0]["exp_avg"], optimizer)
        assert trainer.progress["next_batch"]["epoch"] == 3, "nothing but the weights is of the checkpoint"
        loaded.append({name: value.clone() for name, value in state.items()})
        return outcome

    run(world_size, tmp_path / "run", act=act, graph=ranked, validation_step=growing())
    export.callback(tmp_path / "run" / "best", tmp_path / "best.safetensors")
    expected = load_file(tmp_path / "best.safetensors")
    parameters = [name for name in expected if name.endswith(("weight", "bias"))]  # buffers are each rank's own
    assert len(loaded) == world_size
    assert all(torch.equal(state[name], expected[name]) for state in loaded for name in parameters)
    assert any(all(torch.equal(state[name], value) for name, value in expected.items()) for state in loaded), "rank 0's"


@pytest.mark.full
def test_a_run_that_is_continued_trains_on_with_them(tmp_path: Path) -> None:
    """Its next checkpoint does not take the place of the one before, and has them."""
    trained = tmp_path / "run"
    trainer = trainer_of(trained, graph=lambda graph: ranked(graph, keep=9), validation_step=growing())
    trainer.run()
    before = {path.name for path in (trained / "checkpoints").iterdir()}
    trainer.load("best")
    path = trainer.save()
    assert path is not None and path.name not in before
    assert before < {other.name for other in (trained / "checkpoints").iterdir()}
    expected = weights(checkpoint_folder(trained / "best"))
    assert all(torch.equal(weights(path)[name], value) for name, value in expected.items())


@pytest.mark.full
def test_another_model_is_given_the_weights_of_a_copy(tmp_path: Path) -> None:
    graph: Callable[[Graph], Graph] = lambda graph: ranked(graph.overlay("ema"))  # noqa: E731
    run(1, tmp_path / "run", graph=graph, validation_step=growing())
    trainer = trainer_of(None, graph=ranked)
    path = trainer.load(tmp_path / "run" / "newest", model="average")
    expected, state = load_file(path / "average.safetensors"), trainer.resources["model"].state_dict()
    assert all(torch.equal(state[name], value) for name, value in expected.items())
    assert any(not torch.equal(state[name], value) for name, value in weights(path).items())
    for models, message in (({"modl": "average"}, "there is no model `modl`"), ({"model": "averge"}, "has no model")):
        with pytest.raises(UsageError, match=message) as caught:
            trainer.load(path, **models)
        assert "did you mean" in caught.value.hint


@pytest.mark.full
def test_the_weights_of_another_model_are_refused_by_the_tensor(trained: Path) -> None:
    for model, message in (
        (torch.nn.Sequential(torch.nn.Linear(3, 6)), r"unknown to the module: 1\.weight"),
        (torch.nn.Sequential(torch.nn.Linear(4, 6)), r"0\.weight: float64 \(6, 3\) in the file, float64 \(6, 4\)"),
    ):
        model.double()
        before = model[0].weight.clone()
        trainer = trainer_of(
            None, model=model, optimizer=torch.optim.SGD(model.parameters()), graph=ranked, validation_step=growing()
        )
        with pytest.raises(UsageError, match=message) as caught:
            trainer.load(trained / "best")
        assert str(caught.value).startswith(f"`{checkpoint_folder(trained / 'best')}` does not match `model`")
        assert torch.equal(model[0].weight, before), "nothing is half loaded"


# ---- without a run: folders with a checkpoint of a few bytes


def checkpoints_in(run: Path, steps: int = 3, **facts: Any) -> list[Path]:
    """Checkpoints of a run, oldest first, each with the graph of a fit."""
    folder = run / "checkpoints"
    made = []
    for step in range(1, steps + 1):
        written(folder, graph=Graph.load("fit").to_json(), step=step, **facts)
        made.append((folder / "000001-step-1").rename(folder / f"{step + 10:06d}-step-{step}"))
    return made


def test_a_folder_is_named_by_its_path_its_name_or_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    first, second, newest = checkpoints_in(run)
    folder = run / "checkpoints"
    ranking = {"metric": "m", "mode": "min", "checkpoints": [{"checkpoint": second.name, "value": 1}]}
    (run / "best.json").write_text(json.dumps(ranking))
    (tmp_path / "link").symlink_to(first)
    for name, path in {
        first: first,
        tmp_path / "link": first,
        first.name: first,
        "best": second,
        "newest": newest,
        run / "best": second,
        run / "newest": newest,
        "other": Path("other"),
        tmp_path / "best": tmp_path / "best",
        f"x/{first.name}": Path(f"x/{first.name}"),
    }.items():
        assert checkpoint_folder(name, folder) == path, name
    monkeypatch.chdir(tmp_path)
    assert checkpoint_folder("run/newest") == Path("run") / "checkpoints" / newest.name
    assert checkpoint_folder("newest") == Path("newest"), "of no run"
    named = run, first, run / "best", run / first.name
    assert [holds_a_graph(path) for path in (*named, tmp_path, folder, run / "gone", Path("a" * 9999))] == [
        *[True] * 4, *[False] * 4
    ]  # fmt: skip


def test_a_name_of_nothing_says_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where a name alone is that of no checkpoint
    folder = tmp_path / "checkpoints"
    first, _, _ = checkpoints_in(tmp_path)
    names = ", ".join(f"{step + 10:06d}-step-{step}" for step in (1, 2, 3))
    assert existing_checkpoint(first.name, folder) == first
    for name, where, option, known, message in (
        (
            "00012-step-2", folder, "resume", "none",
            f"resume: there is no checkpoint `00012-step-2`\n  hint: there are: {names}",
        ),
        ("quite other", folder, "", "none", f"there is no checkpoint `quite other`\n  hint: there are: {names}"),
        ("other", tmp_path / "none", "", "save first", "there is no checkpoint `other`\n  hint: save first"),
        ("other", None, "", "", "there is no checkpoint `other`"),
        (
            f"{tmp_path}/other", None, "", "",
            f"there is no checkpoint `{tmp_path}/other`\n  hint: there are: {names}",
        ),
    ):  # fmt: skip
        with pytest.raises(UsageError) as refused:
            existing_checkpoint(name, where, option, known)
        assert str(refused.value) == message


def test_the_newest_that_can_be_used_is_read(tmp_path: Path) -> None:
    """Those with weights that are not finite last, the newest first."""
    folder = tmp_path / "checkpoints"
    one, two, three, four = checkpoints_in(tmp_path, 4)
    seal(two, not_finite="model.w")
    seal(four, not_finite="model.b")
    lines: list[str] = []
    damaged: list[Path] = []

    def newest(*unreadable: Path, finite_first: bool = True, cause: Exception | None = None, **options: Any) -> Any:
        def read(path: Path, manifest: Manifest) -> Path:
            assert manifest == read_manifest(path)
            if path in unreadable:
                raise CheckpointError(f"{path}: torn") from cause
            return path

        lines.clear()
        damaged.clear()
        return newest_checkpoint(
            folder, read, lines.append, finite_first=finite_first, damaged=damaged.append, **options
        )

    def over(path: Path, weight: str) -> str:
        return f"passed over {path}: `{weight}` is not finite; --resume {path.name} resumes from it anyway"

    assert newest() == three and lines == [over(four, "model.b")] and not damaged
    assert newest(finite_first=False) == four and not lines
    assert newest(three) == one and damaged == [three]
    torn = f"skipped a damaged checkpoint: {three}: torn"
    assert lines == [torn, over(four, "model.b"), over(two, "model.w")]
    assert newest(three, one) == four and damaged == [three, one]
    assert lines == [torn, f"skipped a damaged checkpoint: {one}: torn"]
    assert newest(three, one, four, cause=OSError()) == two and damaged == []
    assert newest(one, two, three, four) is None and damaged == [three, one, four, two]
    reasons = {three.name: "it is of another run"}
    path = newest(why_incompatible=lambda manifest: reasons[three.name] if manifest.step == 3 else "")
    assert path == one and lines[0] == f"skipped {three}: it is of another run"
    seal(four, format=2)
    with pytest.raises(LaterFormatError):
        newest()


def test_a_run_without_a_checkpoint_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for path, option in ((tmp_path / "newest", f"`{tmp_path}/newest`: "), (tmp_path, "")):
        with pytest.raises(UsageError) as refused:
            saved_manifest(path)
        assert str(refused.value) == (
            f"{option}there is no checkpoint in `{tmp_path}`\n  hint: name the directory of a run that has saved"
        )


def test_a_saved_graph_is_that_of_a_checkpoint_whose_files_are_sound(tmp_path: Path) -> None:
    first, second, third = checkpoints_in(tmp_path)
    assert saved_manifest(tmp_path) == (third, read_manifest(third))
    assert saved_manifest(first) == (first, read_manifest(first))
    seal(third, graph="{}")
    lines: list[str] = []
    assert saved_manifest(tmp_path, lines.append)[0] == second, "one whose graph cannot be read is passed over"
    assert len(lines) == 1 and f"{third}: its graph cannot be read: " in lines[0]
    with pytest.raises(CheckpointError, match=f"^{third}: its graph cannot be read: "):
        graph_of(*saved_manifest(third))
    (second / "model.safetensors").unlink()
    assert saved_manifest(tmp_path)[0] == first
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        saved_manifest(second)
