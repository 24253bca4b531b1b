"""What a kind makes of a resource: a copy, which is a resource too."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CopyOf:
    """A copy of the resource in a slot that the kind reads."""

    source: str


def copy_of(source: str) -> CopyOf:
    """A resource that is a copy of another one, for ``@node(makes=...)``: averaged weights, a target network.

    It is made once, when the run is set up and before anything is loaded: a deep copy, whose parameters need no
    gradients. Where a resource of its name is supplied, that one is taken.

    Arguments:
        source: the slot with the resource that is copied; the kind reads it.

    >>> from graphtrain.kind import kind_of, node
    >>> @node(makes={"target": copy_of("model")})
    ... def follow(model, target):
    ...     '''Let `target` follow `model`.'''
    >>> kind_of(follow).makes["target"].source
    'model'
    """
    return CopyOf(source)
