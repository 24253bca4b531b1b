"""What was set up when a run began, compared with what is set up for a resume."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

_MOST = 3


def setup_changes(saved: Mapping[str, str], now: Mapping[str, str], without: Collection[str] = ()) -> list[str]:
    """The paths of what differs, by the hashes of what was set up.

    Arguments:
        saved: path -> hash; empty where it is not known.
        without: paths of what is known to differ, with all that is reached through it. Default: none.

    >>> setup_changes({"model.noise": "a1", "task": "b2"}, {"model.noise": "c3", "task": "b2"})
    ['model.noise']
    """
    return [
        path
        for path, found in now.items()
        if path in saved
        and saved[path] != found
        and not any(path == name or path.startswith((f"{name}.", f"{name}[")) for name in without)
    ]


def unexplained(paths: Sequence[str]) -> list[str]:
    """A line for each path that differs although nobody changed anything."""
    lines = [
        f"{path} differs from what was set up when the run began: seed what makes it, or give it a state_dict"
        for path in paths[:_MOST]
    ]
    return lines + ([f"{len(paths) - _MOST} more objects differ"] if len(paths) > _MOST else [])
