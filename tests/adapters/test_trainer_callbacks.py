"""What callbacks of `transformers.Trainer` are called with, read and ask for: the same here, or a named error."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from graphtrain import UsageError
from graphtrain.adapters._trainer_callbacks import EVENTS, FLAGS, OTHER_EVENTS
from tests.adapters.hugging_face import classifier, difference, here, labelled, there, transformers

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and accelerate

# Attributes of the state, and when they are those of Trainer.
STATE = {
    "always": (
        *("epoch", "global_step", "max_steps", "num_train_epochs", "train_batch_size", "logging_steps", "eval_steps"),
        *("save_steps", "best_metric", "best_global_step", "is_local_process_zero", "is_world_process_zero"),
    ),
    "where a row is logged, or a checkpoint saved": ("total_flos",),
    "without the rows of the end, and of times": ("log_history",),
    "always the default, since what changes it is refused, or is no training": (
        *("num_input_tokens_seen", "is_hyper_param_search", "trial_name", "trial_params"),
    ),
    "the folder of the best, in place of that of a checkpoint": ("best_model_checkpoint",),
    "as the run begins; a resume restores callbacks themselves": ("stateful_callbacks",),
}
CONTROL = {*FLAGS, "should_training_stop", "should_epoch_stop"}


def test_every_event_and_attribute_has_a_row() -> None:
    events = {name for name in dir(transformers.TrainerCallback) if name.startswith("on_")}
    assert sorted([*EVENTS, *OTHER_EVENTS]) == sorted(events)
    state = [field.name for field in dataclasses.fields(transformers.TrainerState)]
    assert sorted(name for names in STATE.values() for name in names) == sorted(state)
    assert {field.name for field in dataclasses.fields(transformers.TrainerControl)} == CONTROL


class Watching(transformers.TrainerCallback):
    """Notes what it can read at every event."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def note(self, event: str, args: Any, state: Any, control: Any, **given: Any) -> None:
        names = [*STATE["always"], *STATE["always the default, since what changes it is refused, or is no training"]]
        values = {name: getattr(state, name) for name in names}
        if "evaluate" not in event and "save" not in event:
            del values["best_metric"], values["best_global_step"]
        elif values["best_metric"] is not None:
            values["best_metric"] = pytest.approx(values["best_metric"], rel=1e-6)
        if event in ("on_log", "on_save", "on_train_end"):
            values["total_flos"] = state.total_flos
        flags = {name: getattr(control, name) for name in FLAGS} if event in ("on_step_end", "on_epoch_end") else {}
        if event == "on_epoch_end":  # the row of an epoch is recorded before it
            del flags["should_log"]
        loader = given.get("eval_dataloader") if event == "on_prediction_step" else None
        self.calls.append((event, values, flags, None if loader is None else len(loader)))


for _name in [name for name in (*EVENTS, "on_prediction_step", "on_train_end") if name not in ("on_log", "on_save")]:
    setattr(Watching, _name, lambda self, *given, event=_name, **more: self.note(event, *given, **more))


