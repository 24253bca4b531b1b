"""A generative adversarial network for points on a circle.

    graphtrain run graphs/gallery/gan/gan.py finish.after='20 epochs'

`val/distance` is the energy distance between generated and held-out points (Székely and Rizzo, 2013); it is 0 if both
have the same distribution. The graph `gan` trains the critic on every batch, and the generator after every
`alternate.every` critic steps; in each step, the other network gets no gradients.
Source: Goodfellow et al., "Generative adversarial nets", 2014.
"""

from typing import Annotated, Any

from graphtrain import Above, lazy_import, node

torch = lazy_import("torch")
nn = lazy_import("torch.nn")

graph = "gan"


@node(family="choice")
def alternate(*, every: Annotated[int, Above(0)] = 1) -> None:
    """Count visits; a guard tells whether it is the other's turn: ``alternate.runs % alternate.every == 0``.

    Arguments:
        every: visits per turn of the other optimizer. Default: 1, they alternate.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").insert("alternate", after="zero_grad", every=5)
    >>> graph.check()
    []
    """


def generated(model: Any, count: int) -> Any:
    """Generated points, shape (count, 2)."""
    return model["generator"](torch.randn(count, 4))


def critic_loss(model: Any, batch: Any) -> Any:
    """The loss of the critic, which tells real points from generated ones."""
    scores, fake_scores = model["critic"](batch), model["critic"](generated(model, len(batch)))
    return nn.functional.softplus(-scores).mean() + nn.functional.softplus(fake_scores).mean()


def generator_loss(model: Any, batch: Any) -> Any:
    """The loss of the generator, which tries to deceive the critic."""
    return nn.functional.softplus(-model["critic"](generated(model, len(batch)))).mean()


def validation_step(model: Any, batch: Any) -> dict[str, Any]:
    """The energy distance."""
    fake = generated(model, len(batch))
    within = torch.cdist(fake, fake).mean() + torch.cdist(batch, batch).mean()
    return {"distance": 2 * torch.cdist(fake, batch).mean() - within}


def setup() -> dict[str, Any]:
    """The resources of the run."""

    def network(inputs: int, outputs: int) -> Any:
        hidden = nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2)
        return nn.Sequential(*hidden, nn.Linear(64, outputs))

    angles = torch.rand(22_000) * 2 * torch.pi
    points = torch.stack([angles.cos(), angles.sin()], 1) * 2 + 0.1 * torch.randn(22_000, 2)
    model = nn.ModuleDict({"generator": network(4, 2), "critic": network(2, 1)})
    return {
        "model": model,
        "critic_optimizer": torch.optim.Adam(model["critic"].parameters(), 5e-4, betas=(0.5, 0.9)),
        "generator_optimizer": torch.optim.Adam(model["generator"].parameters(), 5e-4, betas=(0.5, 0.9)),
        "train_data": points[:20_000].split(256),
        "val_data": [points[20_000:]],
        "critic_loss": critic_loss,
        "generator_loss": generator_loss,
        "validation_step": validation_step,
    }
