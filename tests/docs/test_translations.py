"""The page about Lightning is right: every row that can be run does what Lightning does.

`make test` compares the graph of a row with a plain loop that does what Lightning does with the options of that row;
`make sweep` compares the loop with Lightning, where it is installed, in this environment or in `.venv-peers`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Trainer
from tests.docs import lightning_loop, translations
from tests.docs.blocks import read_blocks
from tests.docs.small_training import HOOKS, Materials, Training
from tests.docs.test_lightning import ANSWERS
from tests.docs.translations import HOOK_SPANS, TRANSLATIONS, Translation, graph_of

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".venv-peers" / "bin" / "python"

every_translation = pytest.mark.parametrize("translation", TRANSLATIONS, ids=lambda translation: translation.name)


def by_loop(translation: Translation) -> dict[str, Any]:
    """What the plain loop does, as JSON has it."""
    torch.set_num_threads(1)
    record = lightning_loop.run(translation.training, translation.options, translation.callbacks)
    return dict(json.loads(json.dumps(asdict(record))))


def by_graph(translation: Translation) -> dict[str, Any]:
    """What graphtrain does, as JSON has it."""
    torch.set_num_threads(1)
    return dict(json.loads(json.dumps(asdict(translations.run(translation)))))


@every_translation
def test_a_translation_is_on_the_page(translation: Translation) -> None:
    answers = [answers[translation.row] for answers in ANSWERS.values() if translation.row in answers]
    guards = " ".join(graph_of(translation).guards.values())
    for span in translation.spans:
        assert any(f"`{span}`" in answer for answer in answers)
        assert ">=" not in span or span in guards, "the guard of the example is another one than that of the row"
    if not translation.spans and translation.graph != "fit":
        assert any("(#" in answer for answer in answers), "the row leads to the example"


# The rows without a case, and why: a new row has one, or a line here.
NOT_RUN = {
    "Trainer: arguments": {
        "where it runs": "accelerator strategy devices num_nodes use_distributed_sampler sync_batchnorm",
        "switches of torch": "benchmark detect_anomaly inference_mode",
        "what is shown": "enable_progress_bar enable_model_summary profiler barebones",
        "what is recorded": "logger enable_autolog_hparams default_root_dir model_registry",
        "examples of the page": "callbacks plugins reload_dataloaders_every_n_epochs",
        "tests below": "deterministic enable_checkpointing limit_test_batches limit_predict_batches",
    },
    "ModelCheckpoint and EarlyStopping: arguments": {
        "names, and what is shown": "dirpath filename auto_insert_metric_name enable_version_counter verbose",
        "the same as another row": "monitor patience train_time_interval save_on_train_epoch_end",
        "what a checkpoint has": "save_last save_weights_only save_on_exception",
        "fields of a kind": "min_delta stopping_threshold divergence_threshold check_finite strict",
        "moments": "check_on_train_epoch_end log_rank_zero_only",
    },
}


@pytest.mark.parametrize("section", NOT_RUN)
def test_every_row_has_a_case_or_a_reason(section: str) -> None:
    reasoned = [name for names in NOT_RUN[section].values() for name in names.split()]
    run = {translation.row for translation in TRANSLATIONS}
    assert len(reasoned) == len(set(reasoned)) and not run & set(reasoned)
    assert set(ANSWERS[section]) - run == set(reasoned)


def test_with_an_interval_of_never_a_checkpoint_is_written_at_the_end_only() -> None:
    record = translations.run(Translation("", "", callbacks={"ModelCheckpoint": {}}))
    assert record.more["checkpoints"] == [30]


def test_deterministic_asks_torch_for_it() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    materials = Materials(Training())
    try:
        Trainer(
            deterministic=True,
            device="cpu",
            display=None,
            notify=lambda line: None,
            model=materials.model,
            optimizer=materials.optimizer,
            train_data=materials.train_data,
            training_step=lambda model, batch: model(batch[0]).mean(),
        )
        assert torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.benchmark
    finally:
        torch.use_deterministic_algorithms(before)


def test_a_test_is_limited_like_any_other_evaluation() -> None:
    testing = translations.graphs_of_the_page()["testing"].set("next_batch", limit=2)
    materials = Materials(Training())
    trainer = Trainer(
        testing,
        device="cpu",
        display=None,
        model=materials.model,
        test_data=materials.val_data[0],
        test_step=lambda model, batch, batch_idx: materials.val_loss(batch, batch_idx),
    )
    trainer.run()
    assert materials.record.events == [("val", 0, 0), ("val", 0, 1)]
    assert list(trainer.metrics[-1]) == ["step", "epoch", "test/loss"]


# The hooks that are called at other moments than in Lightning, as the page says.
MOVED = ("on_before_zero_grad", "on_train_epoch_end")


def in_common(events: list[list[Any]]) -> list[list[Any]]:
    """The events without the hooks that are called at another moment."""
    return [event for event in events if event[-1] not in MOVED]


def test_the_hooks_are_where_the_page_has_them_and_two_are_called_at_another_moment() -> None:
    (case,) = (translation for translation in TRANSLATIONS if translation.training.hooks)
    for name, span in HOOK_SPANS.items():
        assert f"`{span}`" in ANSWERS["LightningModule: hooks"][name]
    theirs, ours = (
        [event[1] for event in record["events"] if event[0] == "hook"] for record in (by_loop(case), by_graph(case))
    )
    assert set(theirs) == set(ours) == set(HOOK_SPANS) == set(HOOKS)
    assert all(theirs.count(name) == ours.count(name) for name in MOVED)
    assert theirs.index("on_before_zero_grad") < theirs.index("on_after_backward")
    assert ours.index("on_before_zero_grad") == ours.index("on_before_optimizer_step") + 1
    assert theirs.index("on_train_epoch_end") == theirs.index("on_validation_end") + 1
    assert ours.index("on_train_epoch_end") < ours.index("on_validation_start")


@pytest.mark.second(9)
@pytest.mark.first(3)
@every_translation
def test_a_translation_does_what_the_option_does(translation: Translation) -> None:
    expected, actual = by_loop(translation), by_graph(translation)
    events = expected["events"]
    if translation.stop:
        *_, last = (number for number, event in enumerate(events) if event[0] != "val")
        assert len(events) > last + 1
        events = events[: last + 1] + ([["step"]] if translation.stop == "drops" else [])
    assert in_common(actual["events"]) == in_common(events)
    assert translation.stop == "drops" or actual["weights"] == expected["weights"]
    assert translation.stop == "drops" or actual["rates"] == expected["rates"]
    assert actual["more"]["steps"] == expected["more"]["steps"] + (translation.stop == "drops")
    known = None if ["val", 0, 0] in actual["events"] else 1  # the length of validation data, once a validation began
    assert actual["more"]["batches"][:known] == expected["more"]["batches"][:known]
    if "log_every_n_steps" in translation.options:
        # Lightning's rows have the number of the step, from 0, and the last loss where ours is a mean.
        every = translation.options["log_every_n_steps"]
        rows = [[step - 1, *rates] for step, _, *rates in actual["more"]["rows"] if step % every == 0]
        assert rows == [[step, *rates] for step, _, *rates in expected["more"]["rows"]]
    if "ModelCheckpoint" in translation.callbacks:
        kept, newest = actual["more"]["checkpoints"], actual["more"]["steps"]
        assert set(expected["more"]["checkpoints"]) | {newest} == set(kept)


@pytest.mark.second(21)
@pytest.mark.first(8)
@pytest.mark.parametrize("batches", [1, 3, 4, 5, 10])
@pytest.mark.parametrize("accumulate", [1, 3, 4])
@pytest.mark.parametrize("epochs", [1, 3])
def test_the_number_of_steps_is_a_ceiling(batches: int, accumulate: int, epochs: int) -> None:
    settings = (f"accumulate.every = {accumulate}", f'finish.after = "{epochs} epochs"')
    record = translations.run(Translation("", "", beyond=settings, training=Training(batches=batches)))
    assert record.more["steps"] == epochs * -(-batches // accumulate)


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("name", ["scheduled", "sane", "stopping"])
def test_a_graph_of_the_page_resumes_exactly(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    graph = translations.graphs_of_the_page()[name].set("finish", after="4 epochs").set("checkpoint", every="never")

    def trainer(run_dir: Path | None) -> Trainer:
        materials = Materials(Training(batches=3))
        return Trainer(
            graph,
            run_dir=run_dir,
            device="cpu",
            display=None,
            notify=lambda line: None,
            model=materials.model,
            optimizer=materials.optimizer,
            train_data=materials.train_data,
            val_data=materials.val_data[0],
            training_step=lambda model, batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1]),
        )

    whole = trainer(None)
    whole.run()
    for transitions in (3, 17, 40):
        run_dir = tmp_path / str(transitions)
        first = trainer(run_dir)
        first.advance(transitions)
        first.save()
        second = trainer(run_dir)
        second.run()
        assert second.digest() == whole.digest(), f"cut after {transitions} transitions, before {first.position}"


def test_an_interval_that_is_longer_than_the_epoch_is_never_due() -> None:
    settings = ('finish.after = "3 epochs"', 'validate.every = "11 epoch_batches"')
    events = translations.run(Translation("", "", beyond=settings)).events
    assert len(events) == 3 * 20 and not [event for event in events if event[0] == "val"]


def with_lightning(folder: Path, *arguments: str) -> None:
    """Run Python with these arguments in an environment that has Lightning, or skip the test."""
    python = sys.executable if find_spec("lightning") is not None else str(PEERS)
    if not Path(python).exists():
        pytest.skip("Lightning is not installed, here or in .venv-peers: `make .venv-peers/.installed` makes that one")
    done = subprocess.run(
        [python, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What Lightning does in every case, in one process."""
    folder = tmp_path_factory.mktemp("lightning")
    cases = {translation.name: translation.as_json() for translation in TRANSLATIONS}
    (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    with_lightning(folder, "-m", "tests.docs.lightning_peer", "cases.json", "records.json")
    return dict(json.loads((folder / "records.json").read_text(encoding="utf-8")))


@pytest.mark.sweep
@every_translation
def test_the_plain_loop_does_what_lightning_does(
    translation: Translation, lightning: dict[str, dict[str, Any]]
) -> None:
    assert by_loop(translation) == lightning[translation.name]


# Both sides of the module that the page ports, with 33 batches; each saves its final weights.
_DATA = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
inputs = torch.randn(33 * 16, 8)
train = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 16)
val = DataLoader(TensorDataset(inputs[:128], inputs[:128].sum(1, keepdim=True)), 64)
torch.manual_seed(0)
"""
_BEFORE = """
import before

