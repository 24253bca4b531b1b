"""The trainer: what it refuses, what can be looked at, how it is stopped, and what it leaves behind."""

from __future__ import annotations

import inspect
import math
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from graphtrain import (
    CheckpointError,
    Edge,
    Graph,
    GraphError,
    GuardError,
    LifeCycleError,
    Loader,
    Node,
    Outcome,
    Trainer,
    UsageError,
    node,
    progress,
)
from graphtrain.resume.environment import RunEnvironment, run_environment
from graphtrain.storage.manifest import read_manifest
from graphtrain.storage.run_directory import read_status
from tests.program.small_run import small_graph, small_trainer


def tiny(
    graph: Graph | None = None, said: list[str] | None = None, run_dir: Path | None = None, **more: Any
) -> Trainer:
    """One weight, five batches of two samples."""
    model = more.pop("model", None) or torch.nn.Linear(1, 1)
    resources = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "train_data": [torch.ones(2, 1)] * 5,
        "training_step": lambda model, batch: model(batch).mean(),
        **more,
    }
    notify = said.append if said is not None else lambda line: None
    graph = graph if graph is not None else Graph.load("fit").set("finish", after="2 epochs")
    return Trainer(
        graph, run_dir=run_dir, notify=notify, **{key: value for key, value in resources.items() if value is not None}
    )


def test_everything_missing_is_reported_together() -> None:
    with pytest.raises(GraphError) as caught:
        Trainer("fit", notify=lambda line: None, training_data=[1])
    messages = [str(problem) for problem in caught.value.problems]
    assert [problem.code for problem in caught.value.problems] == ["G301"] * 4
    assert "`train_data` is read by `next_batch`" in "".join(messages)
    assert "did you mean `training_data`?" in "".join(messages)


def test_absent_options_are_bypassed_and_reported_once() -> None:
    said: list[str] = []
    trainer = tiny(said=said)
    trainer.run()
    assert said[0] == "no `val_data`, so `validate` does not run"
    assert "there is no run directory, so no checkpoint is written" in said[1:]
    assert not [line for line in said if "schedule" in line]
    assert len(said) == len(set(said))
    assert trainer.progress["validate"]["runs"] == 0


def test_a_bypassed_node_is_reported_with_the_fields_that_the_graph_reads() -> None:
    said: list[str] = []
    graph = Graph.load("fit").guard("log_due", "log.due and validate.runs >= 1").set("finish", after="1 epochs")
    tiny(graph, said=said)
    assert said[0] == "no `val_data`, so `validate` does not run, and `validate.runs` never changes"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("val_dat", "did you mean `val_data`?"),
        ("max_epochs", 'that is `finish.after = "N epochs"` here'),
        ("qqq", "leave it out, or insert a node that reads it"),
    ],
)
def test_a_resource_that_nothing_reads_is_refused(name: str, hint: str) -> None:
    with pytest.raises(GraphError) as caught:
        tiny(**{name: [1]})
    (problem,) = caught.value.problems
    assert (problem.code, problem.message) == ("G302", f"nothing reads a resource `{name}`")
    assert hint in problem.hint


def test_nothing_and_a_generator_may_be_supplied_although_nothing_reads_them() -> None:
    tiny(average=None, noise=torch.Generator())


def test_an_object_with_state_that_nothing_reads_is_saved_and_reported() -> None:
    said: list[str] = []
    trainer = tiny(said=said, average=torch.nn.Linear(1, 1), train_data=[torch.ones(2, 1)])
    assert "nothing in the graph reads `average`" in said
    assert "average" in trainer.resources


def test_what_is_usual_or_asked_for_by_a_step_function_is_not_refused() -> None:
    def validation_step(model: Any, batch: Any, temperature: float) -> Any:
        return model(batch).mean() * temperature

    said: list[str] = []
    tiny(said=said, validation_step=validation_step, temperature=2.0)  # and `validate` is bypassed
    tiny(Graph.load("evaluate"), said=said, val_data=[])
    assert not [line for line in said if "nothing in the graph reads" in line]


