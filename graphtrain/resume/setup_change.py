"""What was set up when a run began, compared with what is set up for a resume."""

from __future__ import annotations

from collections.abc import Mapping

_MOST = 3


def setup_changes(saved: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What differs, in words, by the hashes of what was set up.

    Arguments:
        saved: path -> hash; empty where it is not known.

    >>> setup_changes({"model.noise": "a1", "task": "b2"}, {"model.noise": "c3", "task": "b2"})
    ['model.noise differs from what was set up when the run began: seed what makes it, or give it a state_dict']
    """
    differing = [path for path, found in now.items() if path in saved and saved[path] != found]
    lines = [
        f"{path} differs from what was set up when the run began: seed what makes it, or give it a state_dict"
        for path in differing[:_MOST]
    ]
    return lines + ([f"{len(differing) - _MOST} more objects differ"] if len(differing) > _MOST else [])
