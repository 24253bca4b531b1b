"""Resources that a factory makes, and that a node makes again: k-fold, active learning, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import CheckpointError, Factory, Graph, GraphError, Loader, Outcome, Trainer, UsageError, node, progress
from graphtrain.state.random import seed_everything
from tests.command.running import python
from tests.program.folds import FOLDS, folds_of

SAMPLES, BATCH = 9, 2
DATA = [
    (value, value.sum(0, keepdim=True)) for value in torch.randn(SAMPLES, 2, generator=torch.Generator().manual_seed(1))
]


class Net(torch.nn.Module):
    """Draws when it is made, in a parameter, a buffer that is not saved by torch, an attribute; and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1)
        )
        self.register_buffer("noise", torch.randn(1), persistent=False)
        self.scale = float(torch.rand(()))
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        result: torch.Tensor = self.layers(inputs) * self.scale + self.noise / self.calls
        return result


def training_step(model: Any, batch: Any) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def make_scheduler(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def split(fold: int) -> tuple[list[int], list[int]]:
    """The numbers of the samples that a fold trains on, and of those that it holds out."""
    return (
        [number for number in range(SAMPLES) if number % FOLDS != fold],
        [number for number in range(SAMPLES) if number % FOLDS == fold],
    )


def k_fold() -> Graph:
    """For each fold a new model, which a nested graph trains and which is judged by what was held out."""

    @node(writes=("indices", "val_indices"))
    class BeginFold:
        """Write which samples the fold trains on, and which it holds out."""

        folds: int = progress(0)

        def __call__(self) -> tuple[list[int], list[int]]:
            self.folds += 1
            return split(self.folds - 1)

    @node
    class Judge:
        """Keep a number that the weights of each fold determine."""

        results: list[float] = progress([])

        def __call__(self, model: Any, metrics: dict[str, float]) -> None:
            self.results = [*self.results, weights_in_one(model), metrics["val/loss"]]

    return folds_of({"renew": '{ resource = "model" }'}, {"validate": '{ graph = "evaluate" }'})


def weights_in_one(model: torch.nn.Module) -> float:
    return float(sum(parameter.detach().double().sum() for parameter in model.parameters()))


def trainer_of(graph: Graph, run_dir: Path | None = None, **others: Any) -> tuple[Trainer, list[str]]:
    torch.set_num_threads(1)
    seed_everything(7)
    lines: list[str] = []
    resources = {
        "model": Factory(Net),
        "optimizer": Factory(make_optimizer),
        "scheduler": Factory(make_scheduler),
        "train_data": Loader(DATA, batch_size=BATCH, shuffle=True, num_workers=others.pop("workers", 0)),
        "val_data": Loader(DATA, batch_size=SAMPLES),
        "training_step": training_step,
    }
    return Trainer(
        graph, seed=0, run_dir=run_dir, device="cpu", display=None, notify=lines.append, **{**resources, **others}
    ), lines


@pytest.fixture(scope="module")
def whole() -> tuple[list[str], list[float]]:
    """The digest before each transition of the run that is never cut and after the last, and its results."""
    trainer, _ = trainer_of(k_fold())
    trainer.advance(0)
    digests = [trainer.digest()]
    while trainer.position != "end":
        trainer.advance()
        digests.append(trainer.digest())
    return digests, trainer.progress["judge"]["results"]


@pytest.mark.full
def test_k_fold_equals_the_loop_by_hand(whole: tuple[list[str], list[float]]) -> None:
    torch.set_num_threads(1)
    results: list[float] = []
    seed_everything(0)  # the trainer seeds when the run begins
    for fold in range(FOLDS):
        kept, held_out = split(fold)
        model = Net()
        optimizer = make_optimizer(model)
        scheduler = make_scheduler(optimizer)
        loader = Loader([DATA[number] for number in kept], batch_size=BATCH, shuffle=True, seed=0)
        for epoch in range(2):
            batches = list(loader.batches(2 * fold + epoch))  # the loader of the run goes on
            for number, batch in enumerate(batches, 1):
                (training_step(model, batch) / 2).backward()
                if number % 2 == 0 or number == len(batches):
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
        model.eval()
        batch = next(iter(Loader([DATA[number] for number in held_out], batch_size=SAMPLES)))
        with torch.no_grad():
            loss = float(training_step(model, batch))
        results += [weights_in_one(model), loss]
    assert whole[1] == results
    assert len(set(results)) == 2 * FOLDS


def cuts(count: int) -> list[int]:
    """In every fold: around `renew`, in mid-epoch and in mid-window, in mid-validation, at the end."""
    return [1, 2, 3, 7, 12, count // 3 + 1, count // 3 + 2, count // 3 + 13, 2 * count // 3 - 3, count - 4]


@pytest.mark.full
@pytest.mark.parametrize("interval", [3, pytest.param(1, marks=pytest.mark.sweep)])
def test_cuts_are_exact(interval: int, whole: tuple[list[str], list[float]], tmp_path: Path) -> None:
    digests, results = whole
    for cut in cuts(len(digests) - 1)[::interval]:
        first, _ = trainer_of(k_fold(), tmp_path / str(cut))
        first.advance(cut)
        first.save()
        assert first.digest() == digests[cut], cut
        second, lines = trainer_of(k_fold(), tmp_path / str(cut))
        second.advance(0)
        assert lines[-1].endswith("exact") and "not exact" not in lines[-1], (cut, lines)
        assert second.digest() == digests[cut], cut
        assert second.run() is Outcome.FINISHED
        assert second.digest() == digests[-1], cut
        assert second.progress["judge"]["results"] == results


def test_what_was_saved_before_something_was_made_again_is_a_way_back(tmp_path: Path) -> None:
    """No clock has moved since, and all the same the next checkpoint does not take its place."""
    trainer, _ = trainer_of(k_fold(), tmp_path)
    while trainer.position != "renew":
        trainer.advance()
    before = trainer.save()
    trainer.advance()
    after = trainer.save()
    assert trainer.position != "renew" and before is not None and after is not None
    assert sorted((tmp_path / "checkpoints").iterdir()) == [before, after]


def fit_in_folds() -> Graph:
    """The same with the shipped `fit` in each fold, an average of its weights, rows and checkpoints."""
    fit = (
        Graph.load("fit")
        .set("schedule", every="1 steps")
        .overlay("ema")
        .set("accumulate", every=2)
        .set("finish", after="2 epochs")
    )
    fit = fit.set("log", every="2 steps").set("checkpoint", every="3 batches", keep=1)
    fit = fit.set("validate/begin_evaluation", split="inner")
    return k_fold().set("fit", graph=fit)


def expect_cuts_are_exact(graph: Callable[[], Graph], step: int, run_dir: Path) -> int:
    """Cut at every so many transitions, resume, and run to the end; how many cuts there are."""
    uncut, _ = trainer_of(graph())
    transitions = 0
    while uncut.position != "end":
        uncut.advance()
        transitions += 1
    cuts = range(1, transitions, step)
    for cut in cuts:
        first, _ = trainer_of(graph(), run_dir / str(cut))
        first.advance(cut)
        first.save()
        second, _ = trainer_of(graph(), run_dir / str(cut))
        assert second.run() is Outcome.FINISHED
        assert second.digest() == uncut.digest(), cut
        assert second.metrics == uncut.metrics, cut
        assert second.progress["judge"]["results"] == uncut.progress["judge"]["results"], cut
    return len(cuts)


@pytest.mark.sweep
def test_some_cuts_of_a_whole_fit_in_each_fold_are_exact(tmp_path: Path) -> None:
    assert expect_cuts_are_exact(fit_in_folds, 113, tmp_path) >= 2


@pytest.mark.sweep
@pytest.mark.parametrize(("graph", "step"), [(k_fold, 1), (fit_in_folds, 11)])
def test_every_cut_is_exact(graph: Callable[[], Graph], step: int, tmp_path: Path) -> None:
    """At every edge; where there are many, at each in some of its rounds."""
    assert expect_cuts_are_exact(graph, step, tmp_path) > 20


@pytest.mark.full
def test_a_cut_in_another_process(whole: tuple[list[str], list[float]], tmp_path: Path) -> None:
    first, _ = trainer_of(k_fold(), tmp_path / "run")
    first.advance(len(whole[0]) // 2)
    first.save()
    (tmp_path / "resume.py").write_text(f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.program.test_renew import k_fold, trainer_of
trainer, lines = trainer_of(k_fold(), Path("run"))
trainer.run()
print(lines[0].rpartition(": ")[2], trainer.digest(), trainer.progress["judge"]["results"], sep="|")
""")
    done = python("resume.py", cwd=tmp_path)
    assert done.out.strip() == f"exact|{whole[0][-1]}|{whole[1]}", done


@pytest.mark.full
def test_a_failure_after_a_renewal_goes_back_before_it(tmp_path: Path, whole: tuple[list[str], list[float]]) -> None:
    calls = 0

    def failing(model: Any, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 8:  # in the second fold
            raise RuntimeError("once")
        return training_step(model, batch)

    trainer, _ = trainer_of(k_fold(), tmp_path, training_step=failing, not_state=["training_step<calls>"])
    trainer.advance(9)
    trainer.save()
    with pytest.raises(RuntimeError, match="once"):
        trainer.run()
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["judge"]["results"] == whole[1]


def active_learning() -> Graph:
    """In each round a new model learns from what is labelled, and chooses what is labelled next."""

    @node(writes="indices")
    class Label:
        """Label the sample of which the model is least sure; labels stay."""

        labelled: list[int] = progress([])

        def __call__(self, model: Any) -> list[int]:
            with torch.no_grad():
                inputs = torch.stack([sample for sample, _ in DATA])
                unsure = model.layers[0](inputs).abs().sum(1).argsort().tolist()
            new = [number for number in unsure if number not in self.labelled][:2]
            self.labelled = [*self.labelled, *new]
            return self.labelled

    fit = (
        Graph.load("fit")
        .set("schedule", every="1 steps")
        .set("schedule", every="1 steps")
        .set("accumulate", every=2)
        .set("log", every="never")
        .set("finish", after="4 epochs")
    )
    return fit.insert("label", Label, after="begin_epoch").insert("renew", after="label", resource="model")


@pytest.mark.full
@pytest.mark.parametrize(
    ("workers", "cuts"), [(0, (9, 37)), (2, (20,)), pytest.param(0, range(1, 40), marks=pytest.mark.sweep)]
)
def test_active_learning_is_exact(workers: int, cuts: Sequence[int], tmp_path: Path) -> None:
    whole, _ = trainer_of(active_learning(), workers=workers)
    whole.run()
    labelled = whole.progress["label"]["labelled"]
    assert len(set(labelled)) == 8
    assert whole.read("next_batch.samples") == 2 + 4 + 6 + 8
    for cut in cuts:
        first, _ = trainer_of(active_learning(), tmp_path / str(cut), workers=workers)
        first.advance(cut)
        first.save()
        second, lines = trainer_of(active_learning(), tmp_path / str(cut), workers=workers)
        second.run()
        (line,) = [line for line in lines if line.startswith("resumed")]
        assert line.endswith("exact") and "not exact" not in line
        assert second.digest() == whole.digest(), cut
        assert second.progress["label"]["labelled"] == labelled


FIT = (
    Graph.load("fit").set("finish", after="3 epochs").set("log", every="never").set("schedule", every="1 epochs")
    .insert("renew", after="begin_epoch", resource="model")
)  # fmt: skip


def test_everything_that_reads_it_has_the_new_one_and_copies_are_made_again() -> None:
    trainer, _ = trainer_of(FIT.overlay("ema").set("ema", decay=0.5), train_data=Loader(DATA, batch_size=3))
    made = {id(trainer.resources["model"])}
    for _ in range(3):
        trainer.run(before="begin_epoch" if len(made) == 1 else None, until=f"{len(made)} epochs")
        made.add(id(trainer.resources["model"]))
        model, optimizer = trainer.resources["model"], trainer.resources["optimizer"]
        assert trainer.read("model") is model
        trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        assert all(one is other for one, other in zip(trained, model.parameters(), strict=True))
        assert trainer.resources["scheduler"].optimizer is optimizer
        assert not any(parameter.requires_grad for parameter in trainer.resources["average"].parameters())
    assert len(made) > 2


def test_a_mean_of_weights_begins_again_with_the_model() -> None:
    graph = FIT.overlay("swa").set("swa", every="1 batches").set("next_batch", limit=2)
    trainer, _ = trainer_of(graph, train_data=Loader(DATA, batch_size=3))
    counts = []
    while trainer.position != "end":
        trainer.advance()
        if trainer.position == "end_epoch":
            counts.append((trainer.read("swa.averaged"), trainer.read("swa.runs")))
    assert counts == [(1, 1), (1, 3), (1, 5)]


def test_an_open_window_is_closed_with_its_model() -> None:
    trainer, _ = trainer_of(
        FIT.set("accumulate", every=100).insert("again", "renew", after="accumulate", resource="model")
    )
    trainer.run(before="again")
    assert trainer.read("accumulate.count") == 1
    trainer.advance()
    assert trainer.read("accumulate.count") == 0
    assert all(parameter.grad is None for parameter in trainer.resources["model"].parameters())


def test_a_run_without_the_factory_is_refused_at_a_resume(tmp_path: Path) -> None:
    first, _ = trainer_of(FIT, tmp_path)
    first.advance(6)
    first.save()
    model = Net()
    optimizer = make_optimizer(model)
    plain = {"model": model, "optimizer": optimizer, "scheduler": make_scheduler(optimizer)}
    second, _ = trainer_of(FIT.remove("renew"), tmp_path, **plain)
    with pytest.raises(
        CheckpointError, match="has made `model` again since it began, and `model` is not a Factory now"
    ):
        second.run()


class Unseeded(Net):
    """Is made otherwise in every process."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Unseeded.made += 1
        self.number = Unseeded.made % 1000


def test_what_a_factory_makes_otherwise_at_a_resume_is_reported(tmp_path: Path) -> None:
    first, _ = trainer_of(FIT, tmp_path, model=Factory(Unseeded))
    first.advance(6)
    first.save()
    Unseeded.made = 500
    second, lines = trainer_of(FIT, tmp_path, model=Factory(Unseeded))
    second.advance(0)
    (line,) = [line for line in lines if line.startswith("resumed")]
    assert "not exact" in line
    assert "model.number differs from what the Factory of `model` made" in line


def made_of_the_first() -> dict[str, Any]:
    model = Net()
    return {"model": Factory(lambda: model), "optimizer": make_optimizer(model)}


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        (lambda: {"model": Net()}, r"`renew` renews `model`, a Net, not a Factory: nothing.*Factory\(make_model"),
        (
            made_of_the_first,
            r"renews `model`, of which `optimizer` was made, and `optimizer` is not a Factory.*def make",
        ),
        (
            lambda: {"optimizer": Factory(lambda modle: None)},
            r"which makes `optimizer`, needs `modle`, and nothing supplies it\n  hint: did you mean `model`",
        ),
        (
            lambda: {"optimizer": Factory(lambda scheduler: scheduler)},
            r"factories need each other: `optimizer` needs `scheduler` needs `optimizer`",
        ),
        (lambda: {"model": Factory(lambda: 3)}, r"makes `model`, and returned an object of type int: that has no"),
    ],
)  # fmt: skip
def test_what_is_refused(resources: Callable[[], dict[str, Any]], message: str) -> None:
    with pytest.raises(UsageError, match=f"(?s){message}"):
        trainer_of(FIT, **resources())


def test_a_resource_that_nothing_supplies_and_a_slot_are_refused() -> None:
    with pytest.raises(UsageError, match="`renew` renews `teacher`, which nothing supplies"):
        trainer_of(FIT.set("renew", resource="teacher"))
    with pytest.raises(UsageError, match=r"(?s)renews `modle`, which nothing supplies.*hint: did you mean `model`"):
        trainer_of(FIT.set("renew", resource="modle"))
    with pytest.raises(GraphError, match="`renew` renews `batch`, which means something else in its graph"):
        trainer_of(FIT.set("renew", resource="batch"))
    with pytest.raises(UsageError, match=r"takes `\*args`, and is given resources by name"):
        Factory(torch.nn.Sequential)


@pytest.mark.full
def test_a_kept_rate_is_reported_to_hold_until_the_optimizer_is_made_again(tmp_path: Path) -> None:
    def at(rate: float) -> tuple[Trainer, list[str]]:
        def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
            return torch.optim.AdamW(model.parameters(), lr=rate)

        return trainer_of(k_fold(), tmp_path, optimizer=Factory(make_optimizer))

    at(0.05)[0].run(until="2 batches")
    trainer, lines = at(0.01)
    trainer.run(until="1 batches", from_saved=True)
    (line,) = [line for line in lines if "again" in line]
    assert line == (
        "optimizer.lr is kept as saved until `renew` makes `optimizer` again, as it is set up now; "
        "--from-setup optimizer.lr takes the new value at once"
    )
    assert trainer.resources["optimizer"].param_groups[0]["initial_lr"] == 0.05
    trainer.run()
    assert trainer.resources["optimizer"].param_groups[0]["initial_lr"] == 0.01