def test_a_name_that_the_engine_supplies_is_refused() -> None:
    with pytest.raises(UsageError, match="`recorder` is supplied by the engine"):
        tiny(recorder=1)


def test_the_models_own_methods_are_used() -> None:
    class Model(torch.nn.Linear):
        calls: list[str] = []  # noqa: RUF012

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.calls.append(f"train {batch_idx}")
            return {"loss": self(batch).mean(), "size": len(batch)}

        def validation_step(self, batch: Any) -> Any:
            self.calls.append("validate")
            assert not self.training
            assert not torch.is_grad_enabled()
            return {"answer": 42}

    trainer = tiny(model=Model(1, 1), training_step=None, val_data=[torch.ones(3, 1)])
    trainer.run()
    assert Model.calls[:7] == ["train 0", "train 1", "train 2", "train 3", "train 4", "validate", "train 0"]
    assert [row["val/answer"] for row in trainer.metrics if "val/answer" in row] == [42, 42]


@pytest.mark.parametrize("function", [lambda: None, lambda batch: None, 7])
def test_a_step_function_that_cannot_be_called_is_refused_at_once(function: Any) -> None:
    with pytest.raises(UsageError, match="training_step"):
        tiny(training_step=function)


def test_a_users_exception_names_the_node_and_keeps_the_users_frames(tmp_path: Path) -> None:
    def failing(model: Any, batch: Any) -> Any:
        raise KeyError("mine")

    trainer = tiny(training_step=failing, run_dir=tmp_path)
    with pytest.raises(KeyError, match="mine") as caught:
        trainer.run()
    assert caught.value.__notes__ == [
        "raised in node `train_batch` (step 0, epoch 0.20, batch 1/5)",
        f"no checkpoint was saved before: {tmp_path} starts from the beginning",
    ]
    assert caught.traceback[-1].name == "failing"
    assert trainer.state == "failed"
    assert trainer.position == "train_batch"
    assert read_status(tmp_path)["state"] == "failed"
    assert not list((tmp_path / "checkpoints").iterdir()), "a failure is not a save point"
    with pytest.raises(LifeCycleError, match="failed"):
        trainer.run()


def test_running_inside_a_run_is_refused() -> None:
    trainers: list[Trainer] = []

    def training_step(model: Any, batch: Any) -> Any:
        trainers[0].run()

    trainers.append(tiny(training_step=training_step))
    with pytest.raises(LifeCycleError, match="cannot be called from inside"):
        trainers[0].run()


def test_a_finished_run_cannot_be_advanced_and_reports_that_when_run() -> None:
    trainer = tiny()
    assert trainer.run() is Outcome.FINISHED
    assert trainer.position == "end"
    assert trainer.run() is Outcome.ALREADY_FINISHED
    with pytest.raises(LifeCycleError, match="the run is finished"):
        trainer.advance()


def test_a_guard_that_raises_is_named() -> None:
    graph = Graph.load("fit").guard("log_due", "step.steps / next_batch.epoch_batches > 9 and log.due")
    with pytest.raises(
        GuardError, match="guard `log_due` on an edge leaving `decide` raised ZeroDivisionError"
    ) as caught:
        tiny(graph).run()
    assert "step.steps / next_batch.epoch_batches" in str(caught.value)


