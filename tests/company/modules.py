"""Small LightningModules after the forms that 221 public ones have, each with the flags of its Trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torchmetrics
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, softplus
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

BATCHES = 5  # of an epoch, so that windows of 2 have a short last one


def data(batches: int = BATCHES, seed: int = 1, **loading: Any) -> DataLoader[Any]:
    """Batches of 8 samples with 4 features, and a target."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(8 * batches, 4, generator=generator)
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 8, **loading)


class Base(LightningModule):
    """A network with dropout and batch normalization, and the usual step."""

    def __init__(self, lr: float = 0.05) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def loss(self, batch: Any) -> Tensor:
        return mse_loss(self(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"], momentum=0.9)


class Validated(Base):
    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("val_loss", self.loss(batch))


class Unnamed(Base):
    """The step takes the batch alone, by another name."""

    def training_step(self, samples: Any) -> Any:
        return {"loss": self.loss(samples), "more": samples[0].mean()}


class Forked(Validated):
    """A value of each step and of the epoch; reductions; sizes."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log_dict({"largest": batch[0].max(), "other": loss * 2}, on_step=False, on_epoch=True, reduce_fx="max")
        self.log("sum", batch_idx, on_epoch=True, on_step=False, reduce_fx="sum")
        self.log("sized", loss, on_epoch=True, on_step=False, batch_size=3 + batch_idx)
        self.log("least", loss, on_epoch=True, on_step=False, reduce_fx=torch.min)
        return loss


class SomeNone(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx % 3 == 1 else super().training_step(batch, batch_idx)


class NoneAtFirst(Base):
    """Trains nothing in the first epoch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) if self.current_epoch else None


class OfEachBatch(Base):
    """Logs values of each batch of a validation, of which there are several."""

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.log("val", self.loss(batch), on_step=True, on_epoch=True)
        self.log("largest", batch[0].max(), on_step=True, on_epoch=False)


class Metrics(Validated):
    def __init__(self) -> None:
        super().__init__()
        self.train_error = torchmetrics.MeanAbsoluteError()
        self.val_metrics = torchmetrics.MetricCollection(
            {"mse": torchmetrics.MeanSquaredError(), "r2": torchmetrics.R2Score()}, prefix="val_"
        )

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        outputs = self(batch[0])
        self.train_error(outputs, batch[1])
        self.log("train_error", self.train_error, on_step=True, on_epoch=True)
        return mse_loss(outputs, batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        self.val_metrics.update(self(batch[0]), batch[1])
        self.log_dict(self.val_metrics)


class Counters(Base):
    """The loss depends on every counter that is told."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        trainer = self.trainer
        share = self.global_step / trainer.estimated_stepping_batches + self.current_epoch / trainer.max_epochs
        if trainer.is_last_batch:
            share = share + batch_idx / trainer.num_training_batches / 10
        self.log("share", float(share))
        return self.loss(batch) * (1 + share)

    def on_validation_epoch_start(self) -> None:
        loaders = self.trainer.val_dataloaders
        loaders = loaders if isinstance(loaders, list) else [loaders]
        self.log("sizes", float(sum(map(len, loaders)) + 100 * sum(self.trainer.num_val_batches)))

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.log("val_loss", self.loss(batch))


class Hooks(Validated):
    """Every hook of training and validation changes what follows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(14))
        self.calls = 0

    def _note(self, number: int) -> None:
        self.calls += 1
        self.seen[number] += self.calls % 5 + self.global_step + 10 * self.current_epoch

    def on_train_start(self) -> None:
        self._note(0)

    def on_train_epoch_start(self) -> None:
        self._note(1)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self._note(2)
        self.seen[12] += batch[0].mean()

    def on_before_backward(self, loss: Tensor) -> None:
        self._note(3)
        self.seen[13] += loss.detach()

    def on_after_backward(self) -> None:
        self._note(4)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self._note(5)
        for parameter in self.net.parameters():
            parameter.grad.mul_(1 + 0.01 * (self.calls % 3))
        self.log("norm", self.net[0].weight.grad.norm())

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._note(6)
        self.seen[12] += outputs["loss"]

    def on_train_epoch_end(self) -> None:
        self._note(7)
        self.log("seen", self.seen.sum())

    def on_validation_epoch_start(self) -> None:
        self.calls += 1

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen[9] += batch_idx

    def on_validation_epoch_end(self) -> None:
        self.calls += 1
        self.log("val_calls", float(self.calls))


class Steps(Base):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        total = self.trainer.estimated_stepping_batches
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=total)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Epochs(Base):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class Frequent(Base):
    """Its scheduler is stepped by a hook of its own."""

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step()
        scheduler.step()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        first = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return [optimizer], [{"scheduler": first, "interval": "step", "frequency": 2}]

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("rate", self.optimizers().param_groups[0]["lr"])


