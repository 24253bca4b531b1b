"""Scripts for `verify --cuts`: with every sort of state, with ways to save it wrongly, with state out of reach."""

from __future__ import annotations

from tests.looking.running import TINY

# Dropout, batch norm, a buffer that is not persistent, flags and modes that change on the way, a counter, generators
# of three libraries and of the data, momentum, a schedule.
STATEFUL = """\
import random

import numpy
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.norm, self.dropout, self.last = torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.3), torch.nn.Linear(4, 1)
        self.register_buffer("mean", torch.zeros(4), persistent=False)
        self.second.requires_grad_(False)
        self.seen = 0

    def forward(self, inputs):
        if self.training:
            self.seen += 1
            self.mean.lerp_(inputs.mean(0), 0.1)
            if self.seen == 5:
                self.second.requires_grad_(True)
            if self.seen == 8:
                self.norm.momentum = 0.3
        hidden = self.dropout(self.norm(self.second(self.first(inputs - self.mean))))
        return self.last(hidden) / (1 + self.seen % 3)


def training_step(model, batch):
    if model.seen == 6:
        model.dropout.eval()
    noise = torch.randn(4) + random.random() + numpy.random.rand()
    return torch.nn.functional.mse_loss(model(batch[0] + noise.float()), batch[1])


def setup():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    inputs = torch.randn(23, 4)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    generator = torch.Generator().manual_seed(3)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
        "train_data": torch.utils.data.DataLoader(data, 3, shuffle=True, generator=generator),
        "val_data": [part for part in torch.utils.data.DataLoader(data, 8)],
        "training_step": training_step,
    }
"""
STATEFUL_SETTINGS = ("accumulate.every=3", "clip.max_norm=1.0", "validate.every=0.5 epochs", "log.every=2 steps",
                     "finish.after=2 epochs")  # fmt: skip

_MUTATION = """

from graphtrain.program.run_state import RunState
from graphtrain.program.stateful_objects import StatefulObjects

captured = StatefulObjects.capture


def of(saved, section, name, **values):
    saved[section] = {{**saved[section], name: {{**saved[section][name], **values}}}}


def of_adam(saved, name):
    state = saved["resources"]["optimizer"]["state"]
    zeros = {{key: {{**fields, name: torch.zeros_like(fields[name])}} for key, fields in state.items()}}
    of(saved, "resources", "optimizer", state=zeros)


def change(saved):
    {body}


def changed(self, *arguments):
    saved = {{name: dict(part) for name, part in captured(self, *arguments).sections().items()}}
    change(saved)
    return RunState.of(saved)


StatefulObjects.capture = changed
"""

# What is saved wrongly -> how. The digest, made of what was captured, agrees with each of them.
MUTATIONS = {
    "torch's generator": 'saved["random"]["torch"] = torch.Generator().manual_seed(7).get_state()',
    "Python's generator": 'saved["random"]["python"] = random.Random(7).getstate()',
    "NumPy's generator": 'saved["random"]["numpy"] = numpy.random.RandomState(7).get_state(legacy=True)',
    "a generator of the data": 'saved["random"]["generators"] = {}',
    "gradients": 'saved["gradients"] = {"model": {}}',
    "the position in the window": 'of(saved, "progress", "accumulate", count=0)',
    "the first moments": 'of_adam(saved, "exp_avg")',
    "the counts of the optimizer": 'of_adam(saved, "step")',
    "training modes": 'of(saved, "modules", "model", training={})',
    "frozen flags": 'of(saved, "modules", "model", requires_grad={})',
    "a buffer that is not persistent": 'of(saved, "modules", "model", buffers={})',
    "the batch": 'saved["slots"] = {name: type(value)(value.part, value.data, {key: part * 0 for key, part in '
    'value.tensors.items()}) if name == "batch" else value for name, value in saved["slots"].items()}',
    "the position in the data": 'of(saved, "progress", "next_batch", '
    'epoch_batches=max(saved["progress"]["next_batch"]["epoch_batches"], 1) - 1)',
    "the epoch": 'of(saved, "progress", "next_batch", epoch=0)',
    "the step": 'of(saved, "progress", "step", steps=0)',
    "the schedule": 'of(saved, "resources", "scheduler", last_epoch=0)',
    "running means": 'saved["metrics"] = {"train": {"log": {}, "epoch": {}}}',
    "what has changed since setup": 'saved.pop("reachable", None)',
    "statistics of batch norm": 'of(saved, "resources", "model", **{"norm.running_mean": torch.zeros(4)})',
    "two parameters, swapped": 'of(saved, "resources", "model", **{"first.weight": saved["resources"]["model"]'
    '["second.weight"], "second.weight": saved["resources"]["model"]["first.weight"]})',
    "the last bits of weights": 'of(saved, "resources", "model", '
    '**{"last.weight": saved["resources"]["model"]["last.weight"].bfloat16().float()})',
    "the last firing of a trigger": 'of(saved, "progress", "validate", fired={"epochs": [0, 1, None]})',
}  # fmt: skip


def mutated(name: str) -> str:
    """The script with every sort of state, which changes how it is saved."""
    return STATEFUL + _MUTATION.format(body=MUTATIONS[name])


def _hidden(imports: str, defined: str, count: str, made: str = "") -> str:
    """A script whose loss depends on a count of its steps, which is kept somewhere.

    Arguments:
        defined: at the top level.
        count: an expression that counts, and gives the count.
        made: the beginning of `setup`.
    """
    script = TINY.replace("import torch\n", f"{imports}\nimport torch\n\n{defined}\n")
    script = script.replace("model(batch).square().mean()", f"model(batch).square().mean() / (1 + {count})")
    return script.replace("    model = torch.nn.Linear", f"    {made or 'pass'}\n    model = torch.nn.Linear")


# Where the count is -> the script. A resume cannot bring it back.
HIDDEN = {
    "lru_cache": _hidden(
        "import functools",
        "@functools.lru_cache(None)\ndef steps():\n    return [0]\n\n"
        "def counted():\n    steps()[0] += 1\n    return steps()[0]",
        "counted()",
    ),
    "the environment": _hidden(
        "import os",
        "def counted():\n    os.environ['COUNT'] = str(int(os.environ.get('COUNT', 0)) + 1)\n"
        "    return int(os.environ['COUNT'])",
        "counted()",
    ),
    "a generator": _hidden(
        "",
        "def numbers():\n    n = 0\n    while True:\n        n += 1\n        yield n\n\ncount = numbers()",
        "next(count)",
    ),
    "memory of a worker": TINY.replace(
        "def setup",
        "class Counting:\n    def __init__(self):\n        self.reads = 0\n\n    def __len__(self):\n"
        "        return 8\n\n    def __getitem__(self, index):\n        self.reads += 1\n"
        "        return torch.full((2,), float(index + self.reads))\n\ndef setup",
    ).replace(
        "[torch.randn(2, 2) for _ in range(batches)]",
        "graphtrain.Loader(Counting(), batch_size=2, num_workers=1)",
    ).replace("import torch\n", "import graphtrain\nimport torch\n"),
}  # fmt: skip

# Those of which the resume itself reports that it is not exact.
REPORTED = {"a generator", "memory of a worker"}

# Two runs differ already.
CLOCK = _hidden("import time", "", "time.perf_counter_ns() % 1000")
