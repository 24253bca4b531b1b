"""The contents of data that no checkpoint holds: hashed by the thread that writes, and compared by a resume."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any

from graphtrain.state.content import ContentHash
from graphtrain.state.snapshot import StateSnapshot

_OTHER = (
    "holds other values than when it was saved: training changed them in place, or `setup` makes others; "
    "change copies, or seed `setup`"
)


def data_contents(
    snapshot: StateSnapshot, saved: Collection[str], *, pauses: bool = False
) -> dict[str, dict[str, Any]]:
    """The present contents of data, of all that may change in place and is not saved.

    By the name of data: its `hash`; and `is_whole`, False if some of it is beyond the bounds.

    Arguments:
        saved: the paths of what is saved.
        pauses: True lets other threads run at intervals.
    """
    by_id, contents = snapshot.reachable.by_id, {}
    for name in snapshot.of_data:
        content = ContentHash(lambda value: by_id[id(value)].path if id(value) in by_id else None, pauses=pauses)
        digest = ""
        with contextlib.suppress(RuntimeError):  # training changes a dictionary meanwhile: no resume finds the same
            for entry in snapshot.entries(name):
                is_large = entry.category in ("tensor", "array", "buffer") or not entry.is_entered
                if is_large and entry.is_data and not entry.is_covered and entry.path not in saved:
                    content.add(entry.value, entry.path)
            digest = content.hexdigest()
        contents[name] = {"hash": digest, "is_whole": content.is_whole}
    return contents


def compared_data(
    before: Mapping[str, Any], snapshot: StateSnapshot | None, saved: Collection[str], but: Collection[str]
) -> tuple[list[str], str]:
    """A line for each data with other contents than when a checkpoint was made; and what is too large to compare.

    Arguments:
        before: the contents then; empty if they are not known.
        saved: the paths that the checkpoint has saved.
        but: the names of data that is already reported.
    """
    now = data_contents(snapshot, saved) if before and snapshot is not None else {}
    known = [name for name in now if name in before]
    lines = [f"{name} {_OTHER}" for name in known if name not in but and before[name]["hash"] != now[name]["hash"]]
    large = [name for name in known if not now[name]["is_whole"]]
    return lines, f"{', '.join(large)} compared only in part" if large else ""
