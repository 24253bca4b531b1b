"""A model that is sharded over ranks, trained by a graph and by a loop by hand; most is called in processes."""

from __future__ import annotations

import hashlib
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard

from graphtrain import Graph, GraphtrainError, Loader, PlannedRun, Trainer
from tests.devices import deterministic_kernels

WIDTH, BATCH, SAMPLES = 33, 4, 66
Edit = Callable[[Graph], Graph]
Parameters = dict[str, Any]
FIT = Graph.load("fit").set("clip", max_norm=0.5).set("validate", every="never").set("checkpoint", every="never")


class Block(torch.nn.Module):
    """A layer with a buffer that counts, dropout, and 33 rows, which no number of ranks divides."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.drop = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Dropout(0.2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += inputs.detach().float().abs().mean().to(self.calls)
        return inputs + self.drop(torch.tanh(self.linear(inputs)))


class Tied(torch.nn.Module):
    """An embedding whose weights are those of the output, a frozen layer, and two blocks between them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WIDTH, WIDTH)
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.frozen = torch.nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.output = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: torch.Tensor = self.output(torch.tanh(self.frozen(hidden)))
        return logits


@dataclass(frozen=True)
class Case:
    """What is trained, and how."""

    every: int = 1
    dtype: torch.dtype = torch.float32
    mixed: bool = False
    dropout: float = 0.2
    samples: int = SAMPLES
    epochs: int = 2
    foreach: bool = True
    clip: float = 0.5
    shards: bool = True
    average: bool = False
    device: str = "cpu"
    offload: bool = False
    compiled: bool = False


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def model_of(case: Case) -> Tied:
    """The model, from a seed that does not depend on the ranks."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = Tied().to(case.dtype)
    for layer in model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = case.dropout
    if case.compiled:
        for number, layer in enumerate(model.layers):
            checkpointed = checkpoint_wrapper(layer, preserve_rng_state=False)
            checkpointed.compile(backend="aot_eager")
            model.layers[number] = checkpointed
    if not case.shards:
        return model
    run = PlannedRun(FIT, case.device)
    mesh = run.mesh
    policy: dict[str, Any] = {}
    if case.mixed:
        policy["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    if case.offload:
        policy["offload_policy"] = CPUOffloadPolicy(pin_memory=case.device == "cuda")
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **policy)
    fully_shard(model, mesh=mesh, **policy)
    return model


def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), batch[:, 1:].flatten())


def tokens(samples: int) -> torch.Tensor:
    return torch.randint(WIDTH, (samples, 6), generator=torch.Generator().manual_seed(1))


def parts_of(case: Case) -> dict[str, Any]:
    model = model_of(case)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    parts = {
        "model": model,
        "optimizer": torch.optim.AdamW(trained, lr=0.01, foreach=case.foreach),
        "train_data": Loader(tokens(case.samples), batch_size=BATCH, shuffle=True, seed=5),
        "val_data": Loader(tokens(10), batch_size=BATCH),
        "training_step": loss_of,
    }
    return parts | ({"average": model_of(case).requires_grad_(False)} if case.average else {})


def same(graph: Graph) -> Graph:
    return graph


def validated(graph: Graph) -> Graph:
    return graph.set("validate", every="1 epochs").set("log", every="1 steps")


def swa(graph: Graph) -> Graph:
    return graph.overlay("swa").set("swa", every="1 steps")


def trainer_of(case: Case, edit: Edit = same, **options: Any) -> Trainer:
    graph = FIT.set("accumulate", every=case.every).set("clip", max_norm=case.clip)
    graph = edit(graph.set("finish", after=f"{case.epochs} epochs"))
    parts = parts_of(case)
    torch.manual_seed(7 + rank())
    given = {"device": case.device, "seed": None, "display": None, "notify": lambda line: None, **parts, **options}
    return Trainer(graph, **given)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor, on every rank."""
    values: torch.Tensor = tensor.detach().full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()
    return values.clone()


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: whole(tensor) for name, tensor in model.state_dict().items()}


