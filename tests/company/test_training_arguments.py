"""Promise 20: every field of TrainingArguments has one row: an edit, a part of a resource, no effect, or an error."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from graphtrain import UsageError
from graphtrain.adapters._training_arguments import _KNOWN, INSTEAD, NO_EFFECT, refuse
from graphtrain.adapters.transformers import setup
from tests.company.hugging_face import (
    arguments,
    classifier,
    data_for,
    difference,
    here,
    sequence_arguments,
    there,
    transformers,
)
from tests.docs.execution import read_page

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and accelerate

FIELDS = {field.name: field for field in dataclasses.fields(transformers.Seq2SeqTrainingArguments)}


def rows() -> dict[str, list[str]]:
    """Which names each table has."""
    instead = [name for names in INSTEAD.values() for name in names]
    return {"used": [*_KNOWN], "instead": instead, "no effect": [*NO_EFFECT]}


def test_every_argument_is_in_one_row() -> None:
    names = [name for table in rows().values() for name in table]
    assert sorted(names) == sorted(FIELDS), "a field of a new transformers has no row, or one has two"


def test_the_page_has_every_argument(tmp_path: Path) -> None:
    page = read_page(Path(__file__).parents[2] / "docs" / "coming-from.md")
    assert [name for name in FIELDS if f"`{name}`" not in page] == []


def test_a_field_that_nobody_knows_is_an_error_if_it_is_set(tmp_path: Path) -> None:
    later = dataclasses.make_dataclass("Later", [("new_field", int, 0)], bases=(transformers.TrainingArguments,))
    refuse(later(str(tmp_path), use_cpu=True))
    with pytest.raises(UsageError, match="new_field=3 has no meaning here; use its default"):
        refuse(later(str(tmp_path), use_cpu=True, new_field=3))


@pytest.mark.parametrize("name", sorted(name for names in INSTEAD.values() for name in names))
def test_what_has_another_way_names_it(name: str, tmp_path: Path) -> None:
    args = sequence_arguments(tmp_path)
    default = getattr(args, name)
    setattr(args, name, False if default is True else "something")
    instead = next(text for text, names in INSTEAD.items() if name in names)
    with pytest.raises(UsageError) as caught:
        refuse(args)
    assert f"{name}=" in str(caught.value) and f"has no meaning here; use {instead}" in str(caught.value)


# ---- what is used changes what it says

EPOCHS, STEPS = {"eval_strategy": "epoch"}, {"eval_strategy": "steps", "eval_steps": 2}
SAVING, WORKERS = {"save_strategy": "steps", "save_steps": 2}, {"dataloader_num_workers": 1}
BEST = {**STEPS, **SAVING, "metric_for_best_model": "loss"}
# Name -> another value, what else is set in both, and what has to differ.
USED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "max_steps": (3, {}, "graph"),
    "num_train_epochs": (5, {}, "graph"),
    "gradient_accumulation_steps": (2, {}, "graph"),
    "max_grad_norm": (0.5, {}, "graph"),
    "bf16": (True, {}, "graph"),
    "fp16": (True, {}, "graph"),
    "torch_compile": (True, {}, "graph"),
    "logging_strategy": ("epoch", {}, "graph"),
    "logging_steps": (3, {}, "graph"),
    "logging_first_step": (True, {"logging_steps": 3}, "graph"),
    "eval_strategy": ("epoch", {}, "graph"),
    "eval_steps": (3, STEPS, "graph"),
    "eval_delay": (3, STEPS, "graph"),
    "eval_on_start": (True, EPOCHS, "graph"),
    "save_strategy": ("epoch", {}, "graph"),
    "save_steps": (4, SAVING, "graph"),
    "save_total_limit": (5, SAVING, "graph"),
    "metric_for_best_model": ("accuracy", BEST, "graph"),
    "greater_is_better": (True, BEST, "graph"),
    "load_best_model_at_end": (
        True,
        {**BEST, "greater_is_better": False},
        'nothing: trainer.load("best") after the run',
    ),
    "lr_scheduler_type": ("cosine", {}, "rates"),
    "lr_scheduler_kwargs": ({"num_cycles": 2}, {"lr_scheduler_type": "cosine"}, "rates"),
    "warmup_steps": (4, {}, "rates"),
    "optim": ("sgd", {}, "optimizer"),
    "optim_args": ("momentum=0.5", {"optim": "sgd"}, "optimizer"),
    "learning_rate": (0.5, {}, "optimizer"),
    "weight_decay": (0.5, {}, "optimizer"),
    "adam_beta1": (0.5, {}, "optimizer"),
    "adam_beta2": (0.5, {}, "optimizer"),
    "adam_epsilon": (0.5, {}, "optimizer"),
    "per_device_train_batch_size": (2, {}, "train_data"),
    "train_sampling_strategy": ("sequential", {}, "train_data"),
    "seed": (1, {}, "train_data"),
    "data_seed": (1, {}, "train_data"),
    "label_smoothing_factor": (0.1, {}, "loss"),
    "per_device_eval_batch_size": (2, EPOCHS, "val_data"),
    "remove_unused_columns": (False, {}, "train_data"),
    "dataloader_drop_last": (True, {}, "train_data"),
    "dataloader_num_workers": (1, {}, "train_data"),
    "dataloader_pin_memory": (False, {}, "nothing without a GPU"),
    "dataloader_persistent_workers": (True, WORKERS, "train_data"),
    "dataloader_prefetch_factor": (4, WORKERS, "train_data"),
    "dataloader_multiprocessing_context": ("spawn", WORKERS, "train_data"),
    "label_names": (["attention_mask"], EPOCHS, "prediction"),
    "prediction_loss_only": (True, EPOCHS, "prediction"),
    "eval_accumulation_steps": (1, EPOCHS, "nothing: predictions are on the host after every batch"),
    "activation_checkpointing": (True, {}, "model"),
    "activation_checkpointing_kwargs": (
        {"use_reentrant": True},
        {"activation_checkpointing": True},
        "nothing that is seen: transformers has them",
    ),
    "use_cache": (True, {}, "model"),
    "full_determinism": (True, {}, "nothing that is seen: torch has it"),
    "output_dir": ("elsewhere", {**BEST, "greater_is_better": False}, "folder"),
    "use_cpu": (False, {}, "nothing without a GPU"),
}


def test_every_argument_that_is_used_has_a_row_of_its_own() -> None:
    assert sorted(USED) == sorted(rows()["used"])


def seen(folder: Path, part: str, **given: Any) -> Any:
    """A part of what `setup` makes of arguments."""
    args = sequence_arguments(folder, **given)
    metrics = {"compute_metrics": lambda prediction: {}} if "eval_strategy" in given else {}
    model = classifier()
    graph, made = setup(model, args, **data_for(classifier), **metrics)
    batch = next(iter(made["train_data"].batches(0))) if part in ("loss", "prediction") else {}
    match part:
        case "graph":
            return graph
        case "rates":
            return [made["scheduler"].step() or made["scheduler"].get_last_lr() for _ in range(15)]
        case "optimizer":
            groups = made["optimizer"].param_groups
            return made["optimizer"].__class__, [{**group, "params": None} for group in groups]
        case "train_data" | "val_data":
            loader = made[part]
            options = [value for value in vars(loader)["_options"].values() if not callable(value)]
            first = [each["labels"].tolist() for each in loader.batches(0)] if not loader.num_workers else []
            return first, options, loader.num_workers, type(loader._collate).__name__
        case "loss":
            return made["training_step"](model.eval(), batch).item()
        case "prediction":
            step = made["validation_step"]
            return step and [*map(str, step(model.eval(), batch, made["training_step"]).items())]
        case "model":
            return model.is_gradient_checkpointing, model.config.use_cache
        case "folder":
            return made["pretrained_folder"]
    raise AssertionError(part)


@pytest.mark.first(8)
@pytest.mark.parametrize("name", [name for name, (_, _, part) in USED.items() if not part.startswith("nothing")])
def test_an_argument_that_is_used_changes_something(name: str, tmp_path: Path) -> None:
    value, context, part = USED[name]
    folder = value if name == "output_dir" else tmp_path
    changed = {**context, name: value} if name != "output_dir" else context
    assert seen(tmp_path, part, **context) != seen(folder, part, **changed)


# ---- what has no effect has none, in Trainer too

OTHER_VALUES = {
    "average_tokens_across_devices": False,
    "bf16_full_eval": True,
    "ddp_broadcast_buffers": True,
    "ddp_bucket_cap_mb": 1,
    "ddp_find_unused_parameters": True,
    "ddp_static_graph": True,
    "ddp_timeout": 7,
    "disable_tqdm": True,
    "do_eval": True,
    "do_predict": True,
    "do_train": True,
    "eval_use_gather_object": True,
    "hub_always_push": True,
    "hub_private_repo": True,
    "hub_revision": "main",
    "hub_strategy": "end",
    "local_rank": 0,
    "log_level": "error",
    "log_level_replica": "error",
    "log_on_each_node": False,
    "logging_nan_inf_filter": False,
    "project": "other",
    "restore_callback_states_from_checkpoint": True,
    "run_name": "other",
    "save_on_each_node": True,
    "tf32": False,
    "trackio_bucket_id": "other",
    "trackio_space_id": "other",
    "trackio_static_space_id": "other",
}
# Not beside the others: the other half precision, and other names of what has a row.
APART = {"fp16_full_eval", "gradient_checkpointing", "gradient_checkpointing_kwargs"}


@pytest.mark.full
def test_what_has_no_effect_has_none_in_trainer_either(tmp_path: Path) -> None:
    assert sorted({*OTHER_VALUES, *APART}) == sorted(rows()["no effect"])
    evaluated = {**EPOCHS, "gradient_accumulation_steps": 2}
    plain, other = (
        there(classifier, tmp_path, given={**evaluated, **more}, make_arguments=sequence_arguments)
        for more in ({}, OTHER_VALUES)
    )
    ours = here(classifier, tmp_path, given={**evaluated, **OTHER_VALUES}, make_arguments=sequence_arguments)
    ours.run()
    assert difference(plain.model, other.model) == difference(plain.model, ours.resources["model"]) == 0
    model = classifier()
    checked, _ = setup(model, arguments(tmp_path, gradient_checkpointing=True), **data_for(classifier))
    assert model.is_gradient_checkpointing
    assert checked == setup(classifier(), arguments(tmp_path), **data_for(classifier))[0]