models = []
before.Net = type("Net", (before.Net,), {"on_fit_end": lambda self: models.append(self)})
before.fit(train, val)
torch.save(models[0].state_dict(), "before.pt")
"""


@pytest.mark.sweep
def test_the_ported_module_ends_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    files = {block.words[0]: block.text for block in read_blocks(translations.PAGE) if block.words}
    for name in ("before.py", "net.toml"):
        (tmp_path / name).write_text(files[name], encoding="utf-8")
    with_lightning(tmp_path, "-c", _DATA + _BEFORE)
    expected = torch.load(tmp_path / "before.pt", weights_only=True)

    namespace: dict[str, Any] = {"__name__": "train"}
    exec(_DATA + files["train.py"], namespace)  # noqa: S102
    resources = namespace["setup"]()
    torch.manual_seed(0)
    model = namespace["Net"]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    resources |= {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=24),
        "train_data": namespace["train"],
        "val_data": namespace["val"],
    }
    trainer = Trainer("net.toml", device="cpu", display=None, notify=lambda line: None, **resources)
    trainer.run()
    actual = model.state_dict()
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in actual)
    assert trainer.read("step.steps") == 3 * 9


_MANUAL = """
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn

import manual
import resources


class Module(LightningModule):
    automatic_optimization = False
    training_step = manual.training_step

    def __init__(self):
        super().__init__()
        self.given = resources.resources()
        self.generator, self.critic = self.given["generator"], self.given["critic"]

    def configure_optimizers(self):
        return self.given["g_optimizer"], self.given["d_optimizer"]


