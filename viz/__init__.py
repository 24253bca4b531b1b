"""Pictures of graphs: a description, then DOT or Mermaid.

Promise: a picture that fails never fails a run.

Stands on: graph, storage.

Other rooms use:
    describe: describe
    difference: describe_difference
    dot: to_dot
    render: element, render, svg
    theme: style
"""

from graphtrain.viz.render import render as render
from graphtrain.viz.render import svg as svg