@pytest.mark.parametrize("ending", [[], ["many"], ["many", "few"], ["few", "many"]], ids=str)
def test_what_a_body_raises_at_its_end_keeps_its_cause(ending: list[str]) -> None:
    """An edge whose guard holds ends the body, and an error of the user's is not one of the guard."""

    @node
    class FailsAtTheEnd:
        """Raise as the body ends."""

        ticks: int = progress(0)

        def __call__(self) -> None:
            self.ticks += 1

        def at_body_end(self) -> None:
            raise ValueError("mine") from KeyError("its cause")

    edges = (*(Edge("end", guard) for guard in ending), Edge("tick" if ending else "end"))
    guards = {guard: {"many": "tick.ticks > 2", "few": "tick.ticks == 9"}[guard] for guard in ending}
    body = Graph("body", "tick", {"tick": Node("tick", "fails_at_the_end")}, {"tick": edges}, guards)
    outer = Graph("outer", "fold", {"fold": Node("fold", "nested", body=body)}, {"fold": (Edge("end"),)})
    with pytest.raises(ValueError, match="mine") as caught:
        Trainer(outer, display=None, notify=lambda line: None).run()
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_stops_at_the_next_save_point(number: int, tmp_path: Path) -> None:
    before = signal.getsignal(number)
    seen = 0

    def training_step(model: Any, batch: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == 3:
            os.kill(os.getpid(), number)
        return model(batch).mean()

    trainer = tiny(training_step=training_step, run_dir=tmp_path)
    assert trainer.run() is Outcome.STOPPED
    assert (seen, trainer.position, trainer.state) == (3, "accumulate", "stopped")
    assert read_status(tmp_path)["state"] == "stopped"
    assert signal.getsignal(number) == before
    assert trainer.run() is Outcome.FINISHED
    assert seen == 10


def test_a_second_interrupt_stops_at_once() -> None:
    def training_step(model: Any, batch: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the second one interrupts")

    trainer = tiny(training_step=training_step)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert trainer.state == "failed", "a node is half done"
    with pytest.raises(LifeCycleError, match="failed"):
        trainer.run()


@pytest.mark.parametrize("until", ["often", "3 dozens", "0 steps"])
def test_until_is_checked(until: str) -> None:
    with pytest.raises(UsageError, match="until"):
        tiny().run(until=until)


def test_until_does_everything_that_is_due_first() -> None:
    trainer = tiny(val_data=[torch.ones(3, 1)])
    assert trainer.run(until="1 epochs") is Outcome.REACHED
    assert trainer.progress["validate"]["runs"] == 1
    assert trainer.position == "next_batch"
    assert trainer.progress["step"]["steps"] == 5


def test_loggers_get_every_row_and_losses_are_means_over_samples() -> None:
    rows: list[tuple[Mapping[str, float], int]] = []
    graph = Graph.load("fit").set("log", every="2 steps").set("finish", after="1 epochs")
    batches = [torch.full((count, 1), float(count)) for count in (1, 2, 3)]
    model = torch.nn.Linear(1, 1)
    trainer = Trainer(
        graph,
        notify=lambda line: None,
        loggers=[lambda row, step: rows.append((row, step))],
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        train_data=batches,
        training_step=lambda model, batch: {"loss": model(batch).mean(), "size": batch.mean()},
    )
    trainer.run()
    assert [step for _, step in rows] == [2, 3, 3]
    assert rows[0][0]["size"] == pytest.approx((1 * 1 + 2 * 2) / 3)
    assert rows[1][0]["epoch/size"] == pytest.approx((1 + 4 + 9) / 6)
    assert trainer.metrics == [dict(row) for row, _ in rows]


def test_without_a_run_directory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = tiny()
    trainer.run()
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="nowhere to save"):
        trainer.save()


def test_never_refuses_a_directory_that_holds_a_run(tmp_path: Path) -> None:
    tiny(run_dir=tmp_path).run(resume="never")
    with pytest.raises(UsageError, match="holds a run already"):
        tiny(run_dir=tmp_path).run(resume="never")


@pytest.mark.full
def test_a_named_checkpoint_is_resumed_from(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path)
    trainer.advance(9)
    path = trainer.save()
    assert path is not None
    trainer.run()
    for name in (path.name, str(path)):
        again = small_trainer(tmp_path)
        again.advance(resume=name)
        assert again.progress["next_batch"]["batches"] <= 3
    with pytest.raises(UsageError, match="there is no checkpoint `nothing`"):
        small_trainer(tmp_path).run(resume="nothing")


@pytest.mark.full
@pytest.mark.parametrize("keeps", [True, False])
def test_looking_at_the_data_does_not_move_a_resume(
    keeps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawing(*arguments: Any, **keywords: Any) -> RunEnvironment:
        torch.rand(1)
        return run_environment(*arguments, **keywords)

    monkeypatch.setattr("graphtrain.resume.session.run_environment", drawing)
    cut = small_trainer(tmp_path / "cut")
    cut.advance(22)
    path = cut.save()
    assert path is not None
    kept = shutil.copytree(path, tmp_path / path.name)  # a save that comes before the next batch takes its place
    cut.run()
    again = small_trainer(tmp_path / "again" if keeps else None)
    again.run(resume=kept)
    assert again.digest() == cut.digest()


def test_a_resume_continues_the_training_time(tmp_path: Path) -> None:
    def training_step(model: Any, batch: Any) -> Any:
        time.sleep(0.02)
        return model(batch).mean()

    first, second = (tiny(training_step=training_step, run_dir=tmp_path) for _ in range(2))
    first._session.watch.load({"save": 5000.0})
    first.run(until="4 batches")
    before = first.progress["next_batch"]["seconds"]
    second.run()
    assert second.seconds["save"] > 5000
    assert 3 * 0.02 <= before < 1000
    assert 5 * 0.02 <= second.progress["next_batch"]["seconds"] - before < 1000, "what the stopwatch took over is not"


@pytest.mark.full
def test_a_discarded_line_of_the_run_is_not_resumed(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path)
    trainer.run()
    expected = (tmp_path / "metrics.jsonl").read_bytes()
    paths = sorted((tmp_path / "checkpoints").iterdir())
    early = small_trainer(tmp_path)
    early.advance(resume=paths[0].name)
    assert sorted((tmp_path / "checkpoints").iterdir())[-1] not in paths, "saved at once, so that it is the newest"
    small_trainer(tmp_path).run()
    assert (tmp_path / "metrics.jsonl").read_bytes() == expected
    # Killed between the cut of the metrics and that save: what was given up is passed over.
    (tmp_path / "metrics.jsonl").write_bytes(expected[: read_manifest(paths[0]).metrics_bytes])
    said: list[str] = []
    again = small_trainer(tmp_path)
    again._run.notices._write = said.append
    assert again._run.files is not None
    again._run.files._store._notify = said.append
    again.run()
    assert any("the run was resumed from an earlier checkpoint" in line for line in said)
    assert (tmp_path / "metrics.jsonl").read_bytes() == expected


@pytest.mark.parametrize("damage", ["metrics", "checkpoints"])
def test_checkpoints_none_of_which_can_be_used_are_not_begun_over(damage: str, tmp_path: Path) -> None:
    small_trainer(tmp_path).run(until="6 batches")
    kept = sorted((tmp_path / "checkpoints").iterdir())
    if damage == "metrics":
        (tmp_path / "metrics.jsonl").unlink()
    else:
        for path in kept:
            (path / "progress.msgpack").write_bytes(b"")
    with pytest.raises(UsageError, match=f"holds {len(kept)} checkpoints, none of which can be resumed"):
        small_trainer(tmp_path).run()
    assert sorted((tmp_path / "checkpoints").iterdir()) == kept


@pytest.mark.full
def test_a_checkpoint_of_another_run_does_not_replace_a_run(tmp_path: Path) -> None:
    small_trainer(tmp_path / "one").run()
    small_trainer(tmp_path / "two").run()
    before = (tmp_path / "two" / "metrics.jsonl").read_bytes()
    other = next((tmp_path / "one" / "checkpoints").iterdir())
    with pytest.raises(UsageError, match="holds a run already"):
        small_trainer(tmp_path / "two").run(resume=other)
    assert (tmp_path / "two" / "metrics.jsonl").read_bytes() == before


def test_a_disk_that_refuses_metrics_is_reported_in_words(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path)
    trainer.advance(1)
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=r"cannot write .*metrics.jsonl: Is a directory"):
        trainer.run()


def test_saving_from_inside_a_node_is_a_request(tmp_path: Path) -> None:
    trainers: list[Trainer] = []
    answers: list[Any] = []

    def training_step(model: Any, batch: Any) -> Any:
        if not answers:
            answers.append(trainers[0].save())
        return model(batch).mean()

    trainers.append(
        tiny(Graph.load("fit").set("checkpoint", every="never"), training_step=training_step, run_dir=tmp_path)
    )
    trainers[0].run(until="1 batches")
    assert answers == [None]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2  # the one asked for, and the one of the stop


@node(writes="handle", transient="handle")
def open_handle() -> Iterator[int]:
    """Write a slot that is declared transient."""
    return iter([1, 2])


@node(writes="thing")
def make_thing() -> object:
    """Write a slot that turns out not to be saveable."""
    return object()


@node
def use_handle(handle: Any) -> None:
    """Read it."""


@node
def use_thing(thing: Any) -> None:
    """Read it."""


@pytest.mark.parametrize(
    ("maker", "user", "reason"),
    [
        (open_handle, use_handle, "`handle`: declared transient"),
        (make_thing, use_thing, "`thing`: a builtins.object cannot be encoded"),
    ],
)
def test_a_slot_that_cannot_be_saved_moves_the_save_point(maker: Any, user: Any, reason: str, tmp_path: Path) -> None:
    graph = Graph.load("fit").insert("using", user, after="train_batch").insert("making", maker, before="using")
    trainer = tiny(graph, run_dir=tmp_path)
    while trainer.advance() != "using":
        pass
    said: list[str] = []
    trainer._run.notices._write = said.append
    path = trainer.save()
    assert path is not None
    assert trainer.position == "accumulate"
    (line,) = said
    assert line.startswith("`using` is not a save point (alive: ") and line.endswith("); training on to the next one")
    assert reason in line
    if maker is open_handle:
        assert "using" not in trainer.save_points()
        assert "accumulate" in trainer.save_points()


def test_state_that_does_not_load_back_is_refused(tmp_path: Path) -> None:
    class Forgetful(torch.nn.Linear):
        def load_state_dict(self, state: Any, *arguments: Any, **keywords: Any) -> Any:
            return None

    tiny(model=Forgetful(1, 1), run_dir=tmp_path).run(until="3 batches")
    with pytest.raises(CheckpointError, match="the state loaded is not the state saved"):
        tiny(model=Forgetful(1, 1), run_dir=tmp_path).run()


def test_a_model_of_another_shape_is_refused_in_words(tmp_path: Path) -> None:
    tiny(run_dir=tmp_path).run(until="3 batches")
    with pytest.raises(CheckpointError, match=r"(?s)the state of `model` no longer fits: .*size mismatch") as error:
        tiny(model=torch.nn.Linear(1, 2), run_dir=tmp_path).run()
    assert error.value.hint == "make it as in the saved run; or begin another run, with another --run-dir"


def test_a_guard_inside_a_body_reads_a_slot_written_around_it() -> None:
    inner = Graph.loads(
        """
        format = 1
        start = "x"
        [nodes]
        x = { use = "choice" }
        [guards]
        again = "number == 3 and x.runs < 5"
        [edges]
        x = ["x if again", "end"]
        """
    )

    @node(writes="number")
    def three() -> int:
        return 3

    graph = Graph.load("fit").insert("three", three, after="begin_epoch").insert("body", graph=inner, after="three")
    assert graph.check() == []
    trainer = tiny(graph.set("finish", after="1 epochs"))
    trainer.run()
    assert trainer.progress["body/x"]["runs"] == 5
    with pytest.raises(KeyError):
        trainer.read("nothing")


def test_a_model_that_would_train_in_evaluation_mode_is_reported() -> None:
    """Pretrained models come so, and a cell of a notebook may have left it so; nobody would notice."""
    said: list[str] = []
    model = torch.nn.Linear(1, 1)
    trainer = tiny(said=said, model=model, val_data=[torch.ones(2, 1)])
    trainer.run(until="1 epochs")
    assert not [line for line in said if "evaluation mode" in line], "the evaluation puts it back"
    model.eval()
    trainer.run()
    assert [line for line in said if "`model` is in evaluation mode and is trained so" in line]


def test_a_stop_inside_an_evaluation_is_no_such_case(tmp_path: Path) -> None:
    said: list[str] = []
    trainer = tiny(said=said, val_data=[torch.ones(2, 1)] * 3)
    while not trainer.position.startswith("validate/eval_batch"):
        trainer.advance()
    trainer.run()
    assert not [line for line in said if "evaluation mode" in line]


def test_what_can_be_read() -> None:
    trainer = tiny()
    trainer.run(until="2 batches")
    assert trainer.read("model") is trainer.resources["model"]
    assert trainer.read("batch").shape == (2, 1) and trainer.read("next_batch.batches") == 2
    for name, hint in (
        ("btach", "there is no slot `btach`; did you mean `batch`?"),
        ("stpe.steps", "there is no node `stpe`; did you mean `step`?"),
        ("step.step", "`step` has no field `step`; did you mean `steps`?"),
    ):
        with pytest.raises(KeyError, match=hint.replace("?", r"\?")):
            trainer.read(name)
    assert repr(trainer) == "<Trainer of fit: stopped, step 2, epoch 0.40, batch 2/5>"


def test_what_a_step_function_asks_for_must_exist() -> None:
    def training_step(model: Any, batch: Any, bath_index: int) -> Any:
        return model(batch).mean()

    with pytest.raises(GraphError, match="`bath_index` is read by `train_batch`"):
        tiny(training_step=training_step)


@pytest.mark.parametrize("name", ["training_step", "validation_step"])
@pytest.mark.parametrize("value", [torch.ones(3, 2), "good", None])
def test_a_metric_that_is_no_number_is_named_at_the_first_batch(name: str, value: Any) -> None:
    def step(model: Any, batch: Any) -> Any:
        return {"loss": model(batch).mean(), "logits": value}

    with pytest.raises(UsageError, match=f"`{name}` returned `logits`, .*; metrics are numbers or scalar tensors"):
        tiny(**{name: step}, val_data=[torch.ones(2, 1)]).run()


def test_a_hidden_state_is_evaluated_as_the_hint_says() -> None:
    def step(model: Any, batch: Any, hidden: Any = None) -> Any:
        outputs = model(batch) + (0 if hidden is None else hidden)
        return {"loss": outputs.mean(), "hidden": outputs}

    def trainer(graph: Graph, size: int = 5, **more: Any) -> Trainer:
        return tiny(graph, training_step=step, val_data=[torch.ones(size, 1)] * 2, **more)

    hidden = {"writes": {"hidden": "hidden"}}
    graph = Graph.load("fit").set("train_batch", **hidden)
    with pytest.raises(UsageError, match="`training_step` returned `hidden`, a tensor") as caught:
        trainer(graph, size=2).run()
    assert "supply a `validation_step` without it" in caught.value.hint and "`writes`" in caught.value.hint
    for other in (trainer(graph.set("validate/eval_batch", **hidden)), trainer(graph, validation_step=one_loss)):
        assert other.run() is Outcome.FINISHED
        assert any("val/loss" in row for row in other.metrics)


def one_loss(model: Any, batch: Any) -> Any:
    return model(batch).mean()


@pytest.mark.parametrize("size", [2.5, numpy.float32(2.0), None, torch.tensor(2.0)])
def test_a_batch_size_that_is_no_whole_number_is_named(size: Any) -> None:
    with pytest.raises(UsageError, match=f"`batch_size` returned a {type(size).__name__}"):
        tiny(batch_size=lambda batch: size).run()


@pytest.mark.parametrize("when", ["while it runs", "when it is loaded"])
def test_a_kind_that_replaces_its_dictionary_is_refused(when: str, tmp_path: Path) -> None:
    """The engine reads fields there, and would read old ones forever."""

    @node
    class Replacing:
        """Count visits."""

        visits: int = progress(0)

        def __call__(self) -> None:
            self.visits += 1
            if when == "while it runs":
                self.__dict__ = dict(self.__dict__)

        def state_dict(self) -> dict[str, Any]:
            return {"visits": self.visits}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.__dict__ = dict(state)

    graph = Graph.load("fit").insert("replacing", Replacing, after="zero_grad").set("finish", after="1 epochs")
    with pytest.raises(UsageError, match=r"replacing: the kind `replacing` replaced its `__dict__`.*\n.*update\(state"):
        for _ in range(2):
            tiny(graph, run_dir=tmp_path).run(until="3 batches")
            assert when != "while it runs"


def test_a_group_that_was_added_while_it_trained_is_reported_at_the_resume(tmp_path: Path) -> None:
    run = tiny(run_dir=tmp_path)
    run.run(until="2 batches")
    run.resources["optimizer"].add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    run.run(until="4 batches")
    with pytest.raises(CheckpointError, match="parameter groups changed since `setup`: new parameters; a resume"):
        tiny(run_dir=tmp_path).run()


def test_a_validation_that_returns_nothing_is_named() -> None:
    with pytest.raises(UsageError, match="`validation_step` must return a mapping of metrics, or a scalar"):
        tiny(validation_step=lambda model, batch: None, val_data=[torch.ones(2, 1)]).run()


def test_a_scheduler_that_needs_a_metric_is_refused() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(UsageError, match="is a ReduceLROnPlateau, whose steps need a metric"):
        tiny(model=model, optimizer=optimizer, scheduler=plateau).run()


@pytest.mark.full
def test_the_order_of_nodes_and_resources_in_a_file_is_no_difference(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path)
    trainer.advance(20)
    trainer.save()
    graph = small_graph()
    turned = replace(graph, nodes=dict(reversed(graph.nodes.items())))
    assert turned == graph and list(turned.nodes) != list(graph.nodes)
    again = small_trainer(tmp_path, graph=turned)
    again = Trainer(
        turned, run_dir=tmp_path, seed=11, notify=lambda line: None, **dict(reversed(again.resources.items()))
    )
    again.advance()
    uncut = small_trainer()
    uncut.advance(21)
    assert again.digest() == uncut.digest()


def test_everything_but_the_graph_is_passed_by_name() -> None:
    declared = inspect.signature(Trainer).parameters
    assert {"model", "optimizer", "scheduler", "train_data", "val_data", "training_step", "validation_step"} <= {
        *declared
    }
    with pytest.raises(UsageError, match="expected a Graph, the name of one, or a path; got a Linear"):
        Trainer(torch.nn.Linear(1, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"optimizer": torch.optim.SGD}, "`optimizer` is the class SGD, not an object of it\n.*optimizer=SGD"),
        ({"model": torch.nn.Linear}, "`model` is the class Linear"),
        ({"optimizer": "sgd"}, "`optimizer` must be an optimizer, or a list of them; got a str"),
        ({"scheduler": "cosine"}, "`scheduler` must be a scheduler"),
        ({"model": (1, 2)}, "`model` must be a torch.nn.Module; got a tuple of 2"),
        ({"seed": "1"}, "Trainer: seed: expected an integer"),
        ({"loggers": print}, "Trainer: loggers: expected a list of functions"),
        ({"run_dir": 5}, "Trainer: run_dir: expected the path of a folder; got 5"),
    ],
)
def test_what_is_of_a_wrong_type_is_refused_in_one_sentence(wrong: dict[str, Any], message: str) -> None:
    given = {"model": torch.nn.Linear(1, 1), "optimizer": None, "train_data": [torch.ones(2, 1)], **wrong}
    with pytest.raises(UsageError, match=message):
        Trainer("fit", notify=lambda line: None, **given)