class Batches:
    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


module = Module()
off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = Trainer(accelerator="cpu", devices=1, max_epochs=3, **off)
torch.manual_seed(0)
trainer.fit(module, Batches(module.given["train_data"]))
torch.save(module.state_dict(), "manual.pt")
"""


@pytest.mark.sweep
def test_two_optimizers_end_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    blocks = read_blocks(translations.PAGE)
    files = {block.words[0]: block.text for block in blocks if block.words}
    declared = next(block.text for block in blocks if "def critic_batch" in block.text)
    given = next(block.text for block in blocks if "def resources" in block.text).partition("\ntrainer = ")[0]
    (tmp_path / "gan.toml").write_text(files["gan.toml"], encoding="utf-8")
    (tmp_path / "manual.py").write_text(files["manual.py"], encoding="utf-8")
    (tmp_path / "resources.py").write_text(f"import torch\nfrom torch import nn\n\n{given}", encoding="utf-8")
    with_lightning(tmp_path, "-c", _MANUAL)
    expected = torch.load(tmp_path / "manual.pt", weights_only=True)

    namespace: dict[str, Any] = {"__name__": "page"}
    exec(declared + given, namespace)  # noqa: S102
    resources = namespace["resources"]()
    trainer = Trainer("gan.toml", seed=0, device="cpu", display=None, notify=lambda line: None, **resources)
    trainer.run()
    for owner in ("generator", "critic"):
        for name, weight in resources[owner].state_dict().items():
            assert torch.equal(weight, expected[f"{owner}.{name}"]), f"{owner}.{name}"
