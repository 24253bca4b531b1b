"""Promise 20: TrainingArguments as a graph train what `transformers.Trainer` trains, bit for bit, and are resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import GraphtrainError, Outcome, Trainer, UsageError, fit
from graphtrain.adapters.transformers import setup
from tests.company.hugging_face import (
    SIZES,
    arguments,
    causal,
    classifier,
    data_for,
    difference,
    gpt2,
    here,
    labelled,
    logged,
    texts,
    there,
    transformers,
    unaware,
    with_adapter,
)
from tests.company.peer import assert_cut
from tests.shipped import OVERLAYS

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and accelerate


def accuracy(prediction: Any) -> dict[str, float]:
    predicted = prediction.predictions.argmax(-1)
    return {"accuracy": float((predicted == prediction.label_ids).mean()), "samples": len(predicted)}


# ---- equal to Trainer


def tokenizer() -> Any:
    """One of 50 words, of no file."""
    tokenizers = pytest.importorskip("tokenizers")
    special = {"pad_token": "[PAD]", "mask_token": "[MASK]", "unk_token": "[UNK]"}
    words = {word: number for number, word in enumerate([*special.values(), *map(str, range(3, 50))])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, special["unk_token"]))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, **special)


def short() -> list[dict[str, Any]]:
    """Samples of other lengths, for collators."""
    return [
        {"input_ids": row["input_ids"][: 4 + place % 7], "labels": place % 3} for place, row in enumerate(texts(24))
    ]


def of(rows: Any, **more: Any) -> dict[str, Any]:
    return {"train_dataset": rows, "eval_dataset": rows[:8], **more}


def padded() -> dict[str, Any]:
    return of(short(), data_collator=transformers.DataCollatorWithPadding(tokenizer(), pad_to_multiple_of=4))


def unmasked() -> dict[str, Any]:
    collator = transformers.DataCollatorForLanguageModeling(tokenizer(), mlm=False)
    return of([{"input_ids": row["input_ids"]} for row in short()], data_collator=collator)


def of_datasets() -> dict[str, Any]:
    datasets = pytest.importorskip("datasets")
    rows = [{**row, "unused": "a text"} for row in short()]
    sets = [datasets.Dataset.from_list(each) for each in (rows, rows[:8])]
    return {"train_dataset": sets[0], "eval_dataset": sets[1], "processing_class": tokenizer()}


def smoothed(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return torch.nn.functional.cross_entropy(outputs.logits, labels, label_smoothing=0.1)


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(labelled(30))


BY_STEPS = {"eval_strategy": "steps", "eval_steps": 3}
# What is trained, its arguments, and further ones of `Trainer` and `setup`.
EQUAL: dict[str, tuple[Any, ...]] = {
    "a causal model": (causal, {}),
    "a causal model with dropout": (gpt2, {}),
    "no clipping, cosine, in epochs and a half": (
        causal,
        {"max_grad_norm": 0, "num_train_epochs": 1.5, "lr_scheduler_type": "cosine"},
    ),
    "steps, and batches that are whole": (causal, {"max_steps": 11, "dataloader_drop_last": True, "data_seed": 7}),
    "in order, by SGD": (causal, {"train_sampling_strategy": "sequential", "optim": "sgd"}),
    "bfloat16": (causal, {"bf16": True}),
    "activations computed again": (gpt2, {"activation_checkpointing": True}),
    "a classifier, evaluated": (classifier, {"eval_strategy": "epoch"}),
    "a classifier in windows": (
        classifier,
        {"eval_strategy": "steps", "eval_steps": 3, "gradient_accumulation_steps": 3},
    ),
    "means of windows": (unaware, {"gradient_accumulation_steps": 4}),
    "evaluated before, and by a share": (
        classifier,
        {"eval_strategy": "steps", "eval_steps": 0.3, "eval_on_start": True},
    ),
    "a rate that falls on a plateau": (
        classifier,
        {
            **BY_STEPS,
            "lr_scheduler_type": "reduce_lr_on_plateau",
            "lr_scheduler_kwargs": {"patience": 0, "threshold": 9.0},
        },
    ),
    "smoothed labels": (classifier, {"label_smoothing_factor": 0.1, "eval_strategy": "epoch"}),
    "smoothed labels, and means of windows": (
        unaware,
        {"label_smoothing_factor": 0.1, "gradient_accumulation_steps": 4},
    ),
    "a loss of one's own": (classifier, {}, lambda: {"compute_loss_func": smoothed}),
    "a stream": (classifier, {"max_steps": 9}, lambda: {"train_dataset": Stream()}),
    "padding": (classifier, {"eval_strategy": "epoch"}, padded),
    "masking nothing": (causal, {"eval_strategy": "epoch"}, unmasked),
    "the default of a tokenizer": (
        classifier,
        {"eval_strategy": "epoch"},
        lambda: of(short(), processing_class=tokenizer()),
    ),
    "of datasets": (classifier, {"eval_strategy": "epoch"}, of_datasets),
    "workers that stay": (
        classifier,
        {**BY_STEPS, "dataloader_num_workers": 1, "dataloader_persistent_workers": True},
    ),
}


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("name", EQUAL)
def test_it_trains_what_trainer_trains(name: str, tmp_path: Path) -> None:
    make, given, *more = EQUAL[name]
    (expected, run) = (train(make, tmp_path, given=given, **(more[0]() if more else {})) for train in (there, here))
    assert run.run() is Outcome.FINISHED
    assert difference(expected.model, run.resources["model"]) == 0
    assert run.progress["step"]["steps"] == expected.state.global_step
    assert logged(expected, "learning_rate") == [row["lr"] for row in run.metrics if "lr" in row]
    if "gradient_accumulation_steps" not in given:  # of a window, Trainer logs the sum
        assert logged(expected, "loss") == [row["loss"] for row in run.metrics if "loss" in row]
    evaluated = [(row["step"], row["val/loss"]) for row in run.metrics if "val/loss" in row]
    steps = [row["step"] for row in expected.state.log_history if "eval_loss" in row]
    assert [step for step, _ in evaluated] == steps
    # Trainer has the mean of 32-bit numbers, one a sample.
    assert [loss for _, loss in evaluated] == pytest.approx(logged(expected, "eval_loss"), rel=1e-6)


@pytest.mark.full
@pytest.mark.parametrize(("make", "unpredicted"), [(causal, 1), (gpt2, 0)], ids=["causal", "with dropout"])
def test_windows_of_tokens_are_equal_where_the_division_is_exact(make: Any, unpredicted: int, tmp_path: Path) -> None:
    """Trainer divides each window by 32, which rounds nothing: a sample counts from 1 to 11 tokens.

    The first token of a sample is not predicted. Trainer counts it where transformers knows no loss of the model's
    class, as of GPT-2: `loss_type` is None.
    """
    lengths = [1, 11, 2, 6, 3, 5, 1, 3]
    assert sum(lengths) == 32
    data = texts(32)
    for place, row in enumerate(data):
        kept = lengths[place % 8] + unpredicted
        row["attention_mask"] = [1] * kept + [0] * (12 - kept)
        row["labels"] = row["input_ids"][:kept] + [-100] * (12 - kept)
    given = {"gradient_accumulation_steps": 2, "train_sampling_strategy": "sequential", "max_grad_norm": 0}
    expected = there(make, tmp_path, given=given, train_dataset=data)
    run = here(make, tmp_path, given=given, train_dataset=data)
    run.run()
    assert run.progress["step"]["steps"] == expected.state.global_step == 8
    assert difference(expected.model, run.resources["model"]) == 0


def test_a_window_is_a_mean_where_batches_have_no_labels(tmp_path: Path) -> None:
    """As of a loss of one's own: Trainer, too, finds no tokens to count."""
    args = arguments(tmp_path, gradient_accumulation_steps=2)
    for names, overlay in ((("input_ids",), "scaled"), (("input_ids", "labels"), "token_windows")):
        data = [{name: row[name] for name in names} for row in texts(8)]
        graph, _ = setup(causal(), args, train_dataset=data)
        assert overlay in graph.layers.names


