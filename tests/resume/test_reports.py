"""What a resume reports, in words: differences, what is repeated, and what ranks differ in."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphtrain.errors import CheckpointError, UsageError
from graphtrain.resume import restore
from graphtrain.resume.environment import RunEnvironment
from graphtrain.resume.hyper_parameters import HyperParameterChange
from graphtrain.resume.provenance import Provenance
from graphtrain.resume.restore import ResumeOptions, difference_error
from graphtrain.resume.setup_change import unexplained
from graphtrain.storage.manifest import Manifest

# ---- how a run is to be resumed


def test_names_of_settings_are_a_list_or_a_text() -> None:
    for names in ("a.lr, b,,", ["a.lr ", "b", " "], ("a.lr", "b")):
        options = ResumeOptions.of("auto", names, False)
        assert options.from_setup == ("a.lr", "b") and not options.is_named and options.rename == {}
    assert ResumeOptions.of("000001-step-1", (), True, {"a": "b"}).is_named
    assert not ResumeOptions.of("never", (), True).is_named
    for wrong in (True, False):
        with pytest.raises(UsageError) as refused:
            ResumeOptions.of("auto", wrong, False)  # type: ignore[arg-type]
        assert str(refused.value) == f'from_setup: expected names, got {wrong}\n  hint: as in from_setup="optimizer.lr"'


def test_a_state_that_cannot_be_restored_is_named() -> None:
    path = Path("r/checkpoints/000001-step-1")
    checkpoint: Any = SimpleNamespace(path=path, manifest=Manifest(unknown=["a plain line"]))
    with pytest.raises(CheckpointError) as failed, restore._named_failure(checkpoint):
        raise KeyError("x" * 500)
    assert failed.value.message.startswith(f"{path}: its state cannot be restored (KeyError: 'xxx")
    assert len(failed.value.message) < 300
    for error in (CheckpointError("as it is"), UsageError("as it is")):
        with pytest.raises(type(error), match=r"^as it is$"), restore._named_failure(checkpoint):
            raise error
    line = f"`a` {restore.NO_RESUME}"
    checkpoint.manifest = Manifest(unknown=["a plain line", line])
    with pytest.raises(CheckpointError) as failed, restore._named_failure(checkpoint):
        raise CheckpointError("no module")
    assert str(failed.value) == (f"{path}: {line}\n  hint: resume from a checkpoint made before that, by --resume NAME")
    with pytest.raises(UsageError, match=r"^as it is$"), restore._named_failure(checkpoint):
        raise UsageError("as it is")


# ---- what `setup` made


def test_a_few_differences_are_listed_and_the_others_counted() -> None:
    lines = unexplained([f"model.{index}" for index in range(5)])
    assert len(lines) == 4 and lines[3] == "and 2 more"


# ---- the environment

PLAIN: dict[str, Any] = {"code": {"t.py": "aa"}, "script": "t.py", "revision": "", "difference": ""}
FACTS = {"length": 3, "samples": 6, "hash": "h"}


def environment(**changes: Any) -> RunEnvironment:
    fields: dict[str, Any] = {
        "origin": Provenance({"t.py": "aa"}, "", "", "t.py"),
        "data": {"train": FACTS},
        "environment": {"torch": "2.6", "threads": 1},
        "about": {"arguments": {"lr": "0.1"}, "seed": 1},
    }
    return RunEnvironment(**{**fields, **changes})


def saved_environment(**changes: Any) -> Manifest:
    return Manifest(**{**environment().as_plain(), **changes})


COMPARED: list[tuple[RunEnvironment, Manifest, str]] = [
    (environment(), saved_environment(), "code, arguments, data, versions, threads unchanged: exact"),
    (environment(about={}), saved_environment(about={}), "code, data, versions, threads unchanged: exact"),
    (environment(), saved_environment(data={}), "code, arguments, versions, threads unchanged: exact"),
    (environment(), saved_environment(environment={}), "code, arguments, data unchanged: exact"),
    (environment(), saved_environment(origin={}), "arguments, data, versions, threads unchanged: exact"),
    (environment(about={}), Manifest(), ""),
    (
        environment(environment={"torch": "2.7", "new": 1}), saved_environment(),
        "exact except for what changed: torch 2.6 -> 2.7",
    ),
    (
        environment(about={"arguments": {"lr": "0.1"}, "seed": 2}), saved_environment(),
        "exact except for what changed: seed 1 -> 2",
    ),
    (
        environment(about={"arguments": {"lr": "0.2"}, "seed": 2}),
        saved_environment(about={"arguments": {"lr": "0.1"}}),
        "exact except for what changed: lr 0.1 -> 0.2",
    ),
    (
        environment(data={"train": {"length": None, "samples": None, "hash": ""}}),
        saved_environment(data={"train": {"length": None, "samples": None, "hash": ""}}),
        "code, arguments, versions, threads unchanged: exact",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("now", "saved", "words"), COMPARED)
def test_whether_a_resume_is_exact(now: RunEnvironment, saved: Manifest, words: str) -> None:
    assert now.compared(saved) == words


def test_what_is_lost_comes_before_what_changed() -> None:
    now = environment()
    assert now.compared(saved_environment(), ["the graph"]) == "exact except for what changed: the graph"
    assert now.compared(saved_environment(), ["the graph"], ["model.a"]) == "not exact: model.a, the graph"
    listed = now.compared(saved_environment(), [f"c{number}" for number in range(50)])
    assert listed.endswith("c48, c49")
    listed = now.compared(saved_environment(), [f"c{number}" for number in range(52)])
    assert listed.endswith("c49, 2 more")
    assert len(now.compared(saved_environment(), ["x" * 1000])) < 350


def test_which_data_and_weights_are_others() -> None:
    now = environment(
        data={"train": {**FACTS, "length": 4}, "new": FACTS}, about={"weights": {"a": "1", "b": "2", "c": "3"}}
    )
    assert now.changed_data(saved_environment()) == ["train"]


def test_new_data_has_a_fingerprint_of_its_own() -> None:
    before, former = environment(data={"train_data": FACTS}), {"train_data": [1]}
    data = before.with_resources(former, {"train_data": [1], "more_data": [3], "model": 1}).data
    assert data["train_data"] != FACTS and data.keys() == {"train_data", "more_data"}
    assert before.with_resources(former, former).data == {"train_data": FACTS}
    assert before.with_resources(former, {}).data == {}


# ---- hyper-parameters


def test_a_changed_setting_in_words() -> None:
    for change, words in (
        (HyperParameterChange("a.lr", 0.5, 0.1), "a.lr: 0.5 -> 0.1"),
        (HyperParameterChange("a.lr", None, "x"), "a.lr: absent -> x"),
        (HyperParameterChange("a.lr", "x", None), "a.lr: x -> absent"),
        (HyperParameterChange("a.class", "absent", "SGD"), "a: new, begins as it is set up now"),
        (HyperParameterChange("a.class", "SGD", "absent"), "a: removed"),
        (HyperParameterChange("a.class", "SGD", "Adam"), "a.class: SGD -> Adam"),
        (HyperParameterChange("a.mode", "absent", "b"), "a.mode: absent -> b"),
    ):
        assert str(change) == words
    error = difference_error([HyperParameterChange("a.b.lr", 1, 2), HyperParameterChange("c.lr", 3, 4)])
    assert str(error) == (
        "what is set up now differs from what the run was set up with:\n    a.b.lr: 1 -> 2\n    c.lr: 3 -> 4\n"
        "  hint: --from-setup a.b.lr,c.lr takes the new values, --from-saved keeps the old ones; "
        'in Python: run(from_setup="a.b.lr,c.lr") or run(from_saved=True); or begin another run, with another --run-dir'
    )
    changes = [HyperParameterChange("a.lr", 1, 2)]
    assert difference_error(changes, ended=True).message == (
        "the run is finished, and what is set up now differs from what the run was set up with:\n    a.lr: 1 -> 2"
    )


# ---- ranks
