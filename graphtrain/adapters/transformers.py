"""What `transformers.Trainer` is given, as a graph and its resources: the same batches, losses, steps and schedule.

    graph, resources = setup(model, TrainingArguments("out", num_train_epochs=3), train_dataset=data)
    graphtrain.Trainer(graph, run_dir="run", **resources).run()

Each argument is an edit of `fit`, or a part of a resource; `explain_arguments` prints which. One that has no meaning
here is an error that names what to use instead, if it is set.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import transformers
from torch.utils.data import DataLoader, IterableDataset, Sampler
from transformers import EvalPrediction, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
from transformers.trainer_pt_utils import EvalLoopContainer
from transformers.trainer_utils import RemoveColumnsCollator, denumpify_detensorize, enable_full_determinism, set_seed
from transformers.utils import find_labels

from graphtrain import END_EPOCH, STOP, Above, Graph, Loader, UsageError, node, progress

_PROCESSES = "graphtrain run --processes N, with the edits that explain_arguments prints"
_HUB = "model.push_to_hub(...) after the run"

# Arguments that have no meaning here -> what to use instead.
INSTEAD = {
    "accelerator_config": "its defaults",
    "auto_find_batch_size": 'graph.set("train_batch", on_out_of_memory="halve")',
    "batch_eval_metrics": "compute_metrics over all predictions",
    "ddp_backend": _PROCESSES,
    "debug": 'graph.overlay("check_finite")',
    "deepspeed": _PROCESSES,
    "enable_jit_checkpoint": "Trainer(graph, run_dir=...), which saves when SIGTERM arrives",
    "fsdp": _PROCESSES,
    "fsdp_config": _PROCESSES,
    "generation_config": "model.generation_config = ...",
    "hub_model_id": _HUB,
    "hub_token": _HUB,
    "ignore_data_skip": "Trainer(graph, run_dir=...), which resumes at the very batch",
    "include_for_metrics": "preprocess_logits_for_metrics",
    "include_num_input_tokens_seen": "a node that counts them (docs/rewiring.md)",
    "label_smoothing_factor": "compute_loss_func=..., with cross_entropy(..., label_smoothing=...)",
    "neftune_noise_alpha": "a forward hook of the embedding",
    "optim_target_modules": "optimizers=(optimizer, None)",
    "parallelism_config": _PROCESSES,
    "predict_with_generate": "a validation_step that calls model.generate: resources['validation_step'] = ...",
    "push_to_hub": _HUB,
    "report_to": "Trainer(graph, loggers=[graphtrain.TensorBoard(...)])",
    "resume_from_checkpoint": "Trainer(graph, run_dir=...), which resumes by itself",
    "save_only_model": "graphtrain export, which writes the weights of a checkpoint",
    "torch_compile_backend": "torch_compile=True",
    "torch_compile_mode": "torch_compile=True",
    "torch_empty_cache_steps": "a node that calls torch.cuda.empty_cache (docs/rewiring.md)",
    "use_liger_kernel": "the functions of liger_kernel, before the model is made",
}

# Arguments about what is shown, or that change nothing while one process trains.
SILENT = frozenset(
    "average_tokens_across_devices bf16_full_eval ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters "
    "ddp_static_graph ddp_timeout disable_tqdm do_eval do_predict do_train eval_use_gather_object fp16_full_eval "
    "generation_max_length generation_num_beams hub_always_push hub_private_repo hub_revision hub_strategy local_rank "
    "log_level log_level_replica log_on_each_node logging_nan_inf_filter project run_name save_on_each_node "
    "restore_callback_states_from_checkpoint skip_memory_metrics tf32 trackio_bucket_id trackio_space_id "
    "trackio_static_space_id gradient_checkpointing gradient_checkpointing_kwargs".split()
)


class Edit(NamedTuple):
    """A verb of `Graph`, the name that it is given, and its keywords."""

    verb: str
    name: str
    keywords: Mapping[str, Any] = {}

    def __str__(self) -> str:
        values = {key: getattr(value, "__name__", repr(value)) for key, value in self.keywords.items()}
        return f".{self.verb}({', '.join([repr(self.name), *(f'{key}={value}' for key, value in values.items())])})"


class Meaning(NamedTuple):
    """What arguments of `TrainingArguments` are here: edits of `fit`, or a part of what `resource` names."""

    arguments: tuple[str, ...]
    edits: tuple[Edit, ...] = ()
    resource: str = ""

    def line(self, args: TrainingArguments) -> str:
        values = ", ".join(f"{name}={_plain(getattr(args, name))!r}" for name in self.arguments)
        return f"{values}: {'; '.join(filter(None, [''.join(map(str, self.edits)), self.resource]))}"


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


def _set(name: str, **keywords: Any) -> tuple[Edit, ...]:
    return (Edit("set", name, keywords),)


def explain_arguments(args: TrainingArguments, steps: int | None = None) -> str:
    """What each argument is here: an edit of `fit`, or a part of a resource; a line for those that belong together.

    Arguments:
        args: those of a `transformers.Trainer`.
        steps: of the optimizer in the whole run, of which amounts below 1 are a share. Default: it is not known.

    Raises:
        UsageError: an argument that has no meaning here is set.
    """
    refuse(args)
    return "\n".join(each.line(args) for each in meanings(args, steps) if each.edits or each.resource)


def meanings(args: Any, steps: int | None = None, window: str = "tokens", *, slim: bool = False) -> list[Meaning]:
    """The arguments, in the order in which their edits are made.

    Arguments:
        args: those of a `transformers.Trainer`.
        steps: as of `explain_arguments`.
        window: what the losses of a window of several batches are: "tokens", sums that are divided by the tokens of the
            window; "mean", means that the window has the mean of; "sum", means that are added up, as `Trainer` has it
            for a model that takes `num_items_in_batch` and does not use it. Default: "tokens".
        slim: parameters are frozen, and are written once. Default: False.
    """
    ending = f"{args.max_steps} steps" if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs"
    if args.max_steps <= 0 and steps is not None and not float(args.num_train_epochs).is_integer():
        ending = f"{steps} steps"
    size, windows = args.gradient_accumulation_steps, {"mean": (Edit("overlay", "scaled"),)}
    windows |= {"tokens": (Edit("overlay", "token_windows"),), "sum": _set("train_batch", reads={"window": "1"})}
    clip = (Edit("replace", "clip", {"use": ClipModel, "max_norm": float(args.max_grad_norm)}),)
    plateau: tuple[Edit, ...] = ()
    if _plain(args.lr_scheduler_type) == "reduce_lr_on_plateau":
        mode = (args.lr_scheduler_kwargs or {}).get("mode", "min")
        plateau = (Edit("overlay", "plateau"), *_set("plateau", monitor=_best(args), mode=mode))
    loading = ("drop_last", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
    of_loading = [f"dataloader_{name}" for name in (*loading, "multiprocessing_context", "in_order")]
    adam = ("adam_beta1", "adam_beta2", "adam_epsilon")
    groups = "`optimizer`, of a group with weight decay and one without"
    return [
        Meaning(("max_steps", "num_train_epochs"), _set("finish", after=ending)),
        Meaning(
            ("gradient_accumulation_steps",), (*_set("accumulate", every=size), *windows[window]) if size > 1 else ()
        ),
        Meaning(("max_grad_norm",), clip if args.max_grad_norm > 0 else ()),
        Meaning(("bf16",), _set("train_batch", precision="bf16-mixed") if args.bf16 else ()),
        Meaning(("fp16",), (Edit("overlay", "fp16"),) if args.fp16 else ()),
        Meaning(("torch_compile",), _set("train_batch", compile=True) if args.torch_compile else ()),
        *_of_rows(args, steps, slim),
        Meaning(("load_best_model_at_end",), (), 'trainer.load("best") after the run' * args.load_best_model_at_end),
        Meaning(("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"), plateau, "`scheduler`"),
        Meaning(("optim", "optim_args", "learning_rate", "weight_decay", *adam), (), groups),
        Meaning(("per_device_train_batch_size", "train_sampling_strategy", "seed", "data_seed"), (), "`train_data`"),
        Meaning(("per_device_eval_batch_size",), (), "`val_data`"),
        Meaning(("remove_unused_columns", "length_column_name", *of_loading), (), "`train_data`, `val_data`"),
        Meaning(("label_names", "prediction_loss_only", "eval_accumulation_steps"), (), "`validation_step`"),
        Meaning(("eval_do_concat_batches",), (), "`compute_metrics`"),
        Meaning(("activation_checkpointing", "activation_checkpointing_kwargs", "use_cache"), (), "`model`"),
        Meaning(("full_determinism",), (), "`setup` asks torch for it"),
        Meaning(("output_dir", "use_cpu"), (), 'Trainer(graph, run_dir=..., device="cpu")'),
    ]


def _every(amount: float, steps: int | None) -> str:
    """The trigger of an amount of steps, or of a share of them."""
    if amount >= 1:
        return f"{int(amount)} steps"
    return f"{math.ceil(steps * amount)} steps" if steps is not None else f"{amount:g} run"


def _best(args: Any) -> str | None:
    """The metric that models are compared by, as it is called in rows."""
    name = args.metric_for_best_model
    return None if name is None else f"val/{name.removeprefix('eval_')}"


def _of_rows(args: Any, steps: int | None, slim: bool) -> Iterator[Meaning]:
    """What is recorded, evaluated and saved, and when."""
    log = {"no": "never", "epoch": "1 epochs", "steps": _every(args.logging_steps, steps)}
    yield Meaning(("logging_strategy", "logging_steps"), _set("log", every=log[_plain(args.logging_strategy)]))
    first = Edit("insert", "log_first", {"use": "log", "at": "decide", "before": "log", "every": "once"})
    first.keywords["from_"] = "1 steps"
    yield Meaning(("logging_first_step",), (first,) if args.logging_first_step else ())
    evaluating: list[str] = ["once"] if args.eval_on_start else []
    delayed = {}
    if _plain(args.eval_strategy) != "no":
        amount = "1 epochs" if _plain(args.eval_strategy) == "epoch" else _every(args.eval_steps, steps)
        evaluating += [amount, "end"]
        if args.eval_delay:
            number, unit = amount.split()
            delayed["from_"] = f"{math.ceil(args.eval_delay / float(number)) * float(number):g} {unit}"
    edits = _set("validate", every=evaluating or "never", **delayed)
    yield Meaning(("eval_strategy", "eval_steps", "eval_delay", "eval_on_start"), edits)
    save = {"no": "never", "best": "never", "epoch": "1 epochs", "steps": _every(args.save_steps, steps)}
    saving: dict[str, Any] = {"every": save[_plain(args.save_strategy)]}
    if args.save_total_limit:
        saving["keep"] = args.save_total_limit
    if _best(args) is not None and _plain(args.save_strategy) != "no":
        saving |= {"best": _best(args), "best_mode": "max" if args.greater_is_better else "min"}
    saving |= {"slim": True} if slim else {}
    metric = ("metric_for_best_model", "greater_is_better")
    yield Meaning(("save_strategy", "save_steps", "save_total_limit", *metric), _set("checkpoint", **saving))


def refuse(args: Any) -> None:
    """Raise for everything that is set and has no meaning here.

    Raises:
        UsageError: it names each with its value, and what to use instead.
    """
    if not hasattr(args, "activation_checkpointing"):
        raise UsageError(f"this adapter knows no arguments of transformers {transformers.__version__}", "install 5.20")
    known = {*SILENT, *(name for meaning in meanings(args) for name in meaning.arguments)}
    wrong = {
        f"{field.name}={_plain(getattr(args, field.name))!r}": INSTEAD.get(field.name, "its default")
        for field in dataclasses.fields(args)
        if field.name not in known and not _is_default(field.name, getattr(args, field.name), field.default)
    }
    if args.eval_on_start and args.eval_delay:
        wrong["eval_on_start=True with eval_delay"] = "one of them"
    if (strategy := _plain(args.train_sampling_strategy)) not in ("random", "sequential"):
        wrong[f"train_sampling_strategy={strategy!r}"] = "resources['train_data'] = Loader(data, batch_sampler=...)"
    if _plain(args.lr_scheduler_type) == "greedy":
        wrong["lr_scheduler_type='greedy'"] = '"reduce_lr_on_plateau"'
    if (devices := max(args.world_size, args.n_gpu)) > 1:
        wrong[f"{devices} devices"] = "CUDA_VISIBLE_DEVICES=0, in one process"
    if wrong:
        lines = [f"{name} has no meaning here; use {instead}" for name, instead in wrong.items()]
        raise UsageError("TrainingArguments: " + "\n".join(lines))


def _is_default(name: str, value: Any, default: Any) -> bool:
    if name == "accelerator_config" and value is not None:
        return bool(value == type(value)())
    return not value or _plain(value) == default or (name, value) == ("torch_compile_backend", "inductor")


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
    return list(find_labels(type(_base(model))) if args.label_names is None else args.label_names)


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
        collator = RemoveColumnsCollator(collator, columns)
    size = args.per_device_train_batch_size if trains else args.per_device_eval_batch_size
    names = ("num_workers", "persistent_workers", "prefetch_factor", "multiprocessing_context", "drop_last", "in_order")
    options = {name: getattr(args, f"dataloader_{name}") for name in names} | {"collate_fn": collator}
    options["pin_memory"] = args.dataloader_pin_memory and torch.cuda.is_available()
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return DataLoader(dataset, size, **options)
    shuffles = trains and _plain(args.train_sampling_strategy) == "random"
    seed = args.seed if args.data_seed is None else args.data_seed
    return Loader(dataset, size, sampler=Order(len(dataset), seed) if shuffles else None, **options)


@node(family="data")
def draw_as_loader(*, loaders: int = 1) -> None:
    """Draw the number that each of torch's loaders draws where it is iterated over, and a `graphtrain.Loader` does not.

    So the random numbers of a run, and its dropout, are those of `transformers.Trainer`.
    """
    for _ in range(loaders):
        torch.empty((), dtype=torch.int64).random_()


@node(effects="clip", varying=("max_norm",))
class ClipModel:
    """Clip the gradients of `model`; the norm is summed in the order of its parameters, not of the optimizer's groups.

    Arguments:
        max_norm: the largest norm. Default: 1.
    """

    max_norm: Annotated[float, Above(0)] = 1.0

    def setup(self, model: Any, optimizer: Any) -> None:
        self._parameters = [*model.parameters()]

    def __call__(self) -> None:
        torch.nn.utils.clip_grad_norm_(self._parameters, self.max_norm)


# ---- losses and predictions


class _Losses:
    """The loss that `Trainer` computes, and what it is a mean over."""

    def __init__(self, model: Any, function: Callable[..., Any] | None) -> None:
        base = _base(model)
        parameters = inspect.signature(base.forward).parameters.values()
        takes_more = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        self.takes_count, self.function = getattr(base, "accepts_loss_kwargs", takes_more), function
        encodes = getattr(getattr(base, "config", None), "is_encoder_decoder", False)
        self.shifts = LOSS_MAPPING.get(getattr(base, "loss_type", None)) is ForCausalLMLoss and not encodes

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
        logits = tuple(value for name, value in outputs.items() if name not in ignored)
        labels = tuple(batch.get(name) for name in _label_names(args, model))
        logits, labels = (each[0] if len(each) == 1 else each for each in (logits, labels))
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
        predictions, labels = (EvalLoopContainer(concatenate, padding_index=-100) for _ in range(2))
        for name, logits, expected in gathered:
            if name == loader:
                predictions.add(logits)
                labels.add(expected)
        arrays = EvalPrediction(predictions=predictions.get_arrays(), label_ids=labels.get_arrays())
        metrics = denumpify_detensorize(compute_metrics(arrays))
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

    def __init__(self, callbacks: Iterable[Any], args: Any, steps: int, made: Mapping[str, Any], tokenizer: Any) -> None:
        each_made = [each() if isinstance(each, type) else each for each in callbacks]
        self.callbacks = [each for each in each_made if type(each).__name__ not in _DISPLAYS]
        names = {"model": "model", "optimizer": "optimizer", "lr_scheduler": "scheduler"}
        names |= {"train_dataloader": "train_data", "eval_dataloader": "val_data"}
        self.given = {name: made.get(resource) for name, resource in names.items()} | {"processing_class": tokenizer}
        self.args, self.control = args, TrainerControl()
        self.state = TrainerState(max_steps=steps, num_train_epochs=math.ceil(args.num_train_epochs))
        self.state.compute_steps(args, steps)
        self.call("on_init_end")

    def has(self, event: str) -> bool:
        """One of them does something at that event."""
        return any(getattr(type(each), event) is not getattr(TrainerCallback, event) for each in self.callbacks)

    def call(self, event: str, **more: Any) -> None:
        for callback in self.callbacks:
            control = getattr(callback, event)(self.args, self.state, self.control, **self.given, **more)
            self.control = self.control if control is None else control

    def note(self, metrics: Mapping[str, float]) -> None:
        """Keep the best value, once the callbacks have seen it, as `Trainer` does."""
        value, best = metrics.get((_best(self.args) or "").replace("val/", "eval_")), self.state.best_metric
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
        if self.event == "on_step_begin" and count:
            return
        state, control = callbacks.state, callbacks.control
        state.global_step, state.epoch = steps, epochs
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
        if control.should_training_stop or control.should_epoch_stop:
            self._asks(STOP if control.should_training_stop else END_EPOCH)
        control.should_epoch_stop = control.should_save = control.should_evaluate = control.should_log = False

    def at_end(self, callbacks: Callbacks, steps: int, epochs: float, count: int = 0, metrics: Any = None) -> None:
        if self.event == "on_train_begin":
            callbacks.call("on_train_end")


def _with_callbacks(graph: Graph, callbacks: Callbacks) -> Graph:
    """The graph with a node for each event at which a callback does something."""
    asked: dict[str, list[str]] = {"saves": [], "evaluations": [], "logs": []}
    also = {"on_train_begin": callbacks.has("on_train_end"), "on_evaluate": True}  # which notes the best value
    for event, place in EVENTS.items():
        if not callbacks.has(event) and not also.get(event, False):
            continue
        reads = {"steps": "step.steps", "epochs": "next_batch.epochs"}
        reads |= {"count": "accumulate.count"} if event == "on_step_begin" else {}
        graph = graph.insert(event, CallbackEvent, event=event, reads=reads, **place)
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
            raise UsageError(f"optim={_plain(args.optim)!r} is made of a model", "pass optimizers=(optimizer, None)")
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
    body = graph.nodes["validate"].body.set("eval_batch", writes={"prediction": "prediction"})
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
    if _plain(args.eval_strategy) != "no" and eval_dataset is None:
        raise UsageError(f"eval_strategy={_plain(args.eval_strategy)!r} has no eval_dataset", "pass eval_dataset=...")
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
    best = _best(args) is not None
    if _plain(args.save_strategy) != "no" and (best or is_frozen):
        reads = {"reads": {"is_due": "checkpoint.improved"}} if best else {}
        graph = graph.insert("save_pretrained", save_pretrained, between=("decide", "checkpoint"), **reads)
        resources["pretrained_folder"] = str(Path(args.output_dir) / ("best" if best else "last"))
    if callbacks:
        bridge = resources["callbacks"] = Callbacks(callbacks, args, steps, resources, processing_class)
        graph = _with_callbacks(graph, bridge)
    (enable_full_determinism if args.full_determinism else set_seed)(args.seed)
    return graph, resources
