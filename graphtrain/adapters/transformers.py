"""What `transformers.Trainer` is given, as a graph and its resources: the same batches, losses, steps and schedule.

    graph, resources = setup(model, TrainingArguments("out", num_train_epochs=3), train_dataset=data)
    graphtrain.Trainer(graph, run_dir="run", **resources).run()

Each argument is an edit of `fit`, or a part of a resource; `explain_arguments` prints which. One that has no meaning
here is an error that names what to use instead, if it is set.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from graphtrain import END_EPOCH, STOP, Graph, Loader, UsageError, lazy_import, node, progress
from graphtrain.adapters._training_arguments import best_metric, meanings, plain, refuse
from graphtrain.adapters._training_arguments import explain_arguments as explain_arguments

if TYPE_CHECKING:
    from transformers import TrainerCallback, TrainingArguments

losses_of_transformers = lazy_import("transformers.loss.loss_utils")
trainer_pt_utils = lazy_import("transformers.trainer_pt_utils")
trainer_utils = lazy_import("transformers.trainer_utils")
transformers = lazy_import("transformers")

# ---- data


class Order(Sampler[int]):
    """The order in which `Trainer` shuffles: that of a generator with the seed `seed` + epoch.

    >>> order = Order(5, seed=42)
    >>> order.set_epoch(1)
    >>> list(order) == torch.randperm(5, generator=torch.Generator().manual_seed(43)).tolist()
    True
    """

    def __init__(self, length: int, seed: int) -> None:
        self.length, self.seed, self.epoch = length, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(torch.randperm(self.length, generator=generator).tolist())


def _base(model: Any) -> Any:
    """The model that an adapter of PEFT is around, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _label_names(args: Any, model: Any) -> list[str]:
    return list(transformers.utils.find_labels(type(_base(model))) if args.label_names is None else args.label_names)


def _loader(args: Any, model: Any, dataset: Any, collator: Any, *, trains: bool) -> Any:
    """The batches of a data set, without the columns that the model does not take."""
    columns = [*inspect.signature(_base(model).forward).parameters, "label", "label_ids", *_label_names(args, model)]
    if args.remove_unused_columns and getattr(dataset, "column_names", None):
        unused = [name for name in dataset.column_names if name not in columns]
        if len(unused) == len(dataset.column_names):
            raise UsageError(
                f"`{type(_base(model)).__name__}.forward` takes none of the columns {', '.join(unused)}",
                "rename them, or set remove_unused_columns=False if the collator uses them",
            )
        dataset = dataset.remove_columns(unused)
    elif args.remove_unused_columns:
        collator = trainer_utils.RemoveColumnsCollator(collator, columns)
    size = args.per_device_train_batch_size if trains else args.per_device_eval_batch_size
    names = ("num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context", "drop_last", "in_order")
    options = {name: getattr(args, f"dataloader_{name}") for name in names} | {"collate_fn": collator}
    options["pin_memory"] = args.dataloader_pin_memory and torch.cuda.is_available()
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return DataLoader(dataset, size, **options)
    shuffles = trains and plain(args.train_sampling_strategy) == "random"
    seed = args.seed if args.data_seed is None else args.data_seed
    return Loader(dataset, size, sampler=Order(len(dataset), seed) if shuffles else None, **options)


@node(family="data")
def draw_as_loader(*, loaders: int = 1) -> None:
    """Draw the number that each of torch's loaders draws where it is iterated over, and a `graphtrain.Loader` does not.

    So the random numbers of a run, and its dropout, are those of `transformers.Trainer`.
    """
    for _ in range(loaders):
        torch.empty((), dtype=torch.int64).random_()


# ---- losses and predictions