def digest(tensors: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name, tensor in tensors.items():
        found.update(name.encode() + tensor.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes())
    return found.hexdigest()


def by_hand(case: Case) -> dict[str, torch.Tensor]:
    """The same by a loop with `fully_shard`: rounds of one micro-batch of each rank; one without has a loss of zero."""
    parts = parts_of(case)
    model, optimizer = parts["model"], parts["optimizer"]
    torch.manual_seed(7 + rank())
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    size = case.every * world_size()
    for epoch in range(case.epochs):
        batches = list(parts["train_data"].batches(epoch))
        for start in range(0, len(batches), size):
            window = batches[start : start + size]
            for first in range(0, len(window), world_size()):
                round_of = window[first : first + world_size()]
                if rank() < len(round_of):
                    (loss_of(model, round_of[rank()].to(case.device)) / size).backward()
                    continue
                with without_trace(model):
                    loss = loss_of(model, round_of[0].to(case.device))
                    torch.where(torch.tensor(False), loss, torch.zeros_like(loss)).backward()
            clip(model, case.clip)
            optimizer.step()
            optimizer.zero_grad()
            if world_size() > 1:
                for buffer in model.buffers():
                    torch.distributed.broadcast(buffer, 0)
    return weights(model)


def clip(model: torch.nn.Module, max_norm: float) -> None:
    """Clip by the norm of all gradients: the norm of the norms of the parts, in the order of the shards."""
    gradients: list[Any] = [each.grad for each in model.parameters() if each.grad is not None]
    mesh = gradients[0].device_mesh
    norms = torch.stack([torch.linalg.vector_norm(gradient.to_local()) for gradient in gradients])
    of_shards = [torch.empty_like(norms) for _ in range(mesh.size())]
    torch.distributed.all_gather(of_shards, norms, group=mesh.get_group())
    total = torch.linalg.vector_norm(torch.linalg.vector_norm(torch.stack(of_shards), dim=0))
    for gradient in gradients:
        gradient.to_local().mul_(torch.clamp(max_norm / (total + 1e-6), max=1.0))


@contextmanager
def without_trace(model: torch.nn.Module) -> Iterator[None]:
    state, buffers = torch.get_rng_state(), [buffer.clone() for buffer in model.buffers()]
    yield
    torch.set_rng_state(state)
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(before)


# ---- what ranks come to


def apart(cases: list[Case]) -> list[dict[str, float]]:
    """The weights that a graph and the loop by hand do not have in common, with how far they are apart."""
    results = []
    for case in cases:
        trainer = trainer_of(case)
        trainer.run()
        graph, hand = weights(trainer.resources["model"]), by_hand(case)
        equal = {name: digest({name: graph[name]}) == digest({name: hand[name]}) for name in hand}
        results.append({n: float((graph[n].double() - hand[n].double()).abs().max()) for n in hand if not equal[n]})
    return results


def state_of(trainer: Trainer) -> str:
    """The digest of weights, gradients and the state of the optimizer, all of each."""
    model, optimizer = trainer.resources["model"], trainer.resources["optimizer"]
    gradients = {f"{name}.grad": whole(each.grad) for name, each in model.named_parameters() if each.grad is not None}
    states = {
        f"{number}.{name}": whole(value)
        for number, state in enumerate(optimizer.state.values())
        for name, value in state.items()
    }
    return digest(weights(model) | gradients | states)


def cut(case: Case, folder: Path, positions: Sequence[int] | None, edit: Edit = same) -> list[tuple[int, str]]:
    """The transitions after which a save and a resume lead elsewhere than the run that was not cut, and where.

    Arguments:
        positions: the transitions. None: all of them.
    """
    run, count = trainer_of(case, edit, run_dir=folder / "whole"), 0
    while run.position != "end":
        run.advance()
        count += 1
    expected, wrong = (run.digest(), state_of(run)), []
    for number in positions or range(1, count):
        first = trainer_of(case, edit, run_dir=folder / f"{number}")
        first.advance(number)
        first.save()  # several ranks train on to the end of the window
        place, before = first.position, first.digest()
        again = trainer_of(case, edit, run_dir=folder / f"{number}")
        again.advance(0)
        if again.digest() != before or again.position != place:
            wrong.append((number, f"resumed at {again.position} instead of {place}"))
            continue
        again.run()
        if (again.digest(), state_of(again)) != expected:
            wrong.append((number, place))
    return wrong


def on_a_device(case: Case, folder: Path) -> tuple[list[dict[str, float]], list[tuple[int, str]]]:
    """What differs from a loop by hand, and the transitions after which a resume leads elsewhere."""
    with deterministic_kernels():
        return apart([case]), cut(case, folder, None, validated)


def parameters(trainer: Trainer, name: str = "model") -> Parameters:
    """All of each parameter, as numbers: a tensor needs the process that sends it."""
    model = trainer.resources[name]
    names = {name for name, _ in model.named_parameters()}
    return {name: tensor.tolist() for name, tensor in weights(model).items() if name in names}


def trained(case: Case, edit: Edit = same) -> tuple[Parameters, list[dict[str, float]]]:
    """The parameters, or those of an average, and the rows."""
    options = {"swa_model": model_of(case).requires_grad_(False)} if edit is swa else {}
    trainer = trainer_of(case, edit, **options)
    trainer.run()
    name = "swa_model" if options else "average" if case.average else "model"
    return parameters(trainer, name), [dict(row) for row in trainer.metrics]


def leg(case: Case, folder: Path, steps: int | None) -> tuple[str, Parameters]:
    """Resume, train so many steps or to the end, and save behind the window; what is refused, or the parameters."""
    try:
        trainer = trainer_of(case, run_dir=folder)
        trainer.advance(0)
        if steps is None:
            trainer.run()
        else:
            trainer.run(until=f"{steps} steps")
            while trainer.progress["accumulate"]["count"]:
                trainer.advance()
            trainer.save()
    except GraphtrainError as error:
        return str(error), {}
    return "", parameters(trainer)


def told(case: Case, folders: list[Path]) -> list[str]:
    """What is said when runs are resumed."""
    texts = []
    for folder in folders:
        lines: list[str] = []
        trainer = trainer_of(case, run_dir=folder, notify=lines.append)
        trainer.advance(0)
        texts.append("\n".join(lines))
    return texts


def full_disk(folder: Path) -> tuple[str, list[Path]]:
    """What a save says when rank 1 cannot write, and the checkpoints that there are."""
    trainer = trainer_of(Case(), run_dir=folder)
    trainer.advance(6)
    if rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    try:
        trainer.save()
    except GraphtrainError as error:
        return error.message, [*(folder / "checkpoints").glob("*-step-*")]
    return "", []


def refused(case: Case, changes: list[tuple[Edit, str]]) -> list[str]:
    """The errors that runs end with, each with an edit and perhaps another optimizer."""
    texts = []
    for edit, optimizer in changes:
        trained = [each for each in model_of(case).parameters() if each.requires_grad]
        given = {"optimizer": torch.optim.LBFGS(trained)} if optimizer else {}
        try:
            trainer_of(case, edit, **given).run()
        except GraphtrainError as error:
            texts.append(str(error))
    return texts


def failing() -> str:
    """What rank 0 is told when rank 1 raises within a forward pass."""
    calls = []

    def failing_loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if rank() == 1 and len(calls) == 3:
            raise ValueError("a bad batch")
        return loss_of(model, batch)

    try:
        trainer_of(Case(), training_step=failing_loss).run()
    except (GraphtrainError, ValueError) as error:
        return str(error)
    return ""