class Plateau(Validated):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
        return {"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "val_loss"}


class PlateauOfSteps(Validated):
    """Its scheduler follows a validation, and is stepped after the one that is due at the same step."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1, factor=0.7)
        config = {"scheduler": scheduler, "interval": "step", "monitor": "val_loss", "strict": False}
        return {"optimizer": optimizer, "lr_scheduler": config}


class WarmUp(Base):
    """As in the documentation of Lightning: the rate is set after the step, by the steps that are counted then."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer.step(closure=optimizer_closure)
        if self.trainer.global_step < 20:
            for group in optimizer.param_groups:
                group["lr"] = min(1.0, (self.trainer.global_step + 1) / 20) * 0.05


class OwnClip(Base):
    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        limit = 0.1 + 0.1 * self.current_epoch
        self.clip_gradients(optimizer, gradient_clip_val=limit, gradient_clip_algorithm="norm")


class OwnBackward(Base):
    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        (loss * 2).backward()


class OwnZero(Base):
    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=False)


class LBFGS(Base):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 1))

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)


class Manual(Validated):
    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer = self.optimizers()
        loss = self.loss(batch)
        self.manual_backward(loss / 2)
        if batch_idx % 2 or self.trainer.is_last_batch:
            self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
            optimizer.step()
            optimizer.zero_grad()
        self.log("train_loss", loss, prog_bar=True)


class ManualOverEpochs(Validated):
    """Windows of 4 batches, which run over the end of an epoch; a validation in between clears gradients."""

    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.manual_backward(self.loss(batch) / 4)
        self.count += 1
        if self.count % 4 == 0:
            self.optimizers().step()
            self.optimizers().zero_grad()


class GAN(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.critic = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        g_optimizer, d_optimizer = self.optimizers()
        self.toggle_optimizer(g_optimizer)
        g_loss = softplus(-self.critic(self.generator(torch.randn(8, 2)))).mean()
        self.manual_backward(g_loss)
        g_optimizer.step()
        g_optimizer.zero_grad()
        self.untoggle_optimizer(g_optimizer)

        def closure() -> Tensor:
            d_loss = softplus(self.critic(self.generator(torch.randn(8, 2)).detach())).mean()
            d_loss = d_loss + softplus(-self.critic(batch[0])).mean()
            d_optimizer.zero_grad()
            self.manual_backward(d_loss)
            self.log("d_loss", d_loss)
            return d_loss

        d_optimizer.step(closure=closure)
        self.log("g_loss", g_loss)

    def on_train_epoch_end(self) -> None:
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def configure_optimizers(self) -> Any:
        g_optimizer = torch.optim.Adam(self.generator.parameters(), lr=0.01)
        d_optimizer = torch.optim.Adam(self.critic.parameters(), lr=0.01)
        schedulers = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in (g_optimizer, d_optimizer)]
        return [g_optimizer, d_optimizer], schedulers


class OwnLoaders(Validated):
    def setup(self, stage: str) -> None:
        self.size = 5

    def train_dataloader(self) -> Any:
        return data(self.size)

    def val_dataloader(self) -> Any:
        return data(2, seed=2)


class SeveralValidations(Base):
    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        self.log("val_loss", self.loss(batch))
        self.log(f"own_{dataloader_idx}", self.loss(batch), add_dataloader_idx=False)


class Pairs(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch["a"]) + self.loss(batch["b"])


class Transfers(Base):
    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [part.double() for part in batch]

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [part.float() + 0.1 * self.trainer.training for part in batch]


class Classes(Base):
    """A classifier of several classes, with a returned dictionary and metrics logged without the step's names."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 3))
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        outputs, target = self(batch[0]), (batch[1][:, 0] > 0).long() + (batch[1][:, 0] > 1).long()
        loss = cross_entropy(outputs, target)
        self.log("accuracy", self.accuracy(outputs, target), on_epoch=True)
        return {"loss": loss, "outputs": outputs.detach()}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("mean_output", outputs["outputs"].mean())


class Callbacks(Validated):
    """A callback of its own, from the module and from the flags."""

    def configure_callbacks(self) -> Any:
        return [Scaling(0.999)]


class Scaling(Callback):
    def __init__(self, factor: float) -> None:
        self.factor, self.calls = factor, 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.calls += 1
        with torch.no_grad():
            pl_module.net[0].weight.mul_(self.factor ** (self.calls % 2))

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.calls += int(trainer.callback_metrics["val_loss"] > 0)


class Late(EarlyStopping):
    """Begins after two epochs."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch >= 2:
            super().on_train_epoch_end(trainer, pl_module)


class Data(LightningDataModule):
    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters()

    def prepare_data(self) -> None:
        self.prepared = True

    def setup(self, stage: str) -> None:
        self.batches = BATCHES if self.prepared else 0

    def train_dataloader(self) -> Any:
        return data(self.batches)

    def val_dataloader(self) -> Any:
        return [data(2, seed=2)]

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return [batch[0] * 1.5, batch[1]]