class _Losses:
    """The loss that `Trainer` computes, and what it is a mean over."""

    def __init__(self, model: Any, function: Callable[..., Any] | None) -> None:
        base = _base(model)
        parameters = inspect.signature(base.forward).parameters.values()
        takes_more = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        self.takes_count, self.function = getattr(base, "accepts_loss_kwargs", takes_more), function
        encodes = getattr(getattr(base, "config", None), "is_encoder_decoder", False)
        mapping, shifting = losses_of_transformers.LOSS_MAPPING, losses_of_transformers.ForCausalLMLoss
        self.shifts = mapping.get(getattr(base, "loss_type", None)) is shifting and not encodes

    def count(self, batch: Mapping[str, Any]) -> torch.Tensor | None:
        """The labels that count, where the loss may be a mean over them."""
        if "labels" not in batch or not (self.takes_count or self.function is not None):
            return None
        labels = batch.get("shift_labels", batch["labels"][..., 1:] if self.shifts else batch["labels"])
        return labels.ne(-100).sum() if isinstance(labels, torch.Tensor) else None

    def __call__(self, model: Any, batch: Mapping[str, Any], count: Any) -> tuple[torch.Tensor, Any]:
        inputs = {**batch, "num_items_in_batch": count} if self.takes_count and count is not None else {**batch}
        labels = inputs.pop("labels", None) if self.function is not None else None
        outputs = model(**inputs)
        if self.function is not None:
            return self.function(outputs, labels, num_items_in_batch=count), outputs
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs[0]
        if loss is None:
            raise UsageError(
                f"`{type(_base(model)).__name__}` returned no loss for a batch of {', '.join(batch)}",
                "give the data a column with labels, or pass compute_loss_func",
            )
        return loss, outputs

    def window(self, model: Any, args: Any, train_data: Any) -> str:
        """What the losses of a window are; see `meanings`."""
        if args.gradient_accumulation_steps == 1 or not (self.takes_count or self.function is not None):
            return "mean"
        batch = next(train_data.batches(0) if isinstance(train_data, Loader) else iter(train_data))
        if self.shifts or self.count(batch) is None:
            return "tokens" if self.shifts else "mean"
        batch = {name: value.to(model.device) if torch.is_tensor(value) else value for name, value in batch.items()}
        model.eval()  # without dropout, the losses by two counts differ only if the model uses the count
        with torch.no_grad():
            by_one, by_two = (self(model, batch, count)[0] for count in (1, 2))
        model.train()
        return "sum" if torch.equal(by_one, by_two) else "tokens"


def _steps(args: Any, losses: _Losses, window: str, preprocess: Any, gathers: bool) -> tuple[Any, Any]:
    """The training step and the validation step."""
    in_tokens = window == "tokens" and args.gradient_accumulation_steps > 1

    def training_step(model: Any, batch: Mapping[str, Any]) -> Any:
        if in_tokens:
            return {"loss": losses(model, batch, 1)[0], "tokens": losses.count(batch)}
        return losses(model, batch, losses.count(batch))[0]

    def validation_step(model: Any, batch: Mapping[str, Any], loader: str = "") -> dict[str, Any]:
        loss, outputs = losses(model, batch, losses.count(batch))
        if not gathers:
            return {"loss": loss}
        ignored = [*getattr(model.config, "keys_to_ignore_at_inference", ["past_key_values"]), "loss"]
        values = [value for name, value in outputs.items() if name not in ignored]
        expected = [batch.get(name) for name in _label_names(args, model)]
        logits, labels = (each[0] if len(each) == 1 else tuple(each) for each in (values, expected))
        if preprocess is not None:
            logits = preprocess(logits, labels)
        return {"loss": loss, "prediction": (loader, _on_host(logits), _on_host(labels))}

    return training_step, validation_step


def _on_host(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_on_host, value))
    if not torch.is_tensor(value):
        return value
    return value.detach().to("cpu", torch.float32 if value.dtype in (torch.bfloat16, torch.float16) else None)


@node(writes="gathered")
def gather_predictions(prediction: Any, batches: int, gathered: Any = None) -> list[Any]:
    """Keep what is predicted of a batch until the evaluation ends; `batches` is how many it had, this one included."""
    return [*(gathered or ())[: batches - 1], prediction]


@node
def evaluate_predictions(
    compute_metrics: Callable[..., Any], recorder: Any, split: str, gathered: Any = None, *, concatenate: bool = True
) -> None:
    """Call ``compute_metrics(EvalPrediction)`` with what was predicted of each data set, and record what it returns.

    Arguments:
        concatenate: False passes a list with the predictions of each batch. Default: True, one array.
    """
    for loader in dict.fromkeys(loader for loader, _, _ in gathered or ()):
        predictions, labels = (trainer_pt_utils.EvalLoopContainer(concatenate, padding_index=-100) for _ in range(2))
        for name, logits, expected in gathered:
            if name == loader:
                predictions.add(logits)
                labels.add(expected)
        arrays = transformers.EvalPrediction(predictions=predictions.get_arrays(), label_ids=labels.get_arrays())
        metrics = trainer_utils.denumpify_detensorize(compute_metrics(arrays))
        start = f"{loader}/" if loader else ""
        recorder.means(split).add({start + name.removeprefix("eval_"): value for name, value in metrics.items()}, 1)


