"""Pictures of graphs."""

from graphtrain.viz.render import render as render
from graphtrain.viz.render import svg as svg
