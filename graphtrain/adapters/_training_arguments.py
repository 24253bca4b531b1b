"""What each of `transformers.TrainingArguments` means: an edit of `fit`, a part of a resource, or an error."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch

from graphtrain import Above, UsageError, node

if TYPE_CHECKING:
    from transformers import TrainingArguments


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


# What to use instead of arguments that have no meaning here.
INSTEAD = {
    "TrainingArguments' own default": ("accelerator_config",),
    "True: batches in the order in which workers finish are others each time": ("dataloader_in_order",),
    "a forward hook of the embedding": ("neftune_noise_alpha",),
    "a node that counts them (docs/rewiring.md)": ("include_num_input_tokens_seen",),
    "a node that calls torch.cuda.empty_cache (docs/rewiring.md)": ("torch_empty_cache_steps",),
    "compute_metrics over all predictions": ("batch_eval_metrics",),
    "half the batch size with twice the gradient_accumulation_steps": ("auto_find_batch_size",),
    "graphtrain export, which writes the weights of a checkpoint": ("save_only_model",),
    "graphtrain run --processes N, with the edits that explain_arguments prints": (
        *("ddp_backend", "deepspeed", "fsdp", "fsdp_config", "parallelism_config"),
    ),
    'graph.overlay("check_finite")': ("debug",),
    "model.generation_config = ...": ("generation_config",),
    "model.push_to_hub(...) after the run": ("push_to_hub", "hub_model_id", "hub_token"),
    "optimizers=(optimizer, None)": ("optim_target_modules",),
    "preprocess_logits_for_metrics": ("include_for_metrics",),
    "torch.cuda.max_memory_allocated() after the run": ("skip_memory_metrics",),
    "the functions of liger_kernel, before the model is made": ("use_liger_kernel", "liger_kernel_config"),
    "torch_compile=True": ("torch_compile_backend", "torch_compile_mode"),
    'train_sampling_strategy="group_by_length"': ("sortish_sampler",),
    "Trainer(graph, loggers=[graphtrain.TensorBoard(...)])": ("report_to",),
    "Trainer(graph, run_dir=...), which resumes by itself, and is saved when SIGTERM arrives": (
        *("resume_from_checkpoint", "ignore_data_skip", "enable_jit_checkpoint"),
    ),
}

# Why arguments may have any value, and change nothing.
NO_EFFECT = {
    "one process trains": (
        *("average_tokens_across_devices", "ddp_broadcast_buffers", "ddp_bucket_cap_mb", "ddp_find_unused_parameters"),
        *("ddp_static_graph", "ddp_timeout", "eval_use_gather_object", "local_rank", "log_level_replica"),
        *("log_on_each_node", "save_on_each_node"),
    ),
    "scripts read it, and no Trainer does": ("do_eval", "do_predict", "do_train"),
    "it is about what is shown; the display and graphtrain ls show a run": (
        *("disable_tqdm", "log_level", "project", "run_name"),
    ),
    "it is about a service that report_to names, which is refused": (
        *("trackio_bucket_id", "trackio_space_id", "trackio_static_space_id"),
    ),
    "it is about push_to_hub, which is refused": (
        *("hub_always_push", "hub_private_repo", "hub_revision", "hub_strategy"),
    ),
    "Trainer reads it where it evaluates outside of a training": ("bf16_full_eval", "fp16_full_eval"),
    "TrainingArguments have told torch, or are it under the name of activation_checkpointing": (
        *("gradient_checkpointing", "gradient_checkpointing_kwargs", "tf32"),
    ),
    "a loss that is no number is in its row, as with False": ("logging_nan_inf_filter",),
    "callbacks are restored in any case": ("restore_callback_states_from_checkpoint",),
}


class _Edit(NamedTuple):
    """A verb of `Graph`, the name that it is given, and its keywords."""

    verb: str
    name: str
    keywords: Mapping[str, Any] = {}

    def __str__(self) -> str:
        keywords = [f"{key}={getattr(value, '__name__', repr(value))}" for key, value in self.keywords.items()]
        return f".{self.verb}({', '.join([repr(self.name), *keywords])})"


class Meaning(NamedTuple):
    """What arguments of `TrainingArguments` are here: edits of `fit`, or a part of what `resource` names."""

    arguments: tuple[str, ...]
    edits: tuple[_Edit, ...] = ()
    resource: str = ""

    def line(self, args: TrainingArguments) -> str:
        values = ", ".join(f"{name}={plain(getattr(args, name))!r}" for name in self.arguments)
        return f"{values}: {'; '.join(filter(None, [''.join(map(str, self.edits)), self.resource]))}"


def plain(value: Any) -> Any:
    """The text of a member of an enumeration; any other value as it is."""
    return getattr(value, "value", value)


def _set(name: str, **keywords: Any) -> tuple[_Edit, ...]:
    return (_Edit("set", name, keywords),)


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
    size = args.gradient_accumulation_steps
    windows: dict[str, tuple[_Edit, ...]] = {"mean": (_Edit("overlay", "scaled"),)}
    windows |= {"tokens": (_Edit("overlay", "token_windows"),), "sum": _set("train_batch", reads={"window": "1"})}
    clip = (_Edit("replace", "clip", {"use": ClipModel, "max_norm": float(args.max_grad_norm)}),)
    plateau: tuple[_Edit, ...] = ()
    if plain(args.lr_scheduler_type) == "reduce_lr_on_plateau":
        mode = (args.lr_scheduler_kwargs or {}).get("mode", "min")
        plateau = (_Edit("overlay", "plateau"), *_set("plateau", monitor=best_metric(args), mode=mode))
    loading = ("drop_last", "num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
    of_loading = [f"dataloader_{name}" for name in (*loading, "multiprocessing_context")]
    adam = ("adam_beta1", "adam_beta2", "adam_epsilon")
    groups = "`optimizer`, of a group with weight decay and one without"
    return [
        Meaning(("max_steps", "num_train_epochs"), _set("finish", after=ending)),
        Meaning(
            ("gradient_accumulation_steps",), (*_set("accumulate", every=size), *windows[window]) if size > 1 else ()
        ),
        Meaning(("max_grad_norm",), clip if args.max_grad_norm > 0 else ()),
        Meaning(("bf16",), _set("train_batch", precision="bf16-mixed") if args.bf16 else ()),
        Meaning(("fp16",), (_Edit("overlay", "fp16"),) if args.fp16 else ()),
        Meaning(("torch_compile",), _set("train_batch", compile=True) if args.torch_compile else ()),
        *_of_rows(args, steps, slim),
        Meaning(("load_best_model_at_end",), (), 'trainer.load("best") after the run' * args.load_best_model_at_end),
        Meaning(("lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"), plateau, "`scheduler`"),
        Meaning(("optim", "optim_args", "learning_rate", "weight_decay", *adam), (), groups),
        Meaning(("per_device_train_batch_size", "train_sampling_strategy", "seed", "data_seed"), (), "`train_data`"),
        Meaning(("label_smoothing_factor",), (), "the loss" * bool(args.label_smoothing_factor)),
        Meaning(("per_device_eval_batch_size",), (), "`val_data`"),
        Meaning(("remove_unused_columns", "length_column_name", *of_loading), (), "`train_data`, `val_data`"),
        Meaning(("label_names", "prediction_loss_only", "eval_accumulation_steps"), (), "`validation_step`"),
        *_of_generation(args),
        Meaning(("eval_do_concat_batches",), (), "`compute_metrics`"),
        Meaning(("activation_checkpointing", "activation_checkpointing_kwargs", "use_cache"), (), "`model`"),
        Meaning(("full_determinism",), (), "`setup` asks torch for it"),
        Meaning(("output_dir", "use_cpu"), (), 'Trainer(graph, run_dir=..., device="cpu")'),
    ]


def _of_generation(args: Any) -> Iterator[Meaning]:
    """What `Seq2SeqTrainingArguments` have in addition."""
    if hasattr(args, "predict_with_generate"):
        names = ("predict_with_generate", "generation_max_length", "generation_num_beams")
        yield Meaning(names, (), "`validation_step`, which calls model.generate" * args.predict_with_generate)


def _every(amount: float, steps: int | None) -> str:
    """The trigger of an amount of steps, or of a share of them."""
    if amount >= 1:
        return f"{int(amount)} steps"
    return f"{math.ceil(steps * amount)} steps" if steps is not None else f"{amount:g} run"


def best_metric(args: Any) -> str | None:
    """The metric that models are compared by, as it is called in rows."""
    name = args.metric_for_best_model
    return None if name is None else f"val/{name.removeprefix('eval_')}"


def _of_rows(args: Any, steps: int | None, slim: bool) -> Iterator[Meaning]:
    """What is recorded, evaluated and saved, and when."""
    log = {"no": "never", "epoch": "1 epochs", "steps": _every(args.logging_steps, steps)}
    yield Meaning(("logging_strategy", "logging_steps"), _set("log", every=log[plain(args.logging_strategy)]))
    first = {"use": "log", "at": "decide", "before": "log", "every": "once", "from_": "1 steps"}
    yield Meaning(("logging_first_step",), (_Edit("insert", "log_first", first),) if args.logging_first_step else ())
    evaluating: list[str] = ["once"] if args.eval_on_start else []
    delayed = {}
    if plain(args.eval_strategy) != "no":
        amount = "1 epochs" if plain(args.eval_strategy) == "epoch" else _every(args.eval_steps, steps)
        evaluating += [amount, "1 run"]
        if args.eval_delay:
            number, unit = amount.split()
            delayed["from_"] = f"{math.ceil(args.eval_delay / float(number)) * float(number):g} {unit}"
    edits = _set("validate", every=evaluating or "never", **delayed)
    yield Meaning(("eval_strategy", "eval_steps", "eval_delay", "eval_on_start"), edits)
    save = {"no": "never", "best": "never", "epoch": "1 epochs", "steps": _every(args.save_steps, steps)}
    saving: dict[str, Any] = {"every": save[plain(args.save_strategy)]}
    if args.save_total_limit:
        saving["keep"] = args.save_total_limit
    if best_metric(args) is not None and plain(args.save_strategy) != "no":
        saving |= {"best": best_metric(args), "best_mode": "max" if args.greater_is_better else "min"}
    saving |= {"slim": True} if slim else {}
    metric = ("metric_for_best_model", "greater_is_better")
    yield Meaning(("save_strategy", "save_steps", "save_total_limit", *metric), _set("checkpoint", **saving))


def refuse(args: Any) -> None:
    """Raise for everything that is set and has no meaning here.

    Raises:
        UsageError: it names each with its value, and what to use instead.
    """
    if not hasattr(args, "activation_checkpointing"):
        raise UsageError("these TrainingArguments are of an older transformers", "install transformers 5.20 or newer")
    known = {name for meaning in meanings(args) for name in meaning.arguments}
    instead = {name: text for text, names in INSTEAD.items() for name in names}
    free = {name for names in NO_EFFECT.values() for name in names}
    wrong = {
        f"{field.name}={plain(getattr(args, field.name))!r}": instead.get(field.name, "its default")
        for field in dataclasses.fields(args)
        if field.name not in known | free
        if not _is_default(field.name, getattr(args, field.name), field.default)
    }
    if args.eval_on_start and args.eval_delay:
        wrong["eval_on_start=True with eval_delay"] = "one of them"
    if (strategy := plain(args.train_sampling_strategy)) not in ("random", "sequential", "group_by_length"):
        wrong[f"train_sampling_strategy={strategy!r}"] = "resources['train_data'] = Loader(data, batch_sampler=...)"
    if plain(args.lr_scheduler_type) == "greedy":
        wrong["lr_scheduler_type='greedy'"] = '"reduce_lr_on_plateau"'
    if (devices := max(args.world_size, args.n_gpu)) > 1:
        wrong[f"{devices} devices"] = "CUDA_VISIBLE_DEVICES=0, in one process"
    if wrong:
        lines = [f"{name} has no meaning here; use {other}" for name, other in wrong.items()]
        raise UsageError("TrainingArguments: " + "\n".join(lines))


def _is_default(name: str, value: Any, default: Any) -> bool:
    if name == "accelerator_config" and value is not None:
        return bool(value == type(value)())
    is_unset = (not value and default is not True) or (name, value) == ("torch_compile_backend", "inductor")
    return is_unset or plain(value) == default