class Pairs(torch.utils.data.Dataset[Any]):
    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.ones(1)

    def __len__(self) -> int:
        return 4


class Batches(Pairs):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.ones(2, 1)])


@pytest.mark.parametrize("name", ["train_data", "val_data"])
def test_a_dataset_in_the_place_of_batches_is_refused_with_the_loader(name: str) -> None:
    with pytest.raises(GraphError, match="gives samples, not batches") as caught:
        tiny(**{name: Pairs()})
    (problem,) = caught.value.problems
    assert problem.hint.startswith(f"supply Loader({name}, batch_size=...)")
    for batches in (Batches(), Loader(Pairs(), batch_size=2), torch.utils.data.DataLoader(Pairs(), batch_size=2)):
        tiny(**{name: batches})
    with pytest.raises(GraphError, match=r"G309: `val_data\['b'\]` is a Pairs"):
        tiny(val_data={"a": [torch.ones(2, 1)], "b": Pairs()})


def seen_of(seed: int | None = None, before: int | None = None) -> tuple[list[float], int]:
    """The order of the samples, with a number that is drawn for each batch; and the seed that is saved."""
    seen: list[float] = []
    if before is not None:
        torch.manual_seed(before)

    def step(model: Any, batch: Any) -> Any:
        seen.extend([*batch[:, 0].tolist(), float(torch.rand(()))])
        return model(batch).mean()

    data = Loader(torch.arange(8.0).reshape(-1, 1), batch_size=2, shuffle=True)
    trainer = tiny(train_data=data, training_step=step, seed=seed)
    trainer.run(until="2 batches")
    return seen, trainer._session.seed


