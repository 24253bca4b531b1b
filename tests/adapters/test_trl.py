"""DPO and SFT as TRL trains them, by its data and its collators, with the step function of docs/hugging-face.md.

TRL is in an environment of its own, `.venv-trl`: it is no dependency of the tests.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Trainer
from graphtrain.adapters.transformers import setup
from tests.adapters.environments import run_elsewhere
from tests.adapters.hugging_face import COMMON, arguments, causal, difference, logged, texts, transformers
from tests.shipped import ROOT

pytestmark = [pytest.mark.sweep, pytest.mark.filterwarnings("ignore")]

OF_TRL = {**COMMON, "report_to": "none", "bf16": False, "gradient_checkpointing": False}


def tokenizer() -> Any:
    import tokenizers

    special = {"pad_token": "[PAD]", "eos_token": "[EOS]", "unk_token": "[UNK]"}
    words = {word: number for number, word in enumerate([*special.values(), *map(str, range(3, 50))])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, special["unk_token"]))
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, **special)


def pairs() -> list[dict[str, str]]:
    """Prompts of 3 tokens, with a text of 5 that was chosen, and a rejected one of 3 to 5."""

    def text(tokens: list[int]) -> str:
        return " ".join(str(3 + token % 47) for token in tokens)

    rows = [row["input_ids"] for row in texts(12)]  # 3 batches, so that the last window of two is short
    return [
        {"prompt": text(row[:3]), "chosen": " " + text(row[3:8]), "rejected": " " + text(row[6 : 9 + place % 3])}
        for place, row in enumerate(rows)
    ]


def of_the_page() -> dict[str, Any]:
    """`log_probabilities` and `preference_step` as docs/hugging-face.md defines them."""
    page = (ROOT / "docs" / "hugging-face.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(page.partition("```python\nimport copy\n")[2].partition("\npairs = [")[0], names)  # noqa: S102 - our own page
    return names


def fused_log_probabilities(model: Any, batch: Any) -> Any:
    """As TRL has them: its head computes them in tiles, which rounds in another way than a `log_softmax` of all."""
    inputs = {name: value for name, value in batch.items() if name != "completion_mask"}
    labels = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, -100)
    return model(**inputs, labels=labels, fused_lm_head=True).log_probs.sum(1).chunk(2)


def fused_step(model: Any, batch: Any) -> Any:
    outputs = model(**batch, fused_lm_head=True)
    return -outputs.log_probs.sum() / outputs.label_mask.sum()


def with_head() -> Any:
    from trl.trainer.utils import add_fused_lm_head

    model = causal()
    add_fused_lm_head(model)
    return model


def trained(trainer: Any) -> Any:
    """The trainer after its training, with the batches of its first epoch."""
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    trainer.first_batches = [*trainer.get_train_dataloader()]
    return trainer


def run_of(theirs: Any, given: dict[str, Any], make: Callable[[], Any], run_dir: Path | None, **resources: Any) -> Any:
    """The run of the data and the collator of a trainer of TRL, before it begins."""
    args = arguments(str(theirs.args.output_dir), **given, remove_unused_columns=False)
    graph, made = setup(make(), args, train_dataset=theirs.train_dataset, data_collator=theirs.data_collator)
    return Trainer(graph, run_dir=run_dir, display=None, notify=lambda line: None, **{**made, **resources})


def assert_same(theirs: Any, run: Any) -> None:
    """Batches, losses and weights are equal, bit for bit; of a window, the mean of its losses is rounded elsewhere."""
    run.run()
    for one, other in zip(theirs.first_batches, run.resources["train_data"].batches(0), strict=True):
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert run.progress["step"]["steps"] == theirs.state.global_step
    losses, expected = [row["loss"] for row in run.metrics if "loss" in row], logged(theirs, "loss")
    assert losses == (expected if theirs.args.gradient_accumulation_steps == 1 else pytest.approx(expected, rel=1e-6))
    assert difference(theirs.model, run.resources["model"]) == 0


def compare_preferences(accumulated: int, folder: Path) -> None:
    import datasets
    import trl

    given = {"gradient_accumulation_steps": accumulated, "train_sampling_strategy": "sequential"}
    args = trl.DPOConfig(str(folder), beta=0.1, **OF_TRL, **given)
    data = datasets.Dataset.from_list(pairs())
    theirs = trained(trl.DPOTrainer(causal(), causal(), args, train_dataset=data, processing_class=tokenizer()))
    by_page, by_head = of_the_page(), of_the_page()
    by_head["log_probabilities"] = fused_log_probabilities  # which its `preference_step` calls

    def run(names: dict[str, Any], make: Callable[[], Any], run_dir: Path | None = None) -> Any:
        step = {"training_step": names["preference_step"], "reference": make().eval()}
        return run_of(theirs, given, make, run_dir, **step)

    rounded = run(by_page, causal)
    rounded.run()
    assert difference(theirs.model, rounded.resources["model"]) < 1e-6
    whole = run(by_head, with_head)
    assert_same(theirs, whole)
    cut = run(by_head, with_head, folder / "run")
    cut.advance(17)
    cut.save()
    resumed = run(by_head, with_head, folder / "run")
    resumed.run()
    assert resumed.digest() == whole.digest() and difference(theirs.model, resumed.resources["model"]) == 0


def compare_texts(folder: Path) -> None:
    import datasets
    import trl

    data = datasets.Dataset.from_list(
        [{"input_ids": row["input_ids"][: 4 + row["input_ids"][0] % 8]} for row in texts(24)]
    )
    args = trl.SFTConfig(str(folder), **OF_TRL)
    theirs = trained(trl.SFTTrainer(causal(), args, train_dataset=data, processing_class=tokenizer()))
    plain = run_of(theirs, {}, causal, None)
    plain.run()
    assert difference(theirs.model, plain.resources["model"]) < 1e-6
    assert_same(theirs, run_of(theirs, {}, with_head, None, training_step=fused_step))


def test_trainers_of_trl_have_the_same_run(tmp_path: Path) -> None:
    if importlib.util.find_spec("trl") is None:
        run_elsewhere("trl", __file__, "transformers==5.23.0", "accelerate==1.15.0", "trl==1.16.0")
        return
    torch.set_num_threads(1)
    for accumulated in (1, 2):
        compare_preferences(accumulated, tmp_path / str(accumulated))
    compare_texts(tmp_path / "texts")
