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
from graphtrain.errors import CheckpointError, LifeCycleError, UsageError
from graphtrain.storage.named import checkpoint_folder, newest_checkpoint, saved_graph
from tests.resume.rank_runs import run, trainer_of


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


def test_they_name_checkpoints_wherever_one_is_named(trained: Path, tmp_path: Path) -> None:
    best, newest = sorted((trained / "checkpoints").iterdir())
    assert json.loads((trained / "best.json").read_text())["checkpoints"][0]["checkpoint"] == best.name
    assert checkpoint_folder(trained / "best") == best
    assert checkpoint_folder(trained / "newest") == newest
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


def test_a_ranking_that_leads_elsewhere_is_none(trained: Path, tmp_path: Path) -> None:
    """What somebody has written into `best.json` names a checkpoint of this run, or nothing."""
    _, newest = sorted((trained / "checkpoints").iterdir())
    shutil.copytree(newest, tmp_path / "000001-step-1")
    entries = [{"checkpoint": name, "value": 0.0} for name in ("../../000001-step-1", "/", "..", "000009-step-1")]
    ranking = {"metric": "val/error", "mode": "min", "checkpoints": entries}
    (trained / "best.json").write_text(json.dumps(ranking))
    with pytest.raises(UsageError, match="none was ranked"):
        checkpoint_folder(trained / "best")
    ranking["checkpoints"] = [*entries, {"checkpoint": newest.name, "value": 1.0}]
    (trained / "best.json").write_text(json.dumps(ranking))
    assert checkpoint_folder(trained / "best") == newest


def test_the_newest_is_the_newest_sound_one(trained: Path) -> None:
    best, newest = sorted((trained / "checkpoints").iterdir())
    (newest / "model.safetensors").write_bytes(b"torn")
    lines: list[str] = []
    assert checkpoint_folder(trained / "newest", notify=lines.append) == best
    assert len(lines) == 1 and "skipped a damaged checkpoint" in lines[0]


# ---- the weights of a checkpoint in a trainer


@pytest.mark.first(1)
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


def test_it_is_not_called_inside_a_run(trained: Path) -> None:
    def training_step(model: torch.nn.Module, batch: Any) -> Any:
        trainer.load("best")

    trainer = trainer_of(None, training_step=training_step)
    with pytest.raises(LifeCycleError, match="cannot be called from inside it"):
        trainer.run()


def test_a_damaged_checkpoint_is_named_to_the_reader(trained: Path) -> None:
    *_, newest = sorted(path for path in (trained / "checkpoints").iterdir() if path.is_dir())
    damaged: list[Path] = []

    def read(path: Path, manifest: Any) -> str:
        if path == newest:
            raise CheckpointError(f"{path}: its digest differs")
        return path.name

    found = newest_checkpoint(trained / "checkpoints", read, lambda line: None, damaged=damaged.append)
    assert damaged == [newest]
    assert found not in (None, newest.name)
