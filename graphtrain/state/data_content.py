"""The contents of data that no checkpoint holds: hashed at a save, and compared by a resume."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from graphtrain.state.baseline import Baseline
from graphtrain.state.codec import shown_path
from graphtrain.state.content import ContentHash, content_hash
from graphtrain.state.reachable import Reached

Contents = dict[str, dict[str, Any]]
"""By the name of data: `parts`, path -> hash; the `bytes` of them; `is_whole`, False if a sample was compared."""

_MOST_PARTS = 1_000
_OTHER = (
    "holds other values than when it was saved: training changed them in place, or `setup` makes others; "
    "change copies, or seed `setup`"
)


@dataclass(frozen=True)
class ComparedData:
    """The result of comparing data.

    Attributes:
        changed: a line for each data with other contents.
        sampled: those that were compared by sample, in words; empty for none.
    """

    changed: list[str] = field(default_factory=list)
    sampled: str = ""


@final
class DataContent:
    """The contents of the data of a run, by which a resume finds out whether they have changed."""

    def __init__(self, baseline: Baseline) -> None:
        self._baseline, self._path_of = baseline, baseline.reachable.path_of

    def _now(self, changed: Collection[str], content: ContentHash) -> Contents:
        contents: Contents = {}
        for name, listed in self._baseline.listed_data().items():
            before, content.is_whole = content.bytes, True
            parts = {
                reached.path: content.of(reached.path, reached.value)
                for reached in listed
                if _is_compared(reached) and reached.path not in changed
            }
            if len(parts) > _MOST_PARTS:
                parts = {name: content_hash(parts)}
            contents[name] = {"parts": parts, "bytes": content.bytes - before, "is_whole": content.is_whole}
        return contents

    def contents(self, changed: Collection[str]) -> tuple[Contents, list[str]]:
        """The present contents of data, for a checkpoint; and a line for data that was changed meanwhile.

        Called in another thread.

        Arguments:
            changed: the saved paths.
        """
        try:
            return self._now(changed, ContentHash(self._path_of, pauses=True)), []
        except RuntimeError:  # for instance, a dictionary has changed its size
            return {}, [f"{name} was changed while it was compared" for name in self._baseline.listed_data()]

    def compared(
        self, saved: Mapping[str, Any], unknown: Collection[str], changed: Collection[str], but: Collection[str]
    ) -> ComparedData:
        """The present contents of data, compared with those when a checkpoint was made.

        Arguments:
            saved: the contents then.
            unknown: the lines that the checkpoint reports.
            changed: the paths that it has saved.
            but: the names of data that is already reported.
        """
        if not saved:
            return ComparedData()
        now = self._now(changed, ContentHash(self._path_of))
        reported = [line.partition(" ")[0] for line in unknown]
        lines = [
            f"{shown_path(path)} {_OTHER}"
            for path in _differing(saved, {name: content for name, content in now.items() if name not in but})
            if shown_path(path) not in reported
        ]
        sampled = [name for name in now if name in saved and not (saved[name]["is_whole"] and now[name]["is_whole"])]
        sizes = ", ".join(f"{name} ({_shown_size(now[name]['bytes'])})" for name in sampled)
        return ComparedData(lines, f"{sizes} compared by sample" if sampled else "")


def _is_compared(reached: Reached) -> bool:
    """True for objects that may change in place and are not saved with every checkpoint."""
    if not reached.is_data or reached.is_covered:
        return False
    return reached.category in ("tensor", "array", "buffer") or not reached.is_entered


def _differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The paths that differ, without those that only one of them has."""
    return [
        path
        for name in now
        if name in before
        for path, content in now[name]["parts"].items()
        if before[name]["parts"].get(path, content) != content
    ]


def _shown_size(size: int) -> str:
    """Bytes, for a message.

    >>> _shown_size(40_200_000_000)
    '40 GB'
    """
    return f"{size / 1e9:.0f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
