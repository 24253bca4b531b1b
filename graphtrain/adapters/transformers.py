"""The arguments of `transformers.Trainer` as a graph and resources: the same batches, losses, steps and schedule.

    graph, resources = setup(model, TrainingArguments("out", num_train_epochs=3), train_dataset=data)
    graphtrain.Trainer(graph, run_dir="run", **resources).run()

Each argument is an edit of `fit`, or a part of a resource. One that has no meaning here is an error that names what to
use instead, if it is set.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from graphtrain import Graph, Loader, UsageError, described, lazy_import, node
from graphtrain.adapters._training_arguments import best_metric, plain, refuse, with_arguments

if TYPE_CHECKING:
    from transformers import TrainingArguments

accelerate = lazy_import("accelerate")
modeling_auto = lazy_import("transformers.models.auto.modeling_auto")
losses_of_transformers = lazy_import("transformers.loss.loss_utils")
trainer_pt_utils = lazy_import("transformers.trainer_pt_utils")
trainer_utils = lazy_import("transformers.trainer_utils")
transformers = lazy_import("transformers")

# ---- data


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
    names = ("num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context", "drop_last")
    options = {name: getattr(args, f"dataloader_{name}") for name in names} | {"collate_fn": collator}
    options["pin_memory"] = args.dataloader_pin_memory and torch.cuda.is_available()
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return DataLoader(dataset, size, **options)
    strategy = plain(args.train_sampling_strategy) if trains else "sequential"
    seed = args.seed if args.data_seed is None else args.data_seed
    order = accelerate.data_loader.SeedableRandomSampler(dataset, data_seed=seed)
    return Loader(dataset, size, sampler=None if strategy == "sequential" else order, **options)


@node(family="data")
def draw_as_loader(data: Any = None, times: int = 1) -> None:
    """Draw the number that each of torch's loaders draws where it is iterated over, and a `graphtrain.Loader` does not.

    So the random numbers of a run, and its dropout, are those of `transformers.Trainer`.

    Reads:
        data: one loader, or several by their names. Default: none.
        times: how often it was iterated over, if its workers stay, which draw once. Default: 1.
    """
    for loader in data.values() if isinstance(data, Mapping) else [data]:
        if isinstance(loader, Loader) and times == 1:
            torch.empty((), dtype=torch.int64).random_()


# ---- losses and predictions


def _smoothing(args: Any, model: Any) -> Callable[..., Any] | None:
    """The loss with smoothed labels, if there is to be one."""
    base = _base(model)
    if not args.label_smoothing_factor:
        return None
    if getattr(getattr(base, "config", None), "problem_type", None) == "multi_label_classification":
        raise UsageError(
            f"label_smoothing_factor={args.label_smoothing_factor} does not apply where a sample has several labels",
            "set it to 0",
        )
    smoother = trainer_pt_utils.LabelSmoother(epsilon=args.label_smoothing_factor)
    shifts = type(base).__name__ in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return partial(smoother, shift_labels=shifts)


class _Losses:
    """The loss that `Trainer` computes, and what it is a mean over."""

    def __init__(self, model: Any, args: Any, function: Any) -> None:
        base = _base(model)
        parameters = inspect.signature(base.forward).parameters.values()
        takes_more = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        self.takes_count = getattr(base, "accepts_loss_kwargs", takes_more)
        self.counts = self.takes_count or function is not None
        self.function, self.needs_labels = function or _smoothing(args, model), function is None
        encodes = getattr(getattr(base, "config", None), "is_encoder_decoder", False)
        mapping, shifting = losses_of_transformers.LOSS_MAPPING, losses_of_transformers.ForCausalLMLoss
        self.shifts = mapping.get(getattr(base, "loss_type", None)) is shifting and not encodes

    def count(self, batch: Mapping[str, Any]) -> torch.Tensor | None:
        """The labels that count, where the loss may be a mean over them."""
        if "labels" not in batch or not self.counts:
            return None
        labels = batch.get("shift_labels", batch["labels"][..., 1:] if self.shifts else batch["labels"])
        return labels.ne(-100).sum() if isinstance(labels, torch.Tensor) else None

    def __call__(self, model: Any, batch: Mapping[str, Any], count: Any) -> tuple[torch.Tensor, Any]:
        inputs = {**batch, "num_items_in_batch": count} if self.takes_count and count is not None else {**batch}
        labels = inputs.pop("labels", None) if self.function is not None else None
        outputs = model(**inputs)
        if self.function is not None and not (self.needs_labels and labels is None):
            return self.function(outputs, labels, num_items_in_batch=count), outputs
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs[0]
        if loss is None:
            raise UsageError(
                f"`{type(_base(model)).__name__}` returned no loss for a batch of {', '.join(batch)}",
                "give the data a column with labels, or pass compute_loss_func",
            )
        return loss, outputs

    def window(self, model: Any, args: Any, train_data: Any) -> str:
        """What the losses of a window are; see `with_arguments`."""
        if args.gradient_accumulation_steps == 1 or not self.counts:
            return "mean"
        batch = next(train_data.batches(0) if isinstance(train_data, Loader) else iter(train_data))
        if self.count(batch) is None:
            return "mean"
        if self.shifts:
            return "tokens"
        batch = {name: value.to(model.device) if torch.is_tensor(value) else value for name, value in batch.items()}
        model.eval()  # without dropout, the losses by two counts differ only if the model uses the count
        with torch.no_grad():
            by_one, by_two = (self(model, batch, count)[0] for count in (1, 2))
        model.train()
        if torch.equal(by_one, by_two):
            return "sum"
        if torch.allclose(by_one, 2 * by_two, rtol=1e-3):
            return "tokens"
        raise UsageError(
            "the loss uses num_items_in_batch, but is not divided by it, so a window would differ from that of Trainer",
            "divide all of it, or nothing; or set gradient_accumulation_steps=1",
        )


def _steps(args: Any, losses: _Losses, window: str, preprocess: Any, *, gathers: bool) -> tuple[Any, Any]:
    """The training step and the validation step, which is None where the training step serves as one."""
    in_tokens = window == "tokens" and args.gradient_accumulation_steps > 1

    def training_step(model: Any, batch: Mapping[str, Any]) -> Any:
        if in_tokens:
            return {"loss": losses(model, batch, 1)[0], "tokens": losses.count(batch)}
        return losses(model, batch, losses.count(batch))[0]

    own_step = training_step

    def validation_step(model: Any, batch: Any, training_step: Any, loader: str = "", split: str = "val") -> Any:
        if training_step is not own_step:
            raise UsageError(
                "`training_step` was replaced, and `validation_step` still has the loss of `setup`",
                "replace both: resources['validation_step'] = ...",
            )
        loss, outputs = losses(model, batch, losses.count(batch))
        if not gathers or split != "val":  # only `validate` gathers what is predicted
            return {"loss": loss}
        ignored = [*getattr(getattr(model, "config", None), "keys_to_ignore_at_inference", ["past_key_values"]), "loss"]
        is_tuple = not isinstance(outputs, Mapping)
        values = outputs[1:] if is_tuple else [value for name, value in outputs.items() if name not in ignored]
        expected = [batch.get(name) for name in _label_names(args, model)]
        logits, labels = (each[0] if len(each) == 1 else tuple(each) for each in (values, expected))
        logits = logits if preprocess is None else preprocess(logits, labels)
        return {"loss": loss, "prediction": (loader, _on_host(logits), _on_host(labels))}

    return training_step, validation_step if gathers or in_tokens else None


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
def evaluate_predictions(compute_metrics: Callable[..., Any], recorder: Any, split: str, gathered: Any = None) -> None:
    """Call ``compute_metrics(EvalPrediction)`` with what was predicted of each data set, and record what it returns."""
    for loader in dict.fromkeys(loader for loader, _, _ in gathered or ()):
        predictions, labels = (trainer_pt_utils.EvalLoopContainer(True, padding_index=-100) for _ in range(2))
        for name, logits, expected in gathered:
            if name == loader:
                predictions.add(logits)
                labels.add(expected)
        arrays = transformers.EvalPrediction(predictions=predictions.get_arrays(), label_ids=labels.get_arrays())
        metrics = trainer_utils.denumpify_detensorize(compute_metrics(arrays))
        if not isinstance(metrics, Mapping):
            raise UsageError(f"compute_metrics returned {described(metrics)}", "return a mapping of metrics")
        for name, value in metrics.items():
            try:
                float(value)
            except (TypeError, ValueError):
                raise UsageError(f"compute_metrics: `{name}` is not a number: {value!r}") from None
        start = f"{loader}/" if loader else ""
        recorder.means(split).add({start + name.removeprefix("eval_"): value for name, value in metrics.items()}, 1)


# ---- saving


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


def _seeded(args: Any, model_init: Callable[..., Any] | None) -> Any:
    """Seed as `Trainer` does; returns the model that a function makes then, which may take a trial."""
    (trainer_utils.enable_full_determinism if args.full_determinism else trainer_utils.set_seed)(args.seed)
    return None if model_init is None else model_init(*[None for _ in inspect.signature(model_init).parameters])


def _prepared(model: Any, args: Any, model_init: Any, optimizers: tuple[Any, Any]) -> Any:
    """The model, passed or made by `model_init`, prepared as `Trainer` does before it trains."""
    if model_init is not None and isinstance(args, transformers.TrainingArguments):
        if model is not None or optimizers != (None, None):
            raise UsageError("model_init makes the model", "leave it out, or both the model and optimizers")
        model = _seeded(args, model_init)
    for value, expected in ((args, transformers.TrainingArguments), (model, torch.nn.Module)):
        if not isinstance(value, expected):
            raise UsageError(f"transformers.setup takes a {expected.__name__}; got {described(value)}")
    refuse(args)
    if args.activation_checkpointing:
        options = dict(args.activation_checkpointing_kwargs or {})
        more = {name: options.pop(name) for name in ("every_n_layers", "offload") if name in options}
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=options or None, **more)
    if getattr(model, "config", None) is not None:
        model.config.use_cache = args.use_cache
    model.train()
    return model


def _optimizer(args: Any, model: Any, steps: int, optimizer: Any, scheduler: Any) -> tuple[Any, Any]:
    """The optimizer and the scheduler: those that were passed, else those of the arguments."""
    if optimizer is None:
        make, options = transformers.Trainer.get_optimizer_cls_and_kwargs(args, model)
        if {"params", "model", "optimizer_dict"} & options.keys() or not issubclass(make, torch.optim.Optimizer):
            raise UsageError(f"optim={plain(args.optim)!r} needs the model", "pass optimizers=(optimizer, None)")
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


def _with_metrics(graph: Graph) -> Graph:
    """The graph with nodes that gather predictions while it validates, and compute metrics from them."""
    body: Any = graph.nodes["validate"].body
    body = body.set("eval_batch", writes={"prediction": "prediction"})
    reads = {"batches": "next_batch.epoch_batches"}
    body = body.insert("gather_predictions", gather_predictions, after="eval_batch", reads=reads)
    body = body.insert("evaluate_predictions", evaluate_predictions, before="end_evaluation")
    return graph.set("validate", graph=body)


def _refuse_missing(args: Any, train_dataset: Any, eval_dataset: Any) -> None:
    if train_dataset is None:
        raise UsageError("there is no train_dataset", "setup(model, args, train_dataset=...)")
    if plain(args.eval_strategy) != "no" and eval_dataset is None:
        raise UsageError(f"eval_strategy={plain(args.eval_strategy)!r} has no eval_dataset", "pass eval_dataset=...")
    if args.max_steps <= 0 and not hasattr(train_dataset, "__len__"):
        raise UsageError("train_dataset has no length, so the number of steps is not known", "set max_steps")


def _collator(processing_class: Any) -> Callable[..., Any]:
    """The collator that `Trainer` uses where none is given."""
    if isinstance(processing_class, transformers.PreTrainedTokenizerBase | transformers.SequenceFeatureExtractor):
        return transformers.DataCollatorWithPadding(processing_class)  # type: ignore[no-any-return]
    return transformers.default_data_collator  # type: ignore[no-any-return]


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
    model_init: Callable[..., Any] | None = None,
    optimizers: tuple[Any, Any] = (None, None),
    callbacks: Collection[Any] = (),
    processing_class: Any = None,
) -> tuple[Graph, dict[str, Any]]:
    """The graph and the resources that train what ``transformers.Trainer``, given the same, would train.

    It seeds with `args.seed`, and puts the model into training mode.

    Arguments:
        model: one whose ``model(**batch)`` returns a loss; of PEFT too, whose adapter alone is trained and saved. None
            with `model_init`, which makes it.
        args: what has no meaning here is an error.
        train_dataset, eval_dataset: data sets of `datasets` or torch; the second also a mapping of them.
        data_collator, compute_metrics, preprocess_logits_for_metrics, compute_loss_func, model_init, optimizers,
            processing_class: as of `transformers.Trainer`. Defaults: those of it.
        callbacks: refused: no TrainerCallback is called.

    Raises:
        UsageError: an argument that has no meaning here is set, or something is missing.
    """
    if callbacks:
        hint = 'put a node at the place: graph.hook("on_train_batch_end", kind); EarlyStoppingCallback is the overlay '
        raise UsageError("callbacks: no TrainerCallback is called by a graph", f"{hint}`early_stop`")
    model = _prepared(model, args, model_init, optimizers)
    _refuse_missing(args, train_dataset, eval_dataset)
    if args.load_best_model_at_end:
        warnings.warn('load_best_model_at_end: runs end with the last weights; use trainer.load("best")', stacklevel=2)
    collator = data_collator or _collator(processing_class)
    train_data, steps = _loader(args, model, train_dataset, collator, trains=True), args.max_steps
    has_length = hasattr(train_dataset, "__len__")
    per_epoch = math.ceil(len(train_data) / args.gradient_accumulation_steps) if has_length else steps
    steps = steps if steps > 0 else math.ceil(args.num_train_epochs * per_epoch)
    loss = _Losses(model, args, compute_loss_func)
    window = loss.window(model, args, train_data)
    is_frozen = not all(parameter.requires_grad for parameter in model.parameters())
    graph = with_arguments(Graph.load("fit"), args, steps, window)
    times = ("begin_epoch.runs", "validate.runs") if args.dataloader_persistent_workers else ("1", "1")
    graph = graph.insert("draw", draw_as_loader, after="begin_epoch", reads={"data": "train_data", "times": times[0]})
    resources: dict[str, Any] = {"model": model, "train_data": train_data}
    resources |= zip(("optimizer", "scheduler"), _optimizer(args, model, steps, *optimizers), strict=True)
    gathers = compute_metrics is not None and not args.prediction_loss_only
    if eval_dataset is not None:
        several = eval_dataset if isinstance(eval_dataset, Mapping) else {"": eval_dataset}
        val_data = {name: _loader(args, model, each, collator, trains=False) for name, each in several.items()}
        resources["val_data"] = val_data if several is eval_dataset else val_data[""]
        reads = {"data": "val_data", "times": times[1]}
        graph = graph.insert("draw_validation", draw_as_loader, after="validate", reads=reads)
        if gathers:
            graph, resources["compute_metrics"] = _with_metrics(graph), compute_metrics
    best = best_metric(args) is not None
    if plain(args.save_strategy) != "no" and (best or is_frozen):
        more: dict[str, Any] = {"reads": {"is_due": "checkpoint.improved"}} if best else {}
        graph = graph.insert("save_pretrained", save_pretrained, at="decide", before="checkpoint", **more)
        graph = graph.guard("save_pretrained_due", "checkpoint_due and save_pretrained.runs == checkpoint.runs")
        resources["pretrained_folder"] = str(Path(str(args.output_dir)) / ("best" if best else "last"))
    resources["training_step"], resources["validation_step"] = _steps(
        args, loss, window, preprocess_logits_for_metrics, gathers=gathers
    )
    _seeded(args, model_init)  # creates the model again, as Trainer does: the random numbers of the run follow
    return graph, resources
