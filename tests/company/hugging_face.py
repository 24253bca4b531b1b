"""Tiny models, data, and one training of them: by `transformers.Trainer`, and by the graph that its arguments mean."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Trainer
from graphtrain.adapters.transformers import setup

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")  # without which there are no TrainingArguments

VOCABULARY = 50
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}


def causal() -> Any:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0)
    return transformers.LlamaForCausalLM(config)


def gpt2() -> Any:
    """A causal model with dropout."""
    torch.manual_seed(1)
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=16)
    config.bos_token_id = config.eos_token_id = 0
    return transformers.GPT2LMHeadModel(config)


def classifier() -> Any:
    """It has dropout, and takes `num_items_in_batch` without using it."""
    torch.manual_seed(1)
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(**SIZES, num_attention_heads=4, num_labels=3)
    )


def unaware() -> Any:
    """A classifier that does not take `num_items_in_batch`."""
    model = classifier()
    model.accepts_loss_kwargs = False
    return model


def with_adapter() -> Any:
    import peft

    config = peft.LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS")
    return peft.get_peft_model(classifier(), config)


def texts(number: int, seed: int = 0) -> list[dict[str, Any]]:
    """Sequences of 12 tokens, of which a part is padding, each token to be predicted."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(number):
        ids = torch.randint(1, VOCABULARY, (12,), generator=generator).tolist()
        length = int(torch.randint(5, 13, (), generator=generator))
        mask = [int(place < length) for place in range(12)]
        rows.append(
            {
                "input_ids": [token * kept for token, kept in zip(ids, mask, strict=True)],
                "attention_mask": mask,
                "labels": [token if kept else -100 for token, kept in zip(ids, mask, strict=True)],
            }
        )
    return rows


def labelled(number: int, seed: int = 0) -> list[dict[str, Any]]:
    return [{**row, "labels": row["input_ids"][0] % 3} for row in texts(number, seed)]


COMMON = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 4, "num_train_epochs": 2, "use_cpu": True}
COMMON |= {"learning_rate": 1e-3, "weight_decay": 0.1, "warmup_steps": 0.1, "logging_steps": 1}
COMMON |= {"save_strategy": "no", "disable_tqdm": True}


def arguments(folder: Path | str, **given: Any) -> Any:
    return transformers.TrainingArguments(str(folder), **{**COMMON, **given})


def sequence_arguments(folder: Path | str, **given: Any) -> Any:
    """The arguments of Seq2SeqTrainer, which are more."""
    return transformers.Seq2SeqTrainingArguments(str(folder), **{**COMMON, **given})


def data_for(make: Callable[[], Any]) -> dict[str, Any]:
    rows = texts if make in (causal, gpt2) else labelled
    return {"train_dataset": rows(30), "eval_dataset": rows(10, seed=1)}


def there(
    make: Callable[[], Any],
    folder: Path,
    *,
    given: dict[str, Any],
    make_arguments: Callable[..., Any] = arguments,
    trainer_class: Any = None,
    **more: Any,
) -> Any:
    """Trained by `transformers.Trainer`, by `Seq2SeqTrainer`, or by a subclass."""
    model, args = make(), make_arguments(folder, **given)
    usual = transformers.Trainer if make_arguments is arguments else transformers.Seq2SeqTrainer
    trainer = (trainer_class or usual)(model, args, **{**data_for(make), **more})
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    return trainer


def here(
    make: Callable[[], Any],
    folder: Path,
    run_dir: Path | None = None,
    *,
    given: dict[str, Any],
    make_arguments: Callable[..., Any] = arguments,
    **more: Any,
) -> Trainer:
    """The run that trains the same, before it begins."""
    model = make()
    graph, resources = setup(model, make_arguments(folder, **given), **{**data_for(make), **more})
    assert graph.check() == []
    return Trainer(graph, run_dir=run_dir, display=None, notify=lambda line: None, **resources)


def difference(one: torch.nn.Module, other: torch.nn.Module) -> float:
    """The largest difference of two weights; 0 if every bit is equal."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(0.0 if torch.equal(a, b) else float((a - b).abs().max()) for a, b in pairs)


def logged(trainer: Any, name: str) -> list[float]:
    return [row[name] for row in trainer.state.log_history if name in row]