@pytest.mark.full
def test_metrics_are_of_all_predictions(tmp_path: Path) -> None:
    given = {"eval_strategy": "epoch"}
    expected = there(classifier, tmp_path, given=given, compute_metrics=accuracy)
    run = here(classifier, tmp_path, given=given, compute_metrics=accuracy)
    run.run()
    for name in ("accuracy", "samples"):
        assert [row[f"val/{name}"] for row in run.metrics if f"val/{name}" in row] == logged(expected, f"eval_{name}")
    sets = {"one": labelled(6, seed=1), "two": labelled(9, seed=2)}
    expected = there(classifier, tmp_path, given=given, compute_metrics=accuracy, eval_dataset=sets)
    run = here(classifier, tmp_path, given=given, compute_metrics=accuracy, eval_dataset=sets)
    run.run()
    assert difference(expected.model, run.resources["model"]) == 0
    for name in sets:
        values = [row[f"val/{name}/accuracy"] for row in run.metrics if f"val/{name}/accuracy" in row]
        assert values == logged(expected, f"eval_{name}_accuracy")


class Words(torch.nn.Module):
    """A module of nobody's: no `config`, and outputs in a dictionary or in a tuple."""

    def __init__(self, in_tuple: bool) -> None:
        super().__init__()
        self.net, self.in_tuple = torch.nn.EmbeddingBag(50, 3), in_tuple

    def forward(self, input_ids: Any, labels: Any = None) -> Any:
        logits = self.net(input_ids)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        return (loss, logits) if self.in_tuple else {"loss": loss, "logits": logits}


