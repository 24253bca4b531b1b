"""Distillation on handwritten digits: a student without labels learns from a teacher's predictions on 1,000 images.

    graphtrain run graphs/gallery/distill/distill.py --overlay distill finish.after='5 epochs'

The teacher was trained with the labels of these images. The student, a smaller network, does not get the labels but the
softened predictions of the teacher. The overlay `distill` calls the teacher before each step.
"""

from typing import Any

from graphtrain import StepFunction, lazy_import, node

datasets = lazy_import("sklearn.datasets")
torch = lazy_import("torch")
nn = lazy_import("torch.nn")


@node(writes="teacher_output", family="compute")
class Teach:
    """Call ``teacher_step(teacher, batch)`` without gradients; the training step can take its `teacher_output`.

    The teacher is in evaluation mode, and its parameters do not require gradients. It is saved like any resource; its
    weights do not change, so they are written only once, and with ``not_state="teacher"`` never.
    Source: Hinton, Vinyals and Dean, "Distilling the knowledge in a neural network", 2014.

    Reads:
        teacher_step: returns the value for the training step, such as logits.

    Writes:
        teacher_output: the returned value.

    >>> import torch
    >>> from graphtrain import Graph
    >>> def teacher_step(teacher, batch):
    ...     return teacher(batch)
    >>> teacher = torch.nn.Linear(2, 1)
    >>> graph = Graph.load("fit").overlay("distill")
    >>> graph.check()
    []
    """

    def setup(self, teacher: Any) -> None:
        teacher.eval().requires_grad_(False)

    def __call__(self, teacher: Any, batch: Any, teacher_step: StepFunction) -> Any:
        with torch.no_grad():
            return teacher_step(teacher, batch)


def setup() -> dict[str, Any]:
    """The resources of the run."""
    pixels, digits = datasets.load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
    train, val = torch.randperm(1797, generator=torch.Generator().manual_seed(0)).split([1000, 797])
    teacher = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(teacher.parameters(), lr=0.01)
    for _ in range(60):
        nn.functional.cross_entropy(teacher(images[train]), labels[train]).backward()
        optimizer.step()
        optimizer.zero_grad()
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

    def training_step(model: Any, batch: Any, teacher_output: Any) -> Any:
        temperature = 2.0  # divides the logits of both networks
        targets = torch.softmax(teacher_output / temperature, 1)
        return nn.functional.cross_entropy(model(batch[0]) / temperature, targets) * temperature**2

    return {
        "model": model,
        "teacher": teacher,
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.01),
        "train_data": [*zip(images[train].split(16), strict=True)],
        "val_data": [(images[val], labels[val])],
        "training_step": training_step,
        "validation_step": lambda model, batch: {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()},
        "teacher_step": lambda teacher, batch: teacher(batch[0]),
    }