@dataclass(frozen=True)
class Case:
    """A module, its flags, and where its data is from."""

    module: Callable[[], LightningModule]
    flags: dict[str, Any] = field(default_factory=dict)
    train: Callable[[], Any] | None = data
    val: Callable[[], Any] | None = None
    datamodule: Callable[[], Any] | None = None


def val() -> Any:
    return data(2, seed=2)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(data().dataset)


def stopping(monitor: str = "val_loss", **arguments: Any) -> dict[str, Any]:
    """Flags with EarlyStopping."""
    return {"callbacks": [lambda: EarlyStopping(monitor, **arguments)]}


def several() -> Any:
    return [data(2, seed=2), data(3, seed=3)]


CASES = {
    "the usual module": Case(Base),
    "a step that takes the batch alone, and returns a dictionary": Case(Unnamed),
    "validated": Case(Validated, val=val),
    "validated twice an epoch": Case(Validated, {"val_check_interval": 0.5}, val=val),
    "values of steps and epochs, and reductions": Case(Forked, {"log_every_n_steps": 3}, val=val),
    "accumulated and clipped": Case(Base, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}),
    "clipped by value": Case(Base, {"gradient_clip_val": 0.05, "gradient_clip_algorithm": "value"}),
    "limited": Case(Validated, {"limit_train_batches": 0.8, "limit_val_batches": 1}, val=val),
    "limited, and validated by a share of that": Case(
        Validated, {"limit_train_batches": 0.4, "val_check_interval": 0.5}, train=lambda: data(10), val=val
    ),
    "a stream, limited": Case(
        Counters, {"limit_train_batches": 3, "accumulate_grad_batches": 2}, train=lambda: DataLoader(Stream(), 8)
    ),
    "overfitted": Case(Counters, {"overfit_batches": 2}, train=lambda: data(10), val=lambda: data(4, seed=2)),
    "a dry run": Case(Validated, {"fast_dev_run": 3, "limit_train_batches": 1, "val_check_interval": 2}, val=val),
    "some losses are None": Case(SomeNone),
    "all losses of an epoch are None": Case(NoneAtFirst),
    "torchmetrics": Case(Metrics, val=val),
    "counters": Case(Counters),
    "counters of several validations": Case(Counters, {"limit_val_batches": 0.5}, val=several),
    "hooks": Case(Hooks, {"accumulate_grad_batches": 2}, val=val),
    "a schedule by steps": Case(Steps),
    "a schedule by epochs, two lists": Case(Epochs),
    "a schedule every second step, logged": Case(Frequent),
    "a plateau": Case(Plateau, val=val),
    "a plateau by steps": Case(PlateauOfSteps, {"val_check_interval": 2}, val=val),
    "warm-up after the step": Case(WarmUp),
    "configure_gradient_clipping": Case(OwnClip),
    "backward": Case(OwnBackward, {"accumulate_grad_batches": 2}),
    "optimizer_zero_grad": Case(OwnZero),
    "LBFGS": Case(LBFGS),
    "manual optimization": Case(Manual, val=val),
    "manual windows over the end of an epoch": Case(ManualOverEpochs, train=lambda: data(10), val=val),
    "a GAN": Case(GAN),
    "loaders of the module": Case(OwnLoaders, train=None),
    "a datamodule": Case(Validated, train=None, datamodule=Data),
    "several validation loaders": Case(SeveralValidations, val=several),
    "values of each batch of a validation": Case(OfEachBatch, val=several),
    "two training loaders": Case(Pairs, train=lambda: {"a": data(), "b": data(4, seed=5)}),
    "batch transfers": Case(Transfers),
    "a classifier": Case(Classes),
    "callbacks": Case(Callbacks, {"callbacks": [lambda: Scaling(1.001)]}, val=val),
    "a subclass of EarlyStopping": Case(Validated, {"callbacks": [lambda: Late("val_loss", patience=1)]}, val=val),
    "EarlyStopping without patience": Case(Validated, stopping(patience=0), val=val),
    "EarlyStopping of a metric that is not always there": Case(Validated, stopping("val_los", strict=False), val=val),
    "EarlyStopping at each end of an epoch": Case(
        Validated, {**stopping(patience=1, check_on_train_epoch_end=True), "val_check_interval": 0.4}, val=val
    ),
    "EarlyStopping of a metric of training": Case(
        Validated, {**stopping("train_loss", patience=2), "val_check_interval": 0.4}, val=val
    ),
    "two of EarlyStopping": Case(
        Validated, {"callbacks": [lambda: EarlyStopping("val_loss"), lambda: EarlyStopping("train_loss", 9.0)]}, val=val
    ),
    "shuffled": Case(Base, train=lambda: data(shuffle=True)),
}
