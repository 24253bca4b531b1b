"""Fine-tuning on 60 images: a body pretrained on handwritten digits, with a new head for inverted digits.

    graphtrain run graphs/gallery/unfreeze/unfreeze.py --overlay unfreeze finish.after='15 epochs'

The overlay `unfreeze` trains only the new head for one epoch, while the body is frozen; then it also trains the body,
with a separate optimizer and a smaller learning rate.
"""

from typing import Any

from graphtrain import lazy_import

datasets = lazy_import("sklearn.datasets")
torch = lazy_import("torch")
nn = lazy_import("torch.nn")


def setup() -> dict[str, Any]:
    """The resources of the run."""
    pixels, digits = datasets.load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(digits)
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    first, train, val = order.split([1000, 60, 737])
    body = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    pretrained, model = nn.Sequential(body, nn.Linear(32, 10)), nn.Sequential(body, nn.Linear(32, 10))
    optimizer = torch.optim.Adam(pretrained.parameters(), lr=0.01)
    for _ in range(60):
        nn.functional.cross_entropy(pretrained(images[first]), labels[first]).backward()
        optimizer.step()
        optimizer.zero_grad()
    images = 1 - images
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model[1].parameters(), lr=0.02),
        "body_optimizer": torch.optim.Adam(body.parameters(), lr=0.002),
        "train_data": [*zip(images[train].split(8), labels[train].split(8), strict=True)],
        "val_data": [(images[val], labels[val])],
        "training_step": lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        "validation_step": lambda model, batch: {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()},
    }