@pytest.mark.parametrize("in_tuple", [False, True])
def test_a_module_of_ones_own_is_evaluated(in_tuple: bool, tmp_path: Path) -> None:
    run = here(lambda: Words(in_tuple), tmp_path, given={"eval_strategy": "epoch"}, compute_metrics=accuracy)
    run.run()
    data = data_for(classifier)["eval_dataset"]
    predicted = run.resources["model"].net(torch.tensor([row["input_ids"] for row in data])).argmax(-1)
    expected = (predicted == torch.tensor([row["labels"] for row in data])).double().mean()
    assert [row["val/accuracy"] for row in run.metrics if "val/accuracy" in row][-1] == float(expected)


def without_seed(trial: Any = None) -> Any:
    """A model that is made with the random numbers that come next."""
    assert trial is None
    config = transformers.BertConfig(**SIZES, num_attention_heads=4, num_labels=3)
    return transformers.BertForSequenceClassification(config)


@pytest.mark.full
@pytest.mark.parametrize("make", [without_seed, lambda: without_seed()], ids=["with a trial", "without"])
def test_a_model_is_made_and_seeded_as_trainer_does(make: Any, tmp_path: Path) -> None:
    given = {"seed": 7, "eval_strategy": "epoch"}
    expected = there(lambda: None, tmp_path, given=given, model_init=make)
    run = here(lambda: None, tmp_path, given=given, model_init=make)
    run.run()
    assert difference(expected.model, run.resources["model"]) == 0
    for other in ({"model": classifier()}, {"optimizers": (torch.optim.SGD([torch.zeros(1)]), None)}):
        with pytest.raises(UsageError, match="model_init makes the model"):
            setup(
                **{"model": None, "args": arguments(tmp_path), "train_dataset": labelled(4), **other}, model_init=make
            )


@pytest.mark.full
def test_a_training_step_in_the_place_of_ours_is_evaluated_or_an_error(tmp_path: Path) -> None:
    """Where ours returns more than the loss, another one cannot be evaluated with."""
    given = {"eval_strategy": "epoch", "num_train_epochs": 1}
    for more, options in (({}, {}), ({"gradient_accumulation_steps": 2}, {}), ({}, {"compute_metrics": accuracy})):
        make = causal if more else classifier
        run = here(make, tmp_path, given={**given, **more}, **options)
        plain = run.resources["training_step"]

        def tenfold_step(model: Any, batch: Any, plain: Any = plain, in_tokens: bool = bool(more)) -> Any:
            result = plain(model, batch)
            return {**result, "loss": 10 * result["loss"]} if in_tokens else 10 * result

        replaced = Trainer(run.graph, display=None, **{**run.resources, "training_step": tenfold_step})
        if more or options:
            with pytest.raises(UsageError, match="`training_step` was replaced, and `validation_step` still has"):
                replaced.run()
        else:
            replaced.run()
            evaluated = [row["val/loss"] for row in replaced.metrics if "val/loss" in row]
            assert evaluated and min(evaluated) > 5  # the loss of three classes is about 1.1


def loader_of(data: Any = None, **options: Any) -> Any:
    return torch.utils.data.DataLoader(
        labelled(30) if data is None else data, 4, collate_fn=transformers.default_data_collator, **options
    )


LOADERS = {
    "shuffled": lambda: loader_of(shuffle=True),
    "shuffled by a generator": lambda: loader_of(shuffle=True, generator=torch.Generator().manual_seed(3)),
    "drawn with replacement": lambda: loader_of(
        sampler=torch.utils.data.RandomSampler(range(30), replacement=True, num_samples=28)
    ),
    "by a worker": lambda: loader_of(shuffle=True, num_workers=1),
    "a stream": lambda: loader_of(Stream()),
}


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("windows", [1, 2])
@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_of_ones_own_draws_what_it_draws_in_trainer(name: str, windows: int, tmp_path: Path) -> None:
    class Subclass(transformers.Trainer):  # type: ignore[misc, name-defined]
        def get_train_dataloader(self) -> Any:
            return LOADERS[name]()

    given = {"max_steps": 9, "gradient_accumulation_steps": windows}
    given |= {"eval_strategy": "epoch"} if name != "a stream" else {}  # of which nobody knows when an epoch ends
    expected = there(unaware, tmp_path, given=given, trainer_class=Subclass)
    graph, resources = setup(unaware(), arguments(tmp_path, **given), **data_for(unaware))
    resources["train_data"] = LOADERS[name]()
    Trainer(graph, display=None, notify=lambda line: None, **resources).run()
    assert difference(expected.model, resources["model"]) == 0