def test_the_seed_is_what_torch_was_seeded_with() -> None:
    (first, seed), (again, _), (other, _) = seen_of(before=1), seen_of(before=1), seen_of(before=2)
    assert first == again and seed == 1
    assert first[:2] + first[3:5] != other[:2] + other[3:5], "another order"
    assert first[2] != other[2]
    assert seen_of(seed=7, before=1) == seen_of(seed=7, before=2)


def test_the_generators_that_somebody_has_seeded_go_on() -> None:
    torch.manual_seed(5)
    model = torch.nn.Linear(1, 1)
    state = torch.get_rng_state()
    drawn: list[float] = []

    def step(model: Any, batch: Any) -> Any:
        drawn.append(float(torch.rand(())))
        return model(batch).mean()

    tiny(model=model, training_step=step).run(until="1 batches")
    torch.set_rng_state(state)
    assert drawn == [float(torch.rand(()))]


@pytest.mark.full
def test_a_resume_takes_the_seed_of_the_run(tmp_path: Path) -> None:
    def trainer(seed: int, run_dir: Path, seen: list[float]) -> Trainer:
        torch.manual_seed(3)
        model = torch.nn.Linear(1, 1)
        torch.manual_seed(seed)

        def step(model: Any, batch: Any) -> Any:
            seen.extend(batch[:, 0].tolist())
            return model(batch).mean()

        data = Loader(torch.arange(8.0).reshape(-1, 1), batch_size=2, shuffle=True)
        return tiny(model=model, train_data=data, training_step=step, run_dir=run_dir)

    whole, cut = list[float](), list[float]()
    trainer(1, tmp_path / "whole", whole).run(until="6 batches")
    trainer(1, tmp_path / "cut", cut).run(until="3 batches")
    trainer(2, tmp_path / "cut", cut).run(until="6 batches")
    assert cut == whole


def test_a_run_that_ends_with_a_loss_that_is_not_finite_says_since_when(tmp_path: Path) -> None:
    faulty = lambda model, batch, step: model(batch).mean() * (math.nan if step >= 2 else 1)  # noqa: E731
    graph = Graph.load("fit").set("finish", after="2 epochs").set("log", every="1 steps")
    trainer = tiny(graph, training_step=faulty, run_dir=tmp_path)
    assert trainer.run() is Outcome.FINISHED
    assert trainer.not_finite.startswith("`loss` is not finite since step 3")
    assert read_status(tmp_path)["not_finite"] == trainer.not_finite
    assert tiny(graph).not_finite == ""
