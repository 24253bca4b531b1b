"""Whether small or large values of a metric are good."""

from __future__ import annotations

import re
from typing import Literal

Mode = Literal["min", "max"]

_SMALL = frozenset({"loss", "error", "perplexity", "bits"})


def known_mode(metric: str) -> Mode | None:
    """ "min" for a metric whose last part says that it is a loss or the like; None where its name does not tell.

    >>> known_mode("val/loss"), known_mode("val/top1_error"), known_mode("val/accuracy"), known_mode("loss/f1")
    ('min', 'min', None, None)
    """
    words = re.split(r"[^a-z]+", metric.rpartition("/")[2].casefold())
    return "min" if not _SMALL.isdisjoint(words) else None