# ---- the best


BEST = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "num_train_epochs": 3}
BEST |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": True}


def test_the_best_is_not_what_a_run_ends_with(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match='runs end with the last weights; use trainer.load\\("best"\\)'):
        setup(classifier(), arguments(tmp_path, **BEST), **data_for(classifier))


@pytest.mark.full
def test_it_has_the_best(tmp_path: Path) -> None:
    expected = there(classifier, tmp_path / "theirs", given=BEST)
    run = here(classifier, tmp_path / "ours", tmp_path / "run", given=BEST)
    run.run()
    assert run.progress["step"]["steps"] == expected.state.global_step
    run.load("best")
    assert difference(expected.model, run.resources["model"]) == 0
    saved = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "ours" / "best")
    assert difference(expected.model, saved) == 0


@pytest.mark.full
def test_of_an_adapter_only_the_adapter_is_saved(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    given = {**BEST, "max_steps": 4}
    expected = there(with_adapter, tmp_path / "theirs", given=given)
    run = here(with_adapter, tmp_path / "ours", tmp_path / "run", given=given)
    run.run()
    run.load("best")
    assert difference(expected.model, run.resources["model"]) == 0
    best = tmp_path / "ours" / "best"
    assert {file.name for file in best.iterdir()} == {"adapter_model.safetensors", "adapter_config.json", "README.md"}
    assert difference(expected.model, peft.PeftModel.from_pretrained(classifier(), best, is_trainable=True)) == 0


# ---- overlays

# What an overlay needs beside what `setup` returns: resources of a model, optimizer and data; parameters; or why it
# does not train.
NEEDS: dict[str, Any] = {
    "distill": lambda made: {
        "teacher": classifier(),
        "teacher_step": lambda teacher, batch: teacher(**batch).logits,
        "training_step": lambda model, batch, teacher_output: (model(**batch).logits - teacher_output).square().mean(),
        "validation_step": lambda model, batch: {"loss": model(**batch).loss, "prediction": ("", None, None)},
        "compute_metrics": lambda prediction: {},
    },
    "plateau": "`scheduler` is a LambdaLR, whose steps take no metric",
    "update_bn": lambda made: {"swa_model": torch.optim.swa_utils.AveragedModel(made["model"])},
    "unfreeze": lambda made: {
        "optimizer": torch.optim.SGD(made["model"].classifier.parameters()),
        "body_optimizer": torch.optim.SGD(made["model"].bert.parameters()),
    },
    "val_guided": lambda made: {"guiding_data": made["val_data"]},
    "token_windows": "`training_step` returned tokens = None",
}


@pytest.mark.second(4)
@pytest.mark.full
@pytest.mark.parametrize("name", sorted(OVERLAYS))
def test_an_overlay_trains_or_says_why_not(name: str, tmp_path: Path) -> None:
    """On a graph with all that `setup` inserts: metrics of all predictions, the best in a folder."""
    given = {"eval_strategy": "epoch", "save_strategy": "epoch", "metric_for_best_model": "loss"}
    data = {"train_dataset": labelled(12), "eval_dataset": labelled(6, seed=1)}
    graph, made = setup(classifier(), arguments(tmp_path, **given), **data, compute_metrics=accuracy)
    before = {name: value.clone() for name, value in made["model"].state_dict().items()}
    needs = NEEDS.get(name, lambda made: {})

    def run() -> Trainer:
        resources = made if isinstance(needs, str) else {**made, **needs(made)}
        trainer = Trainer(graph.overlay(name), run_dir=tmp_path / "run", display=None, **resources)
        trainer.run()
        return trainer

    if isinstance(needs, str):
        with pytest.raises(GraphtrainError) as caught:
            run()
        assert needs in str(caught.value)
        return
    trainer = run()
    assert trainer.state == "finished" and any("val/loss" in row for row in trainer.metrics)
    trained = trainer.resources["model"].state_dict()
    assert all(torch.isfinite(value).all() for value in trained.values())
    assert any(not torch.equal(value, before[key]) for key, value in trained.items())


# ---- cut and resumed

CUT = {
    "a causal model in windows": (gpt2, {"gradient_accumulation_steps": 3, "eval_strategy": "epoch"}),
    "a classifier": (classifier, {"eval_strategy": "epoch"}),
    "an adapter": (
        with_adapter,
        {"gradient_accumulation_steps": 2, "eval_strategy": "epoch", "save_strategy": "epoch"},
    ),
}


@pytest.mark.full
@pytest.mark.second(1)
@pytest.mark.parametrize("name", CUT)
def test_a_cut_anywhere_is_exact(name: str, tmp_path: Path) -> None:
    make, given = CUT[name]
    if make is with_adapter:
        pytest.importorskip("peft")

    def run(run_dir: Path | None) -> Trainer:
        more = {"compute_metrics": accuracy} if make is not gpt2 else {}
        return here(make, tmp_path / "out", run_dir, given=given, **more)

    assert_cut(run, 4, tmp_path)


@pytest.mark.full
def test_hooks_that_a_model_puts_on_its_layers_at_the_first_batch_are_there_after_a_resume(tmp_path: Path) -> None:
    """As one does that is asked for its hidden states, and remembers that it has them."""

    def step(model: Any, batch: Any) -> Any:
        return model(input_ids=batch, output_hidden_states=True).hidden_states[-1].square().mean()

    def run(run_dir: Path | None) -> Trainer:
        model, data = causal(), [torch.ones(2, 4, dtype=torch.long)] * 4
        given = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "train_data": data}
        graph = fit(epochs=2, save_every="never")
        return Trainer(graph, run_dir=run_dir, display=None, notify=lambda line: None, training_step=step, **given)

    assert_cut(run, 2, tmp_path)


