"""A junction: a node that does nothing, whose edges decide."""

from __future__ import annotations

from graphtrain.kind import node


@node
def choice() -> None:
    """Do nothing; the first edge whose guard holds is taken."""
