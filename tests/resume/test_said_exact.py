"""A resume is said to be exact where it is, and what a resumed process cannot have is not restored."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from graphtrain import Graph, Trainer

Step = Callable[[Any, Any], torch.Tensor]
SetUp = tuple[Callable[[], nn.Module], Step]


def trainer(set_up: SetUp, run_dir: Path | None, said: list[str]) -> Trainer:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    make, step = set_up
    model = make()
    return Trainer(
        Graph.load("fit").set("finish", after="2 epochs").set("checkpoint", every="3 batches"),
        run_dir=run_dir,
        display=None,
        notify=said.append,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=list(torch.linspace(-1, 1, 48).view(8, 2, 3)),
        training_step=step,
    )


def resumed(make: Callable[[Path | None, list[str]], Trainer], run_dir: Path, cut: int) -> tuple[Trainer, str]:
    """A run that is cut after so many transitions, and ends as one that is not: its trainer, and what was said."""
    said: list[str] = []
    first = make(run_dir, said)
    first.advance(cut)
    first.save()
    second, whole = make(run_dir, said), make(None, [])
    second.run()
    whole.run()
    assert second.digest() == whole.digest()
    return second, "\n".join(said)


def squared(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).square().mean()
    return loss


class Keeping(nn.Linear):
    """Keeps its losses, and the last one under other names."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.losses: list[Any] = []
        self.last: Any = None

    def keep(self, loss: torch.Tensor) -> torch.Tensor:
        self.losses = [*self.losses[-3:], {"loss": loss, "value": loss.detach()}]
        self.last = loss.detach()
        return loss


class Adversary(nn.Module):
    """Its critic is called last without a backward pass, so that the weights that hooks compute keep their graphs."""

    def __init__(self, normalize: Callable[[nn.Linear], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Linear(3, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # they are deprecated, and used
            self.critic = normalize(nn.Linear(3, 1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        fake = self.body(batch)
        loss: torch.Tensor = squared(self.critic, fake)
        self.critic(fake)
        return loss


def pruned(layer: nn.Linear) -> nn.Module:
    module: nn.Module = prune.l1_unstructured(layer, "weight", 1)  # type: ignore[no-untyped-call]
    return module


EXACT: dict[str, SetUp] = {
    "losses that are kept, and their values": (Keeping, lambda model, batch: model.keep(squared(model, batch))),
    "weight_norm": (lambda: Adversary(nn.utils.weight_norm), squared),
    "spectral_norm": (lambda: Adversary(nn.utils.spectral_norm), squared),
    "prune": (lambda: Adversary(pruned), squared),
}


@pytest.mark.parametrize("name", EXACT)
def test_it_is_said_to_be_exact(name: str, tmp_path: Path) -> None:
    _, said = resumed(lambda *given: trainer(EXACT[name], *given), tmp_path, 31)
    assert ": exact" in said and "not exact" not in said and "not be exact" not in said


# ---- hooks


class Hooked(nn.Module):
    """Registers hooks at its first forward pass, and remembers that it has."""

    def __init__(self, flag: str, *, is_set: bool) -> None:
        super().__init__()
        self.body, self.flag = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)), flag
        self.seen: list[torch.Tensor] = []
        if is_set:
            setattr(self, flag, False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        if not getattr(self, self.flag, False):
            self.body[0].register_forward_hook(lambda module, inputs, output: self.seen.append(output))
            setattr(self, self.flag, True)
        self.seen.clear()
        out: torch.Tensor = self.body(batch) + self.seen[0].mean()
        assert len(self.seen) == 1
        return out


FLAGS = [("ready", True), ("ready", False), ("_hooks_are_registered", False)]


@pytest.mark.parametrize(("flag", "is_set"), FLAGS)
def test_what_says_that_hooks_are_registered_is_not_restored_without_them(
    flag: str, is_set: bool, tmp_path: Path
) -> None:
    set_up = (lambda: nn.Sequential(Hooked(flag, is_set=is_set)), squared)
    _, said = resumed(lambda *given: trainer(set_up, *given), tmp_path, 21)
    assert "not exact: model.0.body.0 has other hooks than it was set up with" in said
    assert f"model.0.{flag} may say that hooks are registered, so it is not saved: register them in `setup`" in said


@pytest.mark.full
@pytest.mark.parametrize("output", ["hidden_states", "attentions"])
def test_hooks_that_transformers_registers_by_itself(output: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(
        **sizes, num_attention_heads=2, pad_token_id=0, attn_implementation="eager", use_cache=False
    )

    def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        outputs = model(input_ids=batch.abs().mul(9).long() + 1, **{f"output_{output}": True})
        return outputs[output][-1].square().mean() + outputs.logits.mean()

    set_up = (lambda: transformers.LlamaForCausalLM(config), step)
    second, said = resumed(lambda *given: trainer(set_up, *given), tmp_path, 31)
    assert "unchanged: exact" in said and "other hooks" not in said
    assert all(len(layer._forward_hooks) == 1 for layer in second.resources["model"].model.layers)
