"""What the arguments of `transformers.TrainingArguments` are in the graph `fit`, and which are refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any

import torch

from graphtrain import Above, Graph, UsageError, node


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
    "a node that calls model.generate (docs/rewiring.md)": (
        *("predict_with_generate", "generation_max_length", "generation_num_beams"),
    ),
    "a node that calls torch.cuda.empty_cache (docs/rewiring.md)": ("torch_empty_cache_steps",),
    "compute_metrics over all predictions": ("batch_eval_metrics", "eval_do_concat_batches"),
    "half the batch size with twice the gradient_accumulation_steps": ("auto_find_batch_size",),
    "graphtrain export, which writes the weights of a checkpoint": ("save_only_model",),
    "graphtrain run --processes N (docs/scale.md)": (
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
    "resources['train_data'] = Loader(data, batch_sampler=...)": ("sortish_sampler", "length_column_name"),
    "Trainer(graph, loggers=[graphtrain.TensorBoard(...)])": ("report_to",),
    "Trainer(graph, run_dir=...), which resumes by itself, and is saved when SIGTERM arrives": (
        *("resume_from_checkpoint", "ignore_data_skip", "enable_jit_checkpoint"),
    ),
}

# Those that may have any value, and change nothing: they are about what is shown, several processes, a service that is
# refused above, or what no Trainer reads while it trains.
NO_EFFECT = frozenset(
    """average_tokens_across_devices ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph
    ddp_timeout eval_use_gather_object local_rank log_level_replica log_on_each_node save_on_each_node
    do_eval do_predict do_train disable_tqdm log_level project run_name
    trackio_bucket_id trackio_space_id trackio_static_space_id
    hub_always_push hub_private_repo hub_revision hub_strategy bf16_full_eval fp16_full_eval
    gradient_checkpointing gradient_checkpointing_kwargs tf32
    logging_nan_inf_filter restore_callback_states_from_checkpoint""".split()  # noqa: SIM905
)

# The arguments that are edits of the graph, or parts of resources.
_KNOWN = frozenset(
    """max_steps num_train_epochs gradient_accumulation_steps max_grad_norm bf16 fp16 torch_compile
    logging_strategy logging_steps logging_first_step eval_strategy eval_steps eval_delay eval_on_start
    save_strategy save_steps save_total_limit metric_for_best_model greater_is_better load_best_model_at_end
    lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args learning_rate weight_decay adam_beta1 adam_beta2
    adam_epsilon per_device_train_batch_size per_device_eval_batch_size train_sampling_strategy seed data_seed
    label_smoothing_factor remove_unused_columns dataloader_drop_last dataloader_num_workers
    dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context
    label_names prediction_loss_only eval_accumulation_steps
    activation_checkpointing activation_checkpointing_kwargs use_cache full_determinism output_dir use_cpu""".split()  # noqa: SIM905
)


def plain(value: Any) -> Any:
    """The text of a member of an enumeration; any other value as it is."""
    return getattr(value, "value", value)


def with_arguments(graph: Graph, args: Any, steps: int, window: str) -> Graph:
    """The graph `fit` with the edits that the arguments are.

    Arguments:
        args: those of a `transformers.Trainer`.
        steps: of the optimizer in the whole run, of which amounts below 1 are a share.
        window: what the losses of a window of several batches are: "tokens", sums that are divided by the tokens of the
            window; "mean", means that the window has the mean of; "sum", means that are added up, as `Trainer` has it
            for a model that takes `num_items_in_batch` and does not use it.
    """
    is_whole = float(args.num_train_epochs).is_integer()
    graph = graph.set("finish", after=f"{args.num_train_epochs:g} epochs" if is_whole else f"{steps} steps")
    if args.max_steps > 0:
        graph = graph.set("finish", after=f"{args.max_steps} steps")
    if (size := args.gradient_accumulation_steps) > 1:
        graph = graph.set("accumulate", every=size)
        if window == "sum":
            graph = graph.set("train_batch", reads={"window": "1"})
        else:
            graph = graph.overlay("token_windows" if window == "tokens" else "scaled")
    if args.max_grad_norm > 0:
        graph = graph.replace("clip", ClipModel, max_norm=float(args.max_grad_norm))
    if args.bf16:
        graph = graph.set("train_batch", precision="bf16-mixed")
    if args.fp16:
        graph = graph.overlay("fp16")
    if args.torch_compile:
        graph = graph.set("train_batch", compile=True)
    graph = _with_rows(graph, args, steps)
    if plain(args.lr_scheduler_type) == "reduce_lr_on_plateau":
        mode = (args.lr_scheduler_kwargs or {}).get("mode", "min")
        graph = graph.overlay("plateau").set("plateau", monitor=best_metric(args), mode=mode)
    return graph


def _every(amount: float, steps: int) -> str:
    """The trigger of an amount of steps, or of a share of them."""
    return f"{int(amount)} steps" if amount >= 1 else f"{math.ceil(steps * amount)} steps"


def best_metric(args: Any) -> str | None:
    """The metric that models are compared by, as it is called in rows."""
    name = args.metric_for_best_model
    return None if name is None else f"val/{name.removeprefix('eval_')}"


def _with_rows(graph: Graph, args: Any, steps: int) -> Graph:
    """A graph that records, evaluates and saves when the arguments say."""
    log = {"no": "never", "epoch": "1 epochs", "steps": _every(args.logging_steps, steps)}
    graph = graph.set("log", every=log[plain(args.logging_strategy)])
    if args.logging_first_step:
        graph = graph.insert("log_first", "log", at="decide", before="log", every="once", from_="1 steps")
    evaluating: list[str] = ["once"] if args.eval_on_start else []
    delayed = {}
    if plain(args.eval_strategy) != "no":
        amount = "1 epochs" if plain(args.eval_strategy) == "epoch" else _every(args.eval_steps, steps)
        evaluating += [amount, f"{steps} steps"]
        if args.eval_delay:
            number, unit = amount.split()
            delayed["from_"] = f"{math.ceil(args.eval_delay / float(number)) * float(number):g} {unit}"
    graph = graph.set("validate", every=evaluating or "never", **delayed)
    save = {"no": "never", "best": "never", "epoch": "1 epochs", "steps": _every(args.save_steps, steps)}
    saving: dict[str, Any] = {"every": save[plain(args.save_strategy)]}
    if args.save_total_limit:
        saving["keep"] = args.save_total_limit
    if best_metric(args) is not None and plain(args.save_strategy) != "no":
        saving |= {"best": best_metric(args), "best_mode": "max" if args.greater_is_better else "min"}
    return graph.set("checkpoint", **saving)


def refuse(args: Any) -> None:
    """Raise for everything that is set and has no meaning here.

    Raises:
        UsageError: it names each with its value, and what to use instead.
    """
    if not hasattr(args, "activation_checkpointing"):
        raise UsageError("these TrainingArguments are of an older transformers", "install transformers 5.20 or newer")
    instead = {name: text for text, names in INSTEAD.items() for name in names}
    wrong = {
        f"{field.name}={plain(getattr(args, field.name))!r}": instead.get(field.name, "its default")
        for field in dataclasses.fields(args)
        if field.name not in _KNOWN | NO_EFFECT
        if not _is_default(field.name, getattr(args, field.name), field.default)
    }
    if args.eval_on_start and args.eval_delay:
        wrong["eval_on_start=True with eval_delay"] = "one of them"
    if (strategy := plain(args.train_sampling_strategy)) not in ("random", "sequential"):
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