# ---- what arguments mean


# What is given -> a fragment of what is said.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"push_to_hub": True}, "push_to_hub=True has no meaning here; use model.push_to_hub(...) after the run"),
    ({"report_to": "tensorboard"}, "loggers=[graphtrain.TensorBoard(...)]"),
    ({"train_sampling_strategy": "batch_rebalance"}, "train_sampling_strategy='batch_rebalance' has no meaning"),
    ({"neftune_noise_alpha": 5.0, "auto_find_batch_size": True}, "half the batch size"),
    ({"eval_strategy": "epoch"}, "eval_strategy='epoch' has no eval_dataset"),
    ({"save_only_model": True}, "use graphtrain export"),
    ({"model": None}, "transformers.setup takes a Module; got nothing"),
    ({"model": "gpt2"}, "transformers.setup takes a Module; got a str"),
    ({"args": None}, "transformers.setup takes a TrainingArguments; got nothing"),
    ({"args": {}}, "transformers.setup takes a TrainingArguments; got a dict"),
    ({"callbacks": [object()]}, "no TrainerCallback is called by a graph"),
    ({"train_dataset": None}, "there is no train_dataset"),
    ({"train_dataset": (row for row in labelled(4))}, "has no length"),
]
OF_SETUP = ("model", "args", "callbacks", "train_dataset")


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=lambda value: next(iter(value)))
def test_what_has_no_meaning_is_an_error(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    named = {name: value for name, value in given.items() if name not in OF_SETUP}
    usual = {"model": classifier(), "args": arguments(tmp_path, **named), "train_dataset": labelled(4)}
    with pytest.raises(UsageError) as caught:
        setup(**{**usual, **{name: value for name, value in given.items() if name in OF_SETUP}})
    assert message.lower() in str(caught.value).lower()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "compute_metrics returned nothing"),
        ({"acc": [1, 2]}, "compute_metrics: `acc` is not a number: [1, 2]"),
        ({"acc": "x"}, "compute_metrics: `acc` is not a number: 'x'"),
    ],
    ids=str,
)
def test_metrics_that_are_no_numbers_are_an_error(returned: Any, message: str, tmp_path: Path) -> None:
    given = {"eval_strategy": "steps", "eval_steps": 1}
    run = here(classifier, tmp_path, given=given, compute_metrics=lambda _: returned)
    with pytest.raises(UsageError) as caught:
        run.run()
    assert message in str(caught.value)


def test_data_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    with pytest.raises(UsageError, match="takes none of the columns text"):
        setup(classifier(), arguments(tmp_path), train_dataset=datasets.Dataset.from_dict({"text": ["a"]}))
    unlabelled = [{"input_ids": row["input_ids"]} for row in texts(4)]
    run = here(classifier, tmp_path, given={}, train_dataset=unlabelled)
    with pytest.raises(UsageError, match="returned no loss for a batch of input_ids"):
        run.run()
