"""What the server has imported that processes of rows are forked from: all that most rows need, and nothing else."""

from __future__ import annotations

from graphtrain import Graph
from graphtrain.checks import checked_graph

checked_graph(Graph.load("fit"))  # which imports the kinds, and what checks graphs
