"""A Hugging Face model, trained as it is: which package of the standard library does a snippet of source come from?

    graphtrain run examples/transformers_finetune.py
    python examples/transformers_finetune.py lr=1e-3 train_batch.precision=bf16-mixed

The model is built from a config with random weights, so nothing is downloaded; ``from_pretrained`` in its place makes
the same run a fine-tuning. Batches are dicts of tensors under the names of the model's own arguments. Validation is on
files of which nothing was trained on: about 85 % right after ten epochs, which take about a minute on one core; always
naming the most frequent package would be right in 42 % (Python 3.11).

Needs ``pip install "graphtrain[transformers]"``.
"""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, RandomSampler
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

import graphtrain
from graphtrain import Loader

PACKAGES = ("asyncio", "email", "importlib", "multiprocessing", "unittest", "xml")
PADDING, UNKNOWN = 0, 1


def words_of(file: Path) -> list[str]:
    """The words and signs of a source file."""
    return re.findall(r"\w+|[^\w\s]", file.read_text("utf-8", "replace"))


class Snippets(Dataset[dict[str, torch.Tensor]]):
    """Stretches of `length` words of the packages' files, with the number of the package each is from."""

    def __init__(self, texts: list[tuple[int, list[str]]], vocabulary: dict[str, int], length: int) -> None:
        self._samples = [
            (torch.tensor([vocabulary.get(word, UNKNOWN) for word in words[begin : begin + length]]), label)
            for label, words in texts
            for begin in range(0, len(words) - length, length)
        ]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words, label = self._samples[index]
        return {"input_ids": words, "labels": torch.tensor(label)}


def training_step(model: PreTrainedModel, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The model's own loss, and how often it is right."""
    output = model(**batch)
    return {"loss": output.loss, "accuracy": (output.logits.argmax(1) == batch["labels"]).float().mean()}


def setup(
    lr: float = 1e-3,
    width: int = 64,
    layers: int = 2,
    words: int = 64,
    vocabulary_size: int = 4000,
    batch_size: int = 32,
    snippets: int = 3200,
) -> dict[str, Any]:
    """The resources of the run.

    Arguments:
        lr: learning rate of AdamW.
        width: of the model; its hidden layers are four times as wide.
        layers: of the model.
        words: in a snippet.
        vocabulary_size: the words that the model knows: the most frequent of the training files.
        batch_size: snippets in a batch.
        snippets: in an epoch, drawn at random.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    train, val = [], []
    for label, package in enumerate(PACKAGES):
        files = [file for file in sorted((library / package).rglob("*.py")) if "test" not in file.parts]
        for number, file in enumerate(files):
            (train if number % 5 else val).append((label, words_of(file)))
    counts = Counter(word for _, text in train for word in text)
    vocabulary = {word: number for number, (word, _) in enumerate(counts.most_common(vocabulary_size - 2), start=2)}
    config = BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * width,
        max_position_embeddings=words,
        num_labels=len(PACKAGES),
        pad_token_id=PADDING,
    )
    model = BertForSequenceClassification(config)
    train_snippets = Snippets(train, vocabulary, words)
    sampler = RandomSampler(train_snippets, num_samples=snippets)
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=lr),
        "train_data": Loader(train_snippets, batch_size, sampler=sampler),
        # Mixed, so that validate/next_batch.limit takes from every package; the order is the same every time.
        "val_data": Loader(Snippets(val, vocabulary, words), 256, shuffle=True),
        "training_step": training_step,
    }


if __name__ == "__main__":
    graphtrain.main(setup)