class Logging(transformers.TrainerCallback):
    """Notes what is logged, and the operations so far."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **given: Any) -> None:
        if "loss" in logs:
            self.calls.append((state.global_step, logs["loss"], logs["learning_rate"], state.total_flos))


SETTINGS = {
    "by steps": {"eval_strategy": "steps", "eval_steps": 3, "logging_steps": 2, "save_strategy": "steps"},
    "by epochs": {"eval_strategy": "epoch", "logging_strategy": "epoch", "save_strategy": "epoch"},
    "in windows, a number of steps": {
        "gradient_accumulation_steps": 3, "max_steps": 7, "eval_strategy": "steps", "eval_steps": 2
    },
}  # fmt: skip


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("name", SETTINGS)
def test_callbacks_read_what_they_read_in_trainer(name: str, tmp_path: Path) -> None:
    given = {"save_steps": 4, "metric_for_best_model": "loss", "greater_is_better": False, **SETTINGS[name]}
    theirs, ours = (Watching(), Logging()), (Watching(), Logging())
    expected = there(classifier, tmp_path / "theirs", given=given, callbacks=[*theirs])
    run = here(classifier, tmp_path / "ours", tmp_path / "run", given=given, callbacks=[*ours])
    run.run()
    assert difference(expected.model, run.resources["model"]) == 0
    for event in dict.fromkeys(call[0] for call in theirs[0].calls):
        of_event = [[call for call in each.calls if call[0] == event] for each in (ours[0], theirs[0])]
        is_cut = event == "on_epoch_end" and "max_steps" in given  # an epoch that is not complete does not end here
        assert of_event[0] == of_event[1][: -1 if is_cut else None], event
    logs = [[(step, rate, operations) for step, _, rate, operations in each.calls] for each in (ours[1], theirs[1])]
    assert logs[0] == logs[1]
    best = run.resources["callbacks"].state.best_model_checkpoint
    assert best is None if given.get("save_strategy") is None else Path(best, "model.safetensors").exists()


@pytest.mark.full
def test_prediction_steps_know_the_loader_of_their_set(tmp_path: Path) -> None:
    sets = {"one": labelled(6, seed=1), "two": labelled(9, seed=2)}
    calls = []
    for train in (there, lambda *given, **more: here(*given, **more).run()):
        watching = Watching()
        train(classifier, tmp_path, given={"eval_strategy": "epoch"}, eval_dataset=sets, callbacks=[watching])
        calls.append([call[-1] for call in watching.calls if call[0] == "on_prediction_step"])
    assert calls[0] == calls[1] == [2, 2, 3, 3, 3] * 2


class TakingBack(transformers.TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        control.should_evaluate = False


@pytest.mark.full
def test_what_is_due_cannot_be_taken_back(tmp_path: Path) -> None:
    given = {"eval_strategy": "steps", "eval_steps": 3}
    run = here(classifier, tmp_path, given=given, callbacks=[TakingBack()])
    with pytest.raises(
        UsageError, match=r"control.should_evaluate to False, but `validate` is due(?s:.)*eval_strategy='no'"
    ):
        run.run()
    assert run.progress["step"]["steps"] == 3


@pytest.mark.full
def test_a_stop_in_an_epoch_that_would_be_evaluated_is_named(tmp_path: Path) -> None:
    class Stopping(transformers.TrainerCallback):
        def on_substep_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            control.should_training_stop = True

    given = {"eval_strategy": "epoch", "gradient_accumulation_steps": 2}
    run = here(classifier, tmp_path, given=given, callbacks=[Stopping()])
    with pytest.raises(UsageError, match=r"should_training_stop in on_substep_end(?s:.)*set it in on_step_end"):
        run.run()


@pytest.mark.full
def test_a_stop_by_a_row_within_an_epoch_says_that_it_is_not_evaluated(tmp_path: Path) -> None:
    class Stopping(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            control.should_training_stop = state.global_step >= 2

    run = here(classifier, tmp_path, given={"eval_strategy": "epoch", "logging_steps": 1}, callbacks=[Stopping()])
    with pytest.warns(UserWarning, match="stops the training in on_log, within an epoch, which Trainer would evaluate"):
        run.run()


class SavingEverything(transformers.TrainerCallback):
    """The flags are asked for where nothing is due, and noted where they are served."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        control.should_save = state.global_step == 2
        control.should_log = state.global_step in (3, 5)

    def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.calls.append(("save", state.global_step))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **given: Any) -> None:
        if "loss" in logs:
            self.calls.append(("log", state.global_step))


@pytest.mark.full
def test_saves_and_rows_are_asked_for(tmp_path: Path) -> None:
    theirs, ours = SavingEverything(), SavingEverything()
    given = {"logging_strategy": "no", "max_steps": 6}
    there(classifier, tmp_path / "theirs", given=given, callbacks=[theirs])
    run = here(classifier, tmp_path / "ours", tmp_path / "run", given=given, callbacks=[ours])
    run.run()
    assert ours.calls == theirs.calls == [("save", 2), ("log", 3), ("log", 5)]
