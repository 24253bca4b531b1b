"""What is reported of a resume: what has changed since the checkpoint, and whether it continues bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from graphtrain.resume.environment import RunEnvironment
from graphtrain.resume.restore import Restored
from graphtrain.resume.setup_change import unexplained


class ResumeChanges(NamedTuple):
    """What has changed, in words.

    Attributes:
        changes: of graph, hyper-parameters, code, arguments, data and weights.
        facts: for the line of the resume; some may be empty.
    """

    changes: tuple[str, ...]
    facts: list[str]


def report(
    restored: Restored,
    manifest: Mapping[str, Any],
    environment: RunEnvironment | None,
    different_setup: Mapping[str, str],
) -> ResumeChanges:
    """Compare this process with the one that made a checkpoint.

    Arguments:
        environment: of this process; None where a run without a run directory resumes in memory.
        different_setup: what differs from what `setup` made then: path -> what to do.
    """
    changes, facts = tuple(restored.changes), [restored.aside]
    lost = [*manifest["unknown"], *restored.lost]
    others = [*restored.changes]
    if environment is not None:
        changed = environment.changes(manifest)
        if changed:
            others += [f"{path} as set up" for path in different_setup]
        else:
            lost += unexplained(different_setup)
        facts += [environment.asides(manifest), environment.compared(manifest, others, lost)]
        changes += (*changed, *environment.changes_of_weights(manifest))
    elif lost:
        facts.append(f"not exact: {', '.join([*lost, *others])}")
    elif others:
        facts.append(f"exact except for what changed: {', '.join(others)}")
    if restored.sampled and not lost:
        facts.append(restored.sampled)
    return ResumeChanges(changes, facts)
