"""What becomes of each public name of Lightning's module and Trainer: one row a name, each with how it is tried.

"called": a module overrides it, and a run calls it. "works": `TRIED`, or a plain access, raises nothing in a step.
"edit": an argument that is an edit of the graph. A text in brackets, as in "[finish]": an error has that text. "as in
Lightning": nothing of it is of a trainer, so it does what it does there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _each(answer: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), answer)


MODULE: dict[str, str] = {
    **_each(
        "called",
        """
        prepare_data setup teardown configure_model configure_sharded_model configure_callbacks configure_optimizers
        train_dataloader val_dataloader test_dataloader predict_dataloader
        training_step validation_step test_step predict_step
        on_before_batch_transfer transfer_batch_to_device on_after_batch_transfer
        backward optimizer_step optimizer_zero_grad configure_gradient_clipping lr_scheduler_step
        on_fit_start on_fit_end on_train_start on_train_end on_train_epoch_start on_train_epoch_end
        on_train_batch_start on_train_batch_end on_before_backward on_after_backward on_before_optimizer_step
        on_before_zero_grad on_save_checkpoint on_load_checkpoint
        on_validation_start on_validation_end on_validation_epoch_start on_validation_epoch_end
        on_validation_batch_start on_validation_batch_end on_validation_model_zero_grad
        on_test_start on_test_end on_test_epoch_start on_test_epoch_end on_test_batch_start on_test_batch_end
        on_predict_start on_predict_end on_predict_epoch_start on_predict_epoch_end on_predict_batch_start
        on_predict_batch_end
        """,
    ),
    **_each(
        "refused",
        "on_validation_model_eval on_validation_model_train on_test_model_eval on_test_model_train "
        "on_predict_model_eval",
    ),
    **_each(
        "works",
        """
        log log_dict logger loggers print trainer current_epoch global_step global_rank local_rank device dtype on_gpu
        optimizers lr_schedulers manual_backward toggle_optimizer untoggle_optimizer toggled_optimizer clip_gradients
        automatic_optimization all_gather freeze unfreeze hparams hparams_initial save_hyperparameters strict_loading
        example_input_array fabric device_mesh
        """,
    ),
    **_each(
        "as in Lightning",
        """
        CHECKPOINT_HYPER_PARAMS_KEY CHECKPOINT_HYPER_PARAMS_NAME CHECKPOINT_HYPER_PARAMS_TYPE remove_ignored_hparams
        load_from_checkpoint to_onnx to_tensorrt to_torchscript
        """,
    ),
}

TRAINER: dict[str, str] = {
    **_each(
        "works",
        """
        callback_metrics logged_metrics progress_bar_metrics current_epoch global_step is_last_batch
        estimated_stepping_batches num_training_batches num_val_batches num_test_batches num_predict_batches
        max_epochs max_steps min_epochs min_steps model lightning_module optimizers lr_scheduler_configs datamodule
        train_dataloader val_dataloaders test_dataloaders predict_dataloaders callbacks logger loggers log_dir
        default_root_dir precision precision_plugin strategy print ckpt_path progress_bar_callback
        world_size global_rank local_rank node_rank is_global_zero num_devices num_nodes
        training validating testing predicting evaluating sanity_checking enable_validation interrupted
        received_sigterm should_stop state
        accumulate_grad_batches barebones check_val_every_n_epoch enable_autolog_hparams fast_dev_run
        gradient_clip_algorithm gradient_clip_val limit_predict_batches limit_test_batches limit_train_batches
        limit_val_batches log_every_n_steps num_sanity_val_steps overfit_batches
        reload_dataloaders_every_n_epochs val_check_interval
        """,
    ),
    "fit": "[graphtrain.Trainer(graph]",
    "fit_loop": "[Trainer.progress]",
    **_each("[node `validate`]", "validate"),
    **_each("[graph `test`]", "test"),
    **_each("[graph `predict`]", "predict"),
    **_each("[graphs `evaluate`, `test` and `predict`]", "validate_loop test_loop predict_loop"),
    **_each("[node `checkpoint`]", "save_checkpoint"),
    **_each("works", "checkpoint_callback checkpoint_callbacks early_stopping_callback early_stopping_callbacks"),
    **_each("[device=]", "accelerator device_ids"),
    "distributed_sampler_kwargs": "[graphtrain.Loader]",
    "init_module": "[torch.device]",
    "num_sanity_val_batches": "[overlay `sanity`]",
    "profiler": "[report]",
    "scaler": "[overlay `fp16`]",
    "val_check_batch": "[guard `val_check_batch`]",
}

# An argument and a value of it that is not its default; `None` where every value is fine.
FLAGS: dict[str, tuple[str, Any]] = {
    **{name: ("edit", value) for name, value in {
        "max_epochs": 3, "max_steps": 10, "max_time": "00:01:00:00", "limit_train_batches": 2, "limit_val_batches": 1,
        "overfit_batches": 2, "fast_dev_run": True, "val_check_interval": 2, "check_val_every_n_epoch": 2,
        "log_every_n_steps": 5, "accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "precision": "bf16-mixed",
        "enable_checkpointing": False,
    }.items()},
    "gradient_clip_algorithm": ("works", "value"),  # with `gradient_clip_val`
    "callbacks": ("works", None),
    "logger": ("works", False),
    "default_root_dir": ("works", "there"),
    **{name: ("works", value) for name, value in {
        "min_epochs": 2, "min_steps": 2, "limit_test_batches": 2, "limit_predict_batches": 2,
    }.items()},
    # Nothing of these changes what is trained.
    **{name: ("works", value) for name, value in {
        "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "inference_mode": False,
        "use_distributed_sampler": False, "num_sanity_val_steps": 0, "enable_autolog_hparams": False,
        "model_registry": "x", "barebones": True, "profiler": "simple", "benchmark": True,
    }.items()},
    "devices": ("[--processes]", 2),
    "num_nodes": ("[--processes]", 2),
    "strategy": ("[--processes]", "fsdp"),
    "plugins": ("[by `replace`]", [object()]),
    "sync_batchnorm": ("[its own batches]", True),
    "deterministic": ("[--deterministic]", True),
    "detect_anomaly": ("[a switch of torch]", True),
    "reload_dataloaders_every_n_epochs": ("[opened again]", 2),
}  # fmt: skip

# How a name is tried in a training step of a module with manual optimization.
TRIED: dict[str, Callable[[Any], Any]] = {
    "log": lambda module: module.log("a", 1.0),
    "log_dict": lambda module: module.log_dict({"b": 1.0}),
    "print": lambda module: module.print("printed"),
    "optimizers": lambda module: module.optimizers(),
    "lr_schedulers": lambda module: module.lr_schedulers(),
    "manual_backward": lambda module: module.manual_backward(module(torch.ones(2, 4)).sum()),
    "toggle_optimizer": lambda module: module.toggle_optimizer(module.optimizers()),
    "untoggle_optimizer": lambda module: (
        module.toggle_optimizer(module.optimizers()),
        module.untoggle_optimizer(module.optimizers()),
    ),
    "clip_gradients": lambda module: module.clip_gradients(
        module.optimizers(), gradient_clip_val=1.0, gradient_clip_algorithm="norm"
    ),
    "all_gather": lambda module: module.all_gather(torch.ones(2)),
    "freeze": lambda module: module.freeze(),
    "unfreeze": lambda module: module.unfreeze(),
}
