"""The old place of `graphtrain.kind.parameter`."""

from graphtrain.kind.parameter import Above as Above