# ---- callbacks and saving

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
# At which of them the flags of `control` are served.
REQUESTS = {
    "on_step_end": ("saves", "evaluations", "logs"),
    "on_log": ("saves", "evaluations"),
    "on_epoch_end": ("saves", "evaluations", "logs"),
    "on_evaluate": ("saves",),
}
_DISPLAYS = ("DefaultFlowCallback", "NotebookProgressCallback", "PrinterCallback", "ProgressCallback")


class Callbacks:
    """The callbacks of a run, with the state and the control that they are given."""

    def __init__(
        self, callbacks: Iterable[Any], args: Any, steps: int, made: Mapping[str, Any], tokenizer: Any
    ) -> None:
        each_made = [each() if isinstance(each, type) else each for each in callbacks]
        self.callbacks = [each for each in each_made if type(each).__name__ not in _DISPLAYS]
        names = {"model": "model", "optimizer": "optimizer", "lr_scheduler": "scheduler"}
        names |= {"train_dataloader": "train_data", "eval_dataloader": "val_data"}
        self.given = {name: made.get(resource) for name, resource in names.items()} | {"processing_class": tokenizer}
        self.args, self.control = args, transformers.TrainerControl()
        self.state = transformers.TrainerState(max_steps=steps, num_train_epochs=math.ceil(args.num_train_epochs))
        self.state.compute_steps(args, steps)
        self.call("on_init_end")

    def has(self, event: str) -> bool:
        """One of them does something at that event."""
        return any(
            getattr(type(each), event) is not getattr(transformers.TrainerCallback, event) for each in self.callbacks
        )

    def call(self, event: str, **more: Any) -> None:
        for callback in self.callbacks:
            control = getattr(callback, event)(self.args, self.state, self.control, **self.given, **more)
            self.control = self.control if control is None else control

    def note(self, metrics: Mapping[str, float]) -> None:
        """Keep the best value, once the callbacks have seen it, as `Trainer` does."""
        value, best = metrics.get((best_metric(self.args) or "").replace("val/", "eval_")), self.state.best_metric
        if value is not None and (best is None or (value > best if self.args.greater_is_better else value < best)):
            self.state.best_metric, self.state.best_global_step = value, self.state.global_step


def _as_logs(row: Mapping[str, Any]) -> dict[str, Any]:
    """What `Trainer` would log of a row, under its names; nothing of a row of an epoch."""
    kept = {name: value for name, value in row.items() if name not in ("step", "epoch") and "lr/" not in name}
    names = {"lr": "learning_rate"} | {name: name.replace("val/", "eval_", 1) for name in kept if "val/" in name}
    return {} if all("epoch/" in name for name in kept) else {names.get(name, name): kept[name] for name in kept}


