"""The callbacks of a `transformers.Trainer`: a node for each event at which one of them does something."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from graphtrain import END_EPOCH, STOP, Graph, UsageError, described, lazy_import, node, progress
from graphtrain.adapters._training_arguments import best_metric, plain

transformers = lazy_import("transformers")

# What a callback may override -> where its node is in `fit`.
EVENTS: dict[str, dict[str, Any]] = {
    "on_train_begin": {"at": "decide", "before": "log"},
    "on_epoch_begin": {"after": "begin_epoch"},
    "on_step_begin": {"before": "train_batch"},
    "on_substep_end": {"between": ("accumulate", "decide")},
    "on_pre_optimizer_step": {"before": "step"},
    "on_optimizer_step": {"after": "step"},
    "on_step_end": {"after": "zero_grad"},
    "on_log": {"at": "decide", "before": "end_epoch"},
    "on_epoch_end": {"after": "end_epoch"},
    "on_evaluate": {"after": "validate"},
    "on_save": {"after": "checkpoint"},
}
# The others, and when they are called.
OTHER_EVENTS = {
    "on_init_end": "by `setup`",
    "on_train_end": "by the node `on_train_begin`, as the run ends",
    "on_prediction_step": "by a node of this name in `validate`",
    "on_predict": "never, since Trainer calls it from `predict` alone",
    "on_push_begin": "never, since nothing is pushed while a run trains",
}
# What is served of `control` -> the node that does it by itself, and the argument that says whether by steps or epochs.
FLAGS = {
    "should_log": ("logs", "log", "logging_strategy"),
    "should_evaluate": ("evaluations", "validate", "eval_strategy"),
    "should_save": ("saves", "checkpoint", "save_strategy"),
}
# At which events -> the flags there, and what they are due by.
REQUESTS: dict[str, tuple[tuple[str, ...], str]] = {
    "on_step_end": (("should_log", "should_evaluate", "should_save"), "steps"),
    "on_log": (("should_evaluate", "should_save"), "logging_strategy"),
    "on_epoch_end": (("should_log", "should_evaluate", "should_save"), "epoch"),  # a row is recorded before it
    "on_evaluate": (("should_save",), "eval_strategy"),
}
# Inside of a step, where the state is that of the last step.
_INSIDE = ("on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step")
_DISPLAYS = ("DefaultFlowCallback", "NotebookProgressCallback", "PrinterCallback", "ProgressCallback")


class Callbacks:
    """The callbacks of a run, with the state and the control that they are given.

    Arguments:
        callbacks: as of `setup`.
        args: the arguments of the training.
        steps: how many steps the run has.
        epochs: in how many epochs, the last of which may be cut.
        made: the resources of the run.
        tokenizer: the `processing_class`.
    """

    def __init__(
        self, callbacks: Iterable[Any], args: Any, steps: int, epochs: int, made: Mapping[str, Any], tokenizer: Any
    ) -> None:
        each_made = [each() if isinstance(each, type) else each for each in callbacks]
        for each in each_made:
            if not isinstance(each, transformers.TrainerCallback):
                raise UsageError(f"callbacks: expected a TrainerCallback, got {described(each)}")
        self.callbacks = [each for each in each_made if type(each).__name__ not in _DISPLAYS]
        names = {"model": "model", "optimizer": "optimizer", "lr_scheduler": "scheduler"}
        self.given = {name: made.get(resource) for name, resource in names.items()}
        loaders = made.get("val_data")
        self.loaders = loaders if isinstance(loaders, dict) else {"": loaders}
        self.given |= {"train_dataloader": made["train_data"], "processing_class": tokenizer}
        self.args, self.control = args, transformers.TrainerControl()
        stateful = [each for each in [*self.callbacks, self.control] if hasattr(each, "from_state")]
        self.state = transformers.TrainerState(
            max_steps=steps,
            num_train_epochs=epochs,
            train_batch_size=args.train_batch_size,
            stateful_callbacks=stateful,
        )
        self.state.compute_steps(args, steps)
        model = made["model"]
        self._main_input = getattr(model, "main_input_name", "input_ids")
        size = model.num_parameters(exclude_embeddings=True) if hasattr(model, "num_parameters") else 0
        self._operations = 6 * size  # of a token: two for each weight forward, four backward
        self.best_folder = made.get("pretrained_folder") if best_metric(args) is not None else None
        self.call("on_init_end")

    def has(self, event: str) -> bool:
        """One of them does something at that event."""
        return any(
            getattr(type(each), event) is not getattr(transformers.TrainerCallback, event) for each in self.callbacks
        )

    def call(self, event: str, loader: str | None = None, **more: Any) -> None:
        """Call a method of each.

        Arguments:
            loader: the name of the evaluation set whose loader they are given. Default: the last one.
        """
        current = [*self.loaders.values()][-1] if loader is None else self.loaders[loader]
        for callback in self.callbacks:
            method = getattr(callback, event)
            control = method(self.args, self.state, self.control, **self.given, eval_dataloader=current, **more)
            self.control = self.control if control is None else control

    def counting(self, training_step: Callable[..., Any]) -> Callable[..., Any]:
        """The training step, which also counts the operations of `state.total_flos`."""

        def counted_step(model: Any, batch: Mapping[str, Any]) -> Any:
            if model.training and self._main_input in batch:  # the step may serve evaluations too
                self.state.total_flos += float(self._operations * batch[self._main_input].numel())
            return training_step(model, batch)

        return counted_step

    def note(self, metrics: Mapping[str, float]) -> None:
        """Keep the best value, once the callbacks have seen it, as `Trainer` does."""
        value, best = metrics.get((best_metric(self.args) or "").replace("val/", "eval_")), self.state.best_metric
        if value is not None and (best is None or (value > best if self.args.greater_is_better else value < best)):
            self.state.best_metric, self.state.best_model_checkpoint = value, self.best_folder
            if plain(self.args.save_strategy) != "no":
                self.state.best_global_step = self.state.global_step

    def show(self, event: str, due: Mapping[str, bool]) -> dict[str, bool]:
        """Set the flags of `control` to what is due at that event anyway."""
        if event not in REQUESTS:
            return {}
        flags, by = REQUESTS[event]
        strategy = plain(getattr(self.args, by, by))
        shown = {flag: due[flag] and plain(getattr(self.args, FLAGS[flag][2])) == strategy for flag in flags}
        if event == "on_step_end" and self.state.global_step == 1:
            shown["should_log"] |= self.args.logging_first_step
        for flag, value in shown.items():
            setattr(self.control, flag, value)
        return shown

    def asked(self, shown: Mapping[str, bool]) -> dict[str, bool]:
        """Which flags they have set, and clear all.

        Raises:
            UsageError: they have taken back what is due.
        """
        asked = {flag: bool(getattr(self.control, flag)) for flag in FLAGS}
        for flag, (_, name, strategy) in FLAGS.items():
            if shown.get(flag, False) and not asked[flag]:
                raise UsageError(
                    f"a callback has set control.{flag} to False, but `{name}` is due",
                    f"set {strategy}='no', and control.{flag} = True where it has to be",
                )
            setattr(self.control, flag, False)
        return {flag: value and not shown.get(flag, False) for flag, value in asked.items()}


def _as_logs(row: Mapping[str, Any]) -> dict[str, Any]:
    """What `Trainer` would log of a row, under its names; nothing of a row of an epoch."""
    kept = {name: value for name, value in row.items() if name not in ("step", "epoch") and "lr/" not in name}
    names = {"lr": "learning_rate", "gradient_norm": "grad_norm"}
    names |= {name: name.replace("val/", "eval_", 1) for name in kept if "val/" in name}
    return {} if all("epoch/" in name for name in kept) else {names.get(name, name): kept[name] for name in kept}


@node(name="trainer_callback", family="bookkeeping")
class CallbackEvent:
    """Call one method of every `TrainerCallback`, and do what they ask for by `control`.

    Arguments:
        event: the name of the method. Default: "on_step_end".

    Reads:
        log_is_due, evaluate_is_due, save_is_due: what is done after the event, whether they ask for it or not.

    Guard fields:
        saves, evaluations, logs: how often they set `should_save`, `should_evaluate` and `should_log` where it was
            not due. Each is a unit of the clock, by which the node that is asked for is due.
        waiting: there are rows for ``on_log``.
        asking: what one of several ranks has asked for.
    """

    of_batches: ClassVar[bool] = False

    event: str = "on_step_end"

    saves: int = progress(0)
    evaluations: int = progress(0)
    logs: int = progress(0)
    rows: list[Any] = progress([])
    asking: str = progress("")

    def setup(self, callbacks: Callbacks, asks: Any = None) -> None:
        self._callbacks, self._asks = callbacks, asks

    @property
    def waiting(self) -> bool:
        return bool(self.rows)

    def on_metrics(self, row: Mapping[str, float], is_evaluation: bool) -> None:
        if self.event == "on_log" and (logs := _as_logs(row)):
            self.rows = [*self.rows, logs]

    def __call__(
        self,
        steps: int,
        epochs: float,
        count: int = 0,
        metrics: Any = None,
        log_is_due: bool = False,
        evaluate_is_due: bool = False,
        save_is_due: bool = False,
    ) -> None:
        if (self.event == "on_step_begin" and count) or (self.event == "on_substep_end" and not count):
            return
        callbacks, state = self._callbacks, self._callbacks.state
        epochs = float(epochs)  # a fraction, exactly
        if self.event not in _INSIDE:
            state.global_step, state.epoch = steps, epochs
        due = {"should_log": log_is_due, "should_evaluate": evaluate_is_due, "should_save": save_is_due}
        shown = callbacks.show(self.event, due)
        if self.event == "on_log":
            waiting, self.rows = [{**row, "epoch": epochs} for row in self.rows], []
            for row in waiting:
                state.log_history.append({**row, "step": steps})
                callbacks.call("on_log", logs=row)
        elif self.event == "on_evaluate":
            callbacks.call("on_evaluate", metrics={**_as_logs(metrics), "epoch": epochs})
            callbacks.note(_as_logs(metrics))
        else:
            callbacks.call(self.event)
        self._serve(shown)

    def _serve(self, shown: Mapping[str, bool]) -> None:
        """Ask for what they have asked for."""
        control, asked = self._callbacks.control, self._callbacks.asked(shown)
        self.saves, self.logs = self.saves + asked["should_save"], self.logs + asked["should_log"]
        self.evaluations += asked["should_evaluate"]
        if control.should_training_stop:
            by_epochs = self._callbacks.args.eval_strategy == "epoch"  # the epoch that is cut is evaluated too
            if by_epochs and self.event in _INSIDE:
                raise UsageError(
                    f"a callback has set control.should_training_stop in {self.event}, within an epoch that "
                    "eval_strategy='epoch' would evaluate",
                    "set it in on_step_end or on_epoch_end",
                )
            if by_epochs and self.event == "on_log" and (self._callbacks.state.epoch or 0) % 1:
                said = "a callback stops the training in on_log, within an epoch, which Trainer would evaluate"
                warnings.warn(f"{said}; for that, set control.should_training_stop in on_step_end", stacklevel=2)
            self.evaluations += by_epochs and self.event == "on_step_end" and not asked["should_evaluate"]
            self._asks(STOP)
        elif control.should_epoch_stop and self.of_batches:
            self._asks(END_EPOCH)
            control.should_epoch_stop = False

    def at_end(self) -> None:
        if self.event == "on_train_begin":
            self._callbacks.call("on_train_end")


@node(name="trainer_callback_of_batches", family="bookkeeping")
class BatchEvent(CallbackEvent):
    """The same at an event of a batch, which it reads so that `should_epoch_stop` ends the epoch of that."""

    of_batches: ClassVar[bool] = True

    def __call__(  # type: ignore[override]
        self,
        steps: int,
        epochs: float,
        batch: Any,
        count: int = 0,
        log_is_due: bool = False,
        evaluate_is_due: bool = False,
        save_is_due: bool = False,
    ) -> None:
        super().__call__(steps, epochs, count, None, log_is_due, evaluate_is_due, save_is_due)


@node(name="trainer_callback_of_prediction", family="bookkeeping")
def on_prediction_step(callbacks: Callbacks, loader: str = "") -> None:
    """Call ``on_prediction_step`` of every `TrainerCallback`; what it asks for is served after the evaluation.

    Reads:
        loader: the name of the evaluation set.
    """
    callbacks.call("on_prediction_step", loader)


def with_callbacks(graph: Graph, callbacks: Callbacks) -> Graph:
    """The graph with a node for each event at which a callback does something."""
    asked: dict[str, list[str]] = {flag: [] for flag in FLAGS}
    predicts = callbacks.has("on_prediction_step")
    # `on_evaluate` notes the best value, and `on_step_end` the step that events without a step of their own are told.
    told = predicts or any(map(callbacks.has, _INSIDE))
    also = {"on_train_begin": callbacks.has("on_train_end"), "on_evaluate": True, "on_step_end": told}
    for event, place in EVENTS.items():
        if not callbacks.has(event) and not also.get(event, False):
            continue
        reads = {"steps": "step.steps", "epochs": "next_batch.epochs"}
        reads |= {"count": "accumulate.count"} if event in ("on_step_begin", "on_substep_end") else {}
        flags = REQUESTS[event][0] if event in REQUESTS and (callbacks.has(event) or predicts) else ()
        reads |= {f"{flag.removeprefix('should_')}_is_due": f"{FLAGS[flag][1]}.due" for flag in flags}
        use = BatchEvent if "step" in event else CallbackEvent
        graph = graph.insert(event, use, event=event, reads=reads, **place)
        if "at" in place:
            graph = graph.guard(f"{event}_due", "on_log.waiting" if event == "on_log" else f"{event}.runs == 0")
        for flag in flags:
            field = FLAGS[flag][0]
            graph = graph.clock(f"{event}_{field}", f"{event}.{field}")
            asked[flag].append(f"1 {event}_{field}")
    for flag, (_, name, _) in FLAGS.items():
        every = graph.nodes[name].parameters["every"]
        every = [every] if isinstance(every, str) else [*every]
        graph = graph.set(name, every=[each for each in every if each != "never"] + asked[flag] or "never")
    if predicts:
        body: Any = graph.nodes["validate"].body
        place = {"after": "eval_batch", "reads": {"loader": "next_batch.loader"}}
        graph = graph.set("validate", graph=body.insert("on_prediction_step", on_prediction_step, **place))
    return graph
