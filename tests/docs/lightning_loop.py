"""What Lightning's Trainer does with its options, in one plain loop; its source was read, nothing of it is imported.

Other tests compare this loop with Lightning itself, where that is installed, and graphtrain with this loop everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from tests.docs.small_training import Materials, Record, Training

_DEFAULTS: dict[str, Any] = {
    "max_epochs": 3,
    "max_steps": -1,
    "max_time": {},
    "min_epochs": 0,
    "min_steps": 0,
    "limit_train_batches": 1.0,
    "limit_val_batches": 1.0,
    "overfit_batches": 0,
    "fast_dev_run": False,
    "val_check_interval": 1.0,
    "check_val_every_n_epoch": 1,
    "num_sanity_val_steps": 0,
    "accumulate_grad_batches": 1,
    "gradient_clip_val": None,
    "gradient_clip_algorithm": "norm",
    "precision": "32-true",
    "log_every_n_steps": 50,
    "deterministic": False,
}


def run(training: Training, options: Mapping[str, Any], callbacks: Mapping[str, Mapping[str, Any]]) -> Record:
    """Train as Lightning does with these options and callbacks."""
    return _Loop(training, options, callbacks).run()


def number_of(limit: int | float, length: int) -> int:
    """How many of `length` batches a limit leaves; a fraction is rounded down, as binary floats multiply."""
    return min(limit, length) if isinstance(limit, int) else int(length * limit)


class _Loop:
    def __init__(
        self, training: Training, options: Mapping[str, Any], callbacks: Mapping[str, Mapping[str, Any]]
    ) -> None:
        assert options.keys() <= _DEFAULTS.keys(), options.keys() - _DEFAULTS.keys()
        self.option = {**_DEFAULTS, **options}
        self.callbacks = callbacks
        if few := int(self.option["fast_dev_run"]):
            self.option |= {"limit_train_batches": few, "limit_val_batches": few, "max_steps": few, "max_epochs": 1}
        if overfit := self.option["overfit_batches"]:
            self.option |= {"limit_train_batches": overfit, "limit_val_batches": overfit}
            training = Training(**{**vars(training), "shuffle": False})
        self.training = training
        self.materials = Materials(training)
        self.batches = number_of(self.option["limit_train_batches"], training.batches)
        self.epoch = self.steps = self.fetched = self.waited = 0
        self.best = math.inf
        self.validated_at = 0.0
        self.should_stop = False
        self.rows: list[list[Any]] = []
        self.checkpoints: list[tuple[float, int]] = []

    def run(self) -> Record:
        if self.option["num_sanity_val_steps"]:
            self.validate_few(self.option["num_sanity_val_steps"])
        while not self.ended():
            self.train_epoch()
            self.epoch += 1
        checkpoints = sorted(step for _, step in self.checkpoints)
        limit = self.option["limit_val_batches"]
        batches = [self.batches, *(number_of(limit, length) for length in self.training.val if limit)]
        self.materials.record.more = {
            "steps": self.steps,
            "batches": batches,
            "rows": self.rows,
            "checkpoints": checkpoints,
        }
        return self.materials.finished()

    def ended(self) -> bool:
        return (
            self.steps_are_reached()
            or self.epoch == self.option["max_epochs"]
            or (self.should_stop and self.may_stop_early())
        )

    def steps_are_reached(self) -> bool:
        return self.option["max_steps"] != -1 and self.steps >= self.option["max_steps"]

    def may_stop_early(self) -> bool:
        return self.epoch >= self.option["min_epochs"] and self.steps >= self.option["min_steps"]

    def window(self) -> int:
        every = self.option["accumulate_grad_batches"]
        for epoch, size in self.callbacks.get("GradientAccumulationScheduler", {}).get("scheduling", {}).items():
            if self.epoch >= int(epoch):
                every = size
        return int(every)

    def train_epoch(self) -> None:
        model, optimizer, hook = self.materials.model, self.materials.optimizer, self.materials.hook
        hook("on_train_epoch_start")
        for index, batch in zip(range(self.batches), self.materials.train_data, strict=False):
            last = index + 1 == self.batches
            hook("on_train_batch_start")
            with torch.autocast("cpu", torch.bfloat16, enabled=self.option["precision"] == "bf16-mixed"):
                loss = self.materials.train_loss(batch, self.epoch, index, self.steps, last)
            if index % self.window() == 0:
                hook("on_before_zero_grad")
            (loss / self.window()).backward()
            hook("on_after_backward")
            self.fetched += 1
            stepped = (index + 1) % self.window() == 0 or last
            if stepped:
                hook("on_before_optimizer_step")
                self.clip()
                optimizer.step()
                optimizer.zero_grad()
                self.steps += 1
            if self.materials.scheduler is not None and (last if self.training.schedule == "epoch" else stepped):
                self.materials.scheduler.step()
            if self.materials.seconds() >= self.option["max_time"].get("seconds", math.inf):
                self.should_stop = True
            hook("on_train_batch_end")
            if stepped:
                self.log(loss.item())
                self.save("every_n_train_steps", self.steps)
            if self.validation_is_due(index):
                self.validate()
            if self.steps_are_reached() or (self.should_stop and self.may_stop_early()):
                break
        hook("on_train_epoch_end")
        model.zero_grad()  # the gradients of a window that a stop leaves open are never used

    def log(self, loss: float) -> None:
        due = self.should_stop or self.steps % self.option["log_every_n_steps"] == 0
        if due and not self.option["fast_dev_run"]:
            self.rows.append([self.steps - 1, loss, *self.rate()])

    def rate(self) -> list[float]:
        return self.materials.record.rates[-1:] if "LearningRateMonitor" in self.callbacks else []

    def clip(self) -> None:
        bound = self.option["gradient_clip_val"]
        parameters = self.materials.model.parameters()
        if bound is not None and self.option["gradient_clip_algorithm"] == "value":
            torch.nn.utils.clip_grad_value_(parameters, bound)
        elif bound is not None:
            torch.nn.utils.clip_grad_norm_(parameters, bound)

    def validation_is_due(self, index: int) -> bool:
        every_epochs, every = self.option["check_val_every_n_epoch"], self.option["val_check_interval"]
        if every_epochs is not None and (self.epoch + 1) % every_epochs:
            return False
        if self.should_stop and self.may_stop_early():
            return True
        if isinstance(every, str):
            days, hours, minutes, seconds = map(int, every.split(":"))
            interval = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
            return self.materials.seconds() - self.validated_at >= interval
        if isinstance(every, float):
            every = max(1, int(self.batches * every))
        return bool((self.fetched if every_epochs is None else index + 1) % every == 0)

    def validate(self) -> None:
        self.validate_few(None)
        self.validated_at = self.materials.seconds()
        early = self.callbacks.get("EarlyStopping")
        loss = self.val_loss
        if early is not None:
            self.waited = 0 if loss + early.get("min_delta", 0.0) < self.best else self.waited + 1
            self.best = min(self.best, loss)
            self.should_stop = self.should_stop or self.waited >= early.get("patience", 3)
        self.save("every_n_epochs", self.epoch + 1, loss)

    def validate_few(self, limit: int | None) -> None:
        losses, hook = [], self.materials.hook
        hook("on_validation_start")
        for data, length in zip(self.materials.val_data, self.training.val, strict=True):
            few = number_of(self.option["limit_val_batches"], length)
            with torch.no_grad():
                for index, batch in zip(range(few if limit is None else min(few, limit)), data, strict=False):
                    hook("on_validation_batch_start")
                    losses.append(float(self.materials.val_loss(batch, index)))
                    hook("on_validation_batch_end")
        hook("on_validation_end")
        self.val_loss = sum(losses) / max(len(losses), 1)

    def save(self, unit: str, count: int, loss: float = 0.0) -> None:
        rules = self.callbacks.get("ModelCheckpoint", {})
        if unit not in rules or count % rules[unit]:
            return
        rank = -self.steps if "monitor" not in rules else -loss if rules.get("mode") == "max" else loss
        self.checkpoints.append((rank, self.steps))
        if (most := rules.get("save_top_k", 1)) != -1:
            self.checkpoints = sorted(self.checkpoints)[:most]