@node(name="trainer_callback", family="bookkeeping")
class CallbackEvent:
    """Call one method of every `TrainerCallback`, and do what they ask for by `control`.

    Arguments:
        event: the name of the method. Default: "on_step_end".

    Guard fields:
        saves, evaluations, logs: how often they set `should_save`, `should_evaluate` and `should_log`. Each is a unit
            of the clock, by which the node that is asked for is due.
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

    def setup(self, asks: Any = None) -> None:
        self._asks = asks

    @property
    def waiting(self) -> bool:
        return bool(self.rows)

    def on_metrics(self, row: Mapping[str, float], is_evaluation: bool) -> None:
        if self.event == "on_log" and (logs := _as_logs(row)):
            self.rows = [*self.rows, logs]

    def __call__(self, callbacks: Callbacks, steps: int, epochs: float, count: int = 0, metrics: Any = None) -> None:
        if (self.event == "on_step_begin" and count) or (self.event == "on_substep_end" and not count):
            return
        state, control = callbacks.state, callbacks.control
        epochs = float(epochs)  # a fraction, exactly
        state.global_step, state.epoch = steps - (self.event == "on_optimizer_step"), epochs
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
        control = callbacks.control
        self.saves, self.logs = self.saves + control.should_save, self.logs + control.should_log
        self.evaluations += control.should_evaluate
        if control.should_training_stop:
            self._asks(STOP)
        elif control.should_epoch_stop and self.of_batches:
            self._asks(END_EPOCH)
            control.should_epoch_stop = False
        control.should_save = control.should_evaluate = control.should_log = False

    def at_end(self, callbacks: Callbacks, steps: int, epochs: float, count: int = 0, metrics: Any = None) -> None:
        if self.event == "on_train_begin":
            callbacks.call("on_train_end")


@node(name="trainer_callback_of_batches", family="bookkeeping")
class BatchEvent(CallbackEvent):
    """The same at an event of a batch, which it reads so that `should_epoch_stop` ends the epoch of that."""

    of_batches: ClassVar[bool] = True

    def __call__(  # type: ignore[override]
        self, callbacks: Callbacks, steps: int, epochs: float, batch: Any, count: int = 0, metrics: Any = None
    ) -> None:
        super().__call__(callbacks, steps, epochs, count, metrics)

    def at_end(  # type: ignore[override]
        self, callbacks: Callbacks, steps: int, epochs: float, batch: Any, count: int = 0, metrics: Any = None
    ) -> None:
        """Nothing: the run ends for `on_train_begin` alone."""


def _with_callbacks(graph: Graph, callbacks: Callbacks) -> Graph:
    """The graph with a node for each event at which a callback does something."""
    asked: dict[str, list[str]] = {"saves": [], "evaluations": [], "logs": []}
    also = {"on_train_begin": callbacks.has("on_train_end"), "on_evaluate": True}  # which notes the best value
    for event, place in EVENTS.items():
        if not callbacks.has(event) and not also.get(event, False):
            continue
        reads = {"steps": "step.steps", "epochs": "next_batch.epochs"}
        reads |= {"count": "accumulate.count"} if event in ("on_step_begin", "on_substep_end") else {}
        use = BatchEvent if "step" in event else CallbackEvent
        graph = graph.insert(event, use, event=event, reads=reads, **place)
        if "at" in place:
            graph = graph.guard(f"{event}_due", "on_log.waiting" if event == "on_log" else f"{event}.runs == 0")
        for field in REQUESTS.get(event, ()) if callbacks.has(event) else ():
            graph = graph.clock(f"{event}_{field}", f"{event}.{field}")
            asked[field].append(f"1 {event}_{field}")
    for name, field in {"checkpoint": "saves", "validate": "evaluations", "log": "logs"}.items():
        every = graph.nodes[name].parameters["every"]
        every = [every] if isinstance(every, str) else [*every]
        graph = graph.set(name, every=[each for each in every if each != "never"] + asked[field])
    return graph


@node(family="saving")
def save_pretrained(model: Any, pretrained_folder: str, is_due: bool = True) -> None:
    """Call ``model.save_pretrained``, by which a model of PEFT writes its adapter alone.

    Reads:
        pretrained_folder: where to.
        is_due: False does nothing.
    """
    if is_due:
        model.save_pretrained(pretrained_folder)


# ---- the whole


def _prepare(model: Any, args: Any) -> None:
    """Do to the model what `Trainer` does before it trains."""
    if args.activation_checkpointing:
        options = dict(args.activation_checkpointing_kwargs or {})
        more = {name: options.pop(name) for name in ("every_n_layers", "offload") if name in options}
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=options or None, **more)
    if getattr(model, "config", None) is not None:
        model.config.use_cache = args.use_cache
    model.train()


def _optimizer(args: Any, model: Any, steps: int, optimizer: Any, scheduler: Any) -> tuple[Any, Any]:
    """Those that were given, or those that the arguments mean."""
    if optimizer is None:
        make, options = transformers.Trainer.get_optimizer_cls_and_kwargs(args, model)
        if {"params", "model", "optimizer_dict"} & options.keys() or not issubclass(make, torch.optim.Optimizer):
            raise UsageError(f"optim={plain(args.optim)!r} is made of a model", "pass optimizers=(optimizer, None)")
        decayed = {*transformers.Trainer.get_decay_parameter_names(None, model)}
        trained = [(name in decayed, each) for name, each in model.named_parameters() if each.requires_grad]
        groups = [([each for decays, each in trained if decays is wanted], wanted) for wanted in (True, False)]
        decay = {True: args.weight_decay, False: 0.0}
        optimizer = make([{"params": group, "weight_decay": decay[wanted]} for group, wanted in groups], **options)
    if scheduler is None:
        scheduler = transformers.get_scheduler(
            args.lr_scheduler_type,
            optimizer=optimizer,
            num_warmup_steps=args.get_warmup_steps(steps),
            num_training_steps=steps,
            scheduler_specific_kwargs=args.lr_scheduler_kwargs,
        )
    return optimizer, scheduler


def _with_metrics(graph: Graph, args: Any) -> Graph:
    """The graph with predictions that are gathered while it validates, and metrics that are computed of them."""
    body: Any = graph.nodes["validate"].body
    body = body.set("eval_batch", writes={"prediction": "prediction"})
    counted = {"batches": "next_batch.epoch_batches"}
    body = body.insert("gather_predictions", gather_predictions, after="eval_batch", reads=counted)
    options = {"concatenate": args.eval_do_concat_batches, "before": "end_evaluation"}
    return graph.set("validate", graph=body.insert("evaluate_predictions", evaluate_predictions, **options))


def setup(
    model: Any,
    args: TrainingArguments,
    train_dataset: Any = None,
    eval_dataset: Any = None,
    *,
    data_collator: Callable[..., Any] | None = None,
    compute_metrics: Callable[..., Any] | None = None,
    preprocess_logits_for_metrics: Callable[..., Any] | None = None,
    compute_loss_func: Callable[..., Any] | None = None,
    optimizers: tuple[Any, Any] = (None, None),
    callbacks: Collection[TrainerCallback | type[TrainerCallback]] = (),
    processing_class: Any = None,
) -> tuple[Graph, dict[str, Any]]:
    """The graph and the resources that train what ``transformers.Trainer``, given the same, would train.

    It seeds with `args.seed`, and puts the model into training mode.

    Arguments:
        model: one whose ``model(**batch)`` returns a loss; of PEFT too, whose adapter alone is trained and saved.
        args: see `explain_arguments`.
        train_dataset, eval_dataset: data sets of `datasets` or torch; the second also a mapping of them.
        data_collator, compute_metrics, preprocess_logits_for_metrics, compute_loss_func, optimizers, callbacks,
            processing_class: as of `transformers.Trainer`. Defaults: those of it.

    Raises:
        UsageError: an argument that has no meaning here is set, or something is missing.
    """
    refuse(args)
    if train_dataset is None:
        raise UsageError("there is no train_dataset", "setup(model, args, train_dataset=...)")
    if plain(args.eval_strategy) != "no" and eval_dataset is None:
        raise UsageError(f"eval_strategy={plain(args.eval_strategy)!r} has no eval_dataset", "pass eval_dataset=...")
    is_tokenizer = isinstance(processing_class, transformers.PreTrainedTokenizerBase)
    default = transformers.DataCollatorWithPadding(processing_class) if is_tokenizer else None
    collator = data_collator or default or transformers.default_data_collator
    _prepare(model, args)
    train_data, steps = _loader(args, model, train_dataset, collator, trains=True), args.max_steps
    if steps <= 0:
        if not hasattr(train_dataset, "__len__"):
            raise UsageError("train_dataset has no length, so its epochs are no number of steps", "set max_steps")
        steps = math.ceil(args.num_train_epochs * math.ceil(len(train_data) / args.gradient_accumulation_steps))
    losses = _Losses(model, compute_loss_func)
    window = losses.window(model, args, train_data)
    is_frozen = not all(parameter.requires_grad for parameter in model.parameters())
    graph = Graph.load("fit")
    for edit in [edit for meaning in meanings(args, steps, window, slim=is_frozen) for edit in meaning.edits]:
        graph = getattr(graph, edit.verb)(edit.name, **edit.keywords)
    graph = graph.insert("draw", draw_as_loader, after="begin_epoch")
    resources: dict[str, Any] = {"model": model, "train_data": train_data}
    resources |= zip(("optimizer", "scheduler"), _optimizer(args, model, steps, *optimizers), strict=True)
    gathers = compute_metrics is not None and not args.prediction_loss_only
    training_step, validation_step = _steps(args, losses, window, preprocess_logits_for_metrics, gathers)
    resources["training_step"] = training_step
    if eval_dataset is not None:
        several = eval_dataset if isinstance(eval_dataset, Mapping) else {"": eval_dataset}
        val_data = {name: _loader(args, model, each, collator, trains=False) for name, each in several.items()}
        resources["val_data"] = val_data if several is eval_dataset else val_data[""]
        resources["validation_step"] = validation_step
        graph = graph.insert("draw_again", draw_as_loader, after="validate", loaders=len(several))
        if gathers:
            graph, resources["compute_metrics"] = _with_metrics(graph, args), compute_metrics
    best = best_metric(args) is not None
    if plain(args.save_strategy) != "no" and (best or is_frozen):
        reads: dict[str, Any] = {"reads": {"is_due": "checkpoint.improved"}} if best else {}
        graph = graph.insert("save_pretrained", save_pretrained, between=("decide", "checkpoint"), **reads)
        resources["pretrained_folder"] = str(Path(str(args.output_dir)) / ("best" if best else "last"))
    if callbacks:
        bridge = resources["callbacks"] = Callbacks(callbacks, args, steps, resources, processing_class)
        graph = _with_callbacks(graph, bridge)
    (trainer_utils.enable_full_determinism if args.full_determinism else trainer_utils.set_seed)(args.seed)
    return graph, resources
